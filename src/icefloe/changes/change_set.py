"""What a session has changed: nodes, moves, metadata documents."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe import paths
from icefloe.changes import chunk_edits
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InternalError,
    InvalidInputError,
    NodeNotFoundError,
    SessionStateError,
    check_text,
)
from icefloe.format.chunk_index import Index, sort_rows
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.nodes import ArrayData, Dimension, Node, NodeTable
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles
from icefloe.ids import ChunkId, ManifestId, NodeId, SnapshotId

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import ChunkEdits, Coordinates, EditLayer
    from icefloe.changes.commit_plan import PreparedArray
    from icefloe.format.transaction_log import Move, TransactionLog


# -- Where the nodes of a base snapshot have been moved to.
#
# A move changes paths only: ids, metadata and manifests of the nodes stay. Only moved nodes are
# kept here, so the cost of a rename in a large hierarchy depends only on the nodes it moves.


class Moved(NamedTuple):
    """A node whose path differs from the base snapshot."""

    origin: str
    id: NodeId
    is_array: bool


class Moves:
    """Moves on top of a base snapshot, in order. Methods that look up nodes take the base."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        """(from, to) of every requested move, to be replayed on another base."""
        self._at: dict[str, Moved] = {}
        self._left: set[str] = set()
        self._order: list[str] = []  # the keys of _at, ascending

    @classmethod
    def at_once(cls, base: NodeTable, goals: Mapping[str, str]) -> Moves:
        """Move all of these nodes at the same time. Every node is listed, also below others."""
        moves = cls()
        for origin, goal in goals.items():
            node = base.find(origin)
            assert node is not None
            moves._at[goal] = Moved(origin, node.id, node.array is not None)
        moves._left = set(goals)
        moves._order = sorted(moves._at)
        return moves

    @property
    def has_any(self) -> bool:
        """Whether a move was requested, even if the node came back."""
        return bool(self.steps or self._at)

    def arrives_at(self, path: str) -> bool:
        """Whether a node was moved to `path`."""
        return path in self._at

    def find(self, base: NodeTable, path: str) -> Node | None:
        """The node that is now at `path`, or None."""
        moved = self._at.get(path)
        if moved is None:
            return None if path in self._left else base.find(path)
        node = base.find(moved.origin)
        assert node is not None
        return replace(node, path=path)

    def paths(self, base: NodeTable, below: str = paths.ROOT) -> list[str]:
        """Paths of all nodes that are now at or below a path, ascending."""
        found = paths_within(base.path, below)
        if not self._at:
            return found
        found = [path for path in found if path not in self._left and path not in self._at]
        return sorted([*found, *paths_within(self._order, below)])

    def origins(self) -> Iterable[str]:
        """Paths in the base from which a node has moved away."""
        return self._left

    def moved(self, base: NodeTable) -> list[Node]:
        """Every moved node, at its new path."""
        nodes = (self.find(base, path) for path in self._order)
        return [node for node in nodes if node is not None]

    def log(self) -> tuple[Move, ...]:
        """The net moves as a transaction log lists them: one entry per node, without nodes that
        came back, ordered by the segments of the new path."""
        from icefloe.format import transaction_log

        kinds = transaction_log.NodeType.GROUP, transaction_log.NodeType.ARRAY
        return tuple(
            transaction_log.Move(moved.origin, path, moved.id, kinds[moved.is_array])
            for path, moved in sorted(self._at.items(), key=lambda item: paths.segments(item[0]))
        )

    def move(self, base: NodeTable, source: str, destination: str) -> None:
        """Move a node and everything below it to a free path.

        Raises:
            NodeNotFoundError: there is no node at `source`.
            AlreadyExistsError: there is one at `destination`.
            SessionStateError: the destination is inside the source, or not in a group.
        """
        self._check(base, source, destination)
        goals = self._goals(base, source, destination)
        self._check_free(base, destination, goals)
        taken = {path: self._take(base, path) for path in goals}
        for path, moved in taken.items():
            goal = goals[path]
            if goal == moved.origin:
                self._left.discard(goal)
                continue
            self._left.add(moved.origin)
            self._at[goal] = moved
            insort(self._order, goal)
        self.steps.append((source, destination))

    def _goals(self, base: NodeTable, source: str, destination: str) -> dict[str, str]:
        """The new paths of a node and everything below it."""
        group = source.removesuffix("/")
        if group == source or self.find(base, group) is not None:
            riders = self.paths(base, source)
            return {path: paths.rebase(path, source, destination) for path in riders}
        # When Icechunk moves a group to `/q/`, its nodes are at `/q/a`, and there is no group `/q`.
        riders = self.paths(base, group)
        goals = {path: paths.rebase(path, group, destination) for path in riders}
        return {**goals, source: destination}

    def _take(self, base: NodeTable, path: str) -> Moved:
        moved = self._at.pop(path, None)
        if moved is not None:
            del self._order[bisect_left(self._order, path)]
            return moved
        node = base.find(path)
        assert node is not None
        return Moved(path, node.id, node.array is not None)

    def _check_free(self, base: NodeTable, destination: str, goals: dict[str, str]) -> None:
        """Refuse a move onto existing nodes. Nodes can exist below `destination` without a
        group."""
        there = set(self.paths(base, destination)) - goals.keys()
        blocked = sorted(there & set(goals.values()))
        if blocked:
            raise AlreadyExistsError(
                f"move cannot overwrite existing node at {blocked[0]!r}: nothing can be moved to "
                f"{destination!r} before that one is moved away",
                ErrorKind.MOVE_WONT_OVERWRITE,
            )

    def _check(self, base: NodeTable, source: str, destination: str) -> None:
        if self.find(base, source) is None:
            raise NodeNotFoundError(f"{source!r}, which is to be moved")
        if paths.is_within(destination, source):
            raise SessionStateError(
                f"cannot move {source!r} into itself or its own descendant {destination!r}",
                ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT,
            )
        if self.find(base, destination) is not None:
            raise AlreadyExistsError(
                f"move cannot overwrite existing node at {destination!r}: {source!r} can go there "
                "when that one is moved away",
                ErrorKind.MOVE_WONT_OVERWRITE,
            )
        above = paths.parent(destination)
        assert above is not None  # the root has no parent, and it contains every source
        group = self.find(base, above)
        if group is None:
            raise SessionStateError(
                f"cannot move to {destination!r}: the destination's parent group {above!r} does "
                f"not exist; create it in a writable_session, then move {source!r}",
                ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
            )
        if group.array is not None:
            raise SessionStateError(
                f"cannot move to {destination!r}: the destination's parent {above!r} is an array, "
                f"not a group; {source!r} stays where it is",
                ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
            )


def paths_within(ordered: list[str], below: str) -> list[str]:
    """Paths at or below a path: the path itself, and one contiguous range."""
    if below == paths.ROOT:
        return ordered
    at = bisect_left(ordered, below)
    itself = ordered[at : at + 1] if ordered[at : at + 1] == [below] else []
    # "0" is the character after "/": every path that starts with below + "/" sorts before it.
    first, last = bisect_left(ordered, below + "/"), bisect_left(ordered, below + "0")
    return itself + ordered[first:last]


# -- The uncommitted changes of a session, and the nodes as the session sees them.


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
            self.drop(path, Deleted(node.id, node.array is not None))

    def drop(self, path: str, gone: Deleted) -> None:
        """Delete one node, which is there."""
        self.chunks.pop(gone.id, None)
        self.prepared.pop(gone.id, None)
        self.updated.pop(gone.id, None)
        if self.new.pop(path, None) is None:
            self.deleted[path] = gone

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

    def without(self, nodes: Collection[NodeId]) -> ChangeSet:
        """The same changes, but for those of some arrays."""
        twin = self.copy()
        for edited in (twin.updated, twin.chunks, twin.prepared):
            for node_id in nodes:
                edited.pop(node_id, None)
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
        from icefloe.format import transaction_log

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


# -- The parts of a zarr.json that a repository uses: node type, grid, dimension names.
#
# The rest of the document is kept byte for byte and not interpreted.


_MAX_CHUNKS = 2**32 - 1


def parse_zarr_json(
    data: bytes, path: str, *, has_rectilinear_grids: bool = True
) -> ArrayData | None:
    """Shape and dimension names from an array's zarr.json; None for a group's.

    Raises:
        InvalidInputError: the document describes neither; kind `bad-metadata`.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _bad(path, f"it holds a JSON {type(document).__name__}, expected an object")
    node_type = document.get("node_type")
    if node_type == "group":
        return None
    if node_type != "array":
        raise _bad(path, f"node_type is {node_type!r}, expected 'array' or 'group'")
    lengths = document.get("shape")
    if not isinstance(lengths, list) or not all(_is_size(length) for length in lengths):
        raise _bad(path, f"shape is {lengths!r}, expected a list of whole numbers")
    chunks = _num_chunks(document.get("chunk_grid"), lengths, path, has_rectilinear_grids)
    if max(chunks, default=0) > _MAX_CHUNKS:
        raise _bad(
            path,
            f"{max(chunks):,} chunks along one dimension, the format counts to {_MAX_CHUNKS:,}; "
            "use larger chunks",
        )
    shape = tuple(Dimension(*pair) for pair in zip(lengths, chunks, strict=True))
    return ArrayData(shape, _dimension_names(document.get("dimension_names"), len(shape), path))


