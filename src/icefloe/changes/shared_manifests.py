"""Small arrays that a commit writes share manifests.

All references of these arrays are one table for each rank: the number of the array is the first
coordinate. So thousands of arrays are merged, cut and encoded as columns. A collector keeps every
chunk that a manifest in use names. So a commit writes only arrays that it touches, and it moves
the others out of an old manifest in which too many references are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.changes.chunk_edits import ChunkEdits, combined
from icefloe.changes.splits import configured_split_sizes
from icefloe.config.manifest import ResolvedManifest, ResolvedSplitting
from icefloe.format.chunk_index import Index, numbered, sort_rows
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import Bytes, Ints, find_ids, find_rows, id_rows, spread
from icefloe.format.manifest import ArrayManifest, Manifest, SharedArrays
from icefloe.format.nodes import ArrayData, ManifestRef, Node, NodeTable, extents_of
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles
from icefloe.ids import ManifestId, NodeId

MAX_DEAD_SHARE = 0.2
"""Share of a shared manifest's references, or of the bytes of their chunks, that may be dead."""

_BYTES_PER_REF = 40


class SharedLimits(NamedTuple):
    """What goes into a shared manifest at most."""

    refs_per_array: int
    refs: int
    num_bytes: int
    splitting: ResolvedSplitting


