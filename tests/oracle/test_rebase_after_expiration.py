"""Sessions that were opened before official expired the commits they started from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)


def write(repository: Any, at: int, value: int) -> str:
    session = repository.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[at] = value
    snapshot_id: str = session.commit(f"chunk {at}")
    return snapshot_id


def values(repository: Any) -> list[int]:
    array: Any = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    found: list[int] = array[:].tolist()
    return found


def prepare(folder: Path, spec: int) -> tuple[icefloe.Repository, icefloe.Session, list[str]]:
    """A session with a change to chunk 0; four commits made since, of which all but the last
    have expired, as has the one that the session started from."""
    storage = icefloe.local_filesystem_storage(str(folder))
    repository = icefloe.Repository.create(storage, spec_version=spec)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(6,), chunks=(1,), dtype="int32")
    session.commit("an array")
    write(repository, 0, 7)  # before the session starts: not its concern
    late = repository.writable_session("main")
    array: Any = zarr.open_array(late.store, path="a")
    array[0] = 100
    made = [write(repository, at, at) for at in (1, 2, 3)]
    instant = datetime.now(UTC)
    made.append(write(repository, 4, 4))
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    released = official.expire_snapshots(older_than=instant)
    assert {late.snapshot_id, *made[:-1]} <= set(released)
    return icefloe.Repository.open(storage), late, made


@pytest.mark.parametrize("spec", [1, 2])
def test_a_session_goes_over_commits_that_expired(tmp_path: Path, spec: int) -> None:
    repository, late, made = prepare(tmp_path, spec)
    late.rebase(icefloe.ConflictDetector())
    assert late.snapshot_id == made[-1]
    late.commit("late")
    assert values(repository) == [100, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("spec", [1, 2])
def test_a_conflict_with_a_commit_that_expired_is_found(tmp_path: Path, spec: int) -> None:
    repository, late, _ = prepare(tmp_path, spec)
    array: Any = zarr.open_array(late.store, path="a")
    array[2] = 200
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.commit("late", rebase_with=icefloe.ConflictDetector())
    [conflict] = caught.value.conflicts
    expected = icefloe.Conflict(icefloe.ConflictType.ChunkDoubleUpdate, "/a", [[2]])
    assert conflict == expected
    late.commit("late", rebase_with=icefloe.BasicConflictSolver())
    assert values(repository) == [100, 1, 200, 3, 4, 0]


def test_a_log_that_is_gone_is_reported(tmp_path: Path) -> None:
    _, late, made = prepare(tmp_path, 2)
    (tmp_path / "transactions" / made[1]).unlink()
    with pytest.raises(icefloe.SessionStateError, match=made[1]) as caught:
        late.rebase(icefloe.ConflictDetector())
    assert caught.value.kind == icefloe.ErrorKind.REBASE_TX_LOG_PRUNED
    assert late.has_uncommitted_changes


@pytest.mark.parametrize("ending", ["amend", "flush"])
def test_amending_and_flushing_without_the_base_say_what_is_gone(
    tmp_path: Path, ending: str
) -> None:
    _, late, _ = prepare(tmp_path, 2)
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    official.garbage_collect(datetime.now(UTC))
    with pytest.raises(icefloe.SnapshotNotFoundError, match=late.snapshot_id):
        getattr(late, ending)("too late")
    assert late.has_uncommitted_changes
    assert not late.read_only
