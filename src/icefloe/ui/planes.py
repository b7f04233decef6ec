"""Two-dimensional parts of arrays, as coarse as a picture and a limit of bytes need them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe import paths
from icefloe.errors import FormatError, IcechunkError, InvalidInputError
from icefloe.scans.variables import Coding, Values, array_coding, find_coding
from icefloe.ui.opened import OpenedRepository

MAX_BYTES = 256 << 20
"""Decoded bytes of the chunks that one picture may need."""
MAX_CHUNKS = 4096
_KINDS = {"M8[us]": "time", "m8[us]": "duration"}


class PlaneRequest(NamedTuple):
    """Which part of which array."""

    snapshot: str
    path: str
    axes: tuple[int, ...]
    """Two dimensions: down and across. One, for a line."""
    at: tuple[int, ...]
    """The position along every dimension; that of the axes does not count."""
    window: tuple[int, ...] | None
    """First and last+1 along each axis; None for all."""
    most: int
    """Values along one axis."""
    shape: tuple[int, ...] | None = None
    """As if the array was continued to this shape by missing values."""
    steps: tuple[int, ...] | None = None
    """Every how many-th value to read along each axis; None to choose."""


class Plane(NamedTuple):
    """Values of a part of an array as numbers, NaN where there is none."""

    values: NDArray[np.float64]
    steps: tuple[int, ...]
    """Along each axis, every how many-th value was read."""
    window: tuple[tuple[int, int], ...]
    data_type: str
    kind: str
    """`number`; or `time` and `duration`, which are in microseconds."""
    units: str | None

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


class Decoded(NamedTuple):
    """Values of an array as xarray shows them."""

    values: Values
    kind: str
    """`number`, `time`, `duration` or `text`."""
    units: str | None
    """Of numbers."""

    def numbers(self) -> NDArray[np.float64]:
        """The values, NaN where one is missing; times in microseconds, sizes of complex ones."""
        data, mask = self.values.data, self.values.mask
        if data.dtype.kind in "mM":
            data = data.astype(np.int64)
        elif data.dtype.kind == "c":
            data = np.abs(data.astype(np.complex128))
        elif data.dtype.kind not in "biuf":
            raise InvalidInputError(f"values of type {data.dtype} have no picture")
        found = data.astype(np.float64)
        if mask is not None:
            found[mask] = np.nan
        return found

    def is_missing(self) -> NDArray[np.bool_]:
        """Where there is no value."""
        data, mask = self.values.data, self.values.mask
        is_nan = np.isnan(data) if data.dtype.kind in "fc" else np.zeros(data.shape, np.bool_)
        return is_nan if mask is None else is_nan | mask


class ArrayOfSnapshot(NamedTuple):
    """An array of a snapshot, to be read."""

    zarr: zarr.Array[Any]
    path: str
    coding: Coding | None
    """None for structures, which are shown as they are."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.zarr.shape

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Of what one reference leads to."""
        return self.zarr.shards or self.zarr.chunks

    @property
    def has_numbers(self) -> bool:
        return self.coding is not None and np.dtype(self.coding.dtype).kind in "biufcmM"

    def read(self, selection: Any) -> Decoded:
        """Values of a part, decoded; a single value as a line of one.

        This is how every view of the page reads values.
        """
        raw = np.atleast_1d(read_values(self.zarr, self.path, selection))
        attributes = self.zarr.attrs.asdict()
        units = attributes.get("units")
        units = units if isinstance(units, str) else None
        if self.coding is None:
            return Decoded(Values(raw), "text", units)
        try:
            values = self.coding.decode(raw)
            kind = _KINDS.get(self.coding.dtype, "number" if self.has_numbers else "text")
        except FormatError:  # dates that timestamps cannot hold stay numbers, beside their units
            plain = {key: value for key, value in attributes.items() if key != "units"}
            values = find_coding(self.path, raw.dtype, plain, decode=True).decode(raw)
            kind = "number"
        return Decoded(values, kind, None if kind in _KINDS.values() else units)


def open_array(opened: OpenedRepository, snapshot: str, path: str) -> ArrayOfSnapshot:
    """An array of a snapshot, to be read. The path must be that of a node."""
    opened.view(snapshot).array(path)
    session = opened.session(snapshot)
    array = zarr.open_array(session.store, path=paths.to_key(path), mode="r")
    is_structure = np.dtype(array.dtype).names is not None
    return ArrayOfSnapshot(
        array, path, None if is_structure else array_coding(session, path, array)
    )


def read_plane(opened: OpenedRepository, asked: PlaneRequest) -> Plane:
    """Read a part of an array."""
    return opened.planes.get(asked, lambda: _read(opened, asked))


def _read(opened: OpenedRepository, asked: PlaneRequest) -> Plane:
    array = open_array(opened, asked.snapshot, asked.path)
    shape = asked.shape or array.shape
    window = window_of(shape, asked)
    steps = asked.steps or steps_of(array, window, asked)
    selection: list[int | slice] = list(asked.at)
    for axis, (first, last), step in zip(asked.axes, window, steps, strict=True):
        selection[axis] = slice(first, last, step)
    found = read_continued(array, shape, selection)
    numbers = found.numbers()
    if len(asked.axes) == 2 and asked.axes[0] > asked.axes[1]:
        numbers = numbers.T
    numbers = np.ascontiguousarray(numbers)
    return Plane(numbers, tuple(steps), window, str(array.zarr.dtype), found.kind, found.units)


def read_continued(
    array: ArrayOfSnapshot, shape: tuple[int, ...], selection: Sequence[int | slice]
) -> Decoded:
    """Part of an array that ends before `shape` does: what it lacks is missing."""
    if len(shape) != len(array.shape):
        raise InvalidInputError(f"the shape has {len(shape)} numbers, the array {len(array.shape)}")
    if shape == array.shape:
        return array.read(tuple(selection))
    inside = [
        slice(part.start, max(part.start, min(part.stop, size)), part.step)
        if isinstance(part, slice)
        else slice(min(part, size), min(part + 1, size))
        for part, size in zip(selection, array.shape, strict=True)
    ]
    found = array.read(tuple(inside))
    lengths = [
        len(range(part.start, part.stop, part.step or 1)) if isinstance(part, slice) else 1
        for part in selection
    ]
    there = tuple(slice(0, length) for length in found.values.data.shape)
    data = np.zeros(lengths, found.values.data.dtype)
    data[there] = found.values.data
    mask = np.ones(lengths, np.bool_)
    mask[there] = False if found.values.mask is None else found.values.mask
    single = tuple(slice(None) if isinstance(part, slice) else 0 for part in selection)
    data, mask = np.atleast_1d(data[single]), np.atleast_1d(mask[single])
    return found._replace(values=Values(data, mask))


def steps_of(
    array: ArrayOfSnapshot, window: Sequence[tuple[int, int]], asked: PlaneRequest
) -> tuple[int, ...]:
    """Every how many-th value of a window to read along each axis."""
    lengths = [last - first for first, last in window]
    chunk = [array.chunk_shape[axis] for axis in asked.axes]
    chunk_bytes = prod(array.chunk_shape) * array.zarr.dtype.itemsize
    return tuple(choose_steps(lengths, chunk, asked.most, chunk_bytes))


def read_values(array: zarr.Array[Any], path: str, selection: Any) -> NDArray[Any]:
    """Values of an array. Errors of Zarr and its codecs are reported as bad data."""
    try:
        return np.asarray(array[selection])
    except (IcechunkError, MemoryError):
        raise
    except Exception as error:
        raise InvalidInputError(
            f"{path} cannot be read: {type(error).__name__}: {error}"
        ) from error


def choose_steps(
    shape: Sequence[int], chunk: Sequence[int], most: int, chunk_bytes: int
) -> list[int]:
    """Every how many-th value to read along each axis.

    First so that at most `most` are left, then coarser until the chunks that are needed are within
    the limits. A step that is longer than a chunk leaves chunks out.
    """
    steps = [max(1, ceil(size / most)) for size in shape]

    def needed() -> list[int]:
        each = zip(shape, chunk, steps, strict=True)
        return [min(ceil(size / one), ceil(size / step)) for size, one, step in each]

    while prod(needed()) > min(MAX_CHUNKS, max(1, MAX_BYTES // max(chunk_bytes, 1))):
        counts = needed()
        worst = counts.index(max(counts))
        if counts[worst] <= 1:
            break  # one chunk has to be read, however large it is
        steps[worst] = max(2 * steps[worst], chunk[worst])
    return steps


def check_request(shape: Sequence[int], axes: Sequence[int], at: Sequence[int]) -> None:
    """Refuse dimensions and positions that the array does not have."""
    ndim = len(shape)
    if len(set(axes)) != len(axes) or any(axis >= ndim for axis in axes):
        raise InvalidInputError(f"axes are {list(axes)}, expected dimensions from 0 to {ndim - 1}")
    if len(at) != ndim:
        raise InvalidInputError(f"the position has {len(at)} numbers, the array {ndim} dimensions")
    for axis, (number, size) in enumerate(zip(at, shape, strict=True)):
        if axis not in axes and number >= size:
            raise InvalidInputError(f"position {number} of dimension {axis}, which has {size}")


def window_of(shape: Sequence[int], asked: PlaneRequest) -> tuple[tuple[int, int], ...]:
    """First and last+1 along each axis of a request, checked."""
    check_request(shape, asked.axes, asked.at)
    sizes = [shape[axis] for axis in asked.axes]
    if asked.window is None:
        return tuple((0, size) for size in sizes)
    if len(asked.window) != 2 * len(sizes):
        raise InvalidInputError(f"a window has {2 * len(sizes)} numbers, not {len(asked.window)}")
    pairs = list(zip(asked.window[::2], asked.window[1::2], strict=True))
    for (first, last), size in zip(pairs, sizes, strict=True):
        if not first < last <= size:
            raise InvalidInputError(f"window {first} to {last} of a dimension of {size}")
    return tuple(pairs)
