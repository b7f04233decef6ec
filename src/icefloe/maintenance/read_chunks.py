"""Reading whole chunks and decoding them, as a Zarr client would."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icefloe.errors import IcechunkError
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import NodeId
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.maintenance.live import get_all
from icefloe.repo.commit import batches
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Readable, Span

if TYPE_CHECKING:
    import zarr
    from zarr.core.buffer import Buffer

_BYTES_AT_ONCE = 64 << 20
_CHUNKS_AT_ONCE = 1024


async def read_and_decode(
    handle: RepoHandle, node_id: NodeId, path: str, refs: ChunkRefs, forms: Sequence[str]
) -> tuple[list[Finding], int]:
    """Read these chunks and decode them with the metadata of every snapshot that has the array.

    Returns the errors and the number of bytes read.
    """
    found: list[Finding] = []
    total = 0
    async for rows, outcomes in fetch_batches(handle, refs):
        for row, data in zip(rows, outcomes, strict=True):
            ref = refs.row(row)
            key = ref.location or f"inline chunk of node {node_id}"
            if ref.kind == ChunkKind.NATIVE:
                key = _stored_key(handle, ref)
            index = tuple(refs.index[row].tolist())
            if isinstance(data, IcechunkError):
                detail = f"chunk {index}: {data.message}"
                found.append(Finding.of(FindingKind.UNREADABLE_CHUNK, key, detail, path))
                continue
            total += len(data)
            for form in forms:
                problem = decode_problem(form, index, bytes(data))
                if problem is not None:
                    detail = f"chunk {index}: {problem}"
                    found.append(Finding.of(FindingKind.UNDECODABLE_CHUNK, key, detail, path))
                    break
    return found, total


async def fetch_batches(
    handle: RepoHandle, refs: ChunkRefs
) -> AsyncIterator[tuple[list[int], list[Readable | IcechunkError]]]:
    """Rows, and the bytes or the error of each, as many at once as memory allows."""
    sizes = refs.length.tolist()
    for rows in batches(range(len(refs)), sizes.__getitem__, _BYTES_AT_ONCE, _CHUNKS_AT_ONCE):
        yield rows, await _fetch_all(handle, [refs.row(row) for row in rows])


async def _fetch_all(
    handle: RepoHandle, refs: Sequence[ChunkRef]
) -> list[Readable | IcechunkError]:
    """The bytes of each chunk, or its error."""
    outcomes: dict[int, Readable | IcechunkError] = {}
    native = [at for at, ref in enumerate(refs) if ref.kind == ChunkKind.NATIVE]
    virtual = [at for at, ref in enumerate(refs) if ref.kind == ChunkKind.VIRTUAL]
    keys = [_stored_key(handle, refs[at]) for at in native]
    spans = [Span(refs[at].offset, refs[at].length) for at in native]
    outcomes.update(zip(native, await get_all(handle, keys, spans), strict=True))
    found = await handle.assets.virtual.fetch_all([refs[at] for at in virtual])
    outcomes.update(zip(virtual, found, strict=True))
    return [outcomes.get(at, ref.inline or b"") for at, ref in enumerate(refs)]


def _stored_key(handle: RepoHandle, ref: ChunkRef) -> str:
    if ref.location is not None:  # a file that is not named by an id
        return ref.location
    assert ref.chunk_id is not None
    return handle.assets.chunk_key(ref.chunk_id)


def decode_problem(form: str, index: Sequence[int], data: bytes) -> str | None:
    """Why a chunk cannot be decoded, or None; `form` is that of `check_snapshot.chunk_form`."""
    if not form:
        return None  # bad metadata is a separate finding
    try:
        objects, array = _one_chunk_array(form, _chunk_shape(form, index))
        objects[array.metadata.encode_chunk_key((0,) * array.ndim)] = _buffer(data)
        array[...]
    except Exception as error:  # noqa: BLE001 - codecs raise any error of their libraries
        return f"{type(error).__name__}: {error}"
    return None


def _buffer(data: bytes) -> Buffer:
    from zarr.core import buffer as buffers

    return buffers.default_buffer_prototype().buffer.from_bytes(data)


@lru_cache(maxsize=256)
def _one_chunk_array(
    form: str, chunk_shape: tuple[int, ...]
) -> tuple[dict[str, Buffer], zarr.Array[Any]]:
    """An array of one chunk, and the objects it is read from."""
    document = json.loads(form)
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}
    names = {"name": "default", "configuration": {"separator": "/"}}
    document |= {
        "zarr_format": 3,
        "node_type": "array",
        "shape": chunk_shape,
        "chunk_grid": grid,
        "chunk_key_encoding": names,
        "attributes": {},
    }
    objects = {"zarr.json": _buffer(json.dumps(document).encode())}
    import zarr

    return objects, zarr.open_array(zarr.storage.MemoryStore(objects), mode="r", zarr_format=3)


def _chunk_shape(form: str, index: Sequence[int]) -> tuple[int, ...]:
    grid = json.loads(form)["chunk_grid"]
    if grid["name"] == "regular":
        return tuple(grid["configuration"]["chunk_shape"])
    return tuple(
        _length_at(axis, at)
        for axis, at in zip(grid["configuration"]["chunk_shapes"], index, strict=True)
    )


def _length_at(axis: int | Sequence[Any], at: int) -> int:
    """The length of one chunk of a rectilinear axis, which is a size for all of its chunks, or a
    list of sizes, with [size, count] for equal ones."""
    if isinstance(axis, int):
        return axis
    for item in axis:
        size, count = (item, 1) if isinstance(item, int) else item
        if at < count:
            return int(size)
        at -= count
    raise IndexError("the chunk is outside the grid")