def _num_chunks(grid: Any, lengths: list[int], path: str, has_rectilinear_grids: bool) -> list[int]:
    name = grid.get("name") if isinstance(grid, dict) else None
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    if not isinstance(configuration, dict):
        raise _bad(path, f"chunk_grid is {grid!r}, expected a name and a configuration")
    if name == "regular":
        sizes = configuration.get("chunk_shape")
        if not isinstance(sizes, list) or not all(_is_size(size) for size in sizes):
            raise _bad(path, f"chunk_shape is {sizes!r}, expected a list of whole numbers")
        _check_rank(sizes, lengths, path)
        return [_equal_chunks(size, length) for size, length in zip(sizes, lengths, strict=True)]
    if name == "rectilinear":
        if not has_rectilinear_grids:
            raise _bad(path, "rectilinear chunk grids need spec version 2; migrate the repository")
        axes = configuration.get("chunk_shapes")
        if not isinstance(axes, list):
            raise _bad(path, f"chunk_shapes is {axes!r}, expected a list for each dimension")
        _check_rank(axes, lengths, path)
        return [
            _rectilinear_chunks(axis, length, path)
            for axis, length in zip(axes, lengths, strict=True)
        ]
    raise _bad(path, f"chunk grid {name!r} is not known, expected 'regular' or 'rectilinear'")


