"""The history by page: rows of the graph, one line of ancestors, one snapshot, operations."""

from __future__ import annotations

from typing import Any

from icefloe.api.graph_lanes import LaneRow
from icefloe.api.values import to_datetime
from icefloe.paths import is_internal
from icefloe.ui.opened import HistoryGraph, OpenedRepository

_MOST_LANES = 24
"""Lanes that are sent; the page draws no more."""
_LONGEST_MESSAGE = 300
_MOST_NAMES = 20
"""Refs of one snapshot in a list; its own page shows all."""


def history_page(opened: OpenedRepository, offset: int, limit: int) -> dict[str, Any]:
    """Rows of the graph, newest first."""
    history = opened.history()
    return {
        "version": history.version,
        "total": len(history.rows),
        "offset": offset,
        "rows": [_graph_row(history, row) for row in history.rows[offset : offset + limit]],
    }


def _graph_row(history: HistoryGraph, row: LaneRow) -> dict[str, Any]:
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


def _brief(row: LaneRow) -> dict[str, Any]:
    info = row.info
    return {
        "id": info.id.text,
        "time": to_datetime(info.flushed_at),
        "message": info.message[:_LONGEST_MESSAGE],
    }


def line_page(opened: OpenedRepository, snapshot_id: str, offset: int, limit: int) -> Any:
    """A snapshot and its ancestors, newest first: what the slider over history goes through."""
    history = opened.history()
    line = opened.line(history, snapshot_id)
    page = line[offset : offset + limit]
    return {
        "total": len(line),
        "offset": offset,
        "rows": [_brief(history.rows[at]) for at in page],
    }


def find_line(opened: OpenedRepository, snapshot_id: str) -> dict[str, Any]:
    """The line that a snapshot is in: its newest snapshot, and the position in it."""
    history = opened.history()
    row = opened.row(history, snapshot_id)
    tip = history.rows[history.tip_of[row]].info.id.text
    line = opened.line(history, tip)
    return {"tip": tip, "at": line.index(row), "total": len(line)}


def snapshot_page(
    opened: OpenedRepository, snapshot_id: str, *, has_internal: bool
) -> dict[str, Any]:
    """Everything about one snapshot, and what it changed."""
    history = opened.history()
    at = opened.row(history, snapshot_id)
    info = history.rows[at].info
    view = opened.view(snapshot_id)
    tree = opened.tree(snapshot_id, has_internal=has_internal)
    files = view.snapshot.manifest_files.values()
    return {
        "id": info.id.text,
        "row": at,
        "parent": None if info.parent_id is None else info.parent_id.text,
        "time": to_datetime(info.flushed_at),
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


def refs_page(opened: OpenedRepository, part: str, limit: int) -> dict[str, Any]:
    """Branches and tags whose name has a part: `main` first, then by name."""
    history = opened.history()
    wanted = part.lower()
    rows = [
        {"kind": kind, "name": name, "snapshot": refs[name].text}
        for kind, refs in (("branch", history.branches), ("tag", history.tags))
        for name in sorted(refs, key=lambda name: (name != "main", name))
        if wanted in name.lower()
    ]
    return {"total": len(rows), "rows": rows[:limit]}


def operations_page(opened: OpenedRepository, offset: int, limit: int) -> dict[str, Any]:
    """Entries of the operations log, newest first."""
    if not opened.handle.family.has_repo_object:
        return {"supported": False, "total": 0, "offset": offset, "rows": []}
    found = opened.operations()
    rows = [
        {
            "operation": type(entry.kind).__name__,
            "time": entry.updated_at,
            "values": {
                name: None if value is None else str(value)
                for name, value in vars(entry.kind).items()
            },
        }
        for entry in found[offset : offset + limit]
    ]
    return {"supported": True, "total": len(found), "offset": offset, "rows": rows}
