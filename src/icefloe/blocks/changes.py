"""Which blocks of a result change with its sources."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.blocks.expressions import Expression, Positions, Source, SourceKey, stored_dataset
from icefloe.blocks.layout import Edges, Layout, array_edges
from icefloe.blocks.places import Place
from icefloe.changes.diff import Diff
from icefloe.errors import InvalidInputError, SnapshotNotFoundError
from icefloe.repo import history
from icefloe.storage.run import run_blocking

_MAX_BOXES = 4096
"""More boxes of changed cells are merged into one."""


def recorded_places(expression: Expression) -> list[list[Any]]:
    """For each place of a computation how many cells it has, and a digest."""
    return [[place.size, _digest(place, place.size)] for _, place in _places(expression)]


def new_cells(
    expression: Expression, recorded: Sequence[Any]
) -> dict[Expression, list[Positions]] | None:
    """The cells that selections have more than before; None if cells have other places now."""
    places = _places(expression)
    if len(places) != len(recorded):
        return None
    found: dict[Expression, list[Positions]] = {}
    for (each, place), (size, digest) in zip(places, recorded, strict=True):
        if place.size < size or _digest(place, size) != digest:
            return None
        if place.dim and place.size > size:
            found.setdefault(each, []).append({place.dim: np.arange(size, place.size)})
    return found


def _places(expression: Expression) -> list[tuple[Expression, Place]]:
    below = [found for each in expression.inputs for found in _places(each)]
    return [*((expression, place) for place in expression.places()), *below]


def _digest(place: Place, size: int) -> str:
    return hashlib.sha256(place.until(size).astype("<i8").tobytes()).hexdigest()[:16]


def affected_blocks(
    expression: Expression,
    changed: Mapping[SourceKey, Sequence[Positions]],
    new: Mapping[Expression, Sequence[Positions]],
) -> set[int]:
    """The numbers of the blocks that depend on cells that changed, or that a selection got."""
    known: dict[Expression, list[Positions]] = {}

    def boxes(each: Expression) -> list[Positions]:
        if each not in known:
            found = list(changed.get(each.key, ())) if isinstance(each, Source) else []
            found += new.get(each, ())
            for source in each.inputs:
                for box in boxes(source):
                    found += each.affected(box, source)
            known[each] = _merged(found)
        return known[each]

    return {number for box in boxes(expression) for number in blocks_with(expression, box)}


def _merged(boxes: list[Positions]) -> list[Positions]:
    if len(boxes) <= _MAX_BOXES:
        return boxes
    dims = set.intersection(*(set(box) for box in boxes))
    return [{dim: np.unique(np.concatenate([box[dim] for box in boxes])) for dim in dims}]


def blocks_with(expression: Expression, cells: Positions) -> list[int]:
    """The numbers of the blocks with some cells."""
    layout = expression.layout
    ranges: list[Sequence[int]] = []
    for dim, edges in layout.grid.items():
        if dim not in cells:
            ranges.append(range(len(edges) - 1))
        else:
            ranges.append(np.unique(np.searchsorted(edges, cells[dim], "right") - 1).tolist())
    return [layout.number(index) for index in itertools.product(*ranges)]


def changed_cells(source: Source, since: str) -> list[Positions] | str:
    """The cells of a source that changed since a snapshot; or why this cannot be told by cells."""
    repository, now = source.snapshot.open_repository(), source.snapshot.snapshot_id
    if since == now:
        return []
    diff = difference(repository, since, now)
    if diff is None:
        return f"source snapshot {since} expired or is not an ancestor of {now}"
    prefix = "/" + source.group
    moved = [path for move in diff.moved_nodes for path in move if _touches(path, prefix)]
    if moved:
        return f"nodes of the source were moved: {', '.join(sorted(moved))}"
    before = repository.readonly_session(snapshot_id=since)
    found = _growth(source, before, source.snapshot.open(), diff, prefix)
    if isinstance(found, str):
        return found
    boxes: list[Positions] = [{dim: np.arange(*span)} for dim, span in found.items()]
    template = source.layout.template
    stored = zarr.open_group(source.snapshot.open().store, path=source.group, mode="r")
    for name in source.layout.computed:
        rows = diff.updated_chunks.get(_join(prefix, name))
        if rows:
            edges_of = array_edges(stored[name])
            boxes += [
                {
                    str(dim): _cells(numbers, edges)
                    for dim, numbers, edges in zip(template[name].dims, box, edges_of, strict=True)
                }
                for box in _boxes(np.array(rows, np.int64))
            ]
    return boxes


def difference(repository: Repository, since: str, now: str) -> Diff | None:
    """What changed between two snapshots; None where the first is not in the other's history."""
    try:
        diff = repository.diff(from_snapshot_id=since, to_snapshot_id=now)
    except (SnapshotNotFoundError, InvalidInputError):
        return None
    return diff if run_blocking(history.has_all_logs(repository.handle, since, now)) else None


