"""The dimensions of an array for sliders and rulers: names, sizes, and coordinates if there are."""

from __future__ import annotations

from typing import Any

from icefloe.errors import IcechunkError
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.planes import Decoded, open_array

_MOST_LABELS = 5000
_NORTH = ("degrees_north", "degree_north", "degrees_n", "degree_n")


def describe_axes(opened: OpenedRepository, snapshot: str, path: str) -> list[dict[str, Any]]:
    """Name, size and labels of each dimension.

    The coordinates of a dimension are the one-dimensional array of its name in the same group or
    above it. Those of long dimensions are left out, and so are those that cannot be read.
    """
    view = opened.view(snapshot)
    _, array = view.array(path)
    found = []
    for axis, dimension in enumerate(array.shape):
        name = array.dimension_names[axis] if array.dimension_names else None
        shown: dict[str, Any] = {"name": name, "size": dimension.array_length}
        if name is not None and 0 < dimension.array_length <= _MOST_LABELS:
            where = _coordinate_path(opened, snapshot, path, name, dimension.array_length)
            if where is not None:
                shown |= _coordinates(opened, snapshot, where)
        found.append(shown)
    return found


def _coordinate_path(
    opened: OpenedRepository, snapshot: str, path: str, name: str, size: int
) -> str | None:
    view = opened.view(snapshot)
    group = path.rpartition("/")[0]
    while True:
        node = view.find_node(f"{group}/{name}")
        if node is not None and node.array is not None and _is_line(node.array, size):
            return node.path
        if not group:
            return None
        group = group.rpartition("/")[0]


def _is_line(array: ArrayData, size: int) -> bool:
    return len(array.shape) == 1 and array.shape[0].array_length == size


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
