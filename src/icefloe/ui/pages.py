"""The lists of the web page: history, changes, nodes, chunks, sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.api.ancestry_graph import LaneRow
from icefloe.api.chunk_map import ChunkMap, default_axes
from icefloe.api.enums import ChunkType
from icefloe.api.values import Update
from icefloe.assets.computed_logs import log_from
from icefloe.changes.diff import Diff, make_diff, paths_by_id
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.maintenance.stats import snapshot_usage
from icefloe.paths import is_internal
from icefloe.repo.session import all_chunks, find_chunk, load_manifests
from icefloe.scans.variables import Values
from icefloe.storage.driver import instant
from icefloe.storage.run import run_blocking
from icefloe.ui import planes
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.pictures import common_shape, plain_values
from icefloe.ui.planes import ArrayOfSnapshot, Decoded
from icefloe.ui.query import Answer, Query

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


def changes_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Nodes that differ, by path, and how; with or without icefloe's own tables."""
    diff = compare(opened, query.text("from"), query.text("snapshot"))
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
    paths = sorted(path for path in words if query.has_internal or not is_internal(path))

    def row(path: str) -> dict[str, Any]:
        return {
            "path": path,
            "changes": words[path],
            "is_array": path in arrays,
            "chunks": len(diff.updated_chunks.get(path, ())),
            "moved_from": came_from.get(path),
        }

    return {**query.page(paths, row), "internal": sum(map(is_internal, words))}


