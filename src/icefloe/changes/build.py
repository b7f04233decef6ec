"""From a base snapshot and a change set to the files of a commit.

`plan_commit` decides which old manifests are needed. `build_manifests` makes the new manifests from
them, and `build_snapshot` makes the snapshot. This module makes no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.prepared import NewManifest
from icefloe.changes.split_sizes import SplitSizes
from icefloe.changes.splits import SplitRewrite, SplitsPlan, merge_split, plan_array
from icefloe.errors import ErrorKind, InternalError
from icefloe.format.columns.blobs import Bytes
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.manifest.file import ArrayManifest, Manifest
from icefloe.format.snapshot.file import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.format.snapshot.manifest_refs import ManifestRef, ids_of, joined, ordered
from icefloe.format.snapshot.nodes import ArrayData, Node, NodeTable
from icefloe.ids import ManifestId, NodeId, SnapshotId
from icefloe.records import NamedTuple, changed


class CommitPlan(NamedTuple):
    """The nodes that change, and what happens to the manifests of changed arrays."""

    base: NodeTable
    files: ManifestFiles
    """Every file that the nodes and the plan refer to."""
    gone: Sequence[str]
    moved: Sequence[Node]
    changed: Sequence[Node]
    arrays: Mapping[NodeId, SplitsPlan]


class ManifestFile(NamedTuple):
    """A manifest file to be written."""

    new: NewManifest
    manifest: Manifest
    data: bytes


def plan_commit(
    base: Snapshot, changes: ChangeSet, split_sizes: SplitSizes, *, rewrite_all: bool = False
) -> CommitPlan:
    """Decide which manifests a commit has to read and write."""
    touched = list(base.nodes) if rewrite_all else list(changes.touched(base.nodes))
    files = changes.manifest_files(base.manifest_files)
    arrays = {}
    for node in touched:
        if node.array is None:
            continue
        edits, ahead = changes.chunks.get(node.id), changes.prepared.get(node.id)
        listed = num_refs_in(files, node.array)
        cells = prod(dimension.num_chunks for dimension in node.array.shape)
        num_refs = min(sum(listed) + (edits.most_set if edits else 0), cells)
        sizes = split_sizes(node.path, node.array, num_refs)
        arrays[node.id] = plan_array(
            node.array,
            edits.layers() if edits else [],
            sizes.sizes,
            rewrite_all=rewrite_all,
            limit=sizes.limit,
            num_refs=listed,
            new=() if ahead is None else {info.id for info in ahead.files},
        )
    gone = [*changes.deleted, *changes.moves.origins()]
    paths = {node.path for node in touched}
    moved = [node for node in changes.moves.moved(base.nodes) if node.path not in paths]
    return CommitPlan(base.nodes, files, gone, moved, touched, arrays)


def num_refs_in(files: ManifestFiles, array: ArrayData) -> list[int]:
    """The number of references in each manifest of an array."""
    counts: list[int] = files.num_refs(ids_of(array.manifests)).tolist()
    return counts


def build_manifests(
    node_id: NodeId,
    rewrite: SplitRewrite,
    sources: Iterable[ChunkRefs],
    *,
    new_id: Callable[[], ManifestId],
    encode: Callable[[Manifest], bytes],
) -> list[ManifestFile]:
    """The manifest files of one split, or of a group that shares one. Empty if no chunk is left."""
    files = []
    for merged in merge_split(rewrite, list(sources)):
        if len(merged):
            refs = merged.compact()
            manifest = Manifest(new_id(), (ArrayManifest(node_id, refs),))
            data = encode(manifest)
            info = ManifestFileInfo(manifest.id, len(data), len(refs))
            new = NewManifest(ManifestRef(manifest.id, tuple(refs.extents())), info)
            files.append(ManifestFile(new, manifest, data))
    return files


def build_snapshot(
    plan: CommitPlan,
    manifests: Mapping[NodeId, list[NewManifest]],
    *,
    snapshot_id: SnapshotId,
    parent_id: SnapshotId | None,
    flushed_at: int,
    message: str,
    metadata: Mapping[str, Any],
) -> Snapshot:
    """The new snapshot. `manifests` has the new manifests of each changed array."""
    nodes = list(plan.moved)  # they keep their manifests
    made = []
    for node in plan.changed:
        if node.array is None:
            nodes.append(node)
            continue
        new = manifests.get(node.id, [])
        made.extend(new)
        refs = ordered(joined(plan.arrays[node.id].kept, [manifest.ref for manifest in new]))
        nodes.append(changed(node, array=changed(node.array, manifests=refs)))
    replaced = plan.base.rows_of([*plan.gone, *(node.path for node in nodes)])
    table = plan.base.replace(replaced, nodes)
    files = _listed_files(plan.files, table.used_manifests(), [new.info for new in made])
    return Snapshot(
        snapshot_id,
        table,
        flushed_at,
        message,
        metadata,
        files,
        parent_id,
    )


def _listed_files(
    old: ManifestFiles, used: Bytes, new: Sequence[ManifestFileInfo]
) -> ManifestFiles:
    """Exactly the manifest files that nodes refer to: old ones and all of the new ones."""
    if len(used) == len(new):
        files = ManifestFiles.from_infos(new)
    else:
        rows = old.rows_of(used)
        files = old.take(rows[rows >= 0]).with_infos(new)
    if not np.array_equal(files.id, used):
        raise InternalError(
            f"a snapshot lists {len(files)} manifests and its nodes use {len(used)} others",
            ErrorKind.INCONSISTENT_MANIFESTS,
        )
    return files
