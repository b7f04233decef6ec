"""Long histories whose snapshots have to be read one by one: only what is used is read.

Before spec version 2 a snapshot file names the one before it. Of the repositories here only the
newest snapshot files are left, as after a collection of a history that another program has cut.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.api.handles import Handles
from icefloe.cli.program import run
from icefloe.format import layout
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock
from icefloe.scans.metadata_rows import find_commits
from icefloe.storage.run import run_blocking
from icefloe.testing.faults import FaultyDriver
from tests.safety.worlds import driver_of, open_handle

NUM_COMMITS = 40
NUM_LEFT = 15


def long_history(storage: icefloe.Storage, **kind: Any) -> list[str]:
    """Commits that set one chunk each; their ids, newest first."""
    repo = icefloe.Repository.create(storage, **kind)
    session = repo.writable_session("main")
    shape: Any = (NUM_COMMITS,)
    zarr.create_array(session.store, name="a", shape=shape, chunks=(1,), dtype="<i8")
    ids = [session.commit("array")]
    for number in range(NUM_COMMITS - 1):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[number] = number
        ids.append(session.commit(f"commit {number}"))
    return ids[::-1]


def cut(storage: icefloe.Storage, ids: list[str]) -> None:
    """Delete the files of the older snapshots."""
    keys = [layout.SNAPSHOTS + one for one in ids[NUM_LEFT:]]
    run_blocking(driver_of(storage).delete_many(keys))


def counted(storage: icefloe.Storage) -> tuple[icefloe.Repository, FaultyDriver]:
    """The repository in another process, and its requests."""
    driver = FaultyDriver(driver_of(storage))
    opened = open_handle(storage)
    handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
    return icefloe.Repository(Handles(handle, is_blocking=True)), driver


def test_the_first_of_a_long_history_cost_as_many_requests() -> None:
    storage = icefloe.in_memory_storage()
    ids = long_history(storage, spec_version=1)
    repo, driver = counted(storage)
    for number in (1, 10, 3):
        driver.reset()
        repo.handle.assets.caches.clear()
        line = list(islice(repo.ancestry(branch="main"), number))
        assert [info.id for info in line] == ids[:number]
        assert driver.num_requests == 1 + number  # the branch, and each snapshot
    assert len(list(repo.ancestry(branch="main"))) == NUM_COMMITS + 1


@pytest.mark.parametrize(
    "kind",
    [{"spec_version": 1}, {"generation": icefloe.NumberedRefs()}],
    ids=["spec 1", "numbered"],
)
def test_the_first_of_a_history_are_read_where_older_files_are_gone(kind: Any) -> None:
    storage = icefloe.in_memory_storage()
    ids = long_history(storage, **kind)
    if "spec_version" in kind:
        cut(storage, ids)
    repo = icefloe.Repository.open(storage)
    assert [info.id for info in islice(repo.ancestry(branch="main"), 10)] == ids[:10]

    async def first(number: int) -> list[str]:
        found = []
        async for info in repo.async_ancestry(branch="main"):
            found.append(info.id)
            if len(found) == number:
                break
        return found

    assert asyncio.run(first(10)) == ids[:10]
    with pytest.raises(icefloe.IcechunkError):
        repo.ancestry(branch="no such branch")
    with pytest.raises(icefloe.IcechunkError):
        repo.ancestry(snapshot_id="000000000000000000G0" if "spec_version" in kind else "x")


def test_a_history_that_is_cut_ends_with_an_error() -> None:
    storage = icefloe.in_memory_storage()
    ids = long_history(storage, spec_version=1)
    cut(storage, ids)
    repo = icefloe.Repository.open(storage)
    found = []
    with pytest.raises(icefloe.errors.SnapshotNotFoundError, match=ids[NUM_LEFT]):
        found += [info.id for info in repo.ancestry(branch="main")]
    assert len(list(islice(repo.ancestry(branch="main"), NUM_LEFT))) == NUM_LEFT


def test_the_end_of_a_history_that_is_cut_can_be_worked_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path / "repository", durable=False)
    ids = long_history(storage, spec_version=1)
    cut(storage, ids)
    repo = icefloe.Repository.open(storage)
    sixth = repo.lookup_snapshot(ids[6])
    assert repo.readonly_session("main", as_of=sixth.written_at).snapshot_id == ids[6]
    diff = repo.diff(from_snapshot_id=ids[4], to_branch="main")
    assert len(diff.updated_chunks["/a"]) == 4
    assert [one.id for one in find_commits(repo, ids[3], ids[0])] == [
        repo.handle.snapshot_id(one) for one in ids[2::-1]
    ]
    assert run(["log", str(tmp_path / "repository"), "-n", "5"]) == 0
    assert "commit 38" in capsys.readouterr().out
    undone = repo.undo(ids[2], branch="main")
    assert undone.snapshot_id is not None
    squashed = repo.squash("main", ids[5])
    assert squashed.snapshot_id is not None
    line = list(islice(repo.ancestry(branch="main"), 3))
    assert [info.id for info in line[1:]] == ids[5:7]


@pytest.mark.parametrize("num_wanted", [1, 5])
def test_operations_are_read_page_by_page(num_wanted: int) -> None:
    storage = icefloe.in_memory_storage()
    config = icefloe.RepositoryConfig(num_updates_per_repo_info_file=4)
    long_history(storage, config=config)
    repo, driver = counted(storage)
    whole = list(repo.ops_log())
    assert len(whole) == NUM_COMMITS + 1
    driver.reset()
    assert list(islice(repo.ops_log(), num_wanted)) == whole[:num_wanted]
    pages = [one for one in driver.log if one.key.startswith(layout.OVERWRITTEN)]
    assert len(pages) <= 1
