"""Virtual references handed in and committed: as lists, as objects, as an Arrow table."""

from __future__ import annotations

import importlib
from typing import Any

import zarr

from benchmarks.data import Corpus, References, grid_index
from benchmarks.places import Place
from benchmarks.steps import PREPARED, Scenario, Step


def start(place: Place, storage: Any, refs: References) -> Any:
    """A session on a new repository with array `a` of a grid, and a container for its chunks."""
    library = place.library
    config = library.RepositoryConfig()
    store = library.s3_store(region="us-east-1")
    container = library.VirtualChunkContainer("s3://example-bucket/", store)
    config.set_virtual_chunk_container(container)
    session = library.Repository.create(storage, config).writable_session("main")
    zarr.create_array(session.store, name="a", shape=refs.grid, chunks=(1, 1, 1), dtype="uint8")
    return session


def hand_in(way: str, place: Place, refs: References) -> Any:
    """What is handed in, made ready; and the call that does it, given a store."""
    if way == "lists":
        return lambda store: store.set_virtual_refs_arr(
            "a", refs.grid, refs.locations, refs.offset, refs.length
        )
    index = grid_index(refs.grid)
    if way == "objects":
        columns = zip(
            index.tolist(), refs.locations, refs.offset.tolist(), refs.length.tolist(), strict=True
        )
        chunks = [place.library.VirtualChunkSpec(*row) for row in columns]
        return lambda store: store.set_virtual_refs("a", chunks)
    axes = {f"i{axis}": index[:, axis] for axis in range(index.shape[1])}
    pa: Any = importlib.import_module("pyarrow")  # not before the library imports it
    location = pa.array(refs.locations).dictionary_encode()
    table = pa.table(axes | {"location": location, "offset": refs.offset, "length": refs.length})
    return lambda store: store.set_virtual_refs_table("a", table)


def set_virtual(corpus: Corpus, dataset: str, side: str, kind: str, way: str) -> Scenario:
    """Set every reference of a dataset and commit."""
    place, refs = Place(side, kind, corpus), corpus.references(dataset)
    with place.fresh_address() as address:
        session = start(place, place.storage(address), refs)
        call = hand_in(way, place, refs)
        yield PREPARED
        failed = call(session.store)
        yield Step("set")
        session.commit("references")
        yield Step("commit")
        assert failed is None, f"{len(failed)} references were refused"
        found = session.chunk_type("/a", tuple(size - 1 for size in refs.grid))
        assert found == place.library.ChunkType.virtual, found
