"""Two-dimensional parts of arrays, as coarse as a picture and a limit of bytes need them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe import paths
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.ui.opened import OpenedRepository

MAX_BYTES = 256 << 20
"""Decoded bytes of the chunks that one picture may need."""
MAX_CHUNKS = 4096
_MISSING_NAMES = ("_FillValue", "missing_value")


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


class Plane(NamedTuple):
    """Values of a part of an array, NaN where there is none."""

    values: NDArray[np.float64]
    steps: tuple[int, ...]
    """Along each axis, every how many-th value was read."""
    window: tuple[tuple[int, int], ...]
    data_type: str

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


def open_array(opened: OpenedRepository, snapshot: str, path: str) -> zarr.Array[Any]:
    """An array of a snapshot, to be read. The path must be that of a node."""
    opened.view(snapshot).array(path)
    return zarr.open_array(opened.session(snapshot).store, path=paths.to_key(path), mode="r")


def read_plane(opened: OpenedRepository, asked: PlaneRequest) -> Plane:
    """Read a part of an array. Values are decoded as CF says: missing, scaled, moved."""
    return opened.planes.get(asked, lambda: _read(opened, asked))


def _read(opened: OpenedRepository, asked: PlaneRequest) -> Plane:
    array = open_array(opened, asked.snapshot, asked.path)
    window = _window(array.shape, asked)
    shape = tuple(last - first for first, last in window)
    stored = array.shards or array.chunks  # what one reference leads to
    steps = choose_steps(
        shape,
        [stored[axis] for axis in asked.axes],
        asked.most,
        prod(stored) * array.dtype.itemsize,
    )
    selection: list[int | slice] = list(asked.at)
    for axis, (first, last), step in zip(asked.axes, window, steps, strict=True):
        selection[axis] = slice(first, last, step)
    values = read_values(array, asked.path, tuple(selection))
    found = decode(values, array.attrs.asdict())
    if len(asked.axes) == 2 and asked.axes[0] > asked.axes[1]:
        found = found.T
    return Plane(np.ascontiguousarray(found), tuple(steps), window, str(array.dtype))


def read_values(array: zarr.Array[Any], path: str, selection: Any) -> NDArray[Any]:
    """Values of an array. What Zarr and its codecs raise is told as what it is: bad data."""
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


def decode(values: NDArray[Any], attributes: dict[str, Any]) -> NDArray[np.float64]:
    """Numbers as people mean them: NaN where the attributes say missing, scaled, moved."""
    kind = values.dtype.kind
    if kind in "mM":
        found = values.astype("i8").astype(np.float64)
        found[np.isnat(values)] = np.nan
        return found
    if kind == "c":
        return np.abs(values).astype(np.float64)
    if kind not in "biuf":
        raise InvalidInputError(f"values of type {values.dtype} have no picture")
    found = values.astype(np.float64)
    for name in _MISSING_NAMES:
        missing = attributes.get(name)
        if isinstance(missing, int | float) and not isinstance(missing, bool):
            found[values == missing] = np.nan
    scale, offset = attributes.get("scale_factor"), attributes.get("add_offset")
    if isinstance(scale, int | float):
        found *= scale
    if isinstance(offset, int | float):
        found += offset
    return found


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


def _window(shape: Sequence[int], asked: PlaneRequest) -> tuple[tuple[int, int], ...]:
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
