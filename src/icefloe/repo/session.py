"""A session: its state, what it sees, and forks of it for workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from icefloe import paths
from icefloe.changes.change_set import ChangeSet, Packs
from icefloe.changes.chunk_edits import EditLayer
from icefloe.display import NamedNumber
from icefloe.errors import (
    COMMITTED,
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.chunk_refs import ChunkRef, ChunkRefs
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import ArrayData, ManifestBoxes, Node
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.ids import ManifestId, NodeId, SnapshotId
from icefloe.observe import CACHE, observed
from icefloe.repo.handle import RepoHandle
from icefloe.storage.run import repair_after_fork

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import ChunkEdits, Coordinates
    from icefloe.changes.commit_plan import PreparedArray
    from icefloe.config.manifest import ResolvedPreload
    from icefloe.format.nodes import NodeTable


# -- Prefetching small manifests, together with the first one that a session reads.
#
# Readers of a dataset read its coordinates first: small arrays with one manifest each. The first
# read of a manifest also fetches the others that the settings select, in the same round trip. A
# session that reads no chunk fetches nothing.


async def load_manifest(
    handle: RepoHandle, snapshot: Snapshot, wanted: ManifestFileInfo, *, is_first: bool
) -> Manifest:
    """Load a manifest that is not in the cache. The first load of a session prefetches others."""
    files = snapshot.manifest_files
    ahead = _plan(handle, snapshot) if is_first and len(files) > 1 else []
    requests = [(wanted.id, wanted.size_bytes)]
    requests += [(key, files[key].size_bytes) for key in ahead if key != wanted.id]
    if len(requests) > 1:
        try:
            return (await handle.assets.manifests(requests))[0]
        except IcechunkError as error:
            # The other manifests are optional. A read that needs one of them raises its error.
            CACHE.warning("manifests could not be fetched ahead: %s", error)
    return await handle.assets.manifest(wanted.id, wanted.size_bytes)


def _plan(handle: RepoHandle, snapshot: Snapshot) -> list[ManifestId]:
    if handle.settings.caching.num_chunk_refs == 0:
        return []  # the cache is off
    files, settings = snapshot.manifest_files, handle.settings.manifest.preload
    planned = _plan_preload(snapshot.nodes, files, settings)
    return [key for key in planned if key in files and key not in handle.assets.caches.manifests]


def _plan_preload(
    table: NodeTable, files: ManifestFiles, settings: ResolvedPreload
) -> list[ManifestId]:
    """Manifests to prefetch, in the order of the nodes.

    The first `max_arrays_to_scan` arrays are considered. A manifest is selected if `preload_if`
    holds and the references of all selected manifests stay within `max_total_refs`.
    """
    if settings.max_total_refs == 0 or settings.max_arrays_to_scan == 0:
        return []
    nodes = table.columns
    taken: dict[ManifestId, None] = {}
    total = 0
    rows = np.flatnonzero(nodes.is_array)[: settings.max_arrays_to_scan].tolist()
    first = 0
    for array, row in enumerate(rows):
        last = first + int(nodes.num_manifests[array])
        ids, first = nodes.manifest_id[first:last], last
        path = nodes.path[row]
        if not len(ids) or not settings.preload_if.matches(path, None):
            continue
        counts = files.num_refs(ids)
        # The manifests of an array have few distinct sizes; the condition is evaluated once for
        # each.
        sizes = np.unique(counts).tolist()
        matching = [size for size in sizes if settings.preload_if.matches(path, size)]
        for at in np.flatnonzero(np.isin(counts, matching)).tolist():
            if total + int(counts[at]) > settings.max_total_refs:
                continue
            manifest_id = ManifestId(ids[at].tobytes())
            if manifest_id not in taken:
                taken[manifest_id] = None
                total += int(counts[at])
    return list(taken)


# -- What a session sees: a snapshot, and the changes on top of it.
#
# A commit, a rebase and a discard replace the view of a session. A reading operation takes the
# view once. So the nodes, references and manifests that it finds are consistent, even if the
# session changes in the meantime.


_MANIFESTS_AT_ONCE = 128


class KnownArray(NamedTuple):
    """What finding a chunk of an array takes."""

    node_id: NodeId
    ndim: int
    boxes: ManifestBoxes


class SessionView:
    """A snapshot, the changes on top of it, and the packs that hold chunks not yet stored.

    The snapshot never changes. The session adds to the changes and packs of its current view under
    its lock.
    """

    def __init__(self, snapshot: Snapshot, changes: ChangeSet, packs: Packs, lock: RLock) -> None:
        self.snapshot = snapshot
        self.changes = changes
        self.packs = packs
        self.lock = lock
        self.has_read = False
        """Whether a manifest has been loaded. The first load prefetches small manifests."""
        self.known_arrays: dict[str, KnownArray] = {}
        """Arrays of which a chunk was looked up, by path. Empty after a node has changed."""
        self._nodes: dict[str, Node] = {}

    @property
    def manifest_files(self) -> ManifestFiles:
        """The files of all manifests that nodes of the session refer to."""
        return self.changes.manifest_files(self.snapshot.manifest_files)

    def find_node(self, path: str) -> Node | None:
        """The node at `path`, cached until the session changes a node."""
        node = self._nodes.get(path)
        if node is None:
            with self.lock:
                node = self.changes.find(self.snapshot.nodes, path)
                if node is not None:
                    self._nodes[path] = node
        return node

    def find_document(self, path: str) -> bytes | None:
        """The zarr.json of the node at `path`, or None. No other part of the node is decoded."""
        if self.changes.is_empty:
            return self.snapshot.nodes.find_user_data(path)
        node = self.find_node(path)
        return None if node is None else node.user_data

    def node(self, path: str) -> Node:
        """The node at `path`; raises if there is none."""
        node = self.find_node(path)
        if node is None:
            raise NodeNotFoundError(f"{path!r} in snapshot {self.snapshot.id}")
        return node

    def array(self, path: str) -> tuple[Node, ArrayData]:
        """The array at `path`."""
        node = self.node(path)
        if node.array is None:
            raise InvalidInputError(
                f"the node at {path!r} is a group, not an array", ErrorKind.NOT_AN_ARRAY
            )
        return node, node.array

    def all_paths(self, below: str = paths.ROOT) -> list[str]:
        """The paths of all nodes at or below a path, ascending."""
        with self.lock:
            return self.changes.paths(self.snapshot.nodes, below)

    def all_nodes(self, below: str = paths.ROOT) -> list[Node]:
        """All nodes at or below a path, ascending by path."""
        with self.lock:
            return [self.node(path) for path in self.all_paths(below)]

    def boxes(self, node: Node) -> ManifestBoxes:
        """The boxes of an array's manifests, cached like the node."""
        assert node.array is not None
        found = self.known_arrays.get(node.path)
        if found is not None and found.boxes.manifests is node.array.manifests:
            return found.boxes
        boxes = ManifestBoxes(node.array.manifests)
        with self.lock:
            if self._nodes.get(node.path) is node:
                known = KnownArray(node.id, len(node.array.shape), boxes)
                self.known_arrays[node.path] = known
        return boxes

    def forget_nodes(self) -> None:
        """Drop cached nodes. For callers that changed a node and hold the lock."""
        self._nodes = {}
        self.known_arrays = {}


