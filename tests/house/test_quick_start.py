"""What a fresh process loads: nothing that it does not need."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import Repository, Storage, local_filesystem_storage
from icefloe.virtual.ingest.request import FIELDS
from tests.servers import S3Server

PROGRAM = Path(__file__).with_name("quick_start_program.py")
MOST_CPU = 0.35
"""Of the first use of `Repository`, as a share of `import zarr` in the same process. It is about
twice what it takes, because other processes of the machine disturb both."""

ALLOWED = {"import": set[str](), "open": {"zstandard"}}
"""Packages of others that a step may load, on a directory; later steps none at all."""

NEVER = {"pandas", "xarray", "dask", "distributed", "h5py", "pyspark", "icechunk", "fsspec"}
NEVER_ON_THE_WAY = {"http.client", "pyarrow", "urllib.request"}
"""Modules that come with no step but the last one, which is about virtual references."""

NOT_ON_A_DIRECTORY = {"hmac", "secrets"}
OLDER = {"icefloe.legacy"}
"""What only repositories of older generations need."""

STEPS = ["import", "open", "read", "list", "commit", "virtual"]


def make(storage: Storage) -> None:
    session = Repository.create(storage, None).writable_session("main")
    array: Any = zarr.create_array(session.store, name="a", shape=(6,), chunks=(2,), dtype="i8")
    array[:] = range(6)
    session.commit("numbers")


def run(cache: Path, *arguments: str) -> Any:
    """What a program says. Compiled modules are kept, as those of installed packages are."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONWARNINGS": "error"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packages(modules: list[str]) -> set[str]:
    tops = {module.partition(".")[0] for module in modules}
    return {top for top in tops if top not in sys.stdlib_module_names and top[0] != "_"}


def is_below(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


@pytest.mark.parametrize("kind", ["directory", "S3"])
def test_every_step_loads_what_it_needs_and_nothing_else(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place, endpoint_url = str(tmp_path / "repository"), ""
    storage = local_filesystem_storage(place)
    if kind == "S3":
        server: S3Server = request.getfixturevalue("s3_server")
        place, endpoint_url = uuid.uuid4().hex, server.endpoint_url
        storage = server.storage(place)
    make(storage)
    loaded = run(tmp_path / "cache", str(PROGRAM), kind, place, endpoint_url)
    assert [*loaded] == STEPS
    for step, modules in loaded.items():
        assert [module for module in modules if is_below(module, NEVER)] == [], step
        if step == "virtual":
            continue
        assert [module for module in modules if is_below(module, NEVER_ON_THE_WAY)] == [], step
        allowed = {"icefloe", *ALLOWED.get(step, set())}
        allowed |= {"obstore"} if kind == "S3" and step == "open" else set()
        assert packages(modules) - allowed == set(), step
    reading = [module for step in ("import", "open", "read") for module in loaded[step]]
    unwanted = OLDER | (NOT_ON_A_DIRECTORY if kind == "directory" else set())
    assert [module for module in reading if is_below(module, unwanted)] == []
    assert [module for module in loaded["import"] if module.startswith("icefloe.")] == []


CREATES = """
import json, sys
import icefloe, zarr
storage = icefloe.local_filesystem_storage(sys.argv[2])
session = getattr(icefloe.Repository, sys.argv[1])(storage).writable_session("main")
zarr.create_array(session.store, name="a", shape=4, chunks=1, dtype="i4")[0] = 1
session.commit("one chunk")
print(json.dumps([*sys.modules]))
"""


@pytest.mark.parametrize("way", ["create", "open_or_create"])
def test_creating_a_repository_loads_nothing_of_older_ones(way: str, tmp_path: Path) -> None:
    modules = run(tmp_path / "cache", "-c", CREATES, way, str(tmp_path / "repository"))
    assert [module for module in modules if is_below(module, OLDER)] == []
    heavy = NEVER | NEVER_ON_THE_WAY | NOT_ON_A_DIRECTORY
    unwanted = heavy - {"fsspec", "hmac", "secrets", "http.client", "urllib.request"}  # by Zarr
    assert [module for module in modules if is_below(module, unwanted)] == []


OPENS = """
import json, sys
import icefloe
icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
print(json.dumps([*sys.modules]))
"""


def test_opening_a_repository_with_settings_loads_no_yaml(tmp_path: Path) -> None:
    place = str(tmp_path / "repository")
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    Repository.create(local_filesystem_storage(place), config)
    modules = run(tmp_path / "cache", "-c", OPENS, place)
    assert not {"yaml", "zarr"} & {*modules}


IMPORTS = """
import time
start = time.process_time()
import zarr
between = time.process_time()
import icefloe
icefloe.Repository
print((time.process_time() - between) / (between - start))
"""


def test_importing_icefloe_takes_little_after_zarr(tmp_path: Path) -> None:
    found = [run(tmp_path / "cache", "-c", IMPORTS) for _ in range(5)]
    assert min(found[1:]) <= MOST_CPU


# --- the front door --------------------------------------------------------------------------


def test_names_on_demand_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(icefloe.__file__).with_suffix(".pyi").read_text())
    seen = {
        (alias.asname, node.module)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "icefloe"
        for alias in node.names
    }
    homes = icefloe.NAMES_OF.items()
    assert seen == {(name, f"icefloe.{home}") for home, names in homes for name in names}
    assert {*(name for name, _ in seen), "credentials", "__version__"} == set(icefloe.__all__)


def test_the_front_door_shows_every_name() -> None:
    assert set(icefloe.__all__) <= set(dir(icefloe))
    names: dict[str, Any] = {}
    exec("from icefloe import *", names)
    assert set(icefloe.__all__) - {"__version__"} <= names.keys()
    assert names["Repository"] is icefloe.Repository
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = icefloe.nothing  # type: ignore[attr-defined]


def test_the_front_door_shows_public_names_only() -> None:
    shown = set(dir(icefloe))
    assert shown - set(icefloe.__all__) == {"dask", "distributed", "spark", "testing", "xarray"}
    assert not [name for name in shown - {"__version__"} if name.startswith("_")]


MODULES = """
import sys, icefloe
names = ("zarr", "xarray", "pyspark", "dask", "numpy")
assert not [name for name in names if name in sys.modules], "import icefloe stays light"
print(icefloe.xarray.to_icechunk, icefloe.dask.store_dask, icefloe.spark.attach)
print(icefloe.distributed.merge_sessions, icefloe.testing)
"""


def test_public_modules_need_no_import_of_their_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODULES], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_ingest_shows_its_arguments() -> None:
    found = inspect.signature(icefloe.ingest).parameters
    assert not [one for one in found.values() if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    assert {"concat_dim", "chunks", "mode", "append", "late", "on_error", "create"} <= found.keys()
    documented = re.findall(r"^ {4,8}(\w+): ", icefloe.ingest.__doc__ or "", re.MULTILINE)
    assert set(found) <= set(documented)


def test_recipes_have_every_plain_argument() -> None:
    objects = {"preprocess", "progress", "engine", "spark"}
    assert inspect.signature(icefloe.ingest).parameters.keys() - objects == FIELDS.keys()