def shared_limits(manifest: ResolvedManifest) -> SharedLimits | None:
    """The limits in force; None if each array has a manifest of its own."""
    refs = manifest.max_refs_per_shared_manifest
    # An array that may share a manifest is never cut into several.
    per_array = min(manifest.max_shared_refs_per_array, refs, manifest.max_refs_per_manifest // 2)
    if per_array == 0:
        return None
    num_bytes = manifest.max_bytes_per_shared_manifest
    return SharedLimits(per_array, refs, num_bytes, manifest.splitting)


def is_small(
    node: Node, edits: ChunkEdits | None, files: ManifestFiles, limits: SharedLimits
) -> bool:
    """Whether an array certainly has few references, and no rule of its own."""
    array = node.array
    assert array is not None
    splitting = limits.splitting
    if splitting.split_sizes and configured_split_sizes(splitting, node.path, array):
        return False
    cells = prod(dimension.num_chunks for dimension in array.shape)
    if cells <= limits.refs_per_array:
        return True
    most = 0 if edits is None else edits.most_set
    if len(array.manifests) > limits.refs_per_array or most > limits.refs_per_array:
        return False
    for ref in array.manifests:
        room = prod(stop - start for start, stop in ref.extents)
        most += min(room, files[ref.id].num_chunk_refs if ref.id in files else 0)
    return most <= limits.refs_per_array


def is_inside_grid(array: ArrayData) -> bool:
    """Whether no manifest of an array reaches beyond its grid."""
    if isinstance(array.manifests, tuple | list) and not array.manifests:
        return True
    extents = extents_of(array.manifests, len(array.shape))
    grid = np.array([dimension.num_chunks for dimension in array.shape], np.uint32)
    return extents.shape[1] == len(grid) and bool((extents[:, :, 1] <= grid).all())


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Small arrays that a commit writes, and what is laid over their old references."""

    limits: SharedLimits
    nodes: Sequence[Node]
    edits: Mapping[int, tuple[ChunkRefs, Index]]
    """By rank: what is set and deleted, with the number of the array first."""
    states: Sequence[object]
    """The states of the edits."""
    left: Sequence[ManifestId]
    """Old manifests that arrays leave."""
    base: NodeTable
    stays: tuple[Ints, Ints]
    """Other arrays that use one of those: their rows in the base, and the number of the
    manifest."""
    unwritten: Mapping[str, Node]
    """Those of them that the commit changes otherwise, as they are then."""

    @property
    def sources(self) -> list[ManifestId]:
        """The old manifests to be read."""
        return list(dict.fromkeys(ref.id for node in self.nodes for ref in _manifests(node)))

    @property
    def kept(self) -> list[ManifestId]:
        """The manifests in `left` that other arrays use. Their dead references are counted."""
        return [self.left[number] for number in np.unique(self.stays[1]).tolist()]


def plan_shared(
    base: NodeTable,
    nodes: Iterable[Node],
    edits: Mapping[NodeId, ChunkEdits],
    left: Iterable[ManifestId],
    gone: Iterable[str],
    unwritten: Mapping[str, Node],
    limits: SharedLimits,
) -> SharedPlan | None:
    """Plan the manifests of small arrays.

    Arrays leave the manifests in `left`, besides those of `nodes`; the paths in `gone` are no
    longer in the base or are written otherwise. Other metadata or sizes of the arrays in
    `unwritten` do not need new manifests.
    """
    nodes = sorted(nodes, key=lambda node: (paths.parent(node.path), node.path))
    by_rank: dict[int, list[tuple[int, ChunkEdits]]] = {}
    used = dict.fromkeys(left)
    for number, node in enumerate(nodes):
        used.update((ref.id, None) for ref in _manifests(node))
        mine = edits.get(node.id)
        if mine is not None:
            by_rank.setdefault(mine.ndim, []).append((number, mine))
    listed = sorted(used)
    none = np.empty(0, np.int64)
    stays = none, none
    if listed:
        stays = base.users_of(listed, {*gone, *(node.path for node in nodes)})
    if not nodes and not len(stays[0]):
        return None
    return SharedPlan(
        limits,
        nodes,
        {rank: combined(some, rank) for rank, some in by_rank.items()},
        [mine.state for some in by_rank.values() for _, mine in some],
        listed,
        base,
        stays,
        unwritten,
    )


@dataclass(frozen=True, slots=True)
class SharedNodes:
    """The arrays of a plan as they are after the commit, and the new files they use."""

    nodes: Sequence[Node] = ()
    files: Sequence[ManifestFileInfo] = ()


NOTHING_SHARED = SharedNodes()


def build_shared(
    plan: SharedPlan,
    nodes: Sequence[Node],
    held: Mapping[ManifestId, Manifest],
    *,
    new_id: Callable[[], ManifestId],
    encode: Callable[[Manifest], bytes],
) -> tuple[list[Node], list[tuple[Manifest, bytes]]]:
    """The arrays `nodes`, which `all_nodes` finds, with their new manifests; `held` has the old
    ones."""
    tables = {rank: _merge(plan, nodes, mine, held) for rank, mine in _by_rank(nodes).items()}
    count = sum(
        (np.bincount(refs.index[:, 0], minlength=len(nodes)) for refs in tables.values()),
        np.zeros(len(nodes), np.int64),
    )
    # The arrays that were moved out go between the others of their groups.
    order = sorted(
        np.flatnonzero(count).tolist(),
        key=lambda number: (paths.parent(nodes[number].path), nodes[number].path),
    )
    files, owner = [], np.full(len(nodes), -1, np.int64)
    parts = _cut(np.array(order, np.int64), nodes, tables, count, plan.limits)
    for number, some in enumerate(parts):
        owner[some] = number
        manifest = _manifest(some, nodes, tables, count, new_id())
        files.append((manifest, encode(manifest)))
    refs = _refs(nodes, tables, owner, [manifest.id for manifest, _ in files])
    changed = [
        Node(node.id, node.path, node.user_data, _with_manifests(node.array, found), node.extra)
        for node, found in zip(nodes, refs, strict=True)
    ]
    return changed, files


def _with_manifests(array: ArrayData | None, found: ManifestRef | None) -> ArrayData:
    assert array is not None
    return ArrayData(array.shape, array.dimension_names, () if found is None else (found,))


def _by_rank(nodes: Sequence[Node]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        found.setdefault(len(_shape(node)), []).append(number)
    return found


def all_nodes(plan: SharedPlan, held: Mapping[ManifestId, Manifest]) -> list[Node]:
    """The arrays of a plan, and the others of old manifests in which too many references are
    dead."""
    row, used = plan.stays
    ids = plan.base.columns.id
    moved: set[int] = set()
    for number in np.unique(used).tolist():
        living, manifest = row[used == number], held.get(plan.left[number])
        if manifest is not None and _is_worn(manifest.arrays, ids[living]):
            moved.update(living.tolist())
    nodes = (plan.base.node(at) for at in sorted(moved))
    nodes = (plan.unwritten.get(node.path, node) for node in nodes)
    return [*plan.nodes, *(node for node in nodes if len(_manifests(node)) == 1)]


def _is_worn(arrays: Sequence[ArrayManifest], living: Bytes) -> bool:
    """Whether too little of a manifest belongs to the arrays with these ids."""
    if isinstance(arrays, SharedArrays):
        rows, count, size = find_rows(arrays.node_id, living), arrays.num_refs, arrays.sizes()
    else:
        rows = find_rows(id_rows((array.node_id for array in arrays), NodeId.size), living)
        count = np.array([len(array) for array in arrays], np.int64)
        size = np.array([int(array.refs.length.sum()) for array in arrays], np.int64)
    rows = rows[rows >= 0]
    return any(
        float(one[rows].sum()) < (1 - MAX_DEAD_SHARE) * float(one.sum()) for one in (count, size)
    )


def _merge(
    plan: SharedPlan,
    nodes: Sequence[Node],
    mine: Sequence[int],
    held: Mapping[ManifestId, Manifest],
) -> ChunkRefs:
    """The references of all arrays of one rank: edits over old ones, inside of the grids."""
    rank = len(_shape(nodes[mine[0]]))
    old = _old_refs(nodes, mine, rank, held)
    merged = old
    if rank in plan.edits:
        merged = ChunkRefs.overlay([(old, None), plan.edits[rank]], rank + 1)[0]
    grid = np.zeros((len(nodes), rank), np.int64)
    grid[mine] = [_shape(nodes[number]) for number in mine]
    inside = (merged.index[:, 1:] < grid[merged.index[:, 0]]).all(axis=1)
    return merged if inside.all() else merged.take(np.flatnonzero(inside))


def _manifests(node: Node) -> Sequence[ManifestRef]:
    return () if node.array is None else node.array.manifests


def _shape(node: Node) -> tuple[int, ...]:
    assert node.array is not None
    return tuple(dimension.num_chunks for dimension in node.array.shape)


def _old_refs(
    nodes: Sequence[Node], mine: Sequence[int], rank: int, held: Mapping[ManifestId, Manifest]
) -> ChunkRefs:
    # Where manifests of an array overlap, the one that is listed first wins: it comes last here.
    levels: list[dict[ManifestId, list[int]]] = []
    for number in mine:
        for level, ref in enumerate(_manifests(nodes[number])):
            if level == len(levels):
                levels.append({})
            levels[level].setdefault(ref.id, []).append(number)
    parts = [
        part
        for level in reversed(levels)
        for key, numbers in level.items()
        for part in _taken(held[key].arrays, nodes, numbers, rank)
        if len(part)
    ]
    if not parts:
        return ChunkRefs.empty(rank + 1)
    together = ChunkRefs.concat(parts)
    return together.take(sort_rows(together.index))


def _taken(
    arrays: Sequence[ArrayManifest], nodes: Sequence[Node], numbers: Sequence[int], rank: int
) -> Iterator[ChunkRefs]:
    """What a manifest has of some arrays. What it has of another rank is from before a change."""
    if isinstance(arrays, SharedArrays):
        rows = find_ids(arrays.node_id, [nodes[number].id for number in numbers])
        is_there = (rows >= 0) & (arrays.ndim[rows] == rank)
        rows, owner = rows[is_there], np.array(numbers, np.int64)[is_there]
        if len(rows):
            refs = arrays.tables[rank].take(arrays.rows_of(rows))
            yield _with_numbers(refs, np.repeat(owner, arrays.num_refs[rows]))
        return
    held = {array.node_id: array for array in arrays}
    for number in numbers:
        array = held.get(nodes[number].id)
        if array is not None and len(array) and array.refs.ndim == rank:
            yield _with_numbers(array.refs, np.full(len(array), number))


def _with_numbers(refs: ChunkRefs, owner: NDArray[np.int64]) -> ChunkRefs:
    return replace(refs, index=numbered(owner, refs.index), _lookup=[])


def _cut(
    order: Ints,
    nodes: Sequence[Node],
    tables: Mapping[int, ChunkRefs],
    count: Ints,
    limits: SharedLimits,
) -> Iterator[Ints]:
    """The arrays of each manifest. One that is half full ends with its group."""
    size = np.zeros(len(nodes))
    for refs in tables.values():
        inline = 0 if refs.inline is None else refs.inline.length
        weight = np.broadcast_to(_BYTES_PER_REF + inline, len(refs))
        size += np.bincount(refs.index[:, 0], weight, len(nodes))
    # A manifest is full when either limit is reached.
    full = np.cumsum(count[order] / limits.refs), np.cumsum(size[order] / limits.num_bytes)
    groups = [paths.parent(nodes[number].path) for number in order.tolist()]
    ends = np.array(
        [at for at in range(1, len(groups)) if groups[at] != groups[at - 1]] + [len(groups)]
    )
    start, before = 0, [0.0, 0.0]
    while start < len(order):
        fits = zip(full, before, strict=True)
        stop = min(int(np.searchsorted(one, done + 1 + 1e-9, "right")) for one, done in fits)
        stop = max(stop, start + 1)
        end = int(ends[np.searchsorted(ends, stop, "right") - 1]) if stop >= ends[0] else 0
        if stop < len(order) and end > (start + stop) // 2:
            stop = end
        yield order[start:stop]
        start, before = stop, [float(one[stop - 1]) for one in full]


def _manifest(
    some: Ints,
    nodes: Sequence[Node],
    tables: Mapping[int, ChunkRefs],
    count: Ints,
    manifest_id: ManifestId,
) -> Manifest:
    """The manifest of some arrays."""
    ids = id_rows((nodes[number].id for number in some.tolist()), NodeId.size)
    rank_of = np.array([len(_shape(nodes[number])) for number in some.tolist()], np.int64)
    order = np.lexsort(ids.T[::-1])
    some, ids, rank_of = some[order], ids[order], rank_of[order]
    held = {}
    for rank in np.unique(rank_of).tolist():
        refs, mine = tables[rank], some[rank_of == rank]
        starts = np.searchsorted(refs.index[:, 0], mine)
        rows = spread(starts, count[mine], 1)
        refs = refs.take(rows)
        held[rank] = replace(refs, index=np.ascontiguousarray(refs.index[:, 1:]), _lookup=[])
    if len(some) == 1:
        [refs] = held.values()
        return Manifest(manifest_id, (ArrayManifest(NodeId(ids[0].tobytes()), refs.compact()),))
    held = {rank: refs.compact() for rank, refs in held.items()}
    return Manifest(manifest_id, SharedArrays(ids, rank_of, count[some], held))


def _refs(
    nodes: Sequence[Node],
    tables: Mapping[int, ChunkRefs],
    owner: Ints,
    ids: Sequence[ManifestId],
) -> list[ManifestRef | None]:
    """The manifest of each array, with the box of its chunks."""
    found: list[ManifestRef | None] = [None] * len(nodes)
    for refs in tables.values():
        if not len(refs):
            continue
        number = refs.index[:, 0]
        starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
        low = np.minimum.reduceat(refs.index[:, 1:], starts).tolist()
        high = (np.maximum.reduceat(refs.index[:, 1:], starts) + 1).tolist()
        for at, start, stop in zip(number[starts].tolist(), low, high, strict=True):
            box = tuple(zip(start, stop, strict=True))
            found[at] = ManifestRef(ids[owner[at]], box)
    return found
