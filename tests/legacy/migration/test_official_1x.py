"""Repositories of spec version 1 are read and extended by official Icechunk 1.x.

They were migrated, or their arrays share manifests.

Its last release needs an environment of its own: the Python of ICEFLOE_ICECHUNK_1, or one that is
made beside that of these tests and kept there. `make released` runs this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from tests.legacy.migration import describe_repository, extend_repository
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


# -- arrays that share manifests

SIDES = {"shared": 64, "alone": 0}
"""By name: how many references an array that shares manifests may have."""


def small_arrays(folder: Path, side: str) -> None:
    """Two groups of small arrays beside a large one, and a commit to some of them."""
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=8)
    config.manifest = icefloe.ManifestConfig(max_shared_refs_per_array=SIDES[side])
    repo = icefloe.Repository.create(storage, config, spec_version=1)
    repo.save_config()
    with repo.transaction("main", message="first") as store:
        root = zarr.create_group(store)
        for group in map(root.create_group, "ab"):
            for number in range(12):
                size = 10 if number % 2 else 1
                array = group.create_array(
                    f"v{number:02}", shape=(3 * size,), chunks=(size,), dtype="i4"
                )
                array[:] = number + 1
        root.create_array("large", shape=(80,), chunks=(1,), dtype="i4")[:] = 1
    with repo.transaction("main", message="second") as store:
        for number in range(5, 8):
            zarr.open_array(store, path=f"b/v{number:02}", mode="r+")[:] = 50


def history_of(repo: icefloe.Repository) -> dict[str, Any]:
    return {
        entry.message: extend_repository.values(repo.readonly_session(snapshot_id=entry.id))
        for entry in list(repo.ancestry(branch="main"))[:-1]
    }


def asked(official: str, folder: Path, *wishes: str) -> dict[str, Any]:
    """What official says after it did these things."""
    answer = subprocess.run(
        [official, extend_repository.__file__, str(folder), *wishes],
        check=True,
        capture_output=True,
        env={**os.environ, "ICECHUNK_LOG": "off", "PYTHONPATH": ""},
    )
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert found["version"] == VERSION
    return found


def test_shared_manifests(official: str, tmp_path: Path) -> None:
    """Both sides extend, expire and collect in turns what the other one has written."""
    found = []
    for side in SIDES:
        folder = tmp_path / side
        small_arrays(folder, side)
        storage = icefloe.local_filesystem_storage(folder, durable=False)
        ours = icefloe.Repository.open(storage)
        few = len(ours.list_manifest_files(ours.lookup_branch("main")))
        assert (few <= 4) == (side == "shared")
        expected = history_of(ours)
        told = asked(official, folder, "read", "extend60", "read")
        assert {name: told["read"][name] for name in expected} == expected
        ours = icefloe.Repository.open(storage)
        assert history_of(ours) == told["read"]
        assert ours.verify(read_chunks=True).is_healthy
        with ours.transaction("main", message="ours again") as store:
            for name in ("a/v00", "a/v05", "b/new60", "b/v06"):
                zarr.open_array(store, path=name, mode="r+")[...] = 70
        told = asked(official, folder, "extend80", "expire", "collect")
        ours = icefloe.Repository.open(storage)
        assert extend_repository.values(ours.readonly_session("main")) == told["left"]
        assert told["expired"] >= 4
        assert told["chunks deleted"] > 0
        assert ours.verify(read_chunks=True).is_healthy
        before = len(ours.list_manifest_files(ours.lookup_branch("main")))
        ours.rewrite_manifests("together", branch="main")
        after = len(ours.list_manifest_files(ours.lookup_branch("main")))
        assert (after < before) == (side == "shared")
        later = datetime.now(UTC) + timedelta(days=1)
        ours.expire_snapshots(later)
        ours.garbage_collect(later)
        final = asked(official, folder, "read", "rewrite", "expire", "collect")
        assert final["left"] == told["left"] == final["read"]["together"]
        ours = icefloe.Repository.open(storage)
        assert extend_repository.values(ours.readonly_session("main")) == told["left"]
        assert not ours.verify(read_chunks=True, orphans=False).findings
        found.append(told["left"])
    assert found[0] == found[1]
