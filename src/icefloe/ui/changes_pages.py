"""What two snapshots differ in, whether or not one is an ancestor of the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.assets.computed_logs import log_from
from icefloe.changes.diff import Diff, make_diff, paths_by_id
from icefloe.errors import InvalidInputError
from icefloe.storage.run import run_blocking
from icefloe.ui.opened import OpenedRepository

_MOST_CELLS = 40_000
"""Chunks of one array that are sent to be marked in a picture."""


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
    opened: OpenedRepository, first: str, second: str, offset: int, limit: int
) -> dict[str, Any]:
    """Nodes that differ, by path, and how."""
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
    paths = sorted(words)
    return {
        "total": len(paths),
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
