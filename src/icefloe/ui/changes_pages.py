"""What two snapshots differ in, whether or not one is an ancestor of the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.computed_logs import log_from
from icefloe.changes.diff import Diff, make_diff, paths_by_id
from icefloe.errors import InvalidInputError
from icefloe.paths import is_internal
from icefloe.scans.coding import Values
from icefloe.storage.run import run_blocking
from icefloe.ui import planes
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.pictures import common_shape, plain_values
from icefloe.ui.planes import ArrayOfSnapshot, Decoded
from icefloe.ui.query import Query

_MOST_CELLS = 40_000
"""Chunks of one array that are sent to be marked in a picture."""
_MOST_COMPARED = 256
"""Chunks whose values one request compares."""
_MOST_STEPS = 1000


def compare(opened: OpenedRepository, first: str, second: str) -> Diff:
    """What leads from one snapshot to the other, read from their states."""

    def read() -> Diff:
        before, after = opened.view(first).snapshot, opened.view(second).snapshot
        log = run_blocking(log_from(opened.handle.assets, before, after))
        return make_diff([log], paths_by_id(before.nodes, after.nodes))

    return opened.differences.get((first, second), read)


_WORDS = {
    "new_groups": "added",
    "new_arrays": "added",
    "deleted_groups": "removed",
    "deleted_arrays": "removed",
    "updated_groups": "metadata",
    "updated_arrays": "metadata",
}


def changes_page(
    opened: OpenedRepository,
    first: str,
    second: str,
    offset: int,
    limit: int,
    *,
    has_internal: bool,
) -> dict[str, Any]:
    """Nodes that differ, by path, and how; with or without icefloe's own tables."""
    diff = compare(opened, first, second)
    words: dict[str, list[str]] = {}
    arrays = diff.new_arrays | diff.deleted_arrays | diff.updated_arrays | set(diff.updated_chunks)
    for name, word in _WORDS.items():
        for path in getattr(diff, name):
            words.setdefault(path, []).append(word)
    for path in diff.updated_chunks:
        words.setdefault(path, []).append("chunks")
    came_from = {target: source for source, target in diff.moved_nodes}
    for target in came_from:
        words.setdefault(target, []).append("moved")
    paths = sorted(path for path in words if has_internal or not is_internal(path))
    return {
        "total": len(paths),
        "internal": sum(map(is_internal, words)),
        "offset": offset,
        "rows": [
            {
                "path": path,
                "changes": words[path],
                "is_array": path in arrays,
                "chunks": len(diff.updated_chunks.get(path, ())),
                "moved_from": came_from.get(path),
            }
            for path in paths[offset : offset + limit]
        ],
    }


def changed_chunks(
    opened: OpenedRepository, first: str, second: str, path: str, axes: tuple[int, ...]
) -> dict[str, Any]:
    """Chunks of an array that differ, as cells of the grid along some dimensions."""
    rows = compare(opened, first, second).updated_chunks.get(path, [])
    if not rows:
        return {"total": 0, "cells": []}
    index = np.array(rows, np.int64)
    if any(axis >= index.shape[1] for axis in axes):
        raise InvalidInputError(f"axes are {list(axes)}, the array has {index.shape[1]} dimensions")
    cells = np.unique(index[:, list(axes)], axis=0)
    return {"total": len(rows), "cells": cells[:_MOST_CELLS].tolist()}


