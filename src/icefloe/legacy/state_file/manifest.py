"""Chunk manifest files: one row per chunk, of one array or of several.

`coord` is the concatenation of the chunk indices. An index up to 247 is one byte. A larger one is
the byte 247 + n, then its n big-endian bytes. So `coord` is short and sorts like the indices. The
document demands that, and defines no encoding. Earlier versions wrote eight big-endian bytes for
each index, which are read too: the encoding of today never is as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import BlobColumn, mask_from_arrow, numbers_from_arrow, numbers_to_arrow
from icefloe.format.layout import Generation
from icefloe.ids import ChunkId, NodeId, base32_letters, decode_base32_letters
from icefloe.legacy.checked import Checked, column, read_parquet
from icefloe.legacy.state_file import state
from icefloe.legacy.state_file.structure import Inventory
from icefloe.legacy.state_file.tables import Profile, check_fits, manifest_schema, write_parquet

_COLUMNS = ("array_id", "coord", "inline_data", "chunk_file", "offset", "length")
_LAST_SINGLE = 247
"""The last index that is a single byte. Larger ones follow a byte that counts theirs."""
_MOST_BYTES = 4
_WIDE_BYTES = 8
"""Per index in files of earlier versions."""
_ID_LETTERS = 20


def decode_manifest(
    data: bytes | memoryview, name: str, inventories: Sequence[Inventory]
) -> list[ChunkRefs]:
    """The references of some inventories in one file. `name` is the name of the file in errors.

    The rows of an inventory start at its row and end where another array begins. Only rows inside
    its extent count.

    Raises:
        FormatError: they are not in the file.
    """
    check = state.checked(name)
    table = read_parquet(data, _COLUMNS, check)
    array_id = numbers_from_arrow(column(table, "array_id", pa.uint64(), check, nulls=False))
    borders = np.concatenate([[0], np.flatnonzero(np.diff(array_id)) + 1, [len(array_id)]])
    found = []
    for inventory in inventories:
        number = state.array_id(inventory.node_id)
        start = inventory.row
        if start >= len(array_id) or int(array_id[start]) != number:
            raise check.fail(
                f"row {start} is not one of array {number}; the file has {len(array_id)} rows"
            )
        stop = int(borders[np.searchsorted(borders, start, side="right")])
        found.append(_refs(table.slice(start, stop - start), inventory, check))
    return found


def _refs(table: pa.Table, inventory: Inventory, check: Checked) -> ChunkRefs:
    ndim = len(inventory.extent)
    coords = _decode_coords(column(table, "coord", pa.binary(), check, nulls=False), ndim, check)
    first, last = np.array(inventory.extent, np.uint64).reshape(ndim, 2).T
    inside = ((coords >= first) & (coords < last)).all(axis=1)
    if not inside.all():
        table, coords = table.filter(pa.array(inside)), coords[inside]
    index = coords.astype(np.uint32)
    inline = column(table, "inline_data", pa.binary(), check, nulls=True)
    file = column(table, "chunk_file", pa.string(), check, nulls=True)
    length = numbers_from_arrow(column(table, "length", pa.uint64(), check, nulls=False))
    offsets = column(table, "offset", pa.uint64(), check, nulls=True)
    offset = numbers_from_arrow(offsets.fill_null(0) if offsets.null_count else offsets)
    if bool((offset > np.uint64(2**64 - 1) - length).any()):
        raise check.fail("a chunk ends beyond 2**64")
    is_inline = mask_from_arrow(pc.is_valid(inline))
    lacking = ~is_inline & ~mask_from_arrow(pc.is_valid(file))
    if lacking.any():
        raise check.fail(
            f"chunk {index[lacking][0].tolist()} has neither inline_data nor a chunk_file"
        )
    is_url = ~is_inline & mask_from_arrow(pc.fill_null(pc.match_substring(file, "://"), False))
    is_own = ~is_inline & ~is_url
    parts = []
    if is_inline.any():
        parts.append(ChunkRefs.inline_chunks(index[is_inline], inline.filter(pa.array(is_inline))))
    if is_url.any():
        url = file.filter(pa.array(is_url))
        parts.append(ChunkRefs.virtual(index[is_url], url, offset[is_url], length[is_url]))
    if is_own.any():
        own = file.filter(pa.array(is_own))
        parts += _native(index[is_own], own, offset[is_own], length[is_own], check)
    merged = ChunkRefs.overlay([(part, None) for part in parts], ndim)[0]
    if len(merged) != len(index):
        raise check.fail(f"a chunk of array {state.array_id(inventory.node_id)} is there twice")
    return merged


def _decode_coords(coords: pa.Array, ndim: int, check: Checked) -> NDArray[np.uint64]:
    blobs = BlobColumn.from_arrow(coords)
    if bool((blobs.length == ndim * _WIDE_BYTES).all()):
        raw = blobs.data[int(blobs.offsets[0]) : int(blobs.offsets[-1])]
        return np.ascontiguousarray(raw).view(">u8").reshape(len(blobs), ndim).astype(np.uint64)
    found = np.zeros((len(blobs), ndim), np.uint64)
    at, end = blobs.offsets[:-1].astype(np.int64), blobs.offsets[1:].astype(np.int64)
    data = np.append(blobs.data, np.zeros(1 + _MOST_BYTES, np.uint8))
    is_wrong = np.zeros(len(blobs), np.bool_)
    for axis in range(ndim):
        first = data[np.minimum(at, end)].astype(np.int64)
        size = np.maximum(first - _LAST_SINGLE, 0)
        is_wrong |= (at + size >= end) | (size > _MOST_BYTES)
        value = np.where(size == 0, first, 0).astype(np.uint64)
        for byte in range(_MOST_BYTES):
            more = data[np.minimum(at + 1 + byte, end)].astype(np.uint64)
            value = np.where(byte < size, value << np.uint64(8) | more, value)
        is_wrong |= size != _sizes(value)  # another spelling of the same index
        found[:, axis], at = value, np.minimum(at + 1 + size, end)
    is_wrong |= at != end
    if is_wrong.any():
        wrong = blobs.take(np.flatnonzero(is_wrong)[:1]).to_list()[0]
        raise check.fail(
            f"coord {wrong.hex()!r} is not the index of a chunk in an array of {ndim} dimensions"
        )
    return found


def _sizes(index: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of bytes behind the first one."""
    limits = [_LAST_SINGLE, *(256**size - 1 for size in range(1, _MOST_BYTES))]
    return np.sum([index > np.uint64(limit) for limit in limits], axis=0, dtype=np.int64)


