"""Snapshots of today's sessions as document 000 has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.snapshot.nodes import Node
from icefloe.legacy.numbered.model import (
    Ancestor,
    AttributesRef,
    OldManifestRef,
    OldNode,
    OldSnapshot,
    node_number,
)
from icefloe.legacy.numbered.wide_ids import IdMap
from icefloe.legacy.numbered.zarr_documents import parse_document

MOST_ANCESTORS = 100
"""How many a snapshot remembers. Their own snapshots remember those before."""


class Lineage(NamedTuple):
    """What a snapshot file says of those before it, newest first."""

    history: tuple[Ancestor, ...]
    total_parents: int

    def shortened(self) -> Lineage:
        """What is written of it."""
        return Lineage(self.history[:MOST_ANCESTORS], self.total_parents)


FIRST = Lineage((), 0)

Place = Callable[[Mapping[str, Any]], Mapping[str, Any] | AttributesRef]
"""Where the attributes of a node go: into the snapshot, or into an attributes file."""


def from_snapshot(
    snapshot: Snapshot, lineage: Lineage, started_at: int, ids: IdMap, place: Place
) -> OldSnapshot:
    """What is written for a snapshot.

    Raises:
        FormatError: two nodes have the same number.
        InvalidInputError: a node's zarr.json has something that document 000 has no place for.
    """
    nodes = [_node(node, ids, place) for node in snapshot.nodes]
    _require_distinct(nodes)
    return OldSnapshot(
        ids.wide(snapshot.id),
        snapshot.flushed_at,
        snapshot.message,
        nodes,
        snapshot.metadata,
        lineage.history,
        lineage.total_parents,
        min(started_at, snapshot.flushed_at),
    )


def _node(node: Node, ids: IdMap, place: Place) -> OldNode:
    attributes, metadata = parse_document(node.user_data, node.path)
    placed = None if attributes is None else place(attributes)
    refs = () if node.array is None else node.array.manifests
    manifests = tuple(OldManifestRef(ids.wide(ref.id), ref.extents) for ref in refs)
    return OldNode(node.id, node.path, placed, metadata, manifests)


def _require_distinct(nodes: list[OldNode]) -> None:
    """Two sessions may have drawn the same number of 32 bits for different nodes."""
    seen: dict[bytes, str] = {}
    for node in nodes:
        if node_number(node.id) is None or seen.setdefault(node.id, node.path) != node.path:
            raise FormatError(
                f"nodes {seen.get(node.id)!r} and {node.path!r} have the same number "
                f"{node_number(node.id)}; nothing is committed, delete one of them and write it "
                "again",
                ErrorKind.SERIALIZATION,
            )
