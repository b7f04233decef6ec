"""Thousands of small arrays: commits that write all or few of them, and reads of all.

Each side works on what it has written itself, with its default configuration, because the rows are
about how references of small arrays are laid out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map

from benchmarks.arrays import PACKED
from benchmarks.data import Corpus
from benchmarks.places import LOCAL, UNSYNCED, Place, is_remote
from benchmarks.steps import PREPARED, Scenario, Step

CHUNK = 1024
"""Bytes of a chunk: too many to be kept inline by default."""

_PER_GROUP = 100


def num_arrays(dataset: str, rows: int) -> int:
    """As many arrays as the name of a dataset begins with, at a million references."""
    return max(int(dataset.split(maxsplit=1)[0]) * rows // 1_000_000, 4)


def array_paths(count: int) -> list[str]:
    """The paths of arrays, 100 in a group."""
    return [f"g{at // _PER_GROUP:03}/v{at % _PER_GROUP:02}" for at in range(count)]


def _document(**fields: Any) -> Any:
    data = json.dumps({"zarr_format": 3, "attributes": {}, **fields}).encode()
    return default_buffer_prototype().buffer.from_bytes(data)


def documents(paths: Iterable[str]) -> list[tuple[str, Any]]:
    """What makes arrays of one chunk, in their groups."""
    array = _document(
        node_type="array",
        shape=[CHUNK],
        data_type="uint8",
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [CHUNK]}},
        chunk_key_encoding={"name": "default", "configuration": {"separator": "/"}},
        fill_value=0,
        codecs=[{"name": "bytes"}],
    )
    group = _document(node_type="group")
    groups = ["", *sorted({f"{path.split('/')[0]}/" for path in paths})]
    return [(f"{name}zarr.json", group) for name in groups] + [
        (f"{path}/zarr.json", array) for path in paths
    ]


def chunks(paths: Sequence[str], tag: int) -> list[tuple[str, Any]]:
    """The only chunk of each array."""
    made = default_buffer_prototype().buffer.from_bytes
    values = np.full((len(paths), CHUNK), tag, np.uint8)
    values[:, :8] = np.arange(len(paths), dtype="<u8").reshape(-1, 1).view(np.uint8)
    return [(f"{path}/c/0", made(row.tobytes())) for path, row in zip(paths, values, strict=True)]


def put(store: Any, items: Iterable[tuple[str, Any]]) -> None:
    """Set keys of a store, many at once."""
    limit = zarr.config.get("async.concurrency")
    asyncio.run(concurrent_map(list(items), store.set, limit))


def get(store: Any, keys: Iterable[str]) -> list[Any]:
    """Get keys of a store, many at once."""
    prototype, limit = default_buffer_prototype(), zarr.config.get("async.concurrency")
    return asyncio.run(concurrent_map([(key, prototype) for key in keys], store.get, limit))


def write_arrays(library: Any, storage: Any, count: int, config: Any = None) -> Any:
    """A session on a new repository with as many new arrays, not committed."""
    session = library.Repository.create(storage, config).writable_session("main")
    paths = array_paths(count)
    put(session.store, documents(paths))
    put(session.store, chunks(paths, 1))
    return session


def require_chunks(place: Place, storage: Any, paths: Sequence[str], tag: int) -> None:
    """The arrays have these chunks at the tip of `main`."""
    expected = chunks(paths, tag)
    session = place.library.Repository.open(storage).readonly_session("main")
    found = get(session.store, [key for key, _ in expected])
    assert [one.to_bytes() for one in found] == [one.to_bytes() for _, one in expected], "chunks"


def commit_all(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Commit new arrays of one chunk each. Chunks are stored before that."""
    place, count = Place(side, kind, corpus), num_arrays(dataset, corpus.rows)
    with place.fresh_address() as address:
        storage = place.storage(address)
        session = write_arrays(place.library, storage, count)
        yield PREPARED
        session.commit("arrays")
        yield Step("commit")
        require_chunks(place, storage, array_paths(count), 1)


def commit_few(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository and commit new chunks of a five-hundredth of its arrays."""
    place = Place(side, kind, corpus)
    paths = array_paths(num_arrays(dataset, corpus.rows))[::500]
    with _own(place, dataset) as storage:
        session = place.library.Repository.open(storage).writable_session("main")
        put(session.store, chunks(paths, 2))
        yield PREPARED
        session.commit("few arrays")
        yield Step("commit")
        require_chunks(place, storage, paths, 2)


def _own(place: Place, dataset: str) -> AbstractContextManager[Any]:
    if is_remote(place.kind):
        return nullcontext(place.storage(place.address(dataset)))
    return place.copied(dataset)


def read_store(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and get the chunk of every array from the store."""
    place, count = Place(side, kind, corpus), num_arrays(dataset, corpus.rows)
    storage, paths = place.storage(place.address(dataset)), array_paths(count)
    yield PREPARED
    session = place.library.Repository.open(storage).readonly_session("main")
    found = get(session.store, [f"{path}/c/0" for path in paths])
    yield Step("read")
    assert [one.to_bytes() for one in found] == [one.to_bytes() for _, one in chunks(paths, 1)]


def read_arrays(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Open a repository, and read every array through Zarr."""
    place, count = Place(side, kind, corpus), num_arrays(dataset, corpus.rows)
    storage, paths = place.storage(place.address(dataset)), array_paths(count)
    yield PREPARED
    store = place.library.Repository.open(storage).readonly_session("main").store
    arrays: list[Any] = [zarr.open_array(store, path=path, mode="r") for path in paths]
    found = [array[:] for array in arrays]
    yield Step("read")
    assert [one.tobytes() for one in found] == [one.to_bytes() for _, one in chunks(paths, 1)]


def make_arrays(corpus: Corpus, dataset: str) -> None:
    """Arrays of one chunk each, written by the side that is to read them."""
    place = Place("ours", UNSYNCED, corpus)
    if not dataset.endswith(PACKED):
        place = Place("official", LOCAL, corpus)
    storage = place.storage(str(corpus / dataset))
    write_arrays(place.library, storage, num_arrays(dataset, corpus.rows)).commit("arrays")
