"""Reading whole chunks and decoding them, as a Zarr client would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import IcechunkError, StorageError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import NodeId
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.maintenance.object_table import ObjectTable
from icefloe.on_demand import on_demand
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Readable, Span

if TYPE_CHECKING:
    import zarr
    from zarr.core import buffer as buffers
    from zarr.core.buffer import Buffer
else:  # most verifications decode no chunk
    zarr = on_demand("zarr")
    buffers = on_demand("zarr.core.buffer")

_BYTES_AT_ONCE = 32 << 20
_CHUNKS_AT_ONCE = 256
_MAX_WAITING = 16


class UnreadChunks:
    """Tracks which chunks were read. Manifests of later commits mostly refer to the same chunks."""

    def __init__(self) -> None:
        self._read = np.empty(0, "S20")
        self._waiting: list[NDArray[Any]] = []
        self._num_waiting = 0

    def take(self, refs: ChunkRefs, chunks: ObjectTable, *, with_virtual: bool) -> ChunkRefs:
        """The references that can be read and were not read yet."""
        wanted = refs.kind == ChunkKind.INLINE
        if with_virtual:
            wanted |= refs.kind == ChunkKind.VIRTUAL
        native = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
        if len(native) and refs.chunk_id is not None:
            ids = refs.chunk_id[native]
            end = (refs.offset + refs.length)[native].astype(np.int64)
            native = native[chunks.is_whole(ids, end)]  # others are already findings
            wanted[native[self._are_new(refs, native)]] = True
        return refs.take(np.flatnonzero(wanted))

    def _are_new(self, refs: ChunkRefs, rows: NDArray[Any]) -> NDArray[np.bool_]:
        assert refs.chunk_id is not None
        places = np.ascontiguousarray(refs.offset[rows], ">u8").view(np.uint8).reshape(-1, 8)
        keys = np.hstack([refs.chunk_id[rows], places])
        keys = np.ascontiguousarray(keys).view("S20").reshape(-1)
        is_new: NDArray[np.bool_] = np.zeros(len(keys), np.bool_)
        is_new[np.unique(keys, return_index=True)[1]] = True  # the first of equal ones
        is_new &= ~np.isin(keys, self._read)
        for earlier in self._waiting:
            is_new &= ~np.isin(keys, earlier)
        self._waiting.append(keys[is_new])
        self._num_waiting += int(is_new.sum())
        if self._num_waiting > len(self._read) or len(self._waiting) > _MAX_WAITING:
            self._read = np.unique(np.concatenate([self._read, *self._waiting]))
            self._waiting, self._num_waiting = [], 0
        return is_new


async def read_and_decode(
    handle: RepoHandle, node_id: NodeId, path: str, refs: ChunkRefs, forms: Sequence[str]
) -> tuple[list[Finding], int]:
    """Read these chunks and decode them with the metadata of every snapshot that has the array.

    Returns the errors and the number of bytes read.
    """
    found: list[Finding] = []
    total = 0
    for rows in _slices(refs):
        some = [refs.row(row) for row in rows]
        for row, ref, data in zip(rows, some, await fetch_all(handle, some), strict=True):
            key = _key(handle, ref, node_id)
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


def _slices(refs: ChunkRefs) -> Iterator[list[int]]:
    rows: list[int] = []
    size = 0
    for row, length in enumerate(refs.length.tolist()):
        rows.append(row)
        size += length
        if size >= _BYTES_AT_ONCE or len(rows) >= _CHUNKS_AT_ONCE:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


async def fetch_all(handle: RepoHandle, refs: Sequence[ChunkRef]) -> list[Readable | IcechunkError]:
    """The bytes of each chunk, or its error."""
    outcomes: dict[int, Readable | IcechunkError] = {}
    native = [at for at, ref in enumerate(refs) if ref.kind == ChunkKind.NATIVE]
    virtual = [at for at, ref in enumerate(refs) if ref.kind == ChunkKind.VIRTUAL]
    wanted = [_span(handle, refs[at]) for at in native]
    try:
        outcomes.update(zip(native, await handle.driver.get_many(wanted), strict=True))
    except StorageError:  # one of them failed; read them one by one
        for at, (key, span) in zip(native, wanted, strict=True):
            try:
                outcomes[at] = await handle.driver.get(key, span)
            except StorageError as error:
                outcomes[at] = error
    found = await handle.assets.virtual.fetch_all([refs[at] for at in virtual])
    outcomes.update(zip(virtual, found, strict=True))
    return [outcomes.get(at, ref.inline or b"") for at, ref in enumerate(refs)]


def _span(handle: RepoHandle, ref: ChunkRef) -> tuple[str, Span]:
    return _stored_key(handle, ref), Span(ref.offset, ref.length)


def _stored_key(handle: RepoHandle, ref: ChunkRef) -> str:
    if ref.location is not None:  # a file that is not named by an id
        return ref.location
    assert ref.chunk_id is not None
    return handle.assets.chunk_key(ref.chunk_id)


def _key(handle: RepoHandle, ref: ChunkRef, node_id: NodeId) -> str:
    if ref.kind == ChunkKind.NATIVE:
        return _stored_key(handle, ref)
    return ref.location or f"inline chunk of node {node_id}"


def decode_problem(form: str, index: Sequence[int], data: bytes) -> str | None:
    """Why a chunk cannot be decoded, or None; `form` is that of `check_snapshot.chunk_form`."""
    if not form:
        return None  # bad metadata is a separate finding
    try:
        objects, array = _one_chunk_array(form, _chunk_shape(form, index))
        objects[array.metadata.encode_chunk_key((0,) * array.ndim)] = _buffer(data)
        array[...]
    except Exception as error:  # noqa: BLE001 - codecs raise whatever their libraries raise
        return f"{type(error).__name__}: {error}"
    return None


def _buffer(data: bytes) -> Buffer:
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