def _native(
    index: Index, files: pa.Array, offset: NDArray[Any], length: NDArray[Any], check: Checked
) -> list[ChunkRefs]:
    """Chunks in files below `c/`, by id if the file is named by an id."""
    ids, by_id = _ids_of(BlobColumn.from_arrow(files))
    parts = []
    if by_id.any():
        parts.append(ChunkRefs.native(index[by_id], ids, offset[by_id], length[by_id]))
    if not by_id.all():
        other = ~by_id
        distinct = files.filter(pa.array(other)).dictionary_encode()
        keys = [state.key(state.CHUNKS, text, check) for text in distinct.dictionary.to_pylist()]
        located = pa.DictionaryArray.from_arrays(distinct.indices, pa.array(keys, pa.string()))
        parts.append(ChunkRefs.keyed(index[other], located, offset[other], length[other]))
    return parts


def _ids_of(texts: BlobColumn) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The chunk ids of names that are ids, and which names these are."""
    is_id = np.asarray(texts.length == _ID_LETTERS)
    if is_id.all():
        raw = texts.data[int(texts.offsets[0]) : int(texts.offsets[-1])]
        letters = raw.reshape(len(texts), _ID_LETTERS)
    else:
        letters = texts.data[texts.offsets[:-1][is_id][:, None] + np.arange(_ID_LETTERS)]
    ids, is_text = decode_base32_letters(letters, ChunkId.size)
    is_id[is_id] = is_text
    return ids[is_text], is_id


def encode_manifest(node_id: NodeId, refs: ChunkRefs, profile: Profile, path: str) -> bytes:
    """The file with the references of one array, in the order of their coordinates.

    Raises:
        InvalidInputError: a number is too large for its column, or there is no column for it.
    """
    if refs.etag is not None or refs.last_modified is not None:
        raise InvalidInputError(
            f"virtual chunks of {path!r} say which version of a file they are in, for which "
            f"{Generation.STATE_FILE.noun} has no place; leave that out, or migrate the repository",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    count = len(refs)
    schema = manifest_schema(profile)
    bits = 64 if profile.value == "wide" else 32
    if count:
        check_fits(f"the length of a chunk of {path!r}", int(refs.length.max()), bits, profile)
    is_inline = refs.kind == ChunkKind.INLINE
    number = state.array_id(node_id)
    wide: Any = np.uint64 if bits == 64 else np.uint32
    columns = [
        numbers_to_arrow(np.arange(count, dtype=wide)),
        numbers_to_arrow(np.full(count, number, np.uint32)),
        _encode_coords(refs.index),
        pa.nulls(count, pa.binary())
        if refs.inline is None
        else refs.inline.to_arrow().cast(pa.binary()),
        _file_column(refs),
        numbers_to_arrow(refs.offset, is_inline),
        numbers_to_arrow(refs.length.astype(wide)),
    ]
    return write_parquet(pa.Table.from_arrays(columns, schema=schema))


def _encode_coords(index: Index) -> pa.Array:
    count, ndim = index.shape
    flat = index.astype(np.uint64).reshape(-1)
    size = _sizes(flat)
    end = np.cumsum(size + 1)
    data = np.empty(int(end[-1]) if len(end) else 0, np.uint8)
    data[end - size - 1] = np.where(size == 0, flat, size.astype(np.uint64) + _LAST_SINGLE)
    for byte in range(_MOST_BYTES):  # from the last one
        rows = size > byte
        data[end[rows] - 1 - byte] = flat[rows] >> np.uint64(8 * byte) & np.uint64(255)
    offsets = np.zeros(count + 1, np.int64)
    if ndim:
        offsets[1:] = end[ndim - 1 :: ndim]
    return BlobColumn(offsets, data).to_arrow().cast(pa.binary())


def _file_column(refs: ChunkRefs) -> pa.Array:
    """Names below `c/` for native chunks, URLs for virtual chunks, null for inline chunks."""
    count = len(refs)
    files = pa.nulls(count, pa.string())
    if refs.location is not None:
        files = refs.location.to_arrow().cast(pa.string())
        own = pc.starts_with(files, state.CHUNKS)
        files = pc.if_else(own, pc.utf8_slice_codeunits(files, len(state.CHUNKS)), files)
    by_id = (refs.kind == ChunkKind.NATIVE) & mask_from_arrow(pc.is_null(files))
    if refs.chunk_id is not None and by_id.any():
        rows = np.flatnonzero(by_id)
        place = np.full(count, -1, np.int64)
        place[rows] = np.arange(len(rows))
        letters = base32_letters(refs.chunk_id[rows])
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * letters.shape[1]
        texts = BlobColumn(offsets, letters.reshape(-1), is_text=True)
        if len(rows) == count:
            return texts.to_arrow().cast(pa.string())
        files = pc.coalesce(texts.take(place).to_arrow().cast(pa.string()), files)
    return files
