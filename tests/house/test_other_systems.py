"""A system without POSIX's own modules, such as Windows: what works there, and what says no.

The modules and functions are hidden in a process of its own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import icefloe

POSIX = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog", "posix")
HIDE = f"""
import os, pkgutil, importlib, sys
import zarr, numpy, pyarrow, obstore
for name in {POSIX!r}:
    sys.modules[name] = None
for name in (
    "pread", "pwrite", "fork", "register_at_fork", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK",
    "O_DIRECTORY", "getuid", "geteuid", "fchmod",
):
    if hasattr(os, name):
        delattr(os, name)
import icefloe
"""

IMPORTS = (
    HIDE
    + """
NEEDS_OTHERS = ("spark", "interop", "as_icechunk", "xarray", "dask", "distributed", "cli")
for module in pkgutil.walk_packages(icefloe.__path__, "icefloe."):
    if module.name.split(".")[1] not in (*NEEDS_OTHERS, "__main__"):
        importlib.import_module(module.name)
"""
)

WORKS = (
    HIDE
    + """
repo = icefloe.Repository.create(icefloe.in_memory_storage())
with repo.transaction("main", message="numbers") as store:
    zarr.create_array(store, name="a", shape=(4,), dtype="i4")[:] = 7
reader = repo.readonly_session("main")
print(zarr.open_array(reader.store, path="a", mode="r")[:].sum())
"""
)

SAYS_NO = (
    HIDE
    + """
try:
    icefloe.Repository.create(icefloe.local_filesystem_storage(sys.argv[1]))
except icefloe.StorageError as error:
    print(error)
"""
)


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_core_can_be_imported() -> None:
    assert run(IMPORTS) == ""


def test_every_module_can_be_imported_with_the_versions_installed() -> None:
    """Also those for Spark, which says DATA_SOURCE_NOT_FOUND of a source it cannot import.

    Spark 3.5 has no data sources in Python.
    """
    program = """
import importlib, importlib.util, pkgutil, icefloe
left_out = {"icefloe.__main__", "icefloe.as_icechunk.__main__"}
name = "icefloe"
if importlib.util.find_spec("pyspark.sql.datasource") is None:
    left_out.add("icefloe.spark.data_source")
else:
    import pyspark_icefloe
    name = pyspark_icefloe.DefaultSource.name()
for module in pkgutil.walk_packages(icefloe.__path__, "icefloe."):
    if module.name not in left_out:
        importlib.import_module(module.name)
print(name)
"""
    assert run(program) == "icefloe\n"


def test_no_module_imports_what_only_posix_has() -> None:
    """Also those that need pyspark, dask or xarray, which hide what they import themselves."""
    package = Path(icefloe.__file__).parent
    found = [
        (path.name, alias.name)
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in POSIX
    ]
    assert found == []


def test_a_repository_in_memory_works() -> None:
    assert run(WORKS) == "28\n"


def test_a_directory_says_what_is_missing(tmp_path: Path) -> None:
    said = run(SAYS_NO, str(tmp_path))
    assert "locks that the system releases when a process dies are missing" in said
    assert "WSL" in said