def _touches(path: str, prefix: str) -> bool:
    """Whether a node is a group or array of the prefix, or one above it."""
    above = path == "/" or prefix == path or prefix.startswith(path + "/")
    return above or path.rpartition("/")[0] == prefix.rstrip("/")


def _join(prefix: str, name: str) -> str:
    return f"{prefix.rstrip('/')}/{name}"


def _growth(
    source: Source, before: Session, after: Session, diff: Diff, prefix: str
) -> dict[str, tuple[int, int]] | str:
    """The dimension that became longer, with its old and new length; or why it is no append."""
    template = source.layout.template
    names = [str(name) for name in template.variables]
    for what, paths in (("created", diff.new_arrays), ("deleted", diff.deleted_arrays)):
        own = [p for p in paths if p.rpartition("/")[0] == prefix.rstrip("/")]
        if source.variables is not None:
            own = [path for path in own if path.rpartition("/")[2] in names]
        if own:
            return f"arrays of the source were {what}: {', '.join(sorted(own))}"
    old = zarr.open_group(before.store, path=source.group, mode="r")
    new = zarr.open_group(after.store, path=source.group, mode="r")
    if dict(old.attrs) != dict(new.attrs):
        return f"the attributes of {prefix} changed"
    grown: dict[str, tuple[int, int]] = {}
    for name in names:
        if _join(prefix, name) not in diff.updated_arrays:
            continue
        first: Any = old[name]
        second: Any = new[name]
        if _definition(first) != _definition(second):
            return f"the definition of {_join(prefix, name)} changed"
        for dim, a, b in zip(template[name].dims, first.shape, second.shape, strict=True):
            if a > b:
                return f"{_join(prefix, name)} became shorter along {dim!r}"
            if a < b:
                grown[str(dim)] = (a, b)
    if len(grown) > 1:
        return f"the source grew along several dimensions: {', '.join(sorted(grown))}"
    return changed_coords(stored_dataset(before, source.group), source.layout) or grown


def _definition(array: zarr.Array[Any]) -> dict[str, Any]:
    return {key: value for key, value in array.metadata.to_dict().items() if key != "shape"}


def changed_coords(old: xr.Dataset, layout: Layout) -> str | None:
    """Why coordinates are not those of before, or those with more cells at the end."""
    new = layout.template
    for name, coord in layout.known.coords.items():
        if name not in old.variables or old[name].dims != coord.dims:
            return f"coordinate {name!r} is new"
        if any(old.sizes[dim] > new.sizes[dim] for dim in coord.dims):
            return f"coordinate {name!r} became shorter"
        same = coord.isel({dim: slice(0, old.sizes[dim]) for dim in coord.dims})
        if not same.variable.equals(old[name].variable):
            return f"coordinate {name!r} changed"
    return None


def _cells(numbers: NDArray[np.int64], edges: Edges) -> NDArray[np.int64]:
    """The cells of chunks with some numbers."""
    is_in = np.isin(np.arange(len(edges) - 1), numbers)
    return np.flatnonzero(np.repeat(is_in, np.diff(edges)))


def _boxes(index: NDArray[np.int64]) -> list[list[NDArray[np.int64]]]:
    """Chunk indices as few products of numbers along each dimension."""
    columns = [np.unique(column) for column in index.T]
    if math.prod(map(len, columns)) <= len(index):
        return [columns]
    found: dict[bytes, list[int]] = {}
    rests: dict[bytes, NDArray[np.int64]] = {}
    for first in columns[0].tolist():
        rest = np.ascontiguousarray(index[index[:, 0] == first][:, 1:])
        found.setdefault(rest.tobytes(), []).append(first)
        rests[rest.tobytes()] = rest
    return [
        [np.array(firsts, np.int64), *box]
        for key, firsts in found.items()
        for box in _boxes(rests[key])
    ]
