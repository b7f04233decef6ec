"""Differences as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from icefloe.display import Picture, Shown
from icefloe.format.chunk_index import Index, sort_rows
from icefloe.format.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId
from icefloe.paths import is_internal


@dataclass
class Diff(Shown):
    """What changed between two snapshots, or in a session."""

    shown_in = "snapshots"

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    updated_chunks: dict[str, list[list[int]]] = field(default_factory=dict)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Whether nothing was changed.

        >>> repo.diff(from_tag="v1", to_branch="main").is_empty()
        False
        """
        return self == Diff()

    def __str__(self) -> str:
        return repr(self)

    def _picture_(self) -> Picture:
        found = [(name, getattr(self, name)) for name in (*_NODE_SETS, "updated_chunks")]
        shown = [(_TITLES[name], ", ".join(sorted(paths))) for name, paths in found if paths]
        moved = [f"{source} -> {target}" for source, target in self.moved_nodes]
        return Picture(self._title_(), shown + [(_TITLES["moved_nodes"], line) for line in moved])

    def __repr__(self) -> str:
        lines = [
            f"{_TITLES[name]}:\n" + "".join(f"    {path}\n" for path in sorted(found)) + "\n"
            for name in _NODE_SETS
            if (found := getattr(self, name))
        ]
        if self.updated_chunks:
            rows = "".join(
                f"    {path}:\n{_chunk_lines(chunks)}"
                for path, chunks in sorted(self.updated_chunks.items())
            )
            lines.append(f"{_TITLES['updated_chunks']}:\n{rows}")
        if self.moved_nodes:
            rows = "".join(f"    {source} -> {target}\n" for source, target in self.moved_nodes)
            lines.append(f"{_TITLES['moved_nodes']}:\n{rows}\n")
        return "".join(lines) or "no changes"


_TITLES = {
    "new_groups": "Groups created",
    "new_arrays": "Arrays created",
    "deleted_groups": "Groups deleted",
    "deleted_arrays": "Arrays deleted",
    "updated_groups": "Group definitions updated",
    "updated_arrays": "Array definitions updated",
    "updated_chunks": "Chunks updated",
    "moved_nodes": "Nodes moved/renamed",
}
_NODE_SETS = tuple(_TITLES)[:6]
_SHOWN_CHUNKS = 10


def _chunk_lines(chunks: list[list[int]]) -> str:
    shown = "".join(f"        {chunk}\n" for chunk in chunks[:_SHOWN_CHUNKS])
    more = len(chunks) - _SHOWN_CHUNKS
    return shown + (f"        ... {more} more\n" if more > 0 else "")


def make_diff(logs: Iterable[TransactionLog], path_of: Mapping[NodeId, str]) -> Diff:
    """The union of several logs, oldest first. Nodes that exist at neither end are left out."""
    diff = Diff()
    chunks: dict[str, list[Index]] = {}
    for log in logs:
        for name in _NODE_SETS:
            known = (path_of.get(node_id) for node_id in getattr(log, name))
            getattr(diff, name).update(path for path in known if path is not None)
        for node_id, index in log.updated_chunks.items():
            if (path := path_of.get(node_id)) is not None:
                chunks.setdefault(path, []).append(index)
        moves = [(move.source, move.destination) for move in log.moved_nodes or ()]
        diff.moved_nodes[:0] = moves  # Icechunk lists the newest commit first
    for path, parts in chunks.items():
        # One array may have changed its number of dimensions along the way.
        by_rank: dict[int, list[Index]] = {}
        for part in parts:
            by_rank.setdefault(part.shape[1], []).append(part)
        merged = [np.concatenate(same) for same in by_rank.values()]
        diff.updated_chunks[path] = [
            row for index in merged for row in index[sort_rows(index)].tolist()
        ]
    return diff


def without_internal(diff: Diff) -> Diff:
    """What changed apart from icefloe's own tables, for people to look at."""
    shown = Diff()
    for name in _NODE_SETS:
        getattr(shown, name).update(one for one in getattr(diff, name) if not is_internal(one))
    chunks = diff.updated_chunks.items()
    shown.updated_chunks = {path: found for path, found in chunks if not is_internal(path)}
    shown.moved_nodes = [
        move for move in diff.moved_nodes if not (is_internal(move[0]) and is_internal(move[1]))
    ]
    return shown


def paths_by_id(*tables: NodeTable) -> dict[NodeId, str]:
    """Path of every node; later tables win."""
    return {
        node_id: path
        for table in tables
        for node_id, path in zip(NodeId.of_rows(table.columns.id), table.path, strict=True)
    }
