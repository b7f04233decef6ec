"""Planes of arrays as PNG pictures with colours and rulers."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.repo.session import SessionView
from icefloe.ui import planes
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.planes import ArrayOfSnapshot, Decoded, Plane, PlaneRequest, open_array
from icefloe.ui.query import Answer, Query

# -- Colours of values: scales whose steps look equally large, and pixels of them.
#
# A scale is a curve through OKLCH (lightness, chroma, hue), in which equal steps of lightness
# look equal, brought to sRGB. The last rows of a palette are for pixels without a value.


NUM_STEPS = 251
"""Rows of a palette that stand for values. The middle one is that of no difference."""
APPEARED, VANISHED, NOTHING = 253, 254, 255
"""Rows for a value that is only in the later one, only in the earlier one, and in neither."""

_APPEARED_RGBA = (34, 160, 90, 255)
_VANISHED_RGBA = (190, 60, 170, 255)

# Lightness, chroma and hue at equal distances along the scale.
_CURVES = {
    "ice": (
        (0.20, 0.07, 285),
        (0.42, 0.13, 262),
        (0.62, 0.12, 225),
        (0.8, 0.11, 175),
        (0.97, 0.09, 110),
    ),
    "ember": (
        (0.18, 0.06, 320),
        (0.4, 0.15, 350),
        (0.6, 0.19, 25),
        (0.79, 0.16, 65),
        (0.97, 0.09, 100),
    ),
    "grey": ((0.15, 0.0, 0), (0.98, 0.0, 0)),
    "difference": (
        (0.4, 0.16, 262),
        (0.68, 0.12, 245),
        (0.96, 0.0, 0),
        (0.68, 0.15, 40),
        (0.45, 0.17, 28),
    ),
}
SCALES = tuple(name for name in _CURVES if name != "difference")


@cache
def palette(scale: str) -> NDArray[np.uint8]:
    """256 colours with opacity: the scale, and the rows for pixels without a value."""
    curve = np.array(_CURVES[scale], np.float64)
    hue = np.deg2rad(curve[:, 2])
    # Through a and b instead of the hue: a straight line there never leaves the colours between.
    corners = (curve[:, 0], curve[:, 1] * np.cos(hue), curve[:, 1] * np.sin(hue))
    at = np.linspace(0, len(curve) - 1, NUM_STEPS)
    lab = np.stack([np.interp(at, np.arange(len(curve)), each) for each in corners])
    made = np.zeros((256, 4), np.uint8)
    made[:NUM_STEPS, :3] = _srgb(lab)
    made[:NUM_STEPS, 3] = 255
    made[APPEARED], made[VANISHED] = _APPEARED_RGBA, _VANISHED_RGBA
    made.flags.writeable = False
    return made


def _srgb(lab: NDArray[np.float64]) -> NDArray[np.uint8]:
    """OKLab to sRGB."""
    to_cones = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(to_linear @ (to_cones @ lab) ** 3, 0, 1)
    curved = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    made: NDArray[np.uint8] = np.rint(255 * curved).astype(np.uint8).T
    return made


def coloured_pixels(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.uint8]:
    """Rows of a palette for values between two limits; those beyond get the colour at the end."""
    is_value = ~np.isnan(values)
    # Halves, because the distance of two large limits may be infinite.
    span = high / 2 - low / 2 or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        part = (np.where(is_value, values, low) / 2 - low / 2) / span
    steps = np.minimum(np.clip(np.nan_to_num(part), 0, 1) * NUM_STEPS, NUM_STEPS - 1)
    return np.where(is_value, steps.astype(np.uint8), np.uint8(NOTHING))


def encode_png(pixels: NDArray[np.uint8], palette: NDArray[np.uint8]) -> bytes:
    """A PNG file whose pixels are rows of a palette: red, green, blue and opacity."""
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, of a palette
    lines = np.zeros((height, width + 1), np.uint8)  # each line starts with 0: it is not filtered
    lines[:, 1:] = pixels
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _part(b"IHDR", header),
            _part(b"PLTE", palette[:, :3].tobytes()),
            _part(b"tRNS", palette[:, 3].tobytes()),
            _part(b"IDAT", zlib.compress(lines.tobytes(), 3)),
            _part(b"IEND", b""),
        )
    )


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


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
    scale = query.choice("scale", *SCALES)
    pixels = coloured_pixels(plane.values, low or 0.0, high or 0.0)
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
    pixels = coloured_pixels(change, -high, high)
    pixels[change == 0] = NUM_STEPS // 2  # also where no value differs, and high is 0
    pixels[has & ~was] = APPEARED
    pixels[was & ~has] = VANISHED
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
    scale = query.choice("scale", *SCALES, "difference")
    steps = np.arange(NUM_STEPS, dtype=np.uint8)[None, :]
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
    body = encode_png(pixels[::-1] if flip else pixels, palette(scale))
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


_MOST_LABELS = 5000
_NORTH = ("degrees_north", "degree_north", "degrees_n", "degree_n")


def describe_axes(opened: OpenedRepository, query: Query) -> list[dict[str, Any]]:
    """Name, size and labels of each dimension.

    The coordinates of a dimension are the one-dimensional array of its name in the same group or
    above it. Those of long dimensions are left out, and so are those that cannot be read.
    """
    snapshot, path = query.text("snapshot"), query.text("path")
    view = opened.view(snapshot)
    _, array = view.array(path)
    found = []
    for axis, dimension in enumerate(array.shape):
        name = array.dimension_names[axis] if array.dimension_names else None
        size = dimension.array_length
        shown: dict[str, Any] = {"name": name, "size": size}
        if name is not None and 0 < size <= _MOST_LABELS:
            where = _coordinate_path(view, path, name, size)
            if where is not None:
                shown |= _coordinates(opened, snapshot, where)
        found.append(shown)
    return found


def _coordinate_path(view: SessionView, path: str, name: str, size: int) -> str | None:
    group = path
    while group:
        group = group.rpartition("/")[0]
        node = view.find_node(f"{group}/{name}")
        if node is not None and node.array is not None:
            lengths = [dimension.array_length for dimension in node.array.shape]
            if lengths == [size]:
                return node.path
    return None


def _coordinates(opened: OpenedRepository, snapshot: str, path: str) -> dict[str, Any]:
    try:
        found = open_array(opened, snapshot, path).read(slice(None))
    except IcechunkError as error:
        return {"problem": error.message}
    values, units = found.values.data, found.units
    rises = values.dtype.kind in "iuf" and len(values) > 1 and bool(values[0] < values[-1])
    is_north = units is not None and units.lower() in _NORTH
    return {"labels": coordinate_labels(found), "units": units} | (
        # Pictures have their first line at the top, maps have north there.
        {"upside_down": True} if is_north and rises else {}
    )


def coordinate_labels(found: Decoded) -> list[str]:
    """Coordinates as people read them: dates for times, few digits for numbers."""
    data, missing = found.values.data, found.is_missing().tolist()
    if data.dtype.kind == "f":
        labels = [f"{one:.6g}" for one in data.tolist()]
    elif found.kind == "time":
        labels = [_date_text(str(one)) for one in data]
    else:
        labels = [str(one) for one in data.tolist()]
    return ["–" if is_missing else label for label, is_missing in zip(labels, missing, strict=True)]


def _date_text(text: str) -> str:
    """An ISO time to the minute, and further only if there is something further."""
    day, _, clock = text.partition("T")
    if not clock:
        return day
    clock = clock.rstrip("0").rstrip(".") if "." in clock else clock
    return f"{day} {clock.removesuffix(':00') if clock.count(':') == 2 else clock}"
