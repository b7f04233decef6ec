"""What both libraries do with a repository, in the same words: they share their interface.

A process that measures one of them never imports the other. Every scenario looks at what it got
once the last step is over.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map

from benchmarks import committers
from benchmarks.arrays import (
    chunk_values,
    compressors,
    crowd_size,
    listed,
    num_commits,
    num_members,
)
from benchmarks.data import Corpus
from benchmarks.places import LIBRARIES, Place, count_received, endpoint
from benchmarks.steps import PREPARED, Scenario, Step
from benchmarks.virtual_refs import set_virtual

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


def chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Write an array and commit it, then open the repository anew and read it."""
    place, values = Place(side, kind, corpus), chunk_values(dataset, corpus.rows)
    with place.fresh_address() as address:
        storage = place.storage(address)
        array = create_array(place, storage, dataset, values.shape)
        yield PREPARED
        array[:] = values
        yield Step("write")
        array.store.session.commit("chunks")
        yield Step("commit")
        array = open_array(place, storage)
        yield Step("open")
        found = array[:]
        yield Step("read")
        assert np.array_equal(found, values), "the chunks that were read are not those written"


def fused_chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """The same with the pipeline of Zarr's that asks stores synchronously where they can."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}):
        yield from chunks(corpus, dataset, side, kind)


def bulk_chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """The same with icefloe's pipeline for whole selections; official with Zarr's default."""
    with zarr.config.set():
        if side == "ours":
            importlib.import_module("icefloe").use_bulk_pipeline()
        yield from chunks(corpus, dataset, side, kind)


def packed_chunks(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """The same, with small chunks that share objects where the library can do that."""
    yield from chunks(corpus, dataset, side, kind)


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


def require_crowd(place: Place, storage: Any, count: int) -> None:
    """What the crowd did is all there, every commit once."""
    history = place.library.Repository.open(storage).ancestry(branch="main")
    messages = [snapshot.message for snapshot in history][:-2]  # the array, the repository
    assert sorted(messages) == sorted(f"chunk {number}" for number in range(count)), messages
    assert open_array(place, storage)[:count].tolist() == list(range(1, count + 1))


def crowd(corpus: Corpus, _dataset: str, side: str, kind: str) -> Scenario:
    """Many processes that commit to one branch, each rebasing when others were faster."""
    place, (processes, commits) = Place(side, kind, corpus), crowd_size(corpus.rows)
    folder, library = corpus.folder, LIBRARIES[side]
    with place.fresh_address() as address:
        storage = place.storage(address)
        create_crowded(place, storage, processes * commits)
        with committers.crowd(
            library, endpoint(folder), address, processes=processes, commits=commits
        ) as started:
            before = count_received(folder)
            yield PREPARED
            committers.let_go(started)
            yield Step("crowd", size_bytes=count_received(folder) - before)
        require_crowd(place, storage, processes * commits)


_CHUNKS_BEFORE = 1000


def look_up(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and find one chunk of its array."""
    place = Place(side, kind, corpus)
    storage, [at] = place.storage(place.address(dataset)), corpus.coordinates(1)
    yield PREPARED
    found = open_session(place, storage).chunk_type("/a", at)
    yield Step("look up")
    expected = place.library.ChunkType
    assert found == (expected.native if dataset == "native" else expected.virtual), found


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
