"""Several operations on one session at once, through every order of their storage calls.

Zarr calls a store from its event-loop thread while the program calls the session from another, so
a read, a listing or a write may cross the end of a commit. A reader sees the session as it was
at some moment. A change that was accepted is in the commit; one that cannot be is refused.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.api.handles import Handles
from icefloe.config import RepositoryConfig
from icefloe.config.repository import ResolvedPacking
from icefloe.errors import IcechunkError, ReadOnlyError, SessionStateError
from icefloe.repo import commit, forks, lifecycle, rearrange, rebase
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.repo.spec2 import Spec2
from icefloe.storage.run import run_blocking
from icefloe.store import operations
from icefloe.store.virtual import set_virtual_ref
from icefloe.testing.schedule import Case, Outcome, StepDriver, every_schedule, some_schedules
from tests.safety.worlds import Objects, driver_of, read_objects, write_objects

Operation = Callable[["World"], Coroutine[Any, Any, Any]]

NUM_DRAWN = 16
ARRAY: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [8],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {},
}
DOCUMENT = json.dumps(ARRAY).encode()
COMMITTED = {"a/c/0": b"old 0", "a/c/1": b"old 1", "b/c/0": b"b"}
EDITED = {"a/c/1": b"new 1", "a/c/2": b"new 2"}


class World:
    """One repository, a session with uncommitted changes, and a driver that can be stepped."""

    def __init__(self, objects: Objects, *, is_packed: bool, is_overtaken: bool) -> None:
        storage = icefloe.in_memory_storage()
        write_objects(storage, objects)
        self.storage = storage
        config = RepositoryConfig(inline_chunk_threshold_bytes=0)
        if is_packed:
            config.packing = icefloe.PackingConfig()
        plain = lifecycle.make_handle(storage, driver_of(storage), Spec2(), config, Clock())
        driver = StepDriver(driver_of(storage))
        self.handle: RepoHandle = lifecycle.make_handle(storage, driver, Spec2(), config, Clock())
        self.state: SessionState = run_blocking(sessions.open_writable(plain, "main"))
        for key, value in EDITED.items():
            run_blocking(operations.set_key(Workspace(plain, self.state), key, value))
        if is_overtaken:
            other = run_blocking(sessions.open_writable(plain, "main"))
            run_blocking(operations.set_key(Workspace(plain, other), "b/c/1", b"theirs"))
            run_blocking(commit.commit(Workspace(plain, other), "theirs", None))

    def contents(self, snapshot_id: str | None = None) -> dict[str, bytes]:
        """Every chunk of the tip, or of a snapshot."""
        repository = icefloe.Repository.open(self.storage)
        branch = "main" if snapshot_id is None else None
        session = repository.readonly_session(branch, snapshot_id=snapshot_id)
        state, handle = session._state, session.handle
        keys = run_blocking(operations.list_prefix(Workspace(handle, state), ""))
        found = {key: run_blocking(operations.get(Workspace(handle, state), key)) for key in keys}
        return {
            key: bytes(value)
            for key, value in found.items()
            if value is not None and not key.endswith("zarr.json")
        }


def _objects() -> Objects:
    storage = icefloe.in_memory_storage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    session = icefloe.Repository.create(storage, config).writable_session("main")
    handle, state = session.handle, session._state
    group = b'{"zarr_format": 3, "node_type": "group"}'
    documents = {"zarr.json": group, "a/zarr.json": DOCUMENT, "b/zarr.json": DOCUMENT}
    for key, value in (documents | COMMITTED).items():
        run_blocking(operations.set_key(Workspace(handle, state), key, value))
    session.commit("arrays")
    return read_objects(storage)


OBJECTS = _objects()

# -- what happens on the session


async def commits(world: World) -> str:
    return (await commit.commit(Workspace(world.handle, world.state), "ours", None)).text


async def commits_rebasing(world: World) -> str:
    solver = icefloe.ConflictDetector()
    return (
        await commit.commit(Workspace(world.handle, world.state), "ours", None, rebase_with=solver)
    ).text


async def amends(world: World) -> str:
    return (await commit.amend(Workspace(world.handle, world.state), "ours", None)).text


async def flushes(world: World) -> str:
    return (await commit.flush(Workspace(world.handle, world.state), "ours", None)).text


async def rebases(world: World) -> int:
    return await rebase.rebase(Workspace(world.handle, world.state), icefloe.ConflictDetector())


async def gets(world: World, key: str) -> bytes | None:
    found = await operations.get(Workspace(world.handle, world.state), key)
    return None if found is None else bytes(found)


async def lists(world: World) -> list[str]:
    return await operations.list_prefix(Workspace(world.handle, world.state), "a")


async def measures(world: World) -> int:
    return await operations.getsize_prefix(Workspace(world.handle, world.state), "a")


async def writes(world: World) -> None:
    await operations.set_key(Workspace(world.handle, world.state), "a/c/5", b"late")


async def discards(world: World) -> None:
    await world.handle.driver.head("repo")  # a request, so that it happens at every moment
    world.state.discard()


async def deletes(world: World) -> None:
    await world.handle.driver.head("repo")
    await operations.delete(Workspace(world.handle, world.state), "a/zarr.json")


def race(*works: Operation, is_packed: bool = False, is_overtaken: bool = False) -> Any:
    def make() -> Case[World]:
        world = World(OBJECTS, is_packed=is_packed, is_overtaken=is_overtaken)
        return Case(world, [work(world) for work in works])

    return make


def outcomes(make: Any) -> list[Outcome[World]]:
    """Every order where there are few, else some."""
    try:
        return list(every_schedule(make, most=30))
    except RuntimeError:
        return list(some_schedules(make, number=NUM_DRAWN, seed=1))


ENDINGS: dict[str, tuple[Operation, bool]] = {
    "commit": (commits, False),
    "commit with rebase": (commits_rebasing, True),
    "amend": (amends, False),
    "flush": (flushes, False),
    "rebase": (rebases, True),
}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_reads_across_an_ending_see_the_session_as_it_was(ending: str, *, is_packed: bool) -> None:
    work, is_overtaken = ENDINGS[ending]
    expected = COMMITTED | EDITED
    size = len(DOCUMENT) + sum(len(expected[f"a/c/{number}"]) for number in range(3))
    reads: list[Operation] = [partial(gets, key=key) for key in ("a/c/0", "a/c/1")]
    for read in [*reads, lists, measures]:
        make = race(work, read, is_packed=is_packed, is_overtaken=is_overtaken)
        for outcome in outcomes(make):
            ended, found = outcome.results[0], outcome.results[1]
            assert not isinstance(ended, Exception), ended
            if read is lists:
                assert sorted(found) == ["a/c/0", "a/c/1", "a/c/2", "a/zarr.json"]
            elif read is measures:
                assert found == size
            else:
                assert isinstance(read, partial)
                assert found == expected[read.keywords["key"]], outcome.order


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_discarding_happens_before_an_ending_or_not_at_all(ending: str, *, is_packed: bool) -> None:
    work, is_overtaken = ENDINGS[ending]
    make = race(work, discards, is_packed=is_packed, is_overtaken=is_overtaken)
    for outcome in outcomes(make):
        ended, discarded = outcome.results[0], outcome.results[1]
        if isinstance(discarded, Exception):
            assert isinstance(discarded, ReadOnlyError)
            assert not isinstance(ended, Exception), ended
        if ending != "rebase" and not isinstance(ended, Exception):
            is_kept = "a/c/2" in outcome.world.contents(ended)
            assert is_kept == isinstance(discarded, Exception), outcome.order


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_accepted_write_is_in_the_ending_and_was_compared(
    ending: str, *, is_packed: bool
) -> None:
    work, is_overtaken = ENDINGS[ending]
    make = race(work, writes, is_packed=is_packed, is_overtaken=is_overtaken)
    for outcome in outcomes(make):
        ended, written = outcome.results[0], outcome.results[1]
        assert not isinstance(ended, Exception), ended
        if isinstance(written, Exception):
            assert isinstance(written, ReadOnlyError)
        elif ending != "rebase":
            assert outcome.world.contents(ended)["a/c/5"] == b"late"


def test_a_chunk_written_during_a_rebase_is_compared_or_comes_after_it() -> None:
    repository, session = _overtaken_session()
    seen: list[str] = []

    def write() -> None:
        run_blocking(operations.set_key(session.workspace, "b/c/1", b"ours"))
        seen.append(session._state.snapshot.message)

    writer = threading.Thread(target=write)

    class Meanwhile(icefloe.ConflictSolver):
        def choose(self, conflict: icefloe.Conflict) -> icefloe.VersionSelection:
            if not writer.ident:
                writer.start()
                writer.join(0.5)  # it has to wait for the rebase, so this waits in vain
            return icefloe.VersionSelection.UseOurs

    session.rebase(Meanwhile())
    writer.join(60)
    assert seen == ["theirs"], "a write that nobody compared with theirs"
    session.commit("both")
    store = repository.readonly_session("main").store
    assert _chunks(store) == {"a/c/1": b"ours", "b/c/1": b"ours"}


def _overtaken_session() -> tuple[icefloe.Repository, icefloe.Session]:
    """A session that wrote chunk 1 of `a`, and others who committed that and chunk 1 of `b`."""
    storage = icefloe.in_memory_storage()
    write_objects(storage, OBJECTS)
    repository = icefloe.Repository.open(storage)
    ours, theirs = (repository.writable_session("main") for _ in range(2))
    handle = ours.handle
    run_blocking(operations.set_key(Workspace(handle, ours._state), "a/c/1", b"ours"))
    for key in ("a/c/1", "b/c/1"):
        run_blocking(operations.set_key(Workspace(handle, theirs._state), key, b"theirs"))
    theirs.commit("theirs")
    return repository, ours


def _chunks(store: Any) -> dict[str, bytes]:
    prototype = zarr.core.buffer.default_buffer_prototype()
    return {key: store.get_sync(key, prototype=prototype).to_bytes() for key in ("a/c/1", "b/c/1")}


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_node_deleted_meanwhile_leaves_no_edits_behind(*, is_packed: bool) -> None:
    async def virtual(world: World) -> None:
        await world.handle.driver.head("repo")
        set_virtual_ref(
            Workspace(world.handle, world.state),
            "a/c/3",
            "file:///data",
            0,
            4,
            validate_container=False,
        )

    async def shifts(world: World) -> None:
        await rearrange.shift_array(Workspace(world.handle, world.state), "/a", [1])

    async def reindexes(world: World) -> None:
        await rearrange.reindex_array(
            Workspace(world.handle, world.state), "/a", lambda index: [7 - next(iter(index))], None
        )

    async def empties(world: World) -> None:
        await operations.delete_dir(Workspace(world.handle, world.state), "a/c")

    for work in (virtual, shifts, reindexes, empties, writes):
        for outcome in outcomes(race(deletes, work, is_packed=is_packed)):
            result = outcome.results[1]
            assert result is None or isinstance(result, IcechunkError), result
            ended = run_blocking(
                commit.commit(Workspace(_plain(outcome.world), outcome.world.state), "", None)
            )
            assert outcome.world.contents(ended.text) == {"b/c/0": b"b"}


def _plain(world: World) -> RepoHandle:
    handle = world.handle
    return lifecycle.make_handle(
        world.storage, driver_of(world.storage), handle.format, handle.config, Clock()
    )


def test_a_fork_that_is_written_to_while_it_is_sent_brings_only_what_can_be_read() -> None:
    async def sends(world: World) -> forks.ForkChanges:
        return await forks.fork_changes(Workspace(world.handle, world.state))

    async def fills(world: World) -> None:
        for number in range(3, 7):
            await world.handle.driver.head("repo")
            await operations.set_key(
                Workspace(world.handle, world.state), f"a/c/{number}", b"filled"
            )

    def make() -> Case[World]:
        world = World(OBJECTS, is_packed=True, is_overtaken=False)
        world.state = run_blocking(forks.fork_session(Workspace(_plain(world), world.state)))
        return Case(world, [sends(world), fills(world)])

    for outcome in outcomes(make):
        world = outcome.world
        assert not isinstance(outcome.results[0], Exception), outcome.results[0]
        assert world.handle.settings.packing == ResolvedPacking()
        plain = _plain(world)
        session = run_blocking(sessions.open_writable(plain, "main"))
        run_blocking(forks.merge_forks(Workspace(plain, session), [outcome.results[0]]))
        written = run_blocking(
            commit.commit(Workspace(plain, session), "merged", None, allow_empty=True)
        )
        found = world.contents(written.text)
        brought = [number for number in range(3, 7) if f"a/c/{number}" in found]
        assert brought == list(range(3, 3 + len(brought)))
        assert all(found[f"a/c/{number}"] == b"filled" for number in brought)


def test_chunks_that_wait_in_a_pack_are_listed_with_their_place() -> None:
    world = World(OBJECTS, is_packed=True, is_overtaken=False)
    handles = Handles(_plain(world), is_blocking=True)
    session = icefloe.Session(handles, world.state)
    before = _places(session)
    assert before == {1: (0, 5), 2: (5, 5)}
    session.commit("packed")
    assert _places(session) == before


def _places(session: icefloe.Session) -> dict[int, tuple[int, int]]:
    async def collect() -> dict[int, tuple[int, int]]:
        found = {}
        store: Any = session.store
        async for index, _, _, offset, length, _ in store.array_chunk_iterator("a"):
            for row in range(len(index)):
                found[int(index[row][0])] = (int(offset[row]), int(length[row]))
        return found

    places = asyncio.run(collect())
    return {number: places[number] for number in (1, 2)}


def test_two_rebases_and_a_rebase_beside_a_commit_do_not_mix() -> None:
    for works in ((rebases, rebases), (commits_rebasing, rebases)):
        for outcome in outcomes(race(*works, is_overtaken=True)):
            for result in outcome.results.values():
                assert not isinstance(result, Exception) or isinstance(result, SessionStateError)
            assert outcome.world.state.snapshot.message in ("theirs", "ours")