def known_kind(handle: RepoHandle, view: SessionView, path: Any, coordinates: Any) -> int | None:
    """The `ChunkKind` of a committed chunk, 0 if there is none; None if only others can tell.

    The short way for callers that ask for one chunk after the other. It needs no coroutine, because
    the node and the manifest must be in memory. Arrays with changed chunks are left to others, and
    so are unusual arguments.
    """
    if type(path) is not str or type(coordinates) not in (tuple, list):
        return None
    array = view.known_arrays.get(path)
    if array is None or array.node_id in view.changes.chunks or array.ndim != len(coordinates):
        return None
    for at in coordinates:
        if type(at) is not int:
            return None
    for ref in array.boxes.around(coordinates):
        loaded = handle.assets.caches.manifests.get(ref.id)
        if loaded is None:
            return None
        if kind := loaded.kind_at(array.node_id, coordinates):
            return kind
    return 0 if not coordinates or 0 <= min(coordinates) <= max(coordinates) < 2**32 else None


async def find_chunk(
    handle: RepoHandle, view: SessionView, node: Node, coordinates: Coordinates
) -> ChunkRef | None:
    """The reference of one chunk: from the session's edits, or from a manifest."""
    if node.id in view.changes.chunks:
        with view.lock:  # the reference and its pack have to be consistent
            edits = view.changes.chunks.get(node.id)
            is_touched, ref = (False, None) if edits is None else edits.find(coordinates)
            if is_touched:
                return ref if ref is None else view.packs.filled(ref, node.id, coordinates)
    for manifest in view.boxes(node).around(coordinates):
        loaded = handle.assets.caches.manifests.get(manifest.id)
        if loaded is None:
            is_first, view.has_read = not view.has_read, True
            info = view.manifest_files[manifest.id]
            loaded = await load_manifest(handle, view.snapshot, info, is_first=is_first)
        if (ref := loaded.get(node.id, coordinates)) is not None:
            return ref
    return None


