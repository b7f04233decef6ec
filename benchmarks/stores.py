"""What both libraries do with a repository, in the same words: they share their interface.

A process that measures one of them never imports the other. Every scenario looks at what it got
once the last step is over.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map

from benchmarks import committers
from benchmarks.arrays import (
    GARBAGE,
    PACKED,
    chunk_values,
    compressors,
    crowd_size,
    listed,
    num_commits,
    num_members,
    num_objects,
)
from benchmarks.data import Corpus
from benchmarks.places import S3_KEYS, Place, ranges_prefix
from benchmarks.steps import PREPARED, Scenario, Step
from benchmarks.virtual_refs import set_virtual

LOOKUPS = 2000

# --- what scenarios and checks have in common -------------------------------------------------


def create_repository(place: Place, storage: Any, count: int) -> Any:
    """A new repository with array `a` of as many numbers, each of them to be a chunk."""
    repository = place.library.Repository.create(storage)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(count,), chunks=(1,), dtype="int32")
    session.commit("an array")
    return repository


def create_array(place: Place, storage: Any, dataset: str, shape: tuple[int, ...]) -> Any:
    """Array `a`, each row of it to be a chunk, in a session on a new repository."""
    config = None
    if dataset == "packed" and place.side == "ours":  # official has no such option
        packing = place.library.PackingConfig()
        config = place.library.RepositoryConfig(packing=packing)
    session = place.library.Repository.create(storage, config).writable_session("main")
    return zarr.create_array(
        session.store,
        name="a",
        shape=shape,
        chunks=(1, *shape[1:]),
        dtype="uint64",
        compressors=compressors(dataset),
    )


def open_session(place: Place, storage: Any) -> Any:
    """The tip of `main`, of a repository with nothing cached."""
    return place.library.Repository.open(storage).readonly_session("main")


def open_array(place: Place, storage: Any) -> Any:
    """Array `a` at the tip of `main`."""
    return zarr.open_array(open_session(place, storage).store, path="a", mode="r")


def commit_chunks(repository: Any, count: int) -> None:
    """Commits that write one small chunk of array `a` each."""
    for number in range(count):
        session = repository.writable_session("main")
        array: Any = zarr.open_array(session.store, path="a")
        array[number] = number + 1
        session.commit(f"chunk {number}")


def require_commits(place: Place, storage: Any, count: int) -> None:
    """What `commit_chunks` did is all there."""
    history = place.library.Repository.open(storage).ancestry(branch="main")
    messages = [snapshot.message for snapshot in history][:-2]  # the array, the repository
    assert messages == [f"chunk {number}" for number in reversed(range(count))], messages
    assert open_array(place, storage)[:].tolist() == list(range(1, count + 1))


def list_keys(place: Place, storage: Any) -> list[str]:
    """Every key at the tip of `main`."""
    store = open_session(place, storage).store

    async def collect() -> list[str]:
        return [key async for key in store.list()]

    return asyncio.run(collect())


def list_documents(place: Place, storage: Any) -> dict[str, bytes]:
    """What a store has to do with it when Zarr asks for members: names, and metadata of each."""
    store = open_session(place, storage).store
    prototype = default_buffer_prototype()

    async def collect() -> dict[str, bytes]:
        names = [name async for name in store.list_dir("") if name != "zarr.json"]
        wanted = [(f"{name}/zarr.json", prototype) for name in names]
        found = await concurrent_map(wanted, store.get, zarr.config.get("async.concurrency"))
        return {name: document.to_bytes() for name, document in zip(names, found, strict=True)}

    return asyncio.run(collect())


def list_members(place: Place, storage: Any) -> tuple[tuple[str, Any], ...]:
    """Names and nodes of the root group at the tip of `main`."""
    return zarr.open_group(open_session(place, storage).store, mode="r").members()


# --- scenarios --------------------------------------------------------------------------------


def write_chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Write an array and commit it."""
    place, values = Place(side, kind, corpus), chunk_values(dataset, corpus.rows)
    with place.fresh_address() as address:
        storage = place.storage(address)
        array = create_array(place, storage, dataset, values.shape)
        yield PREPARED
        array[:] = values
        yield Step("write")
        array.store.session.commit("chunks")
        yield Step("commit")
        found = open_array(place, storage)[::100]
        assert np.array_equal(found, values[::100]), "what is there was not written"


def read_chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open an array, and read all of it."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    array = open_array(place, storage)
    yield Step("open")
    found = array[:]
    yield Step("read")
    assert np.array_equal(found, chunk_values(dataset.removesuffix(PACKED), corpus.rows))