def changed_chunks(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Chunks of an array that differ, as cells of the grid along some dimensions."""
    diff = compare(opened, query.text("from"), query.text("snapshot"))
    rows, axes = diff.updated_chunks.get(query.text("path"), []), query.numbers("axes") or ()
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


_MOST_CHUNK_CELLS = 512
_MOST_COMMITS = 1000


def chunk_map(opened: OpenedRepository, query: Query) -> ChunkMap:
    """The map that a request asks for; `at` has a chunk number for every dimension."""
    axes, at = query.numbers("axes"), query.numbers("at")
    path = query.text("path")
    session = opened.session(query.text("snapshot"))
    _, array = session.workspace.state.view.array(path)
    if at is not None and len(at) != len(array.shape):
        raise InvalidInputError(
            f"the position has {len(at)} numbers, the array {len(array.shape)} dimensions"
        )
    if axes is None:
        axes = tuple(default_axes([dimension.num_chunks for dimension in array.shape]))
    others: dict[int | str, int] = {
        axis: number for axis, number in enumerate(at or ()) if axis not in axes
    }
    return session.chunk_map(
        path,
        axes=axes,
        at=others,
        by=query.choice("by", "kind", "commit"),
        max_commits=_MOST_COMMITS,
    )


def chunk_map_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """The cells of a map by row, with a legend."""
    found = chunk_map(opened, query)
    cells, factors = found.coarser(_MOST_CHUNK_CELLS)
    return {
        "grid": list(found.grid),
        "factors": list(factors),
        "dimensions": list(found.dimensions),
        "cells": cells.tolist(),
        "legend": [entry._asdict() for entry in found.legend],
        "missing": found.counts["missing"],
    }


def chunk_map_svg(opened: OpenedRepository, query: Query) -> Answer:
    """The map as a picture."""
    return Answer(chunk_map(opened, query).to_svg().encode(), "image/svg+xml", is_constant=True)


def chunk_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Where one chunk is. The bytes of an inline chunk are not sent."""
    view = opened.view(query.text("snapshot"))
    node, array = view.array(query.text("path"))
    index = query.numbers("index")
    if index is None or len(index) != len(array.shape) or max(index, default=0) >= 2**32:
        raise InvalidInputError(f"a chunk of this array has {len(array.shape)} numbers in `index`")
    ref = run_blocking(find_chunk(opened.handle, view, node, index))
    if ref is None:
        return {"kind": "missing"}
    shown: dict[str, Any] = {"kind": ChunkType(ref.kind).name, "length": ref.length}
    if ref.kind == ChunkKind.INLINE:
        return shown
    if ref.chunk_id is not None:
        key = opened.handle.assets.chunk_key(ref.chunk_id)
        return {**shown, "object": key, "offset": ref.offset}
    containers = opened.handle.assets.virtual.access.containers
    location = ref.location or ""
    if ref.kind == ChunkKind.VIRTUAL:
        location = containers.expand(location)
    return {**shown, "object": location, "offset": ref.offset}


_MOST_LANES = 24
"""Lanes that are sent; the page draws no more."""
_LONGEST_MESSAGE = 300
_MOST_NAMES = 20
"""Refs of one snapshot in a list; its own page shows all."""


def history_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Rows of the graph, newest first."""
    history = opened.history()

    def graph_row(row: LaneRow) -> dict[str, Any]:
        return {
            **_brief(row),
            "branches": history.branches_of.get(row.info.id, [])[:_MOST_NAMES],
            "tags": history.tags_of.get(row.info.id, [])[:_MOST_NAMES],
            "lane": row.lane,
            "passing": [lane for lane in row.passing if lane < _MOST_LANES],
            "joining": [lane for lane in row.joining if lane < _MOST_LANES],
            "child": row.has_child,
            "parent": row.has_parent,
        }

    return {**query.page(history.rows, graph_row), "version": history.version}


def _brief(row: LaneRow) -> dict[str, Any]:
    info = row.info
    return {
        "id": info.id.text,
        "time": instant(info.flushed_at),
        "message": info.message[:_LONGEST_MESSAGE],
    }


def line_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """A snapshot and its ancestors, newest first: what the slider over history goes through."""
    history = opened.history()
    line = opened.line(history, query.text("snapshot"))
    return query.page(line, lambda row: _brief(history.rows[row]))


def find_line(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """The line that a snapshot is in: its newest snapshot, and the position in it."""
    history = opened.history()
    row = opened.row(history, query.text("snapshot"))
    tip = history.rows[history.tip_of[row]].info.id.text
    line = opened.line(history, tip)
    return {"tip": tip, "at": line.index(row), "total": len(line)}


def snapshot_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Everything about one snapshot, and what it changed."""
    snapshot_id, history = query.text("snapshot"), opened.history()
    at = opened.row(history, snapshot_id)
    info = history.rows[at].info
    view = opened.view(snapshot_id)
    tree = opened.tree(query)
    files = view.snapshot.manifest_files.values()
    return {
        "id": info.id.text,
        "row": at,
        "parent": None if info.parent_id is None else info.parent_id.text,
        "time": instant(info.flushed_at),
        "message": info.message,
        "metadata": dict(info.metadata),
        "branches": history.branches_of.get(info.id, []),
        "tags": history.tags_of.get(info.id, []),
        "groups": len(tree) - tree.num_arrays,
        "arrays": tree.num_arrays,
        "internal": sum(map(is_internal, view.snapshot.nodes.path)),
        "first_array": tree.first_array,
        "manifests": len(files),
        "manifest_bytes": sum(file.size_bytes for file in files),
        "chunk_refs": sum(file.num_chunk_refs for file in files),
    }


def refs_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Branches and tags whose name has a part: `main` first, then by name."""
    history = opened.history()
    wanted = query.text("q", "").lower()
    rows = [
        {"kind": kind, "name": name, "snapshot": refs[name].text}
        for kind, refs in (("branch", history.branches), ("tag", history.tags))
        for name in sorted(refs, key=lambda name: (name != "main", name))
        if wanted in name.lower()
    ]
    return {"total": len(rows), "rows": rows[: query.limit]}


def operations_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Entries of the operations log, newest first."""
    is_supported = opened.handle.format.has_repo_object
    entries = opened.operations() if is_supported else []
    return {**query.page(entries, _operation), "supported": is_supported}


def _operation(entry: Update) -> dict[str, Any]:
    values = vars(entry.kind).items()
    return {
        "operation": type(entry.kind).__name__,
        "time": entry.updated_at,
        "values": {name: None if value is None else str(value) for name, value in values},
    }


def repository_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """The repository as a whole."""
    history, repo = opened.history(), opened.repo
    main = history.branches.get("main") or next(iter(history.branches.values()))
    has_object = opened.handle.format.has_repo_object
    return {
        "name": opened.name,
        "generation": repo.generation.value,
        "spec_version": int(repo.spec_version),
        "status": repo.status.availability.name if has_object else "online",
        "metadata": repo.metadata if has_object else {},
        "version": history.version,
        "snapshots": len(history.rows),
        "branches": len(history.branches),
        "tags": len(history.tags),
        "main": main.text,
    }


def sizes_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Bytes and chunks of each kind for some arrays, in the order of their paths."""
    handle, view = opened.handle, opened.view(query.text("snapshot"))
    page = query.page(opened.tree(query).array_paths(), view.array)

    async def add_sizes() -> None:
        await load_manifests(handle, view, [node for node, _ in page["rows"]])
        page["rows"] = [
            {
                "path": node.path,
                "grid": prod(dimension.num_chunks for dimension in array.shape),
                **_by_kind(await all_chunks(handle, view, node)),
            }
            for node, array in page["rows"]
        ]

    run_blocking(add_sizes())
    return page


def _by_kind(refs: ChunkRefs) -> dict[str, int]:
    sizes = {kind.name.lower(): int(refs.length[refs.kind == kind].sum()) for kind in ChunkKind}
    return {"chunks": len(refs), **sizes}


def exclusive_bytes(opened: OpenedRepository, query: Query) -> dict[str, int]:
    """Bytes that no other snapshot needs. All manifests of the repository are read for this."""
    history = opened.history()
    key = history.rows[opened.row(history, query.text("snapshot"))].info.id
    [found] = run_blocking(snapshot_usage(opened.handle, [key]))
    return {"bytes": found.total().exclusive_bytes}


def total_bytes(opened: OpenedRepository, query: Query) -> dict[str, int]:
    """Bytes of all snapshots together."""
    found = opened.repo.chunk_storage_stats(progress=lambda progress: None)
    return {
        "native": found.native_bytes,
        "virtual": found.virtual_bytes,
        "inline": found.inlined_bytes,
    }
