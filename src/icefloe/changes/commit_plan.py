"""What a commit writes, and which manifests it reads for that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.shared_manifests import (
    NOTHING_SHARED,
    SharedLimits,
    SharedNodes,
    SharedPlan,
    is_inside_grid,
    is_small,
    plan_shared,
)
from icefloe.changes.splits import (
    Box,
    SplitRewrite,
    SplitSizes,
    SplitsPlan,
    merge_split,
    plan_array,
)
from icefloe.errors import ErrorKind, InternalError
from icefloe.format.chunk_index import Index, PackedIndex, sort_rows
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import Bytes
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import (
    ArrayData,
    ManifestRef,
    Node,
    NodeTable,
    extents_of,
    ids_of,
    joined,
    ordered,
)
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.format.transaction_log import NODE_LISTS, Move, TransactionLog
from icefloe.ids import ManifestId, NodeId, SnapshotId

# -- Prepared manifests: written by the tasks of a large job, before the commit that lists them.
#
# The session receives a reference to each manifest and the indices of the chunks that were
# touched, not every chunk reference. The prepared manifests then count as manifests of the array,
# as if they were in its snapshot. Further edits are laid over them.


class NewManifest(NamedTuple):
    """A new manifest: the reference of its node, and the entry in the snapshot."""

    ref: ManifestRef
    info: ManifestFileInfo


@dataclass(frozen=True, slots=True)
class PreparedPiece:
    """Neighbouring splits whose manifests one task wrote."""

    boxes: tuple[Box, ...]
    """The splits that were written. Other splits are unchanged."""
    replaced: tuple[ManifestId, ...]
    """The old manifests of these splits. The new manifests contain their references."""
    new: tuple[NewManifest, ...]
    touched: PackedIndex
    """The chunks that were set or deleted."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedArray:
    """All prepared manifests of one array."""

    base: tuple[ManifestId, ...]
    """The array's manifests in the snapshot that the job started from."""
    boxes: frozenset[Box]
    """The splits that were written."""
    manifests: Sequence[ManifestRef]
    """The array's manifests now: the prepared ones, and those of the snapshot that are kept."""
    files: tuple[ManifestFileInfo, ...]
    """The files of the prepared manifests, which the snapshot does not list."""
    touched: PackedIndex

    def rebased(self, array: ArrayData | None) -> PreparedArray | None:
        """The same on top of a later state of the array.

        None if one of the prepared splits has changed since, because its manifest lacks that
        change.
        """
        base = manifest_ids(array)
        if base == self.base:
            return self
        before = set(self.base)
        replaced = before - {ref.id for ref in self.manifests}
        now = () if array is None else array.manifests
        came = [ref.extents for ref in now if ref.id not in before]
        if not replaced <= set(base) or _overlap(self.boxes, came):
            return None
        stayed = [ref for ref in now if ref.id not in replaced]
        files = {info.id for info in self.files}
        ahead = [ref for ref in self.manifests if ref.id in files]
        return replace(self, base=base, manifests=_ordered([*stayed, *ahead]))


def manifest_ids(array: ArrayData | None) -> tuple[ManifestId, ...]:
    """The ids of the manifests of an array; empty when there is no array."""
    return () if array is None else tuple(ref.id for ref in array.manifests)


def prepare_array(
    base: ArrayData | None,
    before: PreparedArray | None,
    pieces: Sequence[PreparedPiece],
    ndim: int,
) -> PreparedArray:
    """Replace manifests of an array, from the snapshot or prepared earlier, with those of
    pieces."""
    if before is None:
        manifests = () if base is None else base.manifests
        nothing = PackedIndex(ndim)
        before = PreparedArray(manifest_ids(base), frozenset(), manifests, (), nothing)
    gone = {key for piece in pieces for key in piece.replaced}
    new = [made for piece in pieces for made in piece.new]
    refs = [ref for ref in before.manifests if ref.id not in gone]
    files = [info for info in before.files if info.id not in gone]
    touched = [before.touched, *(piece.touched for piece in pieces)]
    return PreparedArray(
        before.base,
        before.boxes | {box for piece in pieces for box in piece.boxes},
        _ordered([*refs, *(made.ref for made in new)]),
        (*files, *(made.info for made in new)),
        PackedIndex.union(touched, ndim),
    )


