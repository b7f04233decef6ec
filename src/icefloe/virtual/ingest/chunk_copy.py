"""Copying values into the chunks of a target array, one whole chunk after the other.

Reading, compressing and storing run beside each other: a thread reads, a few others compress and
store what it read. Zarr would do the same through its event loop, which costs as much as the
compression of an ordinary chunk; it is asked where a chunk is completed rather than written anew,
and for data types and codecs that are not plain numbers in a plain chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc, Zstd
from numpy.typing import NDArray
from zarr.dtype import parse_dtype

from icefloe.geometry import Slices, chunks_of, cut, inside
from icefloe.storage.client.interruptible import DaemonThreads
from icefloe.storage.run import run_blocking
from icefloe.store.operations import set_key
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.ingest.transfer import ReaderOf, check_missing, read_block
from icefloe.virtual.planning.plan import ArrayPlan, IngestPlan

STORING_THREADS = 4
_MAX_WAITING_BYTES = 64 << 20  # read, but not stored so far
_SHUFFLES = {"noshuffle": Blosc.NOSHUFFLE, "shuffle": Blosc.SHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}

Encode = Callable[[NDArray[Any]], Any]


def copy_region(
    store: IcechunkStore, plan: IngestPlan, array: ArrayPlan, region: Slices, reader_of: ReaderOf
) -> None:
    """Fill a region of the target, which no other writer shares a chunk of."""
    encode = chunk_encoder(array)
    target = zarr.open_array(store, path=array.target, mode="r+", zarr_format=3)
    check_missing(plan, array, region, target)
    is_inside = array.old_shape is not None and all(
        span.start < size for span, size in zip(region, array.old_shape, strict=True)
    )
    kept = target if is_inside and region else None
    if encode is None or not region:
        target[region or ...] = read_block(plan, array, region, reader_of, kept)
        return
    with _Storing(store, array, encode) as storing:
        for unit in _read_units(plan, array, region):
            if kept is None or len(array.rows_in(unit)):
                storing.add(unit, read_block(plan, array, unit, reader_of, kept))


def chunk_encoder(array: ArrayPlan) -> Encode | None:
    """What turns the values of a chunk into stored bytes; None where only Zarr can tell."""
    kind = parse_dtype(array.metadata["data_type"], zarr_format=3)
    codecs = array.metadata["codecs"]
    if kind.to_native_dtype().kind not in "biufc" or len(codecs) != 2:
        return None
    serializer, compressor = codecs
    settings = compressor.get("configuration", {})
    is_little = serializer.get("configuration", {}).get("endian", "little") == "little"
    if serializer["name"] != "bytes" or not is_little:
        return None
    if compressor["name"] == "zstd":
        zstd: Encode = Zstd(settings["level"], settings["checksum"]).encode
        return zstd
    if compressor["name"] == "blosc":
        shuffle = _SHUFFLES[settings["shuffle"]]
        choices = (settings["cname"], settings["clevel"], shuffle, settings["blocksize"])
        blosc: Encode = Blosc(*choices, typesize=settings["typesize"]).encode
        return blosc
    return None


def _read_units(plan: IngestPlan, array: ArrayPlan, region: Slices) -> Iterator[Slices]:
    """The region in parts that are read at once: single chunks, where no file decodes twice then.

    What was read last is still in the processor's cache when it is compressed.
    """
    if _cuts_source_chunks(plan, array):
        return iter([region])
    return cut(region, array.chunks)


def _cuts_source_chunks(plan: IngestPlan, array: ArrayPlan) -> bool:
    """Whether a border between chunks of the target lies inside a chunk of a file."""
    new = array.num_new_axes
    variables = [plan.sources[number].variables[array.path] for number in array.sources.tolist()]
    lengths = array.shapes[:, new:]
    # A file without chunks may be read anywhere.
    own = np.array([[1] * len(v.shape) if v.is_contiguous else v.chunks for v in variables])
    target = np.array(array.chunks[new:], np.int64)
    first_cut = -array.starts[:, new:] % target
    first_cut = np.where(first_cut == 0, target, first_cut)
    is_one = first_cut % own == 0
    are_others = (target % own == 0) | (first_cut + target >= lengths)
    return not bool(((first_cut >= lengths) | (is_one & are_others)).all())


class _Storing:
    """The threads that compress and store; errors of theirs are raised by `add`, or at the end."""

    def __init__(self, store: IcechunkStore, array: ArrayPlan, encode: Encode) -> None:
        kind = parse_dtype(array.metadata["data_type"], zarr_format=3)
        fill = kind.from_json_scalar(array.metadata["fill_value"], zarr_format=3)
        self._dtype = kind.to_native_dtype().newbyteorder("<")
        self._fill = np.asarray(fill, self._dtype)
        self._store, self._array, self._encode = store, array, encode
        self._pool = DaemonThreads(STORING_THREADS, "icefloe-stores")
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._waiting_bytes = 0

    def __enter__(self) -> _Storing:
        return self

    def __exit__(self, failed: Any, *_: object) -> None:
        try:
            while self._waiting and failed is None:
                self._wait()
        finally:
            left = [done for done, _ in self._waiting if not done.cancel()]
            if failed is not KeyboardInterrupt:
                wait(left)

    def add(self, region: Slices, block: NDArray[Any]) -> None:
        """Store the chunks of a region."""
        for box in cut(region, self._array.chunks):
            values = block[inside(box, region)]
            while self._waiting and self._waiting_bytes + values.nbytes > _MAX_WAITING_BYTES:
                self._wait()
            done = self._pool.submit(self._store_chunk, box, values)
            self._waiting.append((done, values.nbytes))
            self._waiting_bytes += values.nbytes

    def _wait(self) -> None:
        done, nbytes = self._waiting.popleft()
        done.result()
        self._waiting_bytes -= nbytes

    def _store_chunk(self, box: Slices, values: NDArray[Any]) -> None:
        chunks = self._array.chunks
        index = [span.start for span in chunks_of(box, chunks)]
        if not self._is_whole(box):
            self._complete(box, values)
            return
        if self._is_empty(values):
            if self._array.old_shape is not None:
                self._complete(box, values)  # there may be something to be removed
            return
        if values.shape != chunks:
            padded = np.full(chunks, self._fill, self._dtype)
            padded[tuple(slice(0, size) for size in values.shape)] = values
            values = padded
        data = self._encode(np.ascontiguousarray(values, self._dtype))
        key = "/".join([self._array.target, "c", *map(str, index)])
        run_blocking(set_key(self._store.session.workspace, key, data))

    def _is_whole(self, box: Slices) -> bool:
        """Whether a box is all that its chunk has inside of the array."""
        return all(
            span.start % length == 0 and span.stop in (span.start + length, size)
            for span, length, size in zip(box, self._array.chunks, self._array.shape, strict=True)
        )

    def _is_empty(self, values: NDArray[Any]) -> bool:
        """Whether all values are the fill value, bit for bit: such chunks are not stored."""
        if values[(0,) * values.ndim].astype(self._dtype).tobytes() != self._fill.tobytes():
            return False
        bits = f"u{min(8, self._dtype.itemsize)}"
        stored = np.ascontiguousarray(values, self._dtype).reshape(-1, 1).view(bits)
        return bool((stored == self._fill.reshape(1, 1).view(bits)).all())

    def _complete(self, box: Slices, values: NDArray[Any]) -> None:
        target = zarr.open_array(self._store, path=self._array.target, mode="r+", zarr_format=3)
        target[box] = values
