"""Converts snapshots of current sessions to those of document 000."""

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
"""The number of ancestors that a snapshot lists. The oldest of them lists the ancestors before."""


class Lineage(NamedTuple):
    """The ancestors that a snapshot file lists, newest first."""

    history: tuple[Ancestor, ...]
    total_parents: int

    def shortened(self) -> Lineage:
        """What is written of it."""
        return Lineage(self.history[:MOST_ANCESTORS], self.total_parents)


FIRST = Lineage((), 0)

Place = Callable[[Mapping[str, Any]], Mapping[str, Any] | AttributesRef]
"""The place for the attributes of a node: the snapshot, or an attributes file."""


def from_snapshot(
    snapshot: Snapshot, lineage: Lineage, started_at: int, ids: IdMap, place: Place
) -> OldSnapshot:
    """The file model of a snapshot.

    Raises:
        FormatError: two nodes have the same number.
        InvalidInputError: document 000 cannot represent a node's zarr.json.
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
    """Refuse duplicate numbers: two sessions may have drawn the same 32-bit number."""
    seen: dict[bytes, str] = {}
    for node in nodes:
        if node_number(node.id) is None or seen.setdefault(node.id, node.path) != node.path:
            raise FormatError(
                f"nodes {seen.get(node.id)!r} and {node.path!r} have the same number "
                f"{node_number(node.id)}; nothing is committed, delete one of them and write it "
                "again",
                ErrorKind.SERIALIZATION,
            )