async def load_manifests(handle: RepoHandle, view: SessionView, nodes: Iterable[Node]) -> None:
    """Prefetch the manifests of many arrays into the cache, with concurrent requests."""
    files = view.manifest_files
    wanted = [
        (ref.id, files[ref.id].size_bytes)
        for node in nodes
        if node.array is not None
        for ref in node.array.manifests
    ]
    for first in range(0, len(wanted), _MANIFESTS_AT_ONCE):
        await handle.assets.manifests(wanted[first : first + _MANIFESTS_AT_ONCE])


async def committed_chunks(handle: RepoHandle, files: ManifestFiles, node: Node) -> ChunkRefs:
    """Every reference in the manifests of an array."""
    assert node.array is not None
    wanted = [(ref.id, files[ref.id].size_bytes) for ref in node.array.manifests]
    found = [manifest.find(node.id) for manifest in await handle.assets.manifests(wanted)]
    return ChunkRefs.joined(found, len(node.array.shape))


async def all_chunks(handle: RepoHandle, view: SessionView, node: Node) -> ChunkRefs:
    """Every reference of an array inside its grid, including the session's edits."""
    assert node.array is not None
    grid = [dimension.num_chunks for dimension in node.array.shape]
    merged = await committed_chunks(handle, view.manifest_files, node)
    with view.lock:  # other threads may be adding chunks
        edits = view.changes.chunks.get(node.id)
        columns = None if edits is None else edits.columns()
    if columns is not None:
        merged = merged.merge(*columns)
    return merged.select([0] * len(grid), grid)


# -- Sessions: a view of a repository and, if writable, the rules for changing it.


CommitMethod: TypeAlias = Literal["new_commit", "amend"]


class SessionMode(NamedNumber):
    """What a session may do."""

    readonly = 0
    writable = 1
    rearrange = 2


