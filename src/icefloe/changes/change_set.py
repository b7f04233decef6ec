"""The uncommitted changes of a session, and the nodes as the session sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe import paths
from icefloe.changes.moves import Moves
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.format.columns.chunk_index import Index, sort_rows
from icefloe.format.snapshot.file import ManifestFileInfo, ManifestFiles
from icefloe.format.snapshot.nodes import ArrayData, Node, NodeTable
from icefloe.ids import ManifestId, NodeId, SnapshotId
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    from icefloe.changes import chunk_edits
    from icefloe.changes.chunk_edits import ChunkEdits, EditLayer
    from icefloe.changes.prepared import PreparedArray
    from icefloe.format import transaction_log
    from icefloe.format.transaction_log import TransactionLog
else:
    chunk_edits = on_demand("icefloe.changes.chunk_edits")
    transaction_log = on_demand("icefloe.format.transaction_log")


class NodeUpdate(NamedTuple):
    """New metadata of a node that the base snapshot has."""

    path: str
    user_data: bytes
    array: ArrayData | None


class Deleted(NamedTuple):
    """A node of the base snapshot that is gone."""

    id: NodeId
    is_array: bool


class ChangeSet:
    """Edits on top of a base snapshot. Methods that look up nodes take the base as an argument.

    A session either moves nodes or edits them. So either `moves` or everything else is empty. A
    replayed commit may have both: `deleted` then has the paths before the moves, `new` and
    `updated` the paths after them.
    """

    def __init__(self) -> None:
        self.new: dict[str, Node] = {}
        self.updated: dict[NodeId, NodeUpdate] = {}
        self.deleted: dict[str, Deleted] = {}
        self.chunks: dict[NodeId, ChunkEdits] = {}
        self.prepared: dict[NodeId, PreparedArray] = {}
        """Prepared manifests. The edits in `chunks` apply on top of them."""
        self._written_ahead: dict[ManifestId, ManifestFileInfo] = {}
        """The files of prepared manifests. They are kept after the manifests were turned into
        edits, because a reader may have found the array before that."""
        self.moves = Moves()
        self._path_of: dict[NodeId, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no edits. A node that was moved away and back counts as an edit."""
        edits = self.new or self.updated or self.deleted or self.chunks or self.prepared
        return not (edits or self.moves.has_any)

    # -- looking

    def find(self, base: NodeTable, path: str) -> Node | None:
        """The node at `path` as the session sees it, or None."""
        node = self.new.get(path)
        if node is None and (path not in self.deleted or self.moves.arrives_at(path)):
            node = self.moves.find(base, path)
            if node is not None and (update := self.updated.get(node.id)) is not None:
                node = _with_update(node, update)
        if node is not None and (ahead := self.prepared.get(node.id)) is not None:
            assert node.array is not None
            node = replace(node, array=replace(node.array, manifests=ahead.manifests))
        return node

    def paths(self, base: NodeTable, below: str = paths.ROOT) -> list[str]:
        """Paths of all nodes at or below a path, ascending."""
        found = [
            path
            for path in self.moves.paths(base, below)
            if path not in self.deleted or self.moves.arrives_at(path)
        ]
        added = [path for path in self.new if paths.is_within(path, below)]
        return sorted(found + added) if added else found

    def touched(self, base: NodeTable) -> Iterator[Node]:
        """The nodes whose metadata or chunks differ from the base, as the session sees them."""
        updated = (update.path for update in self.updated.values())
        edited = (self._path_of[node_id] for node_id in self.edited)
        for path in sorted({*self.new, *updated, *edited}):
            node = self.find(base, path)
            assert node is not None
            yield node

    @property
    def edited(self) -> KeysView[NodeId]:
        """The arrays whose chunks were set or deleted."""
        return {**self.chunks, **self.prepared}.keys()

    def touched_chunks(self, node_id: NodeId) -> Index:
        """The chunks of an edited array that were set or deleted, ascending."""
        edits, ahead = self.chunks.get(node_id), self.prepared.get(node_id)
        parts = [] if ahead is None else [ahead.touched.unpack()]
        parts += [] if edits is None else [edits.touched()]
        if len(parts) == 1:
            return parts[0]
        both = np.concatenate(parts)
        return both[sort_rows(both)]

    def manifest_files(self, base: ManifestFiles) -> ManifestFiles:
        """All manifest files that a node may refer to: those of the base and the prepared ones."""
        return base.with_infos(list(self._written_ahead.values()))

    # -- changing

    def put_node(
        self, base: NodeTable, path: str, user_data: bytes, array: ArrayData | None, new_id: NodeId
    ) -> None:
        """Create a node, or give an existing one of the same kind new metadata."""
        old = self.find(base, path)
        if old is None:
            self.new[path] = Node(new_id, path, user_data, array)
            return
        if (old.array is None) != (array is None):
            kinds = ("a group", "an array") if old.array is None else ("an array", "a group")
            raise AlreadyExistsError(
                f"node {path!r} is {kinds[0]} and cannot become {kinds[1]}; delete it first",
                ErrorKind.NODE_ALREADY_EXISTS,
            )
        if old.user_data == user_data:
            return
        self._check_rank(old, array)
        if path in self.new:
            self.new[path] = replace(old, user_data=user_data, array=array)
        else:
            self.updated[old.id] = NodeUpdate(path, user_data, array)

    def _check_rank(self, old: Node, new: ArrayData | None) -> None:
        """Refuse to change the number of dimensions of an array that has chunks."""
        if old.array is None or new is None or len(old.array.shape) == len(new.shape):
            return
        if old.array.manifests or old.id in self.chunks:
            raise InvalidInputError(
                f"array {old.path!r} has {len(old.array.shape)} dimensions and chunks, and cannot "
                f"become one of {len(new.shape)}; delete the array first",
                ErrorKind.BAD_METADATA,
            )

    def delete_node(self, base: NodeTable, path: str) -> None:
        """Delete an array, or a group with everything below it. Does nothing if there is no
        node."""
        node = self.find(base, path)
        if node is not None:
            self._delete([path] if node.array is not None else self.paths(base, path), base)

    def delete_all(self, base: NodeTable) -> None:
        """Delete every node, even if there is no root."""
        self._delete(self.paths(base), base)

    def _delete(self, gone: Iterable[str], base: NodeTable) -> None:
        for path in gone:
            node = self.find(base, path)
            assert node is not None
            self.chunks.pop(node.id, None)
            self.prepared.pop(node.id, None)
            self.updated.pop(node.id, None)
            if self.new.pop(path, None) is None:
                self.deleted[path] = Deleted(node.id, node.array is not None)

    def edits(self, node: Node) -> ChunkEdits:
        """The chunk edits of an array, created on first use."""
        assert node.array is not None
        if node.id not in self.chunks:
            self.chunks[node.id] = chunk_edits.ChunkEdits(len(node.array.shape))
            self._path_of[node.id] = node.path
        return self.chunks[node.id]

    def prepare(self, node: Node, ahead: PreparedArray) -> None:
        """Give an array new prepared manifests. They contain everything its current manifests
        do."""
        self.prepared[node.id] = ahead
        self._written_ahead.update((info.id, info) for info in ahead.files)
        self._path_of[node.id] = node.path

    def lay_below(self, node_id: NodeId, layer: EditLayer) -> None:
        """Replace the prepared manifests of an array with the ordinary edits in `layer`."""
        ahead = self.prepared.pop(node_id)
        edits = chunk_edits.ChunkEdits(ahead.touched.ndim)
        edits.set_table(*layer)
        for refs, deleted in self.chunks[node_id].layers() if node_id in self.chunks else ():
            edits.set_table(refs, deleted)
        self.chunks[node_id] = edits

    def chunk_path(self, node_id: NodeId) -> str:
        """The path of an array whose chunks were edited."""
        return self._path_of[node_id]

    def copy(self) -> ChangeSet:
        """The same changes. The edits of an array are shared: copy them before changing them."""
        twin = ChangeSet()
        twin.new, twin.updated = dict(self.new), dict(self.updated)
        twin.deleted, twin.chunks = dict(self.deleted), dict(self.chunks)
        twin.prepared = dict(self.prepared)
        twin._written_ahead = dict(self._written_ahead)
        twin._path_of = dict(self._path_of)
        twin.moves = self.moves
        return twin

    def with_ids(self, ids: Mapping[NodeId, NodeId]) -> ChangeSet:
        """The same changes, with other ids for some of the new nodes."""
        twin = self.copy()
        twin.new = {
            path: replace(node, id=ids.get(node.id, node.id)) for path, node in self.new.items()
        }
        twin.chunks = {ids.get(key, key): edits for key, edits in self.chunks.items()}
        twin.prepared = {ids.get(key, key): ahead for key, ahead in self.prepared.items()}
        twin._path_of = {ids.get(key, key): path for key, path in self._path_of.items()}
        return twin

    def log(self, snapshot_id: SnapshotId, *, is_packed: bool = False) -> TransactionLog:
        """The transaction log of these changes. Chunk indices stay packed on request."""
        packed = {}
        if is_packed:
            packed = {
                key: ahead.touched
                for key, ahead in self.prepared.items()
                if key not in self.chunks and len(ahead.touched)
            }
        is_array = {True: set[NodeId](), False: set[NodeId]()}
        for gone in self.deleted.values():
            is_array[gone.is_array].add(gone.id)
        updated_arrays = {key for key, update in self.updated.items() if update.array is not None}
        return transaction_log.TransactionLog(
            snapshot_id,
            new_groups=frozenset(node.id for node in self.new.values() if node.array is None),
            new_arrays=frozenset(node.id for node in self.new.values() if node.array is not None),
            deleted_groups=frozenset(is_array[False]),
            deleted_arrays=frozenset(is_array[True]),
            updated_arrays=frozenset(updated_arrays),
            updated_groups=frozenset(self.updated.keys() - updated_arrays),
            updated_chunks={
                key: touched
                for key in self.edited
                if key not in packed and len(touched := self.touched_chunks(key))
            },
            moved_nodes=self.moves.log(),
            packed_chunks=packed,
        )


def _with_update(node: Node, update: NodeUpdate) -> Node:
    array = update.array
    if array is not None and node.array is not None:
        array = replace(array, manifests=node.array.manifests)
    return replace(node, user_data=update.user_data, array=array)
