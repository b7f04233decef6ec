"""Sessions: a snapshot to read from and, in writable ones, the changes on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from threading import RLock

from icefloe import paths
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.chunk_edits import ChunkEdits, Coordinates
from icefloe.changes.packs import Packs
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.chunk_refs import ChunkRef, ChunkRefs
from icefloe.format.manifest_boxes import ManifestBoxes
from icefloe.format.nodes import ArrayData, Node
from icefloe.format.repo_info import RepoAvailability, RepoInfo
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.ids import NodeId, SnapshotId
from icefloe.repo import refs
from icefloe.repo.handle import RepoHandle
from icefloe.repo.preload import load_manifest

_MANIFESTS_AT_ONCE = 128


class SessionMode(Enum):
    """What a session may do."""

    readonly = 0
    writable = 1
    rearrange = 2


class SessionState:
    """The state behind a `Session` and its store. Operations take it and a handle.

    The lock guards dictionaries only and is never held across an await: Zarr calls from its
    event-loop thread while the user calls from another one.
    """

    def __init__(self, snapshot: Snapshot, branch: str | None, mode: SessionMode) -> None:
        self.snapshot = snapshot
        self.branch = branch
        self.mode = mode
        self.changes = ChangeSet()
        self.fork_root: SnapshotId | None = None
        """In a fork: the snapshot of the session that all forks around it come from."""
        self.packs = Packs()
        self.lock = RLock()
        self._is_sealed = False
        self.is_reading = False
        """Whether a manifest was needed already: small ones come along with the first."""
        self._nodes: dict[str, Node | None] = {}
        self._boxes: dict[NodeId, ManifestBoxes] = {}

    @property
    def snapshot_id(self) -> SnapshotId:
        return self.snapshot.id

    @property
    def manifest_files(self) -> ManifestFiles:
        """The files of all manifests that nodes of the session refer to."""
        return self.changes.manifest_files(self.snapshot.manifest_files)

    @property
    def is_read_only(self) -> bool:
        return self.mode == SessionMode.readonly

    @property
    def is_fork(self) -> bool:
        return self.fork_root is not None

    def find_node(self, path: str) -> Node | None:
        """The node at `path`; remembered until the session changes a node."""
        try:
            return self._nodes[path]
        except KeyError:
            with self.lock:
                node = self._nodes[path] = self.changes.find(self.snapshot.nodes, path)
            return node

    def find_document(self, path: str) -> bytes | None:
        """The zarr.json of the node at `path`, or None; nothing else of the node is looked at."""
        if self.changes.is_empty:
            return self.snapshot.nodes.find_user_data(path)
        node = self.find_node(path)
        return None if node is None else node.user_data

    def forget_nodes(self) -> None:
        self._nodes = {}
        self._boxes = {}

    def boxes(self, node: Node) -> ManifestBoxes:
        """Where the manifests of an array are; remembered like the node."""
        assert node.array is not None
        found = self._boxes.get(node.id)
        if found is None or found.manifests is not node.array.manifests:
            found = self._boxes[node.id] = ManifestBoxes(node.array.manifests)
        return found

    def node(self, path: str) -> Node:
        """The node at `path`, which has to be there."""
        node = self.find_node(path)
        if node is None:
            raise NodeNotFoundError(f"no node at {path!r} in snapshot {self.snapshot_id}")
        return node

    def array(self, path: str) -> tuple[Node, ArrayData]:
        """The array at `path`."""
        node = self.node(path)
        if node.array is None:
            raise InvalidInputError(
                f"the node at {path!r} is a group, not an array", ErrorKind.NOT_AN_ARRAY
            )
        return node, node.array

    def edits(self, node: Node) -> ChunkEdits | None:
        """The chunk edits of an array found a moment ago; None if it was deleted meanwhile.

        For callers who hold the lock. A session that was committed meanwhile raises.
        """
        self.require_writable()
        found = self.find_node(node.path)
        return None if found is None or found.id != node.id else self.changes.edits(found)

    def all_paths(self, below: str = paths.ROOT) -> list[str]:
        with self.lock:
            return self.changes.paths(self.snapshot.nodes, below)

    def require_writable(self) -> None:
        if self.mode == SessionMode.rearrange:
            raise SessionStateError(
                "this session only moves nodes; open a writable_session to change data",
                ErrorKind.REARRANGE_SESSION_ONLY,
            )
        self._require_open()

    def _require_open(self) -> None:
        if self.mode == SessionMode.readonly:
            raise ReadOnlyError("this session only reads; open a writable_session to change data")
        if self._is_sealed:
            raise ReadOnlyError(
                "the session is being committed and takes no more changes; open another "
                "writable_session when that is done"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock for a change. Whatever gets in is part of the session's commit."""
        with self.lock:
            self._require_open()
            yield

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Refuse changes while a commit is written: it would neither have nor keep them."""
        with self.lock:
            if self._is_sealed:
                raise SessionStateError(
                    "another commit of this session is under way", ErrorKind.COMMIT_NOT_ALLOWED
                )
            self._is_sealed = True
        try:
            yield
        finally:
            self._is_sealed = False

    def finish(self, snapshot: Snapshot) -> None:
        """Become a read-only session at the snapshot just written."""
        with self.lock:
            self.snapshot = snapshot
            self.changes = ChangeSet()
            self.packs.clear()
            self.mode = SessionMode.readonly
            self.forget_nodes()

    def discard(self) -> None:
        with self.lock:
            self.changes.clear()
            self.packs.clear()
            self.forget_nodes()


async def open_readonly(handle: RepoHandle, snapshot_id: SnapshotId) -> SessionState:
    """A session that reads one snapshot."""
    snapshot = await handle.assets.snapshot(snapshot_id)
    return SessionState(snapshot, None, SessionMode.readonly)


async def open_writable(handle: RepoHandle, branch: str) -> SessionState:
    """A session that can commit to `branch`; refused where nothing can be written."""
    handle.require_writable()
    if handle.spec_version > 1:
        info = await online_info(handle)
        tip = refs.find_branch(info, branch)
    else:
        tip = await refs.lookup_branch(handle, branch)
    return SessionState(await handle.assets.snapshot(tip), branch, SessionMode.writable)


async def online_info(handle: RepoHandle) -> RepoInfo:
    """The repo object of a version-2 repository that takes writes."""
    info = (await handle.assets.repo_object()).info
    if info.status.availability != RepoAvailability.ONLINE:
        reason = info.status.limited_availability_reason
        raise ReadOnlyError(
            "the repository is read-only" + (f": {reason}" if reason else ""),
            ErrorKind.READ_ONLY_REPOSITORY,
        )
    return info


# -- chunk references, as a session sees them


async def find_chunk(
    handle: RepoHandle, state: SessionState, node: Node, coordinates: Coordinates
) -> ChunkRef | None:
    """The reference of one chunk: the session's own edit, or what a manifest says."""
    if node.id in state.changes.chunks:
        with state.lock:  # a reference and the pack it is in belong together
            edits = state.changes.chunks.get(node.id)
            is_touched, ref = (False, None) if edits is None else edits.find(coordinates)
            if is_touched:
                return ref if ref is None else state.packs.filled(ref, node.id, coordinates)
    for manifest in state.boxes(node).around(coordinates):
        loaded = handle.assets.caches.manifests.get(manifest.id)
        if loaded is None:
            is_first, state.is_reading = not state.is_reading, True
            info = state.manifest_files[manifest.id]
            loaded = await load_manifest(handle, state.snapshot, info, is_first=is_first)
        if (ref := loaded.get(node.id, coordinates)) is not None:
            return ref
    return None


async def load_manifests(handle: RepoHandle, state: SessionState, nodes: Iterable[Node]) -> None:
    """Fetch the manifests of many arrays ahead, many requests at once, into the cache."""
    files = state.manifest_files
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
    layers = [(refs_, None) for refs_ in found if refs_ is not None]
    return ChunkRefs.overlay(layers, len(node.array.shape))[0]


async def all_chunks(handle: RepoHandle, state: SessionState, node: Node) -> ChunkRefs:
    """Every reference of an array inside its grid, the session's edits included."""
    assert node.array is not None
    grid = [dimension.num_chunks for dimension in node.array.shape]
    merged = await committed_chunks(handle, state.manifest_files, node)
    with state.lock:  # others may be adding chunks
        edits = state.changes.chunks.get(node.id)
        columns = None if edits is None else edits.columns()
    if columns is not None:
        merged = merged.merge(*columns)
    return merged.select([0] * len(grid), grid)
