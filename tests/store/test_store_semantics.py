"""The store behaves as official icechunk's does, step by step, apart from a list of differences."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe import ChunkType, Repository, RepositoryConfig, in_memory_storage
from tests.maintenance.damages import unlisted_manifest
from tests.maintenance.worlds import make_world
from tests.store.scripts import GROUP, PREPARED, Step, array, prepare, rectilinear, run, run_step
from tests.store.semantics_cases import CASES, DIFFERENCES

# spec version of the repository, and whether the hierarchy is committed before the script runs
STATES = [(2, False), (1, True)]
STATE_NAMES = ["v2 uncommitted", "v1 committed"]

WRITES: list[Step] = [
    ("set", "a/c/0/0", b"1"),
    ("set", "zarr.json", GROUP),
    ("set_if_not_exists", "a/c/0/1", b"1"),
    ("delete", "a/c/0/0"),
    ("delete", "a/zarr.json"),
    ("delete_dir", "a"),
    ("delete_dir", "a/c"),
    ("clear",),
]


@pytest.fixture(scope="module")
def official() -> Any:
    return pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )


@pytest.mark.parametrize("state", STATES, ids=STATE_NAMES)
@pytest.mark.parametrize("name", CASES)
def test_a_script_has_the_same_outcome_on_official(
    name: str, state: tuple[int, bool], official: Any
) -> None:
    ours, theirs = (
        run(prepare(library, state[0], is_committed=state[1]).store, CASES[name])
        for library in (icefloe, official)
    )
    if name in DIFFERENCES:
        expected, allowed, reason = DIFFERENCES[name]
        assert theirs in allowed, f"official changed; is it still true that {reason}?"
        assert ours == expected, reason
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_about_a_case_and_is_one(name: str) -> None:
    expected, allowed, _reason = DIFFERENCES[name]
    assert expected not in allowed
    assert all(len(outcome) == len(CASES[name]) for outcome in (expected, *allowed))


@pytest.mark.parametrize("library", ["icefloe", "icechunk"])
@pytest.mark.parametrize("folder", ["a/c/7", "g/e/c", "a/c/0/1", "a/c/0/0/0", "nothing", "g/c"])
def test_deleting_a_folder_without_chunks_changes_nothing(
    folder: str, library: str, official: Any
) -> None:
    module = icefloe if library == "icefloe" else official
    session = prepare(module, 2, is_committed=True)
    assert run_step(session.store, ("delete_dir", folder)) is None
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("spec_version", [1, 2])
def test_rectilinear_grids_need_version_2(spec_version: int) -> None:
    session = prepare(icefloe, spec_version, is_committed=False)
    outcome = run_step(session.store, CASES["rectilinear: a rectilinear grid"][0])
    assert outcome == (None if spec_version == 2 else "InvalidInputError bad-metadata")


def test_one_number_in_a_rectilinear_grid_is_the_size_of_all_chunks(
    official: Any, tmp_path: Path
) -> None:
    """Zarr writes it so. Official refuses to store such an array, but reads it."""
    document = rectilinear([7, 2], [3, [1, 1]])
    folder = str(tmp_path)
    session = Repository.create(icefloe.local_filesystem_storage(folder)).writable_session("main")
    steps: list[Step] = [("set", "n/zarr.json", document), ("set", "n/c/2/1", b"corner")]
    assert run(session.store, steps) == [None, None]
    assert (
        run_step(session.store, ("set", "n/c/3/0", b"1")) == "InvalidInputError invalid-chunk-index"
    )
    session.commit("rectilinear")
    theirs = official.Repository.open(official.local_filesystem_storage(folder))
    reader = theirs.readonly_session("main").store
    assert run(reader, [("get", "n/zarr.json"), ("get", "n/c/2/1")]) == [document, b"corner"]
    assert (
        run_step(theirs.writable_session("main").store, steps[0])
        == "InvalidInputError bad-metadata"
    )
    assert icefloe.Repository.open(icefloe.local_filesystem_storage(folder)).verify().is_healthy


@pytest.mark.parametrize("library", ["icefloe", "icechunk"])
def test_the_threshold_decides_what_is_inline(library: str, official: Any) -> None:
    module = icefloe if library == "icefloe" else official
    config = module.RepositoryConfig(inline_chunk_threshold_bytes=10)
    repository = module.Repository.create(module.in_memory_storage(), config)
    session = repository.writable_session("main")
    run_step(session.store, ("set", "a/zarr.json", array([4], [1])))
    for index, size in enumerate((1, 10, 11)):
        run_step(session.store, ("set", f"a/c/{index}", b"x" * size))
    session.commit("chunks")
    kinds = [session.chunk_type("/a", [index]) for index in range(4)]
    known = module.ChunkType
    assert kinds == [known.inline, known.inline, known.native, known.uninitialized]


def test_a_threshold_of_zero_keeps_nothing_inline() -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    session = Repository.create(in_memory_storage(), config).writable_session("main")
    run_step(session.store, ("set", "a/zarr.json", array([4], [1])))
    run_step(session.store, ("set", "a/c/0", b"x"))
    assert session.chunk_type("/a", [0]) == ChunkType.native


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("is_own_commit", [True, False])
def test_a_read_only_session_refuses_every_write_alike(
    spec_version: int, is_own_commit: bool, official: Any
) -> None:
    outcomes = {}
    for library in (icefloe, official):
        repository = library.Repository.create(
            library.in_memory_storage(), spec_version=spec_version
        )
        session = repository.writable_session("main")
        run(session.store, PREPARED)
        session.commit("prepared")
        reader = session if is_own_commit else repository.readonly_session("main")
        before = run_step(reader.store, ("list",))
        outcomes[library.__name__] = [run_step(reader.store, step) for step in WRITES]
        assert run_step(reader.store, ("list",)) == before
    assert outcomes["icefloe"] == outcomes["icechunk"]
    assert all(outcome.startswith("ReadOnlyError ") for outcome in outcomes["icefloe"])


def test_a_store_of_a_read_only_session_cannot_be_made_writable() -> None:
    session = prepare(icefloe, 2, is_committed=False)
    session.commit("prepared")
    assert session.store.read_only
    with pytest.raises(icefloe.ReadOnlyError, match="this session was committed as"):
        session.store.with_read_only(read_only=False)


def test_a_store_made_read_only_sees_what_the_session_writes() -> None:
    session = prepare(icefloe, 2, is_committed=False)
    reader = session.store.with_read_only(read_only=True)
    run_step(session.store, ("set", "a/c/0/1", b"late"))
    assert run_step(reader, ("get", "a/c/0/1")) == b"late"
    writer = reader.with_read_only(read_only=False)
    assert run_step(writer, ("set", "a/c/0/1", b"later")) is None
    assert run_step(reader, ("get", "a/c/0/1")) == b"later"


def test_stores_are_equal_when_they_are_of_one_session(official: Any) -> None:
    answers = []
    for library in (icefloe, official):
        repository = library.Repository.create(library.in_memory_storage())
        first, second = (repository.writable_session("main") for _ in range(2))
        reader = repository.readonly_session("main")
        answers.append(
            [
                first.store == first.store,
                first.store == first.store.with_read_only(read_only=True),
                first.store == second.store,
                first.store == reader.store,
                first.store == "store",
            ]
        )
    assert answers == [[True, True, False, False, False]] * 2


def test_stores_that_read_one_snapshot_are_equal() -> None:
    """Unlike official's, whose read-only stores differ even from their own pickles."""
    storage = in_memory_storage()
    session = Repository.create(storage).writable_session("main")
    run(session.store, PREPARED)
    first = session.snapshot_id
    session.commit("prepared")
    readers = [Repository.open(storage).readonly_session("main") for _ in range(2)]
    assert readers[0].store == readers[1].store == pickle.loads(pickle.dumps(readers[0])).store
    assert readers[0].store != session.store  # which could write before
    assert session.store != pickle.loads(pickle.dumps(session)).store
    assert readers[0].store != Repository.open(storage).readonly_session(snapshot_id=first).store


