"""`repair`: drops dangling references, and updates references to files that moved.

A plan has the changes to one branch as columns. Running it makes one commit, if the branch has not
moved since. The history does not change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from icefloe.assets.assets import list_folder
from icefloe.changes.commit_plan import PreparedPiece, prepare_array
from icefloe.changes.splits import SplitRewrite, SplitsPlan
from icefloe.display import ShownAsText
from icefloe.errors import ConflictError, InvalidInputError, StorageError
from icefloe.format import layout
from icefloe.format.chunk_index import Index, PackedIndex
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.locations import Coded
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ManifestRef, Node
from icefloe.format.snapshot import ManifestFileInfo, Snapshot
from icefloe.ids import ManifestId, NodeId, SnapshotId
from icefloe.maintenance.checks import (
    CheckedManifest,
    ManifestToCheck,
    Use,
    check_manifest,
    ends_of,
    sources_of,
)
from icefloe.maintenance.findings import FindingKind
from icefloe.maintenance.live import get_all, require_spec_1_or_2
from icefloe.maintenance.verify import ObjectTable, dead_sources, source_table
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.commit import commit, write_manifests
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState, Workspace, open_writable
from icefloe.storage.driver import Readable

_MANIFESTS_AT_ONCE = 32
_MAX_CELLS_LISTED = 1 << 24
"""The limit for the box of an unreadable manifest, because the log lists all of its cells."""


class RepairAction(NamedTuple):
    """One line of a plan."""

    what: str
    """`drop` references, `drop-manifest` with all of its references, `rewrite-manifest`, `repoint`
    references, or `leave` them, because the file at the new location does not match."""
    path: str
    object: str
    references: int
    detail: str


class _Broken(NamedTuple):
    """A manifest that has to be replaced, and its remaining references."""

    manifest_id: ManifestId
    box: tuple[tuple[int, int], ...]
    survivors: ChunkRefs
    touched: Index


@dataclass(frozen=True, repr=False)
class RepairPlan(ShownAsText):
    """The changes of a repair to a branch. `print` shows them, `run_repair` commits them."""

    branch: str
    base: str
    """The snapshot that the plan was made for."""
    purpose: str
    actions: tuple[RepairAction, ...]
    deleted: Mapping[NodeId, Index] = field(default_factory=dict, repr=False)
    changed: Mapping[NodeId, ChunkRefs] = field(default_factory=dict, repr=False)
    broken: Mapping[NodeId, tuple[_Broken, ...]] = field(default_factory=dict, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.deleted or self.changed or self.broken)

    def __str__(self) -> str:
        lines = [f"{self.purpose}, on branch {self.branch!r} at {self.base}:"]
        lines += [
            f"{one.what} {one.references:,} references of {one.path} ({one.object}): {one.detail}"
            for one in self.actions
        ]
        if self.is_empty:
            lines.append("nothing to do")
        return "\n".join(lines)


@observed("plan_repair", MAINTENANCE)
async def plan_repair(handle: RepoHandle, branch: str, *, virtual_sources: bool) -> RepairPlan:
    """Find the dangling references of a branch.

    These are references to chunk objects that are missing or too short, references without bytes,
    and manifests that cannot be read. With `virtual_sources`, they include references to files that
    are missing, too short or changed.
    """
    require_spec_1_or_2(handle, "repair")
    snapshot = (await open_writable(handle, branch)).snapshot
    chunks = ObjectTable(await list_folder(handle.driver, layout.CHUNKS))
    dead: set[tuple[Any, ...]] = set()
    if virtual_sources:
        table = source_table()
        async for _, use in _uses(handle, snapshot):
            table.add(source_rows(use.refs))
        dead = await dead_sources(handle, table.finish())
    actions: list[RepairAction] = []
    deleted: dict[NodeId, list[Index]] = {}
    broken: dict[NodeId, list[_Broken]] = {}
    async for node, use in _uses(handle, snapshot):
        if use.refs is None or use.problem:
            one = _replacement(use, chunks, dead)
            broken.setdefault(node.id, []).append(one)
            lost = use.num_refs - len(one.survivors)
            what = "drop-manifest" if use.refs is None else "rewrite-manifest"
            actions.append(RepairAction(what, node.path, use.key, lost, use.problem))
            continue
        for why, is_dead in _dead_rows(use.refs, chunks, dead):
            index = use.refs.index[is_dead]
            if len(index):
                deleted.setdefault(node.id, []).append(index)
                detail = f"{why}, such as {tuple(index[0].tolist())}"
                actions.append(RepairAction("drop", node.path, use.key, len(index), detail))
    return RepairPlan(
        branch,
        snapshot.id.text,
        "drop references that lead nowhere",
        tuple(actions),
        deleted={key: np.concatenate(parts) for key, parts in deleted.items()},
        broken={key: tuple(parts) for key, parts in broken.items()},
    )


class _ManifestUse(NamedTuple):
    key: str
    manifest_id: ManifestId
    box: tuple[tuple[int, int], ...]
    num_refs: int
    refs: ChunkRefs | None
    """None if the file cannot be read."""
    problem: str
    """The reason to replace the manifest, or empty."""


async def _uses(handle: RepoHandle, snapshot: Snapshot) -> AsyncIterator[tuple[Node, _ManifestUse]]:
    """Every manifest of every array, fetched in batches."""
    users: dict[ManifestId, list[tuple[Node, ManifestRef]]] = {}
    for node in snapshot.nodes:
        for ref in () if node.array is None else node.array.manifests:
            if all(start < stop for start, stop in ref.extents):
                users.setdefault(ref.id, []).append((node, ref))
    files, ids = snapshot.manifest_files, list(users)
    for first in range(0, len(ids), _MANIFESTS_AT_ONCE):
        some = ids[first : first + _MANIFESTS_AT_ONCE]
        blobs = await get_all(handle, [layout.manifest_key(each) for each in some])
        for manifest_id, data in zip(some, blobs, strict=True):
            listed = [files[manifest_id]] if manifest_id in files else []
            checked = None
            if not isinstance(data, StorageError):
                uses = [
                    Use(node.id, node.path, np.array(ref.extents, np.uint32).tobytes(), "")
                    for node, ref in users[manifest_id]
                ]
                checked = check_manifest(ManifestToCheck(manifest_id, listed, uses), data)
            for node, ref in users[manifest_id]:
                yield node, _use_of(node, ref, listed, data, checked)


def _use_of(
    node: Node,
    ref: ManifestRef,
    listed: Sequence[ManifestFileInfo],
    data: Readable | StorageError,
    checked: CheckedManifest | None,
) -> _ManifestUse:
    """How one array uses a manifest that is checked for all arrays at once."""
    key = layout.manifest_key(ref.id)
    cells = prod(stop - start for start, stop in ref.extents)
    num_refs = min(cells, sum(one.num_chunk_refs for one in listed))
    if checked is None or isinstance(data, StorageError):
        problem = data.message if isinstance(data, StorageError) else ""
        return _ManifestUse(key, ref.id, ref.extents, num_refs, None, problem)
    mine = (row for row in checked.findings if row.path in ("", node.path))
    wrong = [row.detail for row in mine if row.kind in _REPLACED]
    if listed and len(data) != listed[0].size_bytes:
        wrong.append(f"it has {len(data):,} bytes, not {listed[0].size_bytes:,}")
    refs = None if checked.manifest is None else checked.manifest.find(node.id)
    if checked.manifest is not None and refs is None:
        wrong.append("it has no references of the array")
    return _ManifestUse(key, ref.id, ref.extents, num_refs, refs, "; ".join(wrong))


_REPLACED = {
    FindingKind.DAMAGED_MANIFEST,
    FindingKind.WRONG_MANIFEST_ID,
    FindingKind.WRONG_REF_COUNT,
    FindingKind.OUTSIDE_EXTENTS,
}


def _dead_rows(
    refs: ChunkRefs, chunks: ObjectTable, dead: set[tuple[Any, ...]]
) -> Iterable[tuple[str, Any]]:
    """Disjoint masks of dangling references, each with a reason."""
    is_empty = refs.length == 0
    yield "chunks without bytes", is_empty
    is_native = (refs.kind == ChunkKind.NATIVE) & ~is_empty
    if refs.chunk_id is not None and is_native.any():
        gone = np.zeros(len(refs), np.bool_)
        gone[is_native] = ~chunks.is_whole(refs.chunk_id[is_native], ends_of(refs)[is_native])
        yield "chunk objects that are missing or too short", gone
    if dead:
        yield "virtual sources that are gone or changed", _has_state(refs, dead) & ~is_empty


def _states(refs: ChunkRefs) -> list[tuple[Any, ...]]:
    rows = refs.to_arrow(plain=True).select(["location", "etag", "last_modified"])
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _has_state(refs: ChunkRefs, dead: set[tuple[Any, ...]]) -> Any:
    rows = np.flatnonzero(refs.kind == ChunkKind.VIRTUAL)
    found = np.zeros(len(refs), np.bool_)
    if len(rows):
        found[rows] = [state in dead for state in _states(refs.take(rows))]
    return found


def _replacement(use: _ManifestUse, chunks: ObjectTable, dead: set[tuple[Any, ...]]) -> _Broken:
    """The remaining references of a manifest, and the chunks that change."""
    ndim = len(use.box)
    if use.refs is None:
        cells = prod(stop - start for start, stop in use.box)
        if cells > _MAX_CELLS_LISTED:
            raise InvalidInputError(
                f"{use.key} cannot be read, and its box {use.box} has {cells:,} chunks, more than "
                f"the {_MAX_CELLS_LISTED:,} that a repair lists; restore the file, or delete the "
                "array"
            )
        shape = [stop - start for start, stop in use.box]
        inside = np.indices(shape, np.uint32).reshape(ndim, -1).T
        low = np.array([start for start, _ in use.box], np.uint32)
        return _Broken(use.manifest_id, use.box, ChunkRefs.empty(ndim), inside + low)
    gone = np.zeros(len(use.refs), np.bool_)
    for _, is_dead in _dead_rows(use.refs, chunks, dead):
        gone |= is_dead
    for column, (start, stop) in zip(use.refs.index.T, use.box, strict=True):
        gone |= (column < start) | (column >= stop)  # no reader could find those
    return _Broken(use.manifest_id, use.box, use.refs.take(~gone), use.refs.index[gone])


async def plan_repoint(
    handle: RepoHandle, branch: str, old_prefix: str, new_prefix: str, *, check: bool
) -> RepairPlan:
    """Point virtual references below one prefix at the same files below another one.

    With `check`, every file is requested at its new location. Its references keep their ETag if the
    file still has it. Otherwise they require that the file does not change from now on.
    """
    if not old_prefix or old_prefix == new_prefix:
        raise InvalidInputError(
            f"old prefix {old_prefix!r} and new prefix {new_prefix!r} have to differ"
        )
    require_spec_1_or_2(handle, "repair")
    snapshot = (await open_writable(handle, branch)).snapshot
    moved = _Moves(old_prefix, new_prefix)
    table = source_table()
    async for _, use in _uses(handle, snapshot):
        if use.refs is not None:
            table.add(moved.sources(use))
    sources = table.finish()
    same: set[tuple[Any, ...]] | None = None
    missing: dict[str, str] = {}
    if check:
        same, missing = await _check_moved(handle, sources)
    now_s = -(-handle.clock.now_us() // 1_000_000)
    changed: dict[NodeId, list[ChunkRefs]] = {}
    actions = []
    async for node, use in _uses(handle, snapshot):
        if use.refs is None:
            continue
        refs = moved.repointed(use.refs, same, missing, now_s)
        left = len(moved.rows(use.refs)) - len(refs)
        detail = f"{old_prefix} becomes {new_prefix}"
        if len(refs):
            changed.setdefault(node.id, []).append(refs)
            actions.append(RepairAction("repoint", node.path, use.key, len(refs), detail))
        if left:
            why = next(iter(missing.values()))
            actions.append(RepairAction("leave", node.path, use.key, left, why))
    return RepairPlan(
        branch,
        snapshot.id.text,
        f"re-point references from {old_prefix} to {new_prefix}",
        tuple(actions),
        changed={key: ChunkRefs.concat(parts) for key, parts in changed.items()},
    )


class _Moves(NamedTuple):
    old: str
    new: str

    def rows(self, refs: ChunkRefs) -> Any:
        """Which references are below the old prefix."""
        if refs.location is None:
            return np.empty(0, np.int64)
        texts = refs.location.values.strings().to_list()
        is_below = np.array([text.startswith(self.old) for text in texts] + [False])
        return np.flatnonzero((refs.kind == ChunkKind.VIRTUAL) & is_below[refs.location.codes])

    def _moved(self, refs: ChunkRefs) -> ChunkRefs:
        assert refs.location is not None
        texts = refs.location.values.strings().to_list()
        length = len(self.old)
        moved = [self.new + t[length:] if t.startswith(self.old) else t for t in texts]
        column = pa.DictionaryArray.from_arrays(pa.array(refs.location.codes), pa.array(moved))
        return replace(refs, location=Coded.from_arrow(column), _lookup=[])

    def sources(self, use: _ManifestUse) -> pa.RecordBatch:
        """The files at their new location."""
        assert use.refs is not None
        rows = self.rows(use.refs)
        return source_rows(self._moved(use.refs.take(rows)) if len(rows) else None)

    def repointed(
        self,
        refs: ChunkRefs,
        same: set[tuple[Any, ...]] | None,
        missing: Mapping[str, str],
        now_s: int,
    ) -> ChunkRefs:
        """The new form of the references that move."""
        rows = self.rows(refs)
        if not len(rows):
            return ChunkRefs.empty(refs.ndim)
        moved = self._moved(refs.take(rows))
        if same is None:
            return moved
        states = _states(moved)
        is_there = np.array([state[0] not in missing for state in states])
        is_same = np.array([state in same for state in states])
        etags = [state[1] if keep else None for state, keep in zip(states, is_same, strict=True)]
        times = np.array([state[2] or 0 for state in states], np.uint32)
        times = np.where(is_same, times, np.uint32(now_s)).astype(np.uint32)
        etag = Coded.from_arrow(pa.array(etags, pa.string()))
        return replace(moved, etag=etag, last_modified=times, _lookup=[]).take(is_there)


def source_rows(refs: ChunkRefs | None) -> pa.RecordBatch:
    """References as rows of `check_manifest.SOURCES`."""
    arrays = () if refs is None else (ArrayManifest(NodeId(bytes(8)), refs),)
    return sources_of(Manifest(ManifestId(bytes(12)), arrays), {})


async def _check_moved(
    handle: RepoHandle, sources: pa.Table
) -> tuple[set[tuple[Any, ...]], dict[str, str]]:
    """The states that are still valid at the new location, and the files that are missing there."""
    rows = sources.to_pylist()
    states = {(row["location"], row["etag"], row["last_modified"] or None) for row in rows}
    dead = await dead_sources(handle, sources)
    same = states - dead
    bare = [{**row, "etag": None, "last_modified": 0} for row in rows]
    again = pa.Table.from_pylist(
        [row for row, old in zip(bare, rows, strict=True) if _state(old) in dead], sources.schema
    )
    missing = {
        state[0]: "the file is not at its new place, or too short"
        for state in await dead_sources(handle, again)
    }
    return same, missing


def _state(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["location"], row["etag"], row["last_modified"] or None


@observed("repair", MAINTENANCE)
async def run_repair(handle: RepoHandle, plan: RepairPlan, message: str | None) -> SnapshotId:
    """Commit a plan.

    Raises:
        ConflictError: the branch is not where the plan found it; make another plan.
    """
    state = await open_writable(handle, plan.branch)
    if state.snapshot_id.text != plan.base:
        raise ConflictError(
            plan.base,
            state.snapshot_id.text,
            f"branch {plan.branch!r} has moved from {plan.base} to {state.snapshot_id} since the "
            "plan was made; look at the repository again and make another plan",
        )
    if plan.is_empty:
        return state.snapshot_id
    for node in state.snapshot.nodes:
        if node.array is None:
            continue
        if node.id in plan.broken:
            await _replace_manifests(handle, state, node, plan.broken[node.id])
        none = ChunkRefs.empty(len(node.array.shape))
        if node.id in plan.deleted or node.id in plan.changed:
            changed = plan.changed.get(node.id, none)
            gone = plan.deleted.get(node.id, none.index)
            state.changes.edits(node).set_table(changed.take(_order(changed.index)), gone)
    state.forget_nodes()
    metadata = {"icefloe": {"repair": plan.purpose}}
    return await commit(Workspace(handle, state), message or plan.purpose, metadata)


def _order(index: Index) -> Any:
    return np.lexsort(index.T[::-1]) if index.shape[1] else np.arange(len(index))


async def _replace_manifests(
    handle: RepoHandle, state: SessionState, node: Node, broken: Sequence[_Broken]
) -> None:
    """Replace manifests with their remaining references, without reading them again."""
    assert node.array is not None
    ndim = len(node.array.shape)
    none = np.empty((0, ndim), np.uint32)
    pieces = []
    for one in broken:
        rewrite = SplitRewrite(one.box, edits=[(one.survivors, slice(None), none)])
        plans = {node.id: SplitsPlan([], [rewrite] if len(one.survivors) else [])}
        made = await write_manifests(handle, plans, state.manifest_files)
        touched = PackedIndex.pack(one.touched[_order(one.touched)])
        new = tuple(made.get(node.id, ()))
        pieces.append(PreparedPiece((one.box,), (one.manifest_id,), new, touched))
    state.changes.prepare(node, prepare_array(node.array, None, pieces, ndim))
