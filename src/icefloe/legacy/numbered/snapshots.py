"""Snapshots of numbered repositories to today's model and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from icefloe.errors import ErrorKind, FormatError, IcechunkError
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, Node, NodeTable
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.ids import ManifestId
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.model import (
    Ancestor,
    ArrayMetadata,
    AttributesRef,
    OldManifestRef,
    OldNode,
    OldSnapshot,
)
from icefloe.legacy.numbered.names import IdMap
from icefloe.legacy.numbered.zarr_documents import array_document, group_document, parse_document
from icefloe.legacy.state_file.state import node_number

AttributeFiles = Mapping[bytes, Sequence[Mapping[str, Any]]]
"""The sets of attributes in each attributes file, by its id."""

_MAX_CHUNKS = 2**32 - 1


def attribute_files_of(snapshot: OldSnapshot) -> list[bytes]:
    """The attributes files that nodes of a snapshot refer to."""
    refs = (node.attributes for node in snapshot.nodes)
    return sorted({ref.object_id for ref in refs if isinstance(ref, AttributesRef)})


def to_snapshot(
    old: OldSnapshot, attributes: AttributeFiles, ids: IdMap, name: str, *, counts_boxes: bool
) -> Snapshot:
    """The snapshot with a zarr.json per node. `name` is the name of its file in errors.

    Files before alpha.15 do not have the number of references of a manifest. With `counts_boxes`,
    the number of cells of its boxes is used instead, so that commits can plan; otherwise 0.
    """
    checked = Checked(name)
    try:
        parent = old.parent
        table = NodeTable.from_nodes(_node(node, attributes, ids, checked) for node in old.nodes)
        return Snapshot(
            ids.snapshot_id(old.id),
            table,
            old.written_at,
            old.message,
            old.properties,
            _manifest_files(old, table, ids, counts_boxes=counts_boxes),
            None if parent is None else ids.snapshot_id(parent),
        )
    except IcechunkError as error:
        raise checked.fail(error.message.removeprefix(f"{name}: ")) from None


def _node(old: OldNode, attributes: AttributeFiles, ids: IdMap, checked: Checked) -> Node:
    if not old.path.startswith("/"):
        raise checked.fail(f"node path {old.path!r} is not absolute")
    found = old.attributes
    if isinstance(found, AttributesRef):
        sets = attributes[found.object_id]
        if found.location >= len(sets):
            raise checked.fail(
                f"the attributes of node {old.path!r} are set {found.location} of a file that "
                f"has {len(sets)}"
            )
        found = sets[found.location]
    if old.metadata is None:
        return Node(old.id, old.path, group_document(found))
    shape = _shape(old.metadata, checked, old.path)
    names = old.metadata.dimension_names
    refs = tuple(_manifest_ref(ref, shape, ids) for ref in old.manifests)
    array = ArrayData(shape, None if names is None else tuple(n or None for n in names), refs)
    return Node(old.id, old.path, array_document(old.metadata, found), array)


def _shape(metadata: ArrayMetadata, checked: Checked, path: str) -> tuple[Dimension, ...]:
    dimensions = []
    for length, chunk in zip(metadata.shape, metadata.chunk_shape, strict=True):
        count = -(-length // chunk) if chunk else 0
        if count > _MAX_CHUNKS or (length and not chunk):
            raise checked.fail(
                f"node {path!r} has {length:,} elements in chunks of {chunk} along a dimension: "
                f"expected 1 to {_MAX_CHUNKS:,} chunks"
            )
        dimensions.append(Dimension(length, count))
    return tuple(dimensions)


def _manifest_ref(ref: OldManifestRef, shape: Sequence[Dimension], ids: IdMap) -> ManifestRef:
    """The box of a manifest. Files before alpha.15 have none, so it is the whole grid."""
    extents = ref.extents
    if extents is None:
        extents = tuple((0, max(1, dimension.num_chunks)) for dimension in shape)
    return ManifestRef(ManifestId(ids.short(ref.object_id)), extents)


def _manifest_files(
    old: OldSnapshot, nodes: NodeTable, ids: IdMap, *, counts_boxes: bool
) -> ManifestFiles:
    sizes: dict[ManifestId, int] = {}
    counts: dict[ManifestId, int] = {}
    for node in nodes:
        for ref in () if node.array is None else node.array.manifests:
            room = prod(last - first for first, last in ref.extents) if counts_boxes else 0
            counts[ref.id] = min(counts.get(ref.id, 0) + max(room, 0), _MAX_CHUNKS)
    for file in old.manifest_files:
        manifest_id = ManifestId(ids.short(file.object_id))
        if manifest_id in counts:
            sizes[manifest_id] = file.size_bytes
            counts[manifest_id] = min(file.num_refs, _MAX_CHUNKS)
    return ManifestFiles.from_infos(
        ManifestFileInfo(key, sizes.get(key, 0), count) for key, count in counts.items()
    )


# -- and back, in the form of document 000

MOST_ANCESTORS = 100
"""The number of ancestors that a snapshot lists. The oldest of them lists the ancestors before."""


class Lineage(NamedTuple):
    """The ancestors that a snapshot file lists, newest first."""

    history: tuple[Ancestor, ...]
    total_parents: int


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
    nodes = [_old_node(node, ids, place) for node in snapshot.nodes]
    _require_distinct(nodes)
    return OldSnapshot(
        ids.wide(snapshot.id),
        snapshot.flushed_at,
        snapshot.message,
        nodes,
        snapshot.metadata,
        lineage.history[:MOST_ANCESTORS],
        lineage.total_parents,
        min(started_at, snapshot.flushed_at),
    )


def _old_node(node: Node, ids: IdMap, place: Place) -> OldNode:
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
