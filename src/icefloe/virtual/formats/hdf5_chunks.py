"""HDF5 filters as Zarr codecs, and the places of HDF5 chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from h5py import h5d, h5s, h5z
from numpy.typing import NDArray

from icefloe.on_demand import on_demand
from icefloe.virtual.formats.hdf5_types import storable_dtype, unusual_storage
from icefloe.virtual.model.data_types import bytes_codec
from icefloe.virtual.model.description import Json, SourceError
from icefloe.virtual.model.references import inline_references, make_references

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

BZIP2, BLOSC, LZ4, ZSTD = 307, 32001, 32004, 32015
"""Filters outside HDF5 itself, by their registered numbers."""

_BLOSC_SHUFFLE = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_REFUSED = {
    h5z.FILTER_SZIP: "szip",
    h5z.FILTER_SCALEOFFSET: "scale-offset",
    h5z.FILTER_NBIT: "n-bit",
    h5z.FILTER_LZF: "LZF",
    LZ4: "LZ4",
}

_SPARSE_CELLS = 100_000

Chain = tuple[tuple[Json, ...] | None, str | None]


def codecs_of(plist: Any, dtype: np.dtype[Any]) -> Chain:
    """The Zarr codecs that undo a dataset's filters, or None and why there are none."""
    if dtype.kind == "O":
        return None, "text of variable length lies in the file's heap, not in chunks"
    codecs = [bytes_codec(dtype)]
    if plist.get_layout() == h5d.CHUNKED:
        for number in range(plist.get_nfilters()):
            code, _, settings, name = plist.get_filter(number)
            codec = _codec(code, settings)
            if codec is None:
                known = _REFUSED.get(code) or name.decode("utf-8", "replace") or f"number {code}"
                return None, f"its chunks are stored with the HDF5 filter {known}"
            codecs.append(codec)
    return tuple(codecs), None


def _codec(code: int, settings: tuple[int, ...]) -> Json | None:
    match code:
        case h5z.FILTER_SHUFFLE:
            size = settings[0] if settings else 1
            return {"name": "numcodecs.shuffle", "configuration": {"elementsize": size}}
        case h5z.FILTER_DEFLATE:
            level = settings[0] if settings else 1
            return {"name": "numcodecs.zlib", "configuration": {"level": level}}
        case h5z.FILTER_FLETCHER32:
            return {"name": "numcodecs.fletcher32", "configuration": {}}
        case _ if code == BZIP2:
            level = settings[0] if settings else 9
            return {"name": "numcodecs.bz2", "configuration": {"level": level}}
        case _ if code == ZSTD:
            level = settings[0] if settings else 3
            level = level - 2**32 if level >= 2**31 else level
            return {"name": "zstd", "configuration": {"level": level, "checksum": False}}
        case _ if code == BLOSC and len(settings) >= 7:
            return _blosc(settings)
    return None


def _blosc(settings: tuple[int, ...]) -> Json | None:
    typesize, _, level, shuffle, compressor = settings[2:7]
    if shuffle >= len(_BLOSC_SHUFFLE) or compressor >= len(_BLOSC_NAMES):
        return None
    return {
        "name": "blosc",
        "configuration": {
            "cname": _BLOSC_NAMES[compressor],
            "clevel": level,
            "shuffle": _BLOSC_SHUFFLE[shuffle],
            "typesize": max(1, typesize),
            "blocksize": 0,
        },
    }


def find_references(dataset: Any, plist: Any, location: str, size_bytes: int) -> pa.Table | str:
    """Every chunk that was written; or the reason why some cannot be referred to."""
    ndim = len(dataset.shape or ())
    layout = plist.get_layout()
    none = np.empty(0, np.uint64)
    if layout == h5d.CHUNKED:
        return _chunked(dataset, plist, location, size_bytes)
    stored = dataset.get_storage_size()
    first = np.zeros((1, ndim), np.uint32)
    if dataset.shape is None or 0 in dataset.shape or not stored:
        return make_references(np.empty((0, ndim), np.uint32), location, none, none)
    if layout == h5d.COMPACT:
        values = np.empty(dataset.shape, dataset.dtype)
        dataset.read(h5s.ALL, h5s.ALL, values)
        return inline_references(first, [values.tobytes()])
    offset = dataset.get_offset()
    if offset is None:
        return make_references(np.empty((0, ndim), np.uint32), location, none, none)
    _check_end(location, size_bytes, offset + stored)
    return make_references(
        first, location, np.array([offset], np.uint64), np.array([stored], np.uint64)
    )


def _chunked(dataset: Any, plist: Any, location: str, size_bytes: int) -> pa.Table | str:
    found: list[Any] = []
    dataset.chunk_iter(found.append)
    chunk = np.array(plist.get_chunk(), np.int64)
    ndim = len(chunk)
    if not found:
        none = np.empty(0, np.uint64)
        return make_references(np.empty((0, ndim), np.uint32), location, none, none)
    starts, masks, offsets, lengths = zip(*found, strict=True)
    if any(masks):
        skipped = sum(map(bool, masks))
        return f"{skipped} of its chunks were stored without some of the filters"
    index = np.array(starts, np.int64).reshape(len(found), ndim) // chunk
    if (doubt := _doubtful_places(dataset, chunk, index)) is not None:
        return doubt
    if _has_plain_edges(dataset, plist, chunk, index, np.array(lengths, np.int64)):
        return "chunks at its edges were stored without the filters"
    offset, length = np.array(offsets, np.uint64), np.array(lengths, np.uint64)
    _check_end(location, size_bytes, int((offset + length).max()))
    order = np.lexsort(index.T[::-1])
    return make_references(index[order], location, offset[order], length[order])