def _ordered(refs: Sequence[ManifestRef]) -> tuple[ManifestRef, ...]:
    return tuple(sorted(refs, key=lambda ref: ref.extents))


def _overlap(ours: Collection[Box], theirs: Collection[Box]) -> bool:
    """Whether any box of one collection intersects a box of the other."""
    if not ours or not theirs:
        return False
    left = np.array(list(ours), np.int64).reshape(len(ours), -1, 2)
    for box in theirs:
        right = np.array(box, np.int64).reshape(-1, 2)
        common = (left[:, :, 0] < right[:, 1]) & (right[:, 0] < left[:, :, 1])
        if bool(common.all(axis=1).any()):
            return True
    return False


# -- From a base snapshot and a change set to the files of a commit.
#
# `plan_commit` decides which old manifests are needed. `build_manifests` makes the new manifests
# from them, and `build_snapshot` makes the snapshot. This module makes no requests.


class CommitPlan(NamedTuple):
    """The nodes that change, and what happens to the manifests of changed arrays."""

    base: NodeTable
    files: ManifestFiles
    """Every file that the nodes and the plan refer to."""
    gone: Sequence[str]
    moved: Sequence[Node]
    changed: Sequence[Node]
    """Those that are not in `shared`."""
    arrays: Mapping[NodeId, SplitsPlan]
    shared: SharedPlan | None = None
    """Small arrays, whose manifests are shared."""

    @property
    def sources(self) -> list[ManifestId]:
        """The old manifests to be read."""
        rewrites = (rewrite for plan in self.arrays.values() for rewrite in plan.rewrites)
        found = [ref.id for rewrite in rewrites for ref in rewrite.sources]
        more = [] if self.shared is None else self.shared.sources
        return list(dict.fromkeys([*found, *more]))


class ManifestFile(NamedTuple):
    """A manifest file to be written."""

    new: NewManifest
    manifest: Manifest
    data: bytes


def plan_commit(
    base: Snapshot,
    changes: ChangeSet,
    split_sizes: SplitSizes,
    *,
    rewrite_all: bool = False,
    limits: SharedLimits | None = None,
) -> CommitPlan:
    """Decide which manifests a commit has to read and write.

    Small arrays share manifests within `limits`; None if each has its own.
    """
    if not rewrite_all:
        touched = list(changes.touched(base.nodes))
    elif changes.is_empty:
        touched = list(base.nodes)
    else:
        nodes = (changes.find(base.nodes, path) for path in changes.paths(base.nodes))
        touched = [node for node in nodes if node is not None]
    files = changes.manifest_files(base.manifest_files)
    arrays, changed, shared = {}, [], []
    left: list[ManifestId] = []
    unwritten: dict[str, Node] = {}
    sharing = None if limits is None or _is_by_itself(base.nodes, touched) else limits
    for node in touched:
        if node.array is None:
            changed.append(node)
            continue
        edits, ahead = changes.chunks.get(node.id), changes.prepared.get(node.id)
        if sharing is not None and ahead is None and is_small(node, edits, files, sharing):
            if edits is None and not rewrite_all and is_inside_grid(node.array):
                arrays[node.id] = SplitsPlan(node.array.manifests, [])
                changed.append(node)
                if node.array.manifests:
                    unwritten[node.path] = node
            else:
                shared.append(node)
            continue
        changed.append(node)
        listed = num_refs_in(files, node.array)
        cells = prod(dimension.num_chunks for dimension in node.array.shape)
        num_refs = min(sum(listed) + (edits.most_set if edits else 0), cells)
        sizes = split_sizes(node.path, node.array, num_refs)
        plan = arrays[node.id] = plan_array(
            node.array,
            edits.layers() if edits else [],
            sizes.sizes,
            rewrite_all=rewrite_all and ahead is None,  # the others are new
            limit=sizes.limit,
            num_refs=listed,
            new=() if ahead is None else {info.id for info in ahead.files},
        )
        left += (ref.id for rewrite in plan.rewrites for ref in rewrite.sources)
        left += () if ahead is None else ahead.base
    gone = [*changes.deleted, *changes.moves.origins()]
    paths = {node.path for node in touched}
    moved = [node for node in changes.moves.moved(base.nodes) if node.path not in paths]
    together = None
    if limits is not None:
        deleted = (base.nodes.find(path) for path in changes.deleted)
        left += (
            ref.id
            for node in deleted
            if node is not None and node.array is not None
            for ref in node.array.manifests
        )
        others = [*gone, *(node.path for node in (*changed, *moved) if node.path not in unwritten)]
        together = plan_shared(base.nodes, shared, changes.chunks, left, others, unwritten, limits)
    return CommitPlan(base.nodes, files, gone, moved, changed, arrays, together)


