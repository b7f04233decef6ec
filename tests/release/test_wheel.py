"""Wheel and sdist hold what they should, and work where nothing else is installed."""

from __future__ import annotations

import re
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.release.conftest import ROOT, Built, Install

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

FIRST_USE = """
import icefloe, zarr
repo = icefloe.Repository.create(icefloe.local_filesystem_storage("weather"))
with repo.transaction("main", message="numbers") as store:
    zarr.create_array(store, name="a", shape=(4,), dtype="i4")[:] = 7
reader = repo.readonly_session("main")
assert zarr.open_array(reader.store, path="a", mode="r")[:].sum() == 28
print(icefloe.__version__, icefloe.__file__)
"""


def version() -> str:
    """The version, from the one place where it is written."""
    found = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "src/icefloe/__init__.py").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1]


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_wheel_and_sdist_carry_the_version_of_the_package(built: Built) -> None:
    assert metadata(built.wheel)["Version"] == version()
    assert built.wheel.name == f"icefloe-{version()}-py3-none-any.whl"
    assert built.sdist.name == f"icefloe-{version()}.tar.gz"


def test_metadata_has_a_licence_and_no_address(built: Built) -> None:
    found = metadata(built.wheel)
    assert found["License-Expression"] == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    addresses = ("Home-page", "Project-URL", "Author", "Author-email", "Maintainer-email")
    assert [name for name in addresses if name in found] == []


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    info = f"icefloe-{version()}.dist-info/"
    packed = {name for name in names if not name.startswith(info)}
    files = [
        path for top in ("icefloe", "pyspark_icefloe") for path in (ROOT / "src" / top).rglob("*")
    ]
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert f"{info}licenses/LICENSE" in names


def test_the_sdist_can_be_tested(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"Makefile", "pyproject.toml", "constraints.txt", "LICENSE", "tools/setup_env.py"}
    assert wanted <= names
    assert {"tests/conftest.py", "src/icefloe/py.typed", "docs/README.md"} <= names
    assert [name for name in names if ".venv" in name or "__pycache__" in name] == []


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_works_where_nothing_else_is_installed(
    kind: str, built: Built, install: Install
) -> None:
    environment = install(getattr(built, kind), "")
    done = environment.run(str(environment.python), "-W", "error", "-c", FIRST_USE)
    assert done.returncode == 0, done.stderr
    printed, place = done.stdout.split()
    assert printed == version()
    assert Path(place).is_relative_to(environment.python.parents[1])
    for extra in ("spark", "xarray", "dask"):
        done = environment.run(str(environment.python), "-c", f"import icefloe.{extra}")
        assert f"icefloe[{extra}]" in done.stderr, done.stderr
    done = environment.run("icefloe", "log", "weather")
    assert done.returncode == 8, done.stderr
    assert "pip install 'icefloe[cli]'" in done.stderr
