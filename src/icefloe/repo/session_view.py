"""What a session sees: a snapshot, and the changes on top of it.

A commit, a rebase and a discard replace the view of a session. A reading operation takes the view
once. So the nodes, references and manifests that it finds are consistent, even if the session
changes in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import RLock
from typing import TYPE_CHECKING, Any

from icefloe import paths
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.packs import Packs
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.manifest.chunk_refs import ChunkRef, ChunkRefs
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.manifest_refs import ManifestBoxes
from icefloe.format.snapshot.nodes import ArrayData, Node
from icefloe.ids import NodeId
from icefloe.records import NamedTuple
from icefloe.repo.handle import RepoHandle
from icefloe.repo.load_manifest import load_manifest

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import Coordinates

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


# -- chunk references, as a session sees them


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