def _is_by_itself(base: NodeTable, touched: Iterable[Node]) -> bool:
    """Whether one array is written at most, and no other uses its manifests."""
    arrays = [node for node in touched if node.array is not None]
    if len(arrays) > 1:
        return False
    used = sorted({key for node in arrays for key in manifest_ids(node.array)})
    return not used or not len(base.users_of(used, [node.path for node in arrays])[0])


def num_refs_in(files: ManifestFiles, array: ArrayData) -> list[int]:
    """The number of references that each manifest of an array has of it, at most."""
    counts = files.num_refs(ids_of(array.manifests)).astype(np.int64)
    if len(counts):  # a manifest that arrays share has references of others, too
        extents = extents_of(array.manifests, len(array.shape)).astype(np.float64)
        room = (extents[:, :, 1] - extents[:, :, 0]).prod(axis=1)
        counts = np.minimum(counts, room).astype(np.int64)
    found: list[int] = counts.tolist()
    return found


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
    shared: SharedNodes = NOTHING_SHARED,
) -> Snapshot:
    """The new snapshot. `manifests` has the new manifests of each changed array."""
    nodes = [*plan.moved, *shared.nodes]  # those that were moved keep their manifests
    made, written = [], {node.path for node in shared.nodes}
    for node in plan.changed:
        if node.path in written:
            continue
        if node.array is None:
            nodes.append(node)
            continue
        new = manifests.get(node.id, [])
        made.extend(new)
        refs = ordered(joined(plan.arrays[node.id].kept, [manifest.ref for manifest in new]))
        nodes.append(replace(node, array=replace(node.array, manifests=refs)))
    replaced = plan.base.rows_of([*plan.gone, *(node.path for node in nodes)])
    table = plan.base.replace(replaced, nodes)
    infos = [*(new.info for new in made), *shared.files]
    files = _listed_files(plan.files, table.used_manifests(), infos)
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


def union_of_logs(earlier: TransactionLog, later: TransactionLog) -> TransactionLog:
    """The changes of both, under the id of the later one."""
    chunks: dict[NodeId, Index] = dict(earlier.updated_chunks)
    for node_id, index in later.updated_chunks.items():
        if node_id in chunks and chunks[node_id].shape[1] == index.shape[1]:
            joined = np.concatenate([chunks[node_id], index])
            index = joined[sort_rows(joined)]  # noqa: PLW2901
        chunks[node_id] = index
    lists = {name: getattr(earlier, name) | getattr(later, name) for name in NODE_LISTS}
    moves = _composed_moves(earlier.moved_nodes or (), later.moved_nodes or ())
    return replace(later, **lists, updated_chunks=chunks, moved_nodes=moves)


def _composed_moves(earlier: tuple[Move, ...], later: tuple[Move, ...]) -> tuple[Move, ...]:
    """Combine moves: A to B and then B to C is A to C. A node that came back did not move."""
    net = {move.node_id: move for move in earlier}
    for move in later:
        first = net.get(move.node_id)
        net[move.node_id] = move if first is None else move._replace(source=first.source)
    return tuple(move for move in net.values() if move.source != move.destination)