class SessionState:
    """The state behind a `Session` and its store. Operations take it and a handle.

    The lock guards dictionaries only and is never held across an await: Zarr calls from its
    event-loop thread while the user calls from another one. An operation that reads and awaits
    takes the `view` once. The shortcuts below are for a single query.
    """

    def __init__(self, snapshot: Snapshot, branch: str | None, mode: SessionMode) -> None:
        self.lock = RLock()
        self.view = SessionView(snapshot, ChangeSet(), Packs(), self.lock)
        self.branch = branch
        self.mode = mode
        self.fork_root: SnapshotId | None = None
        """In a fork: the snapshot of the session that was forked first."""
        self.opened_at = 0
        """See `FormatVersion.opened_at`. The earliest one, including the forks that were merged."""
        self._is_sealed = False
        self._is_committed = False
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        # A thread of the parent process may have held the lock, committed or stored a pack. That
        # thread does not exist here, so it cannot finish.
        self.lock = self.view.lock = RLock()
        self._is_sealed = False
        self.packs.give_back_all()

    @property
    def snapshot(self) -> Snapshot:
        return self.view.snapshot

    @property
    def snapshot_id(self) -> SnapshotId:
        return self.view.snapshot.id

    @property
    def changes(self) -> ChangeSet:
        return self.view.changes

    @property
    def packs(self) -> Packs:
        return self.view.packs

    @property
    def manifest_files(self) -> ManifestFiles:
        return self.view.manifest_files

    def find_node(self, path: str) -> Node | None:
        return self.view.find_node(path)

    def node(self, path: str) -> Node:
        return self.view.node(path)

    def array(self, path: str) -> tuple[Node, ArrayData]:
        return self.view.array(path)

    def all_paths(self, below: str = paths.ROOT) -> list[str]:
        return self.view.all_paths(below)

    def forget_nodes(self) -> None:
        self.view.forget_nodes()

    @property
    def is_read_only(self) -> bool:
        return self.mode == SessionMode.readonly

    @property
    def is_fork(self) -> bool:
        return self.fork_root is not None

    def edits(self, node: Node) -> ChunkEdits | None:
        """The chunk edits of an array that was just found; None if another thread deleted it.

        For callers that hold the lock. Raises if the session was committed in the meantime.
        """
        self.require_writable()
        found = self.find_node(node.path)
        if found is None or found.id != node.id or found.array is None or node.array is None:
            return None
        if len(found.array.shape) != len(node.array.shape):
            return None  # replaced by another array, for which these chunk indices are meaningless
        return self.changes.edits(found)

    def require_writable(self) -> None:
        if self.mode == SessionMode.rearrange:
            raise SessionStateError(
                "this session only moves nodes; open a writable_session to change data",
                ErrorKind.REARRANGE_SESSION_ONLY,
            )
        self.require_open()

    def require_open(self) -> None:
        """Refuse changes to a session that is read-only or being committed."""
        if self.mode == SessionMode.readonly:
            raise ReadOnlyError(self.why_read_only())
        if self._is_sealed:
            raise ReadOnlyError(
                "the session is being committed and takes no more changes; open another "
                "writable_session when that is done"
            )

    def why_read_only(self, advice: str = "open a writable_session to change data") -> str:
        """What to do about a session that only reads; one that was committed says so."""
        if not self._is_committed:
            return advice
        branch = "" if self.branch is None else f": repo.writable_session({self.branch!r})"
        return f"{COMMITTED} {self.snapshot_id}; open a new one{branch}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock for a change. A change made under it is part of the session's commit."""
        with self.lock:
            self.require_open()
            yield

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Refuse changes while a commit is written: they would be lost."""
        with self.lock:
            self.require_no_commit()
            self._is_sealed = True
        try:
            yield
        finally:
            self._is_sealed = False

    def require_no_commit(self) -> None:
        """Refuse operations that cannot run during a commit of the same session."""
        if self._is_sealed:
            raise SessionStateError(
                "another commit of this session is under way", ErrorKind.COMMIT_NOT_ALLOWED
            )

    def show(self, snapshot: Snapshot, changes: ChangeSet, packs: Packs | None = None) -> None:
        """Replace the view of the session. For callers that hold the lock.

        Readers that took the old view keep using it, so it is not modified.
        """
        view = SessionView(snapshot, changes, packs or self.packs, self.lock)
        view.has_read = self.view.has_read
        self.view = view

    def finish(self, snapshot: Snapshot) -> None:
        """Become a read-only session at the snapshot just written."""
        with self.lock:
            self.show(snapshot, ChangeSet(), Packs())
            self.mode = SessionMode.readonly
            self._is_committed = True

    def discard(self) -> None:
        """Forget all changes."""
        with self.writing():
            self.show(self.snapshot, ChangeSet(), Packs())


def new_node_id(handle: RepoHandle, state: SessionState) -> NodeId:
    """An id for a new node. For callers that hold the lock of the session."""
    new_id = handle.new_id(NodeId)
    if handle.format.numbers_nodes:
        taken = {node.id for node in state.changes.new.values()}
        while new_id in taken or state.snapshot.nodes.has_id(new_id):
            new_id = handle.new_id(NodeId)
    return new_id


@observed("readonly_session")
async def open_readonly(handle: RepoHandle, snapshot_id: SnapshotId) -> SessionState:
    """A session that reads one snapshot."""
    snapshot = await handle.assets.snapshot(snapshot_id)
    return SessionState(snapshot, None, SessionMode.readonly)


@observed("writable_session")
async def open_writable(handle: RepoHandle, branch: str) -> SessionState:
    """A session that can commit to `branch`. Refused if the repository is read-only."""
    handle.require_writable()
    tip = await handle.format.writable_tip(handle, branch)
    return await open_at_tip(handle, tip, branch, SessionMode.writable)


async def open_at_tip(
    handle: RepoHandle, tip: SnapshotId, branch: str, mode: SessionMode
) -> SessionState:
    """A session that starts from the current tip of its branch."""
    state = SessionState(await handle.assets.snapshot(tip), branch, mode)
    state.opened_at = handle.format.opened_at(handle)
    return state


class Workspace(NamedTuple):
    """A session as operations see it: its repository through one driver, and its state."""

    handle: RepoHandle
    state: SessionState


async def edits_of(handle: RepoHandle, node_id: NodeId, ahead: PreparedArray) -> EditLayer:
    """The references that were set and the indices that were deleted, read from the manifests."""
    touched = ahead.touched.unpack()
    files = [(info.id, info.size_bytes) for info in ahead.files]
    found = [manifest.find(node_id) for manifest in await handle.assets.manifests(files)]
    layers = [(refs, None) for refs in found if refs is not None]
    refs, _ = ChunkRefs.overlay(layers, ahead.touched.ndim)
    rows = refs.lookup.find_many(touched)
    return refs.take(rows[rows >= 0]), touched[rows < 0]


async def restore_edits(workspace: Workspace, nodes: Iterable[NodeId]) -> None:
    """Replace the prepared manifests of some arrays with edits, which fit on any base.

    The content of the session does not change. The references are in memory afterwards.
    """
    handle, state = workspace
    for node_id in list(nodes):
        ahead = state.changes.prepared.get(node_id)
        if ahead is None:
            continue
        layer = await edits_of(handle, node_id, ahead)
        with state.lock:
            # Another thread may have discarded or extended it. Callers check again.
            if state.changes.prepared.get(node_id) is ahead:
                state.changes.lay_below(node_id, layer)
                state.forget_nodes()
