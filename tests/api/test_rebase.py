"""Sessions that others have overtaken: what they report, keep, write and do not write again."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.conflicts import find_conflicts
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ArrayData, Dimension, Node, NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.repo import commit
from icefloe.repo.rebase import Contention
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.testing.wrapping import WrappingDriver

DETECTOR = icefloe.ConflictDetector()


@pytest.fixture(params=[1, 2])
def repository(request: pytest.FixtureRequest) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(
        manifest=icefloe.ManifestConfig(
            splitting=icefloe.ManifestSplittingConfig.from_dict(
                {
                    icefloe.ManifestSplitCondition.AnyArray(): {
                        icefloe.ManifestSplitDimCondition.Axis(0): 4
                    }
                }
            )
        )
    )
    found = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, spec_version=request.param
    )
    session = found.writable_session("main")
    group = zarr.group(session.store)
    for name in ("a", "b"):
        group.create_array(name, shape=(16,), chunks=(1,), dtype="int32")[:] = 1
    group.create_group("g")
    session.commit("start")
    return found


def array(session: icefloe.Session, name: str = "a") -> Any:
    return zarr.open_array(session.store, path=name)


def manifests_of(repository: icefloe.Repository) -> set[str]:
    tip = repository.lookup_branch("main")
    return {info.id for info in repository.list_manifest_files(tip)}


def num_manifest_files(repository: icefloe.Repository) -> int:
    return len(run_blocking(repository._handles.blocking.driver.list("manifests/")))


def test_the_session_stays_on_the_last_commit_without_conflict(
    repository: icefloe.Repository,
) -> None:
    late = repository.writable_session("main")
    array(late)[2] = 5
    ids = []
    for at in (0, 1, 2, 3):
        session = repository.writable_session("main")
        array(session)[at] = 9
        ids.append(session.commit(f"chunk {at}"))
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.rebase(DETECTOR)
    assert caught.value.snapshot == ids[2]
    assert late.snapshot_id == ids[1]
    assert late.has_uncommitted_changes
    assert "/a" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.conflicts == caught.value.conflicts
    late.rebase(icefloe.BasicConflictSolver())
    assert late.snapshot_id == ids[3]
    assert array(late)[:4].tolist() == [9, 9, 5, 9]


def test_attempts_are_noted_and_the_metadata_kept(repository: icefloe.Repository) -> None:
    late = repository.writable_session("main")
    array(late)[0] = 5
    session = repository.writable_session("main")
    array(session)[1] = 5
    session.commit("first", rebase_with=DETECTOR)
    late.commit("second", {"by": "me"}, rebase_with=DETECTOR)
    second, first = list(repository.ancestry(branch="main"))[:2]
    assert first.metadata == {"__icechunk": {"rebase_attempts": 0}}
    assert second.metadata == {"by": "me", "__icechunk": {"rebase_attempts": 1}}


def test_a_session_that_may_not_rebase_is_told_both_parents(
    repository: icefloe.Repository,
) -> None:
    late = repository.writable_session("main")
    array(late)[0] = 5
    session = repository.writable_session("main")
    array(session)[1] = 5
    tip = session.commit("first")
    with pytest.raises(icefloe.ConflictError, match="rebase") as caught:
        late.commit("second", rebase_with=DETECTOR, rebase_tries=0)
    assert (caught.value.expected_parent, caught.value.actual_parent) == (late.snapshot_id, tip)
    with pytest.raises(icefloe.InvalidInputError, match="rebase_tries"):
        late.commit("second", rebase_with=DETECTOR, rebase_tries=-1)
    with pytest.raises(TypeError, match="rebase_with"):
        late.commit("second", rebase_with="detector")  # type: ignore[arg-type]


def test_twins_and_transactions_rebase_too(repository: icefloe.Repository) -> None:
    async def run() -> None:
        late = await repository.writable_session_async("main")
        zarr_store = late.store
        buffer = zarr.core.buffer.default_buffer_prototype().buffer
        await zarr_store.set("n/zarr.json", buffer.from_bytes(b'{"node_type":"group"}'))
        with repository.transaction("main", message="between", rebase_with=DETECTOR) as store:
            await store.set("m/zarr.json", buffer.from_bytes(b'{"node_type":"group"}'))
        await late.rebase_async(DETECTOR)
        await late.commit_async("late", rebase_with=DETECTOR)

    asyncio.run(run())
    messages = [entry.message for entry in repository.ancestry(branch="main")][:2]
    assert messages == ["late", "between"]


def test_a_solver_of_ones_own(repository: icefloe.Repository) -> None:
    class ByPath(icefloe.ConflictSolver):
        def choose(self, conflict: icefloe.Conflict) -> icefloe.VersionSelection:
            ours = conflict.path == "/a"
            return icefloe.VersionSelection.UseOurs if ours else icefloe.VersionSelection.UseTheirs

    late = repository.writable_session("main")
    session = repository.writable_session("main")
    for name in ("a", "b"):
        array(late, name)[3] = 5
        array(session, name)[3] = 6
    session.commit("theirs")
    late.commit("ours", rebase_with=ByPath())
    tip = repository.readonly_session("main")
    assert [array(tip, name)[3] for name in ("a", "b")] == [5, 6]
    assert tip.snapshot_id == late.snapshot_id


class Overtaken(WrappingDriver):
    """Lets somebody else commit right before the first decisive write."""

    def __init__(self, inner: Driver, other: Callable[[], None]) -> None:
        super().__init__(inner)
        self.other = other
        self.has_happened = False

    async def before(self, method: str, key: str) -> None:
        if method == "put_if" and not self.has_happened:
            self.has_happened = True
            self.other()


def test_manifests_that_are_still_right_are_not_written_again(
    repository: icefloe.Repository,
) -> None:
    """Between upload and the decisive write another commit lands, in another array and split."""
    late = repository.writable_session("main")
    array(late)[0] = 5  # split 0 of a
    array(late)[4] = 5  # split 1 of a, which the other one changes as well
    before = num_manifest_files(repository)
    seen = []

    def other() -> None:
        seen.append(num_manifest_files(repository))
        session = repository.writable_session("main")
        array(session)[5] = 9
        array(session, "b")[0] = 9
        session.commit("in between")

    handle = late._handles.blocking
    driver = Overtaken(handle.driver, other)
    overtaken = replace(handle, assets=replace(handle.assets, driver=driver))
    run_blocking(
        commit.commit(Workspace(overtaken, late._state), "late", None, rebase_with=DETECTOR)
    )
    assert seen == [before + 2]  # both splits of ours
    # then two of the other commit; after the race only the split that both touched
    assert num_manifest_files(repository) == before + 2 + 2 + 1
    tip = repository.readonly_session("main")
    assert array(tip)[:8].tolist() == [5, 1, 1, 1, 5, 9, 1, 1]
    assert array(tip, "b")[0] == 9
    assert len(manifests_of(repository)) == 8


def test_a_reset_branch_counts_by_what_differs(repository: icefloe.Repository) -> None:
    start = repository.lookup_branch("main")
    session = repository.writable_session("main")
    array(session)[0] = 9
    session.commit("to be taken back")
    kept, touched = (repository.writable_session("main") for _ in range(2))
    array(kept)[1] = 5
    array(touched)[0] = 5
    repository.reset_branch("main", start)
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        touched.rebase(DETECTOR)
    assert [each.conflicted_chunks for each in caught.value.conflicts] == [[[0]]]
    kept.commit("kept", rebase_with=DETECTOR)
    assert [entry.message for entry in repository.ancestry(branch="main")][:2] == ["kept", "start"]
    assert array(repository.readonly_session("main"))[:2].tolist() == [1, 5]


def test_nodes_made_in_a_commit_that_was_taken_back_are_gone(
    repository: icefloe.Repository,
) -> None:
    start = repository.lookup_branch("main")
    session = repository.writable_session("main")
    zarr.open_group(session.store).create_array("n", shape=(2,), chunks=(1,), dtype="int32")
    session.commit("to be taken back")
    late = repository.writable_session("main")
    array(late, "n")[0] = 5
    repository.reset_branch("main", start)
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.commit("late", rebase_with=icefloe.BasicConflictSolver())
    [conflict] = caught.value.conflicts
    assert conflict == icefloe.Conflict(icefloe.ConflictType.ChunksUpdatedInDeletedArray, "/n")


def test_a_million_chunks_on_either_side_take_less_than_a_second() -> None:
    count = 1_000_000
    index = np.arange(2 * count, dtype=np.uint32).reshape(-1, 1) * 2
    node_id, shape = NodeId(bytes(8)), (Dimension(4 * count, 4 * count),)
    node = Node(node_id, "/a", b"{}", ArrayData(shape, None))
    changes = ChangeSet()
    ids = np.zeros((count, 12), np.uint8)
    zeros = np.zeros(count, np.uint64)
    changes.edits(node).set_table(ChunkRefs.native(index[:count], ids, zeros, zeros))
    theirs = index[count - 10 :]
    log = TransactionLog(SnapshotId(bytes(12)), updated_chunks={node_id: theirs})
    nodes = NodeTable.from_nodes([node])
    started = time.process_time()
    [conflict] = find_conflicts(changes, log, nodes, nodes)
    assert time.process_time() - started < 1
    assert conflict.conflicted_chunks == index[count - 10 : count].tolist()


def test_writers_that_have_lost_lately_queue_up() -> None:
    others = Contention()
    assert not others.is_crowded(0)
    others.lost(5, 0.1)
    others.won(6, 0.1, 0)
    assert others.is_crowded(1_000_000)
    assert not others.is_crowded(3_000_000)


def test_a_commit_to_a_directory_queues_up_after_it_has_lost(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path, durable=False)
    repo = icefloe.Repository.create(storage)
    with repo.transaction("main", message="an array") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(1,), dtype="int32")
    solver = icefloe.ConflictDetector()

    def commit(chunks: range) -> None:
        own = icefloe.Repository.open(storage)
        for at in chunks:
            session = own.writable_session("main")
            array: Any = zarr.open_array(session.store, path="a")
            array[at] = at + 1
            session.commit(f"chunk {at}", rebase_with=solver)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(commit, [range(at, at + 2) for at in range(0, 8, 2)]))
    found: Any = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert found[:].tolist() == list(range(1, 9))


def test_a_writer_that_has_waited_for_longest_tries_most_often() -> None:
    others = Contention()
    assert others.pause(0, 0, 1.0) == others.pause(0, 1, 1.0) == 0
    others.lost(1, 0.1)
    assert others.pause(1, 0, 1.0) == 0
    assert others.pause(1, 1, 1.0) == others.pause(1, 2000, 1.0) == pytest.approx(0.1)
    for now in range(2, 6):
        others.won(now, 0.1, 8)
    longest = [others.pause(6, losses, 1.0) for losses in range(1, 6)]
    assert longest == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.1])
    assert others.pause(1, 1, 0.0) == 0


def test_pauses_follow_the_number_of_writers_and_are_bounded() -> None:
    others = Contention()
    for now in range(4):
        others.won(now, 0.1, 9)
    assert others.rivals == 9
    assert others.pause(5, 0, 1.0) == pytest.approx(0.1)
    assert others.pause(5, 1, 1.0) == pytest.approx(0.9)
    assert others.pause(60_000_000, 1, 1.0) == pytest.approx(0.1)
    others.won(5, 0.1, 2)
    assert others.pause(5, 1, 1.0) == pytest.approx(0.2)
    others.lost(6, 100.0)
    assert others.pause(6, 1, 1.0) == 2
    others.won(7, 0.1, 0)
    assert others.rivals == 0


def test_one_writer_that_made_many_commits_counts_as_few() -> None:
    others = Contention()
    others.won(0, 0.1, 300)
    assert others.rivals == 1
    others.won(1, 0.1, 300)
    assert others.rivals == 3
