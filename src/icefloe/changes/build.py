"""From a base snapshot and a change set to the files of a commit.

`plan_commit` says which old manifests are needed; with those at hand `build_manifests` makes the
new ones, and `build_snapshot` the rest. Nothing here reads or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.splits import ArrayPlan, SplitRewrite, merge_split, plan_array
from icefloe.errors import ErrorKind, InternalError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.manifest_encode import encode_manifest
from icefloe.format.nodes import ArrayData, ManifestRef, Node, NodeTable
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.ids import ManifestId, NodeId, SnapshotId

SplitSizes = Callable[[str, ArrayData], tuple[int, ...]]


@dataclass(slots=True)
class CommitPlan:
    """The nodes that change, and what happens to the manifests of changed arrays."""

    base: NodeTable
    gone: list[str]
    moved: list[Node]
    changed: list[Node]
    arrays: dict[NodeId, ArrayPlan]

    def needed(self) -> list[ManifestId]:
        """The old manifests that have to be read, each once."""
        wanted = {
            ref.id: None
            for plan in self.arrays.values()
            for rewrite in plan.rewrites
            for ref in rewrite.sources
        }
        return list(wanted)


@dataclass(frozen=True, slots=True)
class NewManifest:
    """A manifest file to be written."""

    ref: ManifestRef
    info: ManifestFileInfo
    manifest: Manifest
    data: bytes


def plan_commit(
    base: NodeTable, changes: ChangeSet, split_sizes: SplitSizes, *, rewrite_all: bool = False
) -> CommitPlan:
    """Decide what a commit has to read and write."""
    changed = list(base) if rewrite_all else []
    changed = [*changed, *changes.touched(base)]
    arrays = {}
    for node in changed:
        if node.array is None:
            continue
        edits = changes.chunks.get(node.id)
        edited, deleted = (edits or ChunkEdits(len(node.array.shape))).columns()
        sizes = split_sizes(node.path, node.array)
        plan = plan_array(node.array, edited, deleted, sizes, rewrite_all=rewrite_all)
        arrays[node.id] = plan
    gone = [*changes.deleted, *changes.moves.origins()]
    return CommitPlan(base, gone, changes.moves.moved(base), changed, arrays)


def build_manifest(
    node_id: NodeId,
    rewrite: SplitRewrite,
    sources: Iterable[ChunkRefs],
    *,
    new_id: ManifestId,
    spec_version: int,
    level: int,
) -> NewManifest | None:
    """The manifest file of one split; None when no chunk is left in it."""
    refs = merge_split(rewrite, list(sources))
    if not len(refs):
        return None
    manifest = Manifest(new_id, (ArrayManifest(node_id, refs),))
    data = encode_manifest(manifest, spec_version=spec_version, level=level)
    info = ManifestFileInfo(new_id, len(data), len(refs))
    return NewManifest(ManifestRef(new_id, tuple(refs.extents())), info, manifest, data)


def build_snapshot(
    plan: CommitPlan,
    manifests: Mapping[NodeId, list[NewManifest]],
    base_files: ManifestFiles,
    *,
    snapshot_id: SnapshotId,
    parent_id: SnapshotId | None,
    flushed_at: int,
    message: str,
    metadata: Mapping[str, Any],
) -> Snapshot:
    """The new snapshot; `manifests` has what was made for each changed array."""
    nodes = list(plan.moved)  # they keep their manifests
    made = []
    for node in plan.changed:
        if node.array is None:
            nodes.append(node)
            continue
        new = manifests.get(node.id, [])
        made.extend(new)
        refs = [*plan.arrays[node.id].kept, *(manifest.ref for manifest in new)]
        refs.sort(key=lambda ref: ref.extents)
        nodes.append(replace(node, array=replace(node.array, manifests=tuple(refs))))
    replaced = plan.base.rows_of([*plan.gone, *(node.path for node in nodes)])
    table = plan.base.replace(replaced, nodes)
    infos = [manifest.info for manifest in made]
    files = base_files.used_by(table.manifest_id)
    if infos:
        files = ManifestFiles.from_infos([*files.values(), *infos])
    _check_listed(files, table)
    return Snapshot(
        snapshot_id,
        table,
        flushed_at,
        message,
        metadata,
        files,
        parent_id,
    )


def _check_listed(files: ManifestFiles, nodes: NodeTable) -> None:
    """Every manifest that a node refers to is listed, and no other."""
    used = {raw.tobytes() for raw in nodes.manifest_id}
    if used != {raw.tobytes() for raw in files.id}:
        raise InternalError(
            f"a snapshot lists {len(files)} manifests and its nodes use {len(used)} others",
            ErrorKind.INCONSISTENT_MANIFESTS,
        )