def written_chunks(dataset: Any) -> NDArray[np.int64] | None:
    """Where the chunks of a sparse dataset start, if most were never written; else None.

    HDF5 looks for every chunk of a region: in an array of millions of which two were written, that
    takes minutes.
    """
    plist = dataset.get_create_plist()
    if plist.get_layout() != h5d.CHUNKED or not dataset.shape:
        return None
    chunk = np.array(plist.get_chunk(), np.int64)
    grid = -(-np.array(dataset.shape, np.int64) // chunk)
    cells, count = int(np.prod(grid.astype(object))), dataset.get_num_chunks()
    if cells < _SPARSE_CELLS or count * 10 > cells:
        return None
    found: list[Any] = []
    dataset.chunk_iter(found.append)
    starts = np.array([one.chunk_offset for one in found], np.int64).reshape(len(found), len(grid))
    return None if _doubtful_places(dataset, chunk, starts // chunk) is not None else starts


def read_sparse(dataset: Any, starts: NDArray[np.int64], region: Any, fill: Any) -> NDArray[Any]:
    """A region of a sparse dataset of plain numbers: its fill value, and the chunks inside."""
    chunk = np.array(dataset.chunks, np.int64)
    low = np.array([span.start for span in region], np.int64)
    high = np.minimum([span.stop for span in region], dataset.shape)
    values = np.full(np.maximum(high - low, 0), fill, dataset.dtype)
    inside = ((starts < high) & (starts + chunk > low)).all(axis=1)
    for start in starts[inside]:
        first, last = np.maximum(start, low), np.minimum(start + chunk, high)
        source = tuple(map(slice, first.tolist(), last.tolist()))
        values[tuple(map(slice, (first - low).tolist(), (last - low).tolist()))] = dataset[source]
    return values


def plain_chunk(dataset: Any) -> tuple[int, ...] | None:
    """The shape of chunks whose bytes are the values; None where HDF5 has to convert them."""
    plist = dataset.get_create_plist()
    if plist.get_layout() != h5d.CHUNKED or plist.get_nfilters():
        return None
    dtype, trouble = storable_dtype(dataset)
    if trouble or dtype.kind not in "biufc" or unusual_storage(dataset.get_type(), dtype):
        return None
    found: tuple[int, ...] = plist.get_chunk()
    return found


def read_plain_chunk(
    dataset: Any, chunk: tuple[int, ...], region: tuple[slice, ...]
) -> NDArray[Any] | None:
    """The values of a region that is one whole chunk; None for other regions, and for a chunk that
    was never written.

    The bytes are read into the memory that the values stay in. HDF5 would clear that memory first.
    """
    start = tuple(span.start or 0 for span in region)
    ends = zip(region, start, chunk, dataset.shape, strict=True)
    if not all(
        first % length == 0 and span.stop == first + length <= size
        for span, first, length, size in ends
    ):
        return None
    if dataset.get_chunk_info_by_coord(start).byte_offset is None:
        return None
    _, data = dataset.read_direct_chunk(start)
    dtype, _ = storable_dtype(dataset)
    return np.frombuffer(data, dtype).reshape(chunk)


def _doubtful_places(dataset: Any, chunk: NDArray[Any], index: NDArray[Any]) -> str | None:
    """Whether HDF5 tells wrong places, which it does for its index of one unlimited dimension
    (`libver="latest"`), unless that is the first: there all places along those before it are 0.
    """
    limits = dataset.get_space().get_simple_extent_dims(maxdims=True)
    unlimited = [at for at, most in enumerate(limits) if most in (None, h5s.UNLIMITED)]
    grid = -(-np.array(dataset.shape, np.int64) // chunk)
    if (index >= grid).any():
        return "HDF5 tells of chunks outside of it"
    if len(unlimited) != 1 or (grid[: unlimited[0]] <= 1).all():
        return None
    if index[:, : unlimited[0]].any() or not index.any():
        return None
    return "HDF5 does not tell where its chunks are: its unlimited dimension is not the first"


def _has_plain_edges(
    dataset: Any,
    plist: Any,
    chunk: NDArray[Any],
    index: NDArray[Any],
    lengths: NDArray[np.int64],
) -> bool:
    """Whether chunks that reach over the edge are stored as they are, in spite of filters.

    HDF5 has an option for it, which it does not tell of. Such a chunk is as long as its values
    are, and its bytes are the values.
    """
    if not plist.get_nfilters():
        return False
    whole = int(np.prod(chunk)) * dataset.dtype.itemsize
    is_edge = ((index + 1) * chunk > np.array(dataset.shape, np.int64)).any(axis=1)
    rows = np.flatnonzero(is_edge & (lengths == whole))
    if not len(rows):
        return False
    start = index[rows[0]] * chunk
    _, stored = dataset.read_direct_chunk(tuple(start.tolist()))
    raw = np.frombuffer(stored, dataset.dtype).reshape(chunk)
    count = tuple(np.minimum(chunk, np.array(dataset.shape) - start).tolist())
    space = dataset.get_space()
    space.select_hyperslab(tuple(start.tolist()), count)
    values = np.empty(count, dataset.dtype)
    dataset.read(h5s.create_simple(count), space, values)
    return raw[tuple(slice(0, size) for size in count)].tobytes() == values.tobytes()


def _check_end(location: str, size_bytes: int, end: int) -> None:
    if end > size_bytes:
        raise SourceError(
            f"{location}: it says that chunks reach to byte {end:,}, the file has {size_bytes:,}: "
            "it was cut off"
        )
