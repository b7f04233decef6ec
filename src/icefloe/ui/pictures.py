"""Pictures of planes: one snapshot, or the difference of two; and single lines of values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.ui import colours, planes
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.planes import ArrayOfSnapshot, Decoded, Plane, PlaneRequest
from icefloe.ui.png import encode_png
from icefloe.ui.query import Answer, Query

_PIXELS = 512
_MOST_PIXELS = 2048
_MOST_VALUES = 2000
_LONGEST_TEXT = 200
_LARGEST_EXACT = 2**53


def request_of(query: Query, snapshot: str, num_axes: int = 2) -> PlaneRequest:
    """The part of an array that a request asks for."""
    axes, at = query.numbers("axes"), query.numbers("at")
    if axes is None or len(axes) != num_axes or at is None:
        raise InvalidInputError(f"a picture needs {num_axes} axes and a position, at")
    most = query.number("most", _PIXELS, 1, _MOST_PIXELS)
    window, shape = query.numbers("window"), query.numbers("shape")
    return PlaneRequest(snapshot, query.text("path"), axes, at, window, most, shape)


def picture(opened: OpenedRepository, query: Query) -> Answer:
    """A plane as PNG, with its limits and sizes in a header."""
    plane = planes.read_plane(opened, request_of(query, query.text("snapshot")))
    about = _describe(plane)
    low, high = query.real("low"), query.real("high")
    low = about["min"] if low is None else low
    high = about["max"] if high is None else high
    scale = query.choice("scale", *colours.SCALES)
    pixels = colours.pixels(plane.values, low or 0.0, high or 0.0)
    about |= {"low": low, "high": high}
    return _png(pixels, scale, about, flip="flip" in query)


def difference(opened: OpenedRepository, query: Query) -> Answer:
    """What one snapshot has more than another, as PNG. The scale is symmetric around 0.

    Both arrays are read at the same positions. The smaller one is continued by missing values.
    """
    first, second = query.text("from"), query.text("snapshot")
    asked = request_of(query, second)
    arrays = [planes.open_array(opened, each, asked.path) for each in (first, second)]
    shape = common_shape(asked.path, arrays)
    window = planes.window_of(shape, asked)
    steps = zip(*(planes.steps_of(array, window, asked) for array in arrays), strict=True)
    asked = asked._replace(shape=shape, steps=tuple(map(max, steps)))
    before = planes.read_plane(opened, asked._replace(snapshot=first))
    after = planes.read_plane(opened, asked)
    if before.kind != after.kind:
        raise InvalidInputError(
            f"{asked.path} is a {before.kind} in one snapshot and a {after.kind} in the other"
        )
    was, has = ~np.isnan(before.values), ~np.isnan(after.values)
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.where(before.values == after.values, 0.0, after.values - before.values)
    largest = _largest(change)
    given = query.real("high")
    high = largest if given is None else abs(given)
    pixels = colours.pixels(change, -high, high)
    pixels[change == 0] = colours.NUM_STEPS // 2  # also where no value differs, and high is 0
    pixels[has & ~was] = colours.APPEARED
    pixels[was & ~has] = colours.VANISHED
    kind = "duration" if after.kind == "time" else after.kind
    units = after.units if after.units == before.units else None
    about = {
        **_describe(after._replace(values=change, kind=kind, units=units)),
        "low": -high,
        "high": high,
        "largest": largest,
        "changed": int((was & has & (change != 0)).sum()),
        "appeared": int((has & ~was).sum()),
        "vanished": int((was & ~has).sum()),
    }
    return _png(pixels, "difference", about, flip="flip" in query)


def common_shape(path: str, arrays: list[ArrayOfSnapshot]) -> tuple[int, ...]:
    """The shape that has room for an array as it is in each of some snapshots."""
    shapes = [array.shape for array in arrays]
    counts = sorted({len(shape) for shape in shapes})
    if len(counts) > 1:
        raise InvalidInputError(
            f"{path} has {counts[0]} dimensions in one snapshot and {counts[1]} in the other"
        )
    return tuple(map(max, zip(*shapes, strict=True)))


def _largest(change: NDArray[np.float64]) -> float:
    """The largest finite amount of a change; the largest number there is, if one is infinite."""
    amounts = np.abs(change[~np.isnan(change)])
    return float(min(amounts.max(initial=0.0), np.finfo(np.float64).max))


def scale_picture(opened: OpenedRepository, query: Query) -> Answer:
    """The colours of a scale from left to right, as PNG."""
    scale = query.choice("scale", *colours.SCALES, "difference")
    steps = np.arange(colours.NUM_STEPS, dtype=np.uint8)[None, :]
    return _png(steps, scale, {}, flip=False)


def _describe(plane: Plane) -> dict[str, Any]:
    """Facts about a plane. Infinite values count as values, but have no part in the statistics."""
    found = plane.values[np.isfinite(plane.values)]
    return {
        "min": float(found.min()) if len(found) else None,
        "max": float(found.max()) if len(found) else None,
        "mean": _mean(found) if len(found) else None,
        "values": int((~np.isnan(plane.values)).sum()),
        "infinite": int(np.isinf(plane.values).sum()),
        "total": int(plane.values.size),
        "size": list(plane.values.shape),
        "steps": list(plane.steps),
        "window": [list(each) for each in plane.window],
        "data_type": plane.data_type,
        "kind": plane.kind,
        "units": plane.units,
    }


def _mean(values: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore"):
        mean = float(values.mean())
    # The sum of large numbers may be infinite.
    return mean if np.isfinite(mean) else float((values / len(values)).sum())


def _png(pixels: NDArray[np.uint8], scale: str, about: dict[str, Any], *, flip: bool) -> Answer:
    if not pixels.size:
        raise InvalidInputError("this part of the array has no values")
    body = encode_png(pixels[::-1] if flip else pixels, colours.palette(scale))
    return Answer(body, "image/png", is_constant=True, about=about)


def values(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Values along one dimension, or a single one without `axes`; texts as texts."""
    path = query.text("path")
    snapshot = query.text("snapshot")
    array = planes.open_array(opened, snapshot, path)
    if not query.numbers("axes"):
        at = query.numbers("at") or ()
        shape = query.numbers("shape") or array.shape
        planes.check_request(shape, (), at)
        found = planes.read_continued(array, shape, at)
        return {"value": plain_values(found)[0], "kind": found.kind, "units": found.units}
    asked = request_of(query, snapshot, num_axes=1)
    if array.has_numbers:
        plane = planes.read_plane(opened, asked._replace(most=_MOST_VALUES))
        shown = [None if np.isnan(one) else _plain(float(one)) for one in plane.values]
        return {**_describe(plane), "is_number": True, "list": shown}
    return _texts(array, asked)


def _texts(array: ArrayOfSnapshot, asked: PlaneRequest) -> dict[str, Any]:
    planes.check_request(array.shape, asked.axes, asked.at)
    size = array.shape[asked.axes[0]]
    selection: list[int | slice] = list(asked.at)
    selection[asked.axes[0]] = slice(0, min(size, _MOST_VALUES))
    shown = plain_values(array.read(tuple(selection)))
    return {"is_number": False, "total": size, "list": shown}


def plain_values(found: Decoded) -> list[Any]:
    """Values as JSON has them: None for missing ones, times and durations in microseconds."""
    data, mask = found.values.data.ravel(), found.values.mask
    if data.dtype.kind in "mM":
        data = data.astype(np.int64)
    is_masked = np.zeros(data.shape, np.bool_) if mask is None else mask.ravel()
    items = zip(data.tolist(), is_masked.tolist(), strict=True)
    return [None if is_missing else _plain(value) for value, is_missing in items]


def _plain(value: Any) -> Any:
    """A value as JSON has it. NaN, and integers that a browser would round, become texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text[:_LONGEST_TEXT]
