"""The examples in docstrings, and the small world in which each of them runs.

Every docstring gets a folder of its own with the repository `weather` and two NetCDF files,
`january.nc` and `february.nc`, and the names of `names_in`. In `weather`, the array `t2m` has four
days, the first of which is 2024-01-01; the tag `v1` and the branch `dev` are at the first commit,
and `main` corrects the second day.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import pickle
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr

import icefloe

PACKAGE = Path(icefloe.__file__).parent


def modules() -> list[str]:
    """The modules of the package that can be imported for their examples.

    Importing as_icechunk changes what objects of this process call themselves, on purpose
    (on_path imports it); and programs are run, not imported.
    """
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    names = [
        ".".join(["icefloe", *path.parts]).removesuffix(".__init__")
        for path in paths
        if path.name != "__main__" and path.parts[0] not in ("as_icechunk", "on_path")
    ]
    return [name for name in names if any(True for _ in doctests_of(name, {}))]


def source_of(module: str) -> Path:
    """The file of a module."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def doctests_of(module: str, names: dict[str, Any]) -> Iterator[doctest.DocTest]:
    """The docstrings of a module that have examples, found in its source.

    doctest's own finder passes over functions that a decorator has replaced.
    """
    path = source_of(module)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds) and ">>> " in (text := ast.get_docstring(node) or ""):
            name = f"{module}.{getattr(node, 'name', '')}"
            line = getattr(node, "lineno", 0)
            yield doctest.DocTestParser().get_doctest(text, names, name, str(path), line)


def make_world(folder: Path) -> None:
    """Write the files of the world into a folder."""
    import xarray as xr

    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = icefloe.local_filesystem_storage(folder / "weather", durable=False)
    repo = icefloe.Repository.create(storage, config)
    with repo.transaction("main", message="Add four days") as store:
        time = zarr.create_array(
            store, name="time", shape=(4,), dtype="i8", dimension_names=["time"]
        )
        time[:] = np.arange(4)
        time.attrs["units"] = "days since 2024-01-01"
        t2m = zarr.create_array(
            store,
            name="t2m",
            shape=(4, 8, 8),
            chunks=(1, 8, 8),
            dtype="f4",
            dimension_names=["time", "y", "x"],
        )
        t2m[:] = 280
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("dev", repo.lookup_branch("main"))
    with repo.transaction("main", message="Correct the second day") as store:
        zarr.open_array(store, path="t2m")[1] = 281
    for number, month in enumerate(["january", "february"]):
        days = np.arange(31) + 31 * number
        values = np.full((31, 8, 8), 280, "f4")
        dataset = xr.Dataset({"t2m": (("time", "y", "x"), values)}, {"time": days})
        dataset.to_netcdf(folder / f"{month}.nc", engine="h5netcdf")
    (folder / "days").mkdir()
    (folder / "days" / "first.json").write_text('{"day": 0, "t2m": 281.5}\n')


def names_in(module: str) -> dict[str, Any]:
    """The names an example can use: those of its module, and some that every reader knows."""
    import dask.array as da
    import xarray as xr

    repo = icefloe.Repository.open(icefloe.local_filesystem_storage("weather", durable=False))
    return {
        **vars(importlib.import_module(module)),
        "icefloe": icefloe,
        "np": np,
        "pa": pa,
        "zarr": zarr,
        "xr": xr,
        "da": da,
        "asyncio": asyncio,
        "pickle": pickle,
        "Path": Path,
        "datetime": datetime,
        "timedelta": timedelta,
        "UTC": UTC,
        "repo": repo,
        "session": repo.writable_session("main"),
    }


def run_examples(
    module: str, world: Path, folder: Path, monkeypatch: Any, **more: Any
) -> list[str]:
    """Run the examples of a module; returns the docstrings that have run."""
    runner = doctest.DocTestRunner()
    ran: list[str] = []
    wrong: list[str] = []
    for number, found in enumerate(doctests_of(module, {})):
        shutil.copytree(world, place := folder / str(number))
        monkeypatch.chdir(place)
        found.globs = {**names_in(module), **more}
        failed, attempted = runner.run(found)
        (wrong if failed or not attempted else ran).append(found.name)
    assert wrong == [], "the examples of these are wrong, see above"
    return ran