def test_sync_clear_clears_without_an_event_loop() -> None:
    session = prepare(icefloe, 2, is_committed=True)
    session.store.sync_clear()
    assert run_step(session.store, ("list",)) == []
    with pytest.raises(icefloe.ReadOnlyError):
        session.store.with_read_only(read_only=True).sync_clear()


def test_listing_while_the_session_changes_gives_what_was_there() -> None:
    store = prepare(icefloe, 2, is_committed=True).store

    async def collect() -> list[str]:
        found = []
        async for key in store.list():
            found.append(key)
            await store.delete(key)
        return found

    before = run_step(store, ("list",))
    assert sorted(asyncio.run(collect())) == before
    assert run_step(store, ("list",)) == []


@pytest.mark.parametrize(
    "request_",
    [
        RangeByteRequest(-3, 2),
        RangeByteRequest(5, 2),
        OffsetByteRequest(-1),
        SuffixByteRequest(-1),
    ],
)
@pytest.mark.parametrize("key", ["a/c/1", "a/zarr.json"])
def test_negative_and_reversed_byte_ranges_are_refused(key: str, request_: Any) -> None:
    """A packed chunk has neighbours in its object, which a negative range would reach into."""
    session = Repository.create(in_memory_storage()).writable_session("main")
    zarr.create_array(session.store, name="a", shape=4, chunks=2, dtype="u1")[:] = [1, 2, 3, 4]
    store: Any = session.store
    with pytest.raises(icefloe.InvalidInputError, match="bytes") as caught:
        store.get_sync(key, byte_range=request_)
    assert caught.value.kind == "invalid-byte-range"
    with pytest.raises(icefloe.InvalidInputError, match="bytes"):
        asyncio.run(store.get(key, default_buffer_prototype(), request_))


def test_a_manifest_that_the_snapshot_does_not_list_is_named(tmp_path: Path) -> None:
    world = make_world(tmp_path, icefloe)
    unlisted_manifest(world)
    array_ = zarr.open_array(world.open().readonly_session("main").store, path="a/native", mode="r")
    with pytest.raises(icefloe.FormatError, match="is not among the manifest files") as caught:
        array_[:]
    assert caught.value.kind == "manifest-info-not-found"


@pytest.mark.parametrize("prefix", [None, "", "/"])
def test_a_repository_at_an_empty_prefix_is_refused(prefix: str | None) -> None:
    storage = icefloe.s3_storage(bucket="b", prefix=prefix, region="x", anonymous=True)
    with pytest.raises(icefloe.InvalidInputError, match="empty prefix") as caught:
        Repository.create(storage)
    assert caught.value.kind == "empty-prefix-creation"
