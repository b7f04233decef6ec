"""The same histories, expired and collected by official icechunk and by icefloe, come out the same.

Both work on a copy of one directory, times of files included. Compared are what each call says,
the objects that are left, and all that can be seen in the repository afterwards. Then each side
goes on with what the other one has left.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.maintenance import live
from icefloe.storage.run import run_blocking
from tests.maintenance.histories import Made, arrays_of, make_history, open_official, open_ours

pytestmark = pytest.mark.filterwarnings("ignore:the expiration cuts")

SUMMARY = (
    "bytes_deleted",
    "chunks_deleted",
    "manifests_deleted",
    "snapshots_deleted",
    "transaction_logs_deleted",
    "objects_failed_to_delete",
    "throttled_batches",
    "delete_errors",
    "skipped_phases",
)
# Known differences:
# - a dry run of official counts logs as if nothing took the place of the snapshots that go;
# - official counts a packed object once, with the length of one of its chunks.


def stored(folder: Path) -> set[str]:
    """What is stored, apart from copies of overwritten objects, our fence and our locks."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {f for f in files if not f.startswith(("overwritten/", "icefloe/", ".icefloe/"))}


def seen(folder: Path) -> dict[str, Any]:
    """All that can be seen, through icefloe; every chunk is read."""
    repo = open_ours(folder)
    found: dict[str, Any] = {}
    refs = [("branch", name) for name in repo.list_branches()]
    refs += [("tag", name) for name in repo.list_tags()]
    for kind, name in refs:
        line = list(repo.ancestry(**{kind: name}))
        of_ref: dict[str, Any] = {kind: name}
        session = repo.readonly_session(**of_ref)
        arrays = {path: array[...].tolist() for path, array in arrays_of(session).items()}
        diff = None
        if len(line) > 1:
            diff = repr(repo.diff(from_snapshot_id=line[-1].id, to_snapshot_id=line[0].id))
        found[f"{kind} {name}"] = [(one.id, one.parent_id) for one in line], arrays, diff
    if repo.spec_version > 1:
        info = run_blocking(repo.handle.assets.repo_object()).info
        found["listed"] = {
            one.id.text: (one.parent_id, one.pruned_ancestor_tx_logs)
            for one in info.snapshots.values()
        }
        found["deleted tags"] = info.deleted_tags
        found["last operation"] = info.latest_updates[0].kind
    return found


def both(made: Made) -> tuple[Path, Path]:
    """Two copies, with the same times."""
    folders = made.folder.with_name("official"), made.folder.with_name("ours")
    for folder in folders:
        shutil.copytree(made.folder, folder)
    return folders


def commit(repo: Any, message: str) -> str:
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group.require_array("later", shape=(400,), chunks=(100,), dtype="<i8")[:] = 7
    return str(session.commit(message))


def compare(official: Any, tmp_path: Path, spec: int, seed: int) -> None:
    drawn = random.Random(seed)
    made = make_history(official, tmp_path / "made", spec, seed)
    theirs, ours = both(made)
    instants = [*made.instants, datetime.now(UTC)]
    time.sleep(0.02)  # times of files lag behind the clock by up to a tick of the kernel
    flags: dict[str, Any] = {
        "delete_expired_branches": drawn.random() < 0.3,
        "delete_expired_tags": drawn.random() < 0.3,
    }
    note = f"spec {spec}, seed {seed}: {made.steps}"
    for _ in range(2):  # what an expiration has left is expired and collected again
        cut = drawn.choice(instants)
        if drawn.random() < 0.8:
            released = open_official(official, theirs).expire_snapshots(cut, **flags)
            assert open_ours(ours).expire_snapshots(cut, **flags) == released, note
            assert seen(ours) == seen(theirs), note
        cut = drawn.choice(instants)
        for dry_run in (True, False):
            expected = open_official(official, theirs).garbage_collect(cut, dry_run=dry_run)
            plan = open_ours(ours).plan_garbage_collection(cut)
            found = open_ours(ours).garbage_collect(cut, dry_run=dry_run)
            assert plan.num_bytes() == found.bytes_deleted, note
            if not (dry_run and spec == 2):
                for name in SUMMARY:
                    assert getattr(found, name) == getattr(expected, name), (name, note)
            assert stored(ours) == stored(theirs), note
            assert seen(ours) == seen(theirs), note
    # Each goes on with what the other has left.
    for repo in (open_official(official, ours), open_ours(theirs)):
        assert commit(repo, "later") == repo.lookup_branch("main")
    for repo in (open_ours(ours), open_official(official, theirs)):
        assert commit(repo, "and later") == repo.lookup_branch("main")
        assert repo.garbage_collect(datetime.now(UTC) + timedelta(days=1)) is not None
    later = [{k: v for k, v in seen(folder).items() if k[:3] == "tag"} for folder in (ours, theirs)]
    assert later[0] == later[1], note


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spec", [1, 2])
def test_expired_and_collected_alike(official: Any, tmp_path: Path, spec: int, seed: int) -> None:
    compare(official, tmp_path, spec, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("spec", [1, 2])
def test_many_expired_and_collected_alike(official: Any, tmp_path: Path, spec: int) -> None:
    first = int(os.environ.get("ICEFLOE_FIRST_SEED", "100"))
    for seed in range(first, first + 150):
        compare(official, tmp_path / str(seed), spec, seed)
        shutil.rmtree(tmp_path / str(seed))


@pytest.mark.parametrize("spec", [1, 2])
def test_nothing_in_use_is_ever_deleted(official: Any, tmp_path: Path, spec: int) -> None:
    """With a cut in the future everything that is not in use goes, and nothing else."""
    made = make_history(official, tmp_path / "made", spec, 77)
    repo = open_ours(made.folder)
    before = seen(made.folder)
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    after = seen(made.folder)
    for name in before.keys() - {"listed", "last operation"}:
        assert after[name] == before[name]
    handle = icefloe.Repository.open(repo.storage).handle
    tips = run_blocking(live.ref_tips(handle))
    snapshots = run_blocking(live.reachable_snapshots(handle, tips.values()))
    files = run_blocking(live.manifest_files(handle, snapshots))
    chunks = run_blocking(live.chunk_ids(handle, files))
    left = stored(made.folder)
    assert sum(key.startswith("snapshots/") for key in left) == snapshots.size
    assert sum(key.startswith("manifests/") for key in left) == len(files)
    assert sum(key.startswith("chunks/") for key in left) == chunks.size