def _equal_chunks(size: int, length: int) -> int:
    return -(-length // size) if size else 0


def _rectilinear_chunks(axis: Any, length: int, path: str) -> int:
    """The number of chunks along one axis, which is a size for all of them, or a list of sizes.

    Items of the list are single sizes, or [size, count] for a run of equal chunks.
    """
    if _is_size(axis):
        return _equal_chunks(axis, length)
    if not isinstance(axis, list):
        raise _bad(path, f"chunk_shapes has {axis!r}, expected a size or a list of sizes")
    total = 0
    for item in axis:
        if _is_size(item):
            total += 1
        elif isinstance(item, list) and len(item) == 2 and all(_is_size(part) for part in item):
            total += item[1]
        else:
            raise _bad(path, f"chunk_shapes has {item!r}, expected a size or [size, count]")
    return total


def _dimension_names(names: Any, ndim: int, path: str) -> tuple[str | None, ...] | None:
    if names is None:
        return None
    is_list = isinstance(names, list)
    if not is_list or not all(name is None or isinstance(name, str) for name in names):
        raise _bad(path, f"dimension_names is {names!r}, expected a list of names or nulls")
    if len(names) != ndim:
        raise _bad(path, f"{len(names)} dimension names for {ndim} dimensions")
    for name in names:
        check_text(name or "", f"zarr.json of {path!r}: dimension name", ErrorKind.BAD_METADATA)
    return tuple(name or None for name in names)


def _check_rank(sizes: list[Any], lengths: list[int], path: str) -> None:
    if len(sizes) != len(lengths):
        raise _bad(path, f"the chunk grid has {len(sizes)} dimensions, the shape {len(lengths)}")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _bad(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"zarr.json of {path!r}: {problem}", ErrorKind.BAD_METADATA)


# -- Packs: small chunks of a session that are stored together in one object.
#
# A chunk belongs to the session as soon as it is added. Its reference names the pack, but has no
# offset (`PENDING`) until the pack is closed. Closing a pack lays the chunks out in the order of
# their coordinates, so that neighbours can be read with one request. Chunks that were deleted or
# overwritten in the meantime are left out. A closed pack never changes, so storing it twice is
# harmless.


PENDING = 2**64 - 1
"""The offset of a chunk in an open pack."""


class Pack:
    """A future object. An open pack has `chunks`, a closed one has `data`."""

    __slots__ = ("chunks", "data", "id", "is_taken", "num_bytes")

    def __init__(self, pack_id: ChunkId) -> None:
        self.id = pack_id
        self.chunks: dict[tuple[NodeId, Coordinates], bytes] = {}
        self.num_bytes = 0
        self.data = b""
        self.is_taken = False
        """Whether a thread is storing it."""


class Packs:
    """The packs of one session that are not stored yet. Callers hold the lock of the session."""

    __slots__ = ("_open", "_packs")

    def __init__(self) -> None:
        self._packs: dict[ChunkId, Pack] = {}
        self._open: dict[NodeId | None, Pack] = {}
        """The open packs: one for all arrays (None), or one per array."""

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return sum(pack.num_bytes for pack in self._packs.values())

    @property
    def num_taken(self) -> int:
        """How many packs are being stored."""
        return sum(pack.is_taken for pack in self._packs.values())

    def add(
        self,
        edits: ChunkEdits,
        node_id: NodeId,
        coordinates: Coordinates,
        data: bytes,
        new_id: Callable[[], ChunkId],
        *,
        is_shared: bool = True,
    ) -> int:
        """Add a chunk to the open pack and to `edits`. Returns the current size of the pack.

        A pack with `is_shared` may hold chunks of several arrays.
        """
        owner = None if is_shared else node_id
        pack = self._open.get(owner)
        if pack is None:
            pack = self._open[owner] = Pack(new_id())
            self._packs[pack.id] = pack
        key = (node_id, coordinates)
        pack.num_bytes += len(data) - len(pack.chunks.get(key, b""))
        pack.chunks[key] = data
        edits.set(coordinates, ChunkRef(ChunkKind.NATIVE, PENDING, len(data), pack.id))
        return pack.num_bytes

    def close(self, changes: ChangeSet) -> None:
        """Close all open packs: every chunk gets its offset. Later chunks go into new packs."""
        for owner in list(self._open):
            self.close_pack(changes, owner)

    def close_pack(self, changes: ChangeSet, owner: NodeId | None) -> None:
        """Close the pack of one array, or the shared pack (None)."""
        pack = self._open.pop(owner, None)
        if pack is None:
            return
        parts: list[bytes] = []
        size = 0
        for (node_id, coordinates), data in sorted(pack.chunks.items()):
            edits = changes.chunks.get(node_id)
            ref = None if edits is None else edits.find(coordinates)[1]
            if edits is None or ref is None or ref.chunk_id != pack.id:
                continue  # no longer in the session
            edits.set(coordinates, ref._replace(offset=size))
            parts.append(data)
            size += len(data)
        pack.chunks = {}
        pack.data, pack.num_bytes = b"".join(parts), size
        if not parts:
            del self._packs[pack.id]

    def take(self, *, all_closed: bool = False) -> list[Pack]:
        """Closed packs for the caller to store: those that no thread is storing, or all."""
        packs = [
            pack
            for pack in self._packs.values()
            if pack not in self._open.values() and (all_closed or not pack.is_taken)
        ]
        for pack in packs:
            pack.is_taken = True
        return packs

    def give_back(self, packs: Iterable[Pack]) -> None:
        """Return packs that could not be stored, for a retry."""
        for pack in packs:
            pack.is_taken = False

    def give_back_all(self) -> None:
        """After a fork of the process: the threads that were storing packs do not exist here."""
        self.give_back(self._packs.values())

    def drop(self, packs: Iterable[Pack]) -> None:
        """Forget packs that are stored."""
        for pack in packs:
            self._packs.pop(pack.id, None)

    def filled(self, ref: ChunkRef, node_id: NodeId, coordinates: Coordinates) -> ChunkRef:
        """The current reference of a chunk, with its bytes if the chunk is not stored yet."""
        pack = self._packs.get(ref.chunk_id) if ref.chunk_id is not None else None
        if pack is None:
            return ref
        if ref.offset == PENDING:
            return ref._replace(inline=pack.chunks[node_id, coordinates])
        return ref._replace(inline=pack.data[ref.offset : ref.offset + ref.length])


def check_placed(changes: ChangeSet) -> None:
    """Raise InternalError if a reference has no offset, because its chunk could not be read."""
    for node_id, edits in changes.chunks.items():
        if not edits.has_offset(PENDING):
            continue
        # An older layer may have a pending reference that a newer layer has replaced.
        refs, _ = edits.columns()
        if _is_pending(refs):
            raise InternalError(
                f"chunks of node {node_id} wait in a pack that is gone; nothing is committed, "
                "write them again"
            )


def _is_pending(refs: ChunkRefs) -> bool:
    at = refs.offset == np.uint64(PENDING)
    return bool(at.any()) and bool((at & (refs.kind == ChunkKind.NATIVE)).any())