def read_ranges(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Read an array of which every chunk is a range of one file on the S3 server."""
    place = Place(side, kind, corpus)
    credentials = place.library.containers_credentials(
        {ranges_prefix(kind): place.library.s3_static_credentials(**S3_KEYS)}
    )
    storage = place.storage(place.address(dataset))
    yield PREPARED
    repository = place.library.Repository.open(storage, authorize_virtual_chunk_access=credentials)
    array: Any = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    yield Step("open")
    found = array[:]
    yield Step("read")
    assert np.array_equal(found, chunk_values("few small", corpus.rows))


def commits(corpus: Corpus, _dataset: str, side: str, kind: str) -> Scenario:
    """One small chunk a commit."""
    place, count = Place(side, kind, corpus), num_commits(corpus.rows)
    with place.fresh_address() as address:
        storage = place.storage(address)
        repository = create_repository(place, storage, count)
        yield PREPARED
        commit_chunks(repository, count)
        yield Step("commits")
        require_commits(place, storage, count)


def virtual_lists(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Set virtual references from lists and arrays."""
    yield from set_virtual(corpus, dataset, side, kind, "lists")


def virtual_objects(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Set virtual references from an object for each."""
    yield from set_virtual(corpus, dataset, side, kind, "objects")


def virtual_table(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Set virtual references from an Arrow table."""
    yield from set_virtual(corpus, dataset, side, kind, "table")


def create_crowded(place: Place, storage: Any, count: int) -> None:
    """A repository with an array of which so many chunks are still to be written."""
    session = place.library.Repository.create(storage).writable_session("main")
    shape = (count + _CHUNKS_BEFORE,)
    array: Any = zarr.create_array(session.store, name="a", shape=shape, chunks=(1,), dtype="int32")
    array[count:] = np.arange(_CHUNKS_BEFORE)
    session.commit("an array")


def kept_commits(place: Place, storage: Any, count: int) -> int:
    """How many commits of the crowd are in the history; the array has exactly their chunks."""
    history = place.library.Repository.open(storage).ancestry(branch="main")
    messages = [snapshot.message for snapshot in history][:-2]  # the array, the repository
    assert len(set(messages)) == len(messages), messages
    found = open_array(place, storage)[:count]
    assert {f"chunk {at}" for at in np.flatnonzero(found)} == set(messages), messages
    return len(messages)


def crowd(corpus: Corpus, _dataset: str, side: str, kind: str) -> Scenario:
    """Many processes that commit to one branch, each rebasing when others were faster."""
    place, (processes, commits) = Place(side, kind, corpus), crowd_size(corpus.rows)
    count, spent = processes * commits, list[tuple[float, float]]()
    with place.fresh_address() as address:
        storage = place.storage(address)
        create_crowded(place, storage, count)

        def correct() -> dict[str, Any]:
            kept = kept_commits(place, storage, count)
            [(cpu, fsync)] = spent
            found = {"times": kept, "lost": count - kept, "cpu_seconds": cpu}
            return found | {"fsync_seconds": fsync}

        with committers.crowd(place, address, processes=processes, commits=commits) as started:
            yield PREPARED
            spent.append(committers.let_go(started))
            yield Step("crowd", correct=correct)


_CHUNKS_BEFORE = 1000


def look_up(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, find one chunk of its array, then many."""
    place = Place(side, kind, corpus)
    storage, [at, *more] = place.storage(place.address(dataset)), corpus.coordinates(1 + LOOKUPS)
    expected = place.library.ChunkType
    expected = expected.native if dataset == "native" else expected.virtual
    yield PREPARED
    session = open_session(place, storage)
    found = session.chunk_type("/a", at)
    yield Step("look up")
    kinds = [session.chunk_type("/a", at) for at in more]
    yield Step("look many up", times=LOOKUPS)
    assert all(kind == expected for kind in [found, *kinds])


def locations(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and get the location of every reference."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    found = open_session(place, storage).all_virtual_chunk_locations()
    yield Step("locations")
    assert found == corpus.references(dataset).locations


def changed_chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and get the index of every chunk that its only commit has written."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    repository = place.library.Repository.open(storage)
    newest, first = list(repository.ancestry(branch="main"))
    difference = repository.diff(from_snapshot_id=first.id, to_snapshot_id=newest.id)
    [found] = difference.updated_chunks.values()
    yield Step("diff")
    assert len(found) == corpus.rows, len(found)


def collect(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Delete the objects that nothing refers to."""
    place = Place(side, kind, corpus)
    with place.copied(dataset) as storage:
        repository = place.library.Repository.open(storage)
        yield PREPARED
        found = repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))
        yield Step("collect")
        expected = num_objects(corpus.rows) // GARBAGE
        assert found.chunks_deleted == expected, f"{found.chunks_deleted}, expected {expected}"


def keys(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and list every key of its store."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    found = list_keys(place, storage)
    yield Step("list")
    arrays, chunks_each = listed(dataset, corpus.rows)
    expected = 1 + arrays * (1 + chunks_each)
    assert len(found) == expected, f"{len(found)} keys, expected {expected}"


def documents(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and get the metadata of every array of its root group."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    found = list_documents(place, storage)
    yield Step("documents")
    expected = num_members(corpus.rows)
    assert len(found) == expected, f"{len(found)} documents, expected {expected}"


def members(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and then every array of its root group."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    found = list_members(place, storage)
    yield Step("members")
    expected = num_members(corpus.rows)
    assert len(found) == expected, f"{len(found)} members, expected {expected}"