def changed_steps(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Where values of an array differ: each position along the dimensions that are not `axes`.

    `at` is the first place of a position at which values differ, `before` and `after` are the
    values there. Chunks are compared in order, some for each request: `next` is where to go on.
    """
    first, second, path = query.text("from"), query.text("snapshot"), query.text("path")
    before, after = (planes.open_array(opened, each, path) for each in (first, second))
    shape = common_shape(path, [before, after])
    axes, offset = query.numbers("axes") or (), query.number("offset", 0)
    if len(set(axes)) != len(axes) or any(axis >= len(shape) for axis in axes):
        raise InvalidInputError(f"axes are {list(axes)}, the array has {len(shape)} dimensions")
    order = [*(axis for axis in range(len(shape)) if axis not in axes), *axes]
    touched = compare(opened, first, second).updated_chunks.get(path, [])
    if _is_read_alike(opened, (first, second), before, after):
        total = len(touched)
        index = np.array(touched, np.int64).reshape(total, len(shape))
        keys = [index[:, axis] for axis in reversed(order)] or [np.zeros(total, np.int64)]
        chunks = index[np.lexsort(keys)][offset : offset + _MOST_COMPARED].tolist()
    else:  # the same chunks may stand for other values
        grid = [ceil(size / one) for size, one in zip(shape, after.chunk_shape, strict=True)]
        total = prod(grid)
        numbers = range(offset, min(total, offset + _MOST_COMPARED))
        chunks = [_chunk_number(number, grid, order) for number in numbers]
    steps: dict[tuple[int, ...], dict[str, Any]] = {}
    compared = read_bytes = 0
    for chunk in chunks:
        ends = zip(chunk, after.chunk_shape, shape, strict=True)
        region = [slice(at * one, min((at + 1) * one, size)) for at, one, size in ends]
        both = [planes.read_continued(array, shape, region) for array in (before, after)]
        _add_steps(steps, region, axes, *both)
        compared += 1
        read_bytes += sum(each.values.data.nbytes for each in both)
        if read_bytes > planes.MAX_BYTES or len(steps) >= _MOST_STEPS:
            break
    done = offset + compared
    kind, units = (both[1].kind, both[1].units) if compared else ("number", None)
    found = {"steps": [steps[key] for key in sorted(steps)], "kind": kind, "units": units}
    return {**found, "compared": done, "total": total, "next": done if done < total else None}


def _is_read_alike(
    opened: OpenedRepository,
    snapshots: tuple[str, str],
    before: ArrayOfSnapshot,
    after: ArrayOfSnapshot,
) -> bool:
    """Whether equal chunks of an array have equal values in both snapshots."""
    documents = [json.loads(opened.view(each).node(before.path).user_data) for each in snapshots]
    for document in documents:
        document.pop("attributes", None)
        document.pop("shape", None)
    # As text, because NaN is not equal to itself.
    return repr(before.coding) == repr(after.coding) and repr(documents[0]) == repr(documents[1])


def _chunk_number(number: int, grid: Sequence[int], order: Sequence[int]) -> list[int]:
    """The chunk with a number, if the dimensions are counted through in an order."""
    chunk = [0] * len(grid)
    for axis in reversed(order):
        number, chunk[axis] = divmod(number, grid[axis])
    return chunk


def _add_steps(
    steps: dict[tuple[int, ...], dict[str, Any]],
    region: Sequence[slice],
    axes: Sequence[int],
    was: Decoded,
    now: Decoded,
) -> None:
    differs = _differs(was, now).reshape([part.stop - part.start for part in region])
    counts = differs.sum(axis=tuple(axes), keepdims=True)
    for position in np.argwhere(counts):
        inside = tuple(
            slice(None) if axis in axes else slice(at, at + 1) for axis, at in enumerate(position)
        )
        local = position + np.argwhere(differs[inside])[0]
        at = [int(one) + part.start for one, part in zip(local, region, strict=True)]
        key = tuple(number for axis, number in enumerate(at) if axis not in axes)
        if key in steps:
            steps[key]["changed"] += int(counts[tuple(position)])
            continue
        flat = int(np.ravel_multi_index(tuple(local), differs.shape)) if at else 0
        values = {"before": _value(was, flat), "after": _value(now, flat)}
        steps[key] = {"at": at, "changed": int(counts[tuple(position)]), **values}


def _differs(was: Decoded, now: Decoded) -> NDArray[np.bool_]:
    had, has = ~was.is_missing(), ~now.is_missing()
    unequal = was.values.data != now.values.data if was.kind == now.kind else True
    return np.asarray((had != has) | (had & has & unequal), np.bool_)


def _value(found: Decoded, at: int) -> Any:
    data, mask = found.values.data.ravel(), found.values.mask
    one = Values(data[at : at + 1], None if mask is None else mask.ravel()[at : at + 1])
    return plain_values(found._replace(values=one))[0]
