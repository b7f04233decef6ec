"""Pictures of planes: one snapshot, or the difference of two; and single lines of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.ui import colours, planes
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.planes import Plane, PlaneRequest
from icefloe.ui.png import encode_png
from icefloe.ui.query import Answer, Query

_PIXELS = 512
_MOST_PIXELS = 2048
_MOST_VALUES = 2000
_LONGEST_TEXT = 200


def request_of(query: Query, snapshot: str, num_axes: int = 2) -> PlaneRequest:
    """The part of an array that a request asks for."""
    axes, at = query.numbers("axes"), query.numbers("at")
    if axes is None or len(axes) != num_axes or at is None:
        raise InvalidInputError(f"a picture needs {num_axes} axes and a position, at")
    most = query.number("most", _PIXELS, 1, _MOST_PIXELS)
    return PlaneRequest(snapshot, query.text("path"), axes, at, query.numbers("window"), most)


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

    Both arrays are read at the same positions. If their sizes differ, what both have is compared.
    """
    first, second = query.text("from"), query.text("snapshot")
    asked = request_of(query, second)
    shapes = [planes.open_array(opened, each, asked.path).shape for each in (first, second)]
    if len(shapes[0]) != len(shapes[1]):
        raise InvalidInputError(
            f"{asked.path} has {len(shapes[0])} dimensions in one snapshot and {len(shapes[1])} "
            "in the other"
        )
    for shape in shapes:
        planes.check_request(shape, asked.axes, asked.at)
    if asked.window is None:
        common = [min(shape[axis] for shape in shapes) for axis in asked.axes]
        asked = asked._replace(window=tuple(n for size in common for n in (0, size)))
    before = planes.read_plane(opened, asked._replace(snapshot=first))
    after = planes.read_plane(opened, asked)
    if before.values.shape != after.values.shape:  # other chunks, and so other steps
        raise InvalidInputError(f"{asked.path} has other chunks: choose a smaller window")
    was, has = np.isfinite(before.values), np.isfinite(after.values)
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.where(was & has, after.values - before.values, np.nan)
    given = query.real("high")
    largest = float(np.nanmax(np.abs(change), initial=0.0))
    high = largest if given is None else abs(given)
    pixels = colours.pixels(change, -high, high or 1.0)
    pixels[has & ~was] = colours.APPEARED
    pixels[was & ~has] = colours.VANISHED
    about = {
        **_describe(Plane(change, after.steps, after.window, after.data_type)),
        "low": -high,
        "high": high,
        "largest": largest,
        "changed": int((np.nan_to_num(change) != 0).sum()),
        "appeared": int((has & ~was).sum()),
        "vanished": int((was & ~has).sum()),
    }
    return _png(pixels, "difference", about, flip="flip" in query)


def scale_picture(opened: OpenedRepository, query: Query) -> Answer:
    """The colours of a scale from left to right, as PNG."""
    scale = query.choice("scale", *colours.SCALES, "difference")
    steps = np.arange(colours.NUM_STEPS, dtype=np.uint8)[None, :]
    return _png(steps, scale, {}, flip=False)


def _describe(plane: Plane) -> dict[str, Any]:
    is_value = np.isfinite(plane.values)
    found = plane.values[is_value]
    return {
        "min": float(found.min()) if len(found) else None,
        "max": float(found.max()) if len(found) else None,
        "mean": float(found.mean()) if len(found) else None,
        "values": int(is_value.sum()),
        "total": int(plane.values.size),
        "size": list(plane.values.shape),
        "steps": list(plane.steps),
        "window": [list(each) for each in plane.window],
        "data_type": plane.data_type,
    }


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
        planes.check_request(array.shape, (), at)
        return {"value": _plain(planes.read_values(array, path, at)[()])}
    asked = request_of(query, snapshot, num_axes=1)
    if array.dtype.kind in "biufcmM":
        plane = planes.read_plane(opened, asked._replace(most=_MOST_VALUES))
        shown = [None if not np.isfinite(one) else float(one) for one in plane.values]
        return {**_describe(plane), "is_number": True, "list": shown}
    return _texts(array, asked)


def _texts(array: zarr.Array[Any], asked: PlaneRequest) -> dict[str, Any]:
    planes.check_request(array.shape, asked.axes, asked.at)
    size = array.shape[asked.axes[0]]
    selection: list[int | slice] = list(asked.at)
    selection[asked.axes[0]] = slice(0, min(size, _MOST_VALUES))
    found = planes.read_values(array, asked.path, tuple(selection))
    return {"is_number": False, "total": size, "list": [_plain(one) for one in found.tolist()]}


def _plain(value: Any) -> Any:
    """A value as JSON has it; NaN and what JSON does not have become texts."""
    if isinstance(value, np.generic):
        value = str(value) if value.dtype.kind in "mM" else value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return str(value)[:_LONGEST_TEXT]
