"""Repositories migrated to spec version 1 are read and extended by official Icechunk 1.x.

Its last release needs an environment of its own: the Python of ICEFLOE_ICECHUNK_1, or one that is
made beside that of these tests and kept there. `make released` runs this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from tests.legacy.migration import describe_repository
from tests.legacy.migration.test_migration import access, config_of
from tests.legacy.migration.test_written_generations import GENERATIONS, write_history
from tests.legacy.numbered.releases import RELEASES
from tests.legacy.numbered.test_old_releases import built

VERSION = "1.1.21"
ZARR = "3.1.6"

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def official() -> str:
    """A Python with official Icechunk 1.x."""
    given = os.environ.get("ICEFLOE_ICECHUNK_1")
    if given is not None:
        return given
    home = Path(sys.prefix).with_name(f"{Path(sys.prefix).name}-icechunk-{VERSION}")
    return str(make_environment(home))


def make_environment(home: Path) -> Path:
    """The Python of an environment with that release, made unless it is there."""
    python = home / "bin" / "python"
    if not (home / "made").exists():
        venv.create(home, with_pip=True, clear=True)
        packages = [f"icechunk=={VERSION}", f"zarr=={ZARR}"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (home / "made").touch()
    return python


def check(official: str, folder: Path) -> None:
    """Official Icechunk finds what icefloe finds, and icefloe finds what it adds."""
    storage = icefloe.local_filesystem_storage(str(folder / "new"))
    authorized = access(folder)
    ours = icefloe.Repository.open(
        storage, config_of(folder), authorize_virtual_chunk_access=authorized
    )
    assert ours.spec_version == 1
    expected = json.loads(json.dumps(describe_repository.describe(ours)))
    answer = subprocess.run(
        [official, describe_repository.__file__, str(folder / "new"), str(folder / "foreign")],
        check=True,
        capture_output=True,
        env={**os.environ, "ICECHUNK_LOG": "off", "PYTHONPATH": ""},
    )
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert found["version"] == VERSION
    assert found["refs"] == expected
    added = ours.readonly_session("main")
    assert added.snapshot_id == found["added"]
    assert zarr.open_group(added.store, path="added", mode="r").attrs["by"] == VERSION


@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.name)
@pytest.mark.parametrize("seed", [11, 12])
def test_releases(official: str, release: Any, seed: int, tmp_path: Path) -> None:
    _, old = built(release, tmp_path, seed)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    icefloe.migrate_repository(old, target, spec_version=1, config=config_of(tmp_path))
    check(official, tmp_path)


@pytest.mark.parametrize("generation", GENERATIONS, ids=str)
def test_generations_that_are_written(official: str, generation: Any, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    storage = icefloe.local_filesystem_storage(str(tmp_path / "old"))
    old = icefloe.Repository.create(storage, generation=generation)
    write_history(old, seed=7)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    icefloe.migrate_repository(old, target, spec_version=1)
    check(official, tmp_path)
