"""Appends along one dimension by several writers: a rebase that puts one block behind the other.

References move as they are where blocks begin and end at the borders of chunks. Small arrays, such
as a coordinate that is one chunk, are decoded, joined and encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe import paths
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.commit_plan import union_of_logs
from icefloe.changes.conflicts import Conflict, ConflictType, VersionSelection, find_conflicts
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_index import Index
from icefloe.format.nodes import Node
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId
from icefloe.repo.commit import store_packs
from icefloe.repo.find_chunks import find_chunks
from icefloe.repo.rebase import LineSolver, Overtaken
from icefloe.repo.session import SessionMode, SessionState, Workspace
from icefloe.store import operations
from icefloe.store.codecs import Chunk
from icefloe.store.pipeline import fetch_chunks

MAX_JOINED_BYTES = 4 << 20
"""Of the values that a session appended to an array with more than one dimension."""

_CHANGED = ConflictType.ZarrMetadataDoubleUpdate
_OVERWRITTEN = ConflictType.ChunksUpdatedInUpdatedArray


class AppendSolver(LineSolver):
    """Puts what a session appended along a dimension behind what others appended meanwhile.

    On both sides, all arrays of the group that have the dimension must have grown along it by one
    count, and must have got chunks beyond the old end only. Chunks keep their objects where the
    old end and the growth of the others are multiples of the chunk (or shard) length. Otherwise
    coordinates and other arrays of which the session appended at most 4 MiB are decoded, joined
    and written again. Everything else is a conflict that names the array. Changes elsewhere in the
    session follow the rules of `ConflictDetector`.

    Values that mean positions along the dimension are not recognised: they stay as they are.

    >>> session.rebase(icefloe.AppendSolver(dim="time"))
    """

    def __init__(self, dim: str, *, accept_unordered: bool = False) -> None:
        """Rebase appends along `dim`.

        Args:
            dim: the name of the dimension, as arrays have it in `dimension_names`.
            accept_unordered: append coordinates also if they repeat or no longer ascend.
        """
        given: Any = dim
        if not isinstance(given, str) or not given:
            raise InvalidInputError(f"dim is {dim!r:.80}, expected the name of a dimension")
        self.dim = dim
        self.accept_unordered = bool(accept_unordered)

    def __repr__(self) -> str:
        return f"AppendSolver(dim={self.dim!r}, accept_unordered={self.accept_unordered})"

    def choose(self, conflict: Conflict) -> VersionSelection:
        """Settles nothing but appends.

        Args:
            conflict: what contradicts.
        """
        return VersionSelection.Fail

    async def bring_over(
        self, workspace: Workspace, line: Overtaken
    ) -> SessionState | list[Conflict] | None:
        """The session on top of the tip; None if no other commit touched what it appended to.

        Args:
            workspace: the session.
            line: its base, and the commits since then.
        """
        changes = workspace.state.changes
        log = reduce(union_of_logs, line.logs)
        found = _longer_arrays(self.dim, changes, line)
        groups = {paths.parent(path) or paths.ROOT for path in found}
        if len(groups) > 1 and log.updated_arrays & set(found.values()):
            reason = f"arrays of several groups grew along {self.dim!r}: {sorted(groups)}"
            return [Conflict(_CHANGED, path, reason=reason) for path in found]
        if len(groups) != 1:
            return None
        appended, conflicts = _compare(self.dim, groups.pop(), changes, line, log)
        if not appended and not conflicts:
            return None
        rest = changes.without({one.node.id for one in appended})
        conflicts = conflicts or find_conflicts(rest, log, line.base.nodes, line.tip.nodes)
        if conflicts:
            return conflicts
        state = SessionState(line.tip, workspace.state.branch, SessionMode.writable)
        state.opened_at = workspace.state.opened_at
        state.show(line.tip, rest)
        target = Workspace(workspace.handle, state)
        before, now = (
            Workspace(workspace.handle, SessionState(snapshot, None, SessionMode.readonly))
            for snapshot in (line.base, line.tip)
        )
        sides = _Sides(before, workspace, now, target)
        for one in appended:
            conflicts += await self._place(one, sides)
        await store_packs(target)
        return conflicts or state

    async def _place(self, one: _Appended, sides: _Sides) -> list[Conflict]:
        """Put the block of one array behind that of the others."""
        path, ndim = one.node.path, len(one.document["shape"])
        is_coordinate = ndim == 1 and paths.name(path) == self.dim
        if is_coordinate and not self.accept_unordered:
            problem = await _find_disorder(one, sides)
            if problem is not None:
                return [Conflict(_CHANGED, path, reason=problem)]
        key, document = operations.metadata_key(path), _encoded(one.document)
        if one.is_movable:
            await operations.set_key(sides.target, key, document)
            _move_references(one, sides)
            return []
        array, _ = _in_memory(one.document, {})
        size = array.nbytes // array.shape[one.axis] * one.ours
        if ndim > 1 and size > MAX_JOINED_BYTES:
            reason = (
                f"chunks of {one.length} along {self.dim!r} do not end at the old end "
                f"({one.old:,}) and {one.theirs:,} behind it, and {size:,} bytes are too many to "
                "be written again; append again in a new session"
            )
            return [Conflict(_CHANGED, path, reason=reason)]
        for side, other in (("the session", sides.ours), ("the branch", sides.tip)):
            if one.old % one.length and not await _keeps_old(one, sides.base, other):
                reason = f"{side} overwrote values before the old end"
                return [Conflict(_OVERWRITTEN, path, reason=reason)]
        await operations.set_key(sides.target, key, document)
        await _append_values(one, sides)
        return []


class _Sides(NamedTuple):
    """The old state, the session, the tip, and the session as it is going to be."""

    base: Workspace
    ours: Workspace
    tip: Workspace
    target: Workspace


class _Appended(NamedTuple):
    """An array that both sides made longer."""

    node: Node
    document: dict[str, Any]
    """The zarr.json of the tip, with room for both blocks."""
    axis: int
    length: int
    """Of a chunk along the axis."""
    old: int
    ours: int
    theirs: int

    @property
    def is_movable(self) -> bool:
        return self.old % self.length == 0 and self.theirs % self.length == 0

    def chunks(self, start: int, stop: int) -> Index:
        """The indices of all chunks with values from `start` to `stop` along the axis."""
        sizes = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        shape = self.document["shape"]
        spans = [range(-(-n // max(1, size))) for n, size in zip(shape, sizes, strict=True)]
        spans[self.axis] = range(start // self.length, -(-stop // self.length))
        grid = np.meshgrid(*(np.array(span, np.uint32) for span in spans), indexing="ij")
        return np.stack([part.ravel() for part in grid], axis=1)


def _longer_arrays(dim: str, changes: ChangeSet, line: Overtaken) -> dict[str, NodeId]:
    """The arrays that the session made longer along the dimension, by path."""
    found = {}
    for node_id, update in changes.updated.items():
        node = line.base.nodes.find(update.path)
        axis = None if node is None or node.id != node_id else _axis_of(node, dim)
        if axis is None or update.array is None or node is None or node.array is None:
            continue
        if update.array.shape[axis].array_length != node.array.shape[axis].array_length:
            found[update.path] = node_id
    return found


def _compare(
    dim: str, group: str, changes: ChangeSet, line: Overtaken, log: TransactionLog
) -> tuple[list[_Appended], list[Conflict]]:
    """The arrays of the dimension, and what makes an append of either side something else.

    Both are empty if the branch left these arrays as they were.
    """
    base, tip = line.base.nodes, line.tip.nodes
    mine = partial(changes.find, base)
    sides = (
        _members(dim, group, base.find, base.path),
        _members(dim, group, tip.find, tip.path),
        _members(dim, group, mine, changes.paths(base, group)),
    )
    before, theirs, ours = sides
    if _lengths(before, dim) == _lengths(theirs, dim):
        return [], []
    appended: list[_Appended] = []
    conflicts: list[Conflict] = []
    for path in sorted({*before, *theirs, *ours}):
        nodes = [side.get(path) for side in sides]
        ids = [None if node is None else node.id for node in nodes]
        if len({*ids}) > 1:
            who = "the branch" if ids[0] != ids[1] else "the session"
            reason = f"{who} created, replaced or deleted it, and both sides appended along {dim!r}"
            conflicts.append(Conflict(_CHANGED, path, reason=reason))
            continue
        found = _compare_array(dim, path, nodes, changes, log)
        if isinstance(found, Conflict):
            conflicts.append(found)
        else:
            appended.append(found)
    for count, who in (("ours", "the session"), ("theirs", "the branch")):
        counts = [getattr(one, count) for one in appended]
        reasons = (
            f"{who} made it longer by {num:,}, and other arrays of {dim!r} by {max(counts):,}"
            for num in counts
        )
        conflicts += [
            Conflict(_CHANGED, one.node.path, reason=reason)
            for one, num, reason in zip(appended, counts, reasons, strict=True)
            if num != max(counts)
        ]
    return appended, conflicts


def _compare_array(
    dim: str, path: str, nodes: list[Any], changes: ChangeSet, log: TransactionLog
) -> _Appended | Conflict:
    base, tip, _ = nodes
    axis = _axis_of(base, dim)
    documents = [json.loads(node.user_data) for node in nodes]
    shapes = [document.pop("shape") for document in documents]
    # As texts: in Python 1 equals true, and NaN does not equal itself.
    attributes = [
        json.dumps(document.pop("attributes", {}), sort_keys=True) for document in documents
    ]
    grid = documents[0].get("chunk_grid", {})
    if grid.get("name") != "regular" or axis is None or base.array.dimension_names.count(dim) > 1:
        reason = f"only regular chunks along one dimension {dim!r} can be moved"
        return Conflict(_CHANGED, path, reason=reason)
    (old, theirs, ours) = (shape.pop(axis) for shape in shapes)
    length = max(1, grid["configuration"]["chunk_shape"][axis])
    touched = (
        log.updated_chunks.get(base.id),
        changes.touched_chunks(base.id) if base.id in changes.edited else None,
    )
    for who, side, now in (("the branch", 1, theirs), ("the session", 2, ours)):
        same = [each[side] == each[0] for each in (documents, attributes, shapes)]
        if not all(same):
            reason = f"{who} changed more of its metadata than its length"
            return Conflict(_CHANGED, path, reason=reason)
        if now <= old:
            reason = f"{who} did not make it longer, and the other side did"
            return Conflict(_CHANGED, path, reason=reason)
    for who, index in zip(("the branch", "the session"), touched, strict=True):
        if index is not None and bool((is_old := index[:, axis] < old // length).any()):
            reason = f"{who} overwrote or deleted chunks before the old end"
            return Conflict(_OVERWRITTEN, path, index[is_old], reason=reason)
    shapes[1].insert(axis, theirs + ours - old)
    document = {**json.loads(tip.user_data), "shape": shapes[1]}
    return _Appended(tip, document, axis, length, old, ours - old, theirs - old)


def _members(dim: str, group: str, find: Any, known: list[str]) -> dict[str, Node]:
    """The arrays of a group that have the dimension."""
    prefix = group if group.endswith("/") else f"{group}/"
    found = (
        find(path) for path in known if path.startswith(prefix) and "/" not in path[len(prefix) :]
    )
    return {
        node.path: node for node in found if node is not None and _axis_of(node, dim) is not None
    }


def _lengths(members: Mapping[str, Node], dim: str) -> dict[str, int]:
    return {
        path: node.array.shape[axis].array_length
        for path, node in members.items()
        if node.array is not None and (axis := _axis_of(node, dim)) is not None
    }


def _axis_of(node: Node, dim: str) -> int | None:
    names = None if node.array is None else node.array.dimension_names
    return names.index(dim) if names and dim in names else None


def _move_references(one: _Appended, sides: _Sides) -> None:
    state = sides.target.state
    edits = sides.ours.state.changes.chunks.get(one.node.id)
    if edits is None:
        return
    refs, deleted = edits.columns()
    step = np.zeros(refs.ndim, np.uint32)
    step[one.axis] = one.theirs // one.length
    with state.writing():
        moved = state.edits(state.node(one.node.path))
        assert moved is not None
        moved.set_table(refs.relabelled(refs.index + step), deleted + step)


# -- Values of small arrays. Zarr decodes and encodes them in memory; requests are made here.


async def _read(side: Workspace, one: _Appended, start: int, stop: int) -> NDArray[Any]:
    """The values of an array from `start` to `stop` along the axis, as a side has them."""
    node = side.state.node(one.node.path)
    chunks = await _fetch(side, node, one.chunks(start, stop))
    array, _ = _in_memory(json.loads(node.user_data), chunks)
    return np.asarray(array[_along(one, start, stop)])


async def _append_values(one: _Appended, sides: _Sides) -> None:
    values = await _read(sides.ours, one, one.old, one.old + one.ours)
    target, start = sides.target, one.old + one.theirs
    index = one.chunks(start, start + one.ours)
    node = target.state.node(one.node.path)
    array, objects = _in_memory(one.document, await _fetch(target, node, index))
    array[_along(one, start, start + one.ours)] = values
    prefix = paths.to_key(one.node.path)
    for at in index.tolist():
        name = "/".join(["c", *map(str, at)])
        data = objects.get(name)
        if data is None:
            await operations.delete(target, f"{prefix}/{name}")
        else:
            await operations.set_key(target, f"{prefix}/{name}", data.to_bytes())


def _along(one: _Appended, start: int, stop: int) -> tuple[slice, ...]:
    return (slice(None),) * one.axis + (slice(start, stop),)


async def _fetch(side: Workspace, node: Node, index: Index) -> dict[str, bytes]:
    """The bytes of chunks, by their keys below the array."""
    found = await find_chunks(side.handle, side.state.view, node, index)
    chunks: list[Chunk] = [*found.stored, *found.virtual]
    data = await fetch_chunks(side.handle, chunks) if chunks else []
    places = (chunk.position for chunk in chunks)
    rows, values = index.tolist(), [*found.inline, *zip(places, data, strict=True)]
    return {"/".join(["c", *map(str, rows[at])]): bytes(value) for at, value in values}


def _in_memory(
    document: dict[str, Any], chunks: Mapping[str, bytes]
) -> tuple[zarr.Array[Any], dict[str, Buffer]]:
    """An array in memory, and its objects by key."""
    # Chunks have the keys of the repository, whatever keys the document speaks of.
    separator = {"name": "default", "configuration": {"separator": "/"}}
    plain = {**document, "chunk_key_encoding": separator}
    given = {"zarr.json": _encoded(plain), **chunks}
    make = default_buffer_prototype().buffer.from_bytes
    objects = {key: make(value) for key, value in given.items()}
    return zarr.open_array(MemoryStore(objects), mode="r+", zarr_format=3), objects


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


async def _keeps_old(one: _Appended, base: Workspace, other: Workspace) -> bool:
    """Whether the values before the old end, in the chunks across it, are still the same."""
    first = one.old // one.length * one.length
    old, now = [await _read(side, one, first, one.old) for side in (base, other)]
    if old.dtype.kind in "OT":
        return bool((old == now).all())
    return old.tobytes() == now.tobytes()


async def _find_disorder(one: _Appended, sides: _Sides) -> str | None:
    """Why the session's coordinates cannot follow those of the branch, if they cannot."""
    end = one.old + one.theirs
    mine = await _read(sides.ours, one, one.old, one.old + one.ours)
    there = await _read(sides.tip, one, max(0, one.old - 1), end)
    if not len(mine):
        return None
    way = next(_ways(there if len(there) > 1 else mine), None)
    if way is None:  # labels without an order: they may not repeat
        there = await _read(sides.tip, one, 0, end)
        repeated = mine[np.isin(mine, there)]
        return f"its values would repeat: {repeated[0]}" if len(repeated) else None
    joined = np.concatenate([there, mine])
    if way in _ways(joined):
        return None
    said = "ascend" if way > 0 else "descend"
    return (
        f"its values would repeat or no longer {said}: {mine[0]} comes after {there[-1]} of the "
        "branch; accept_unordered=True appends them"
    )


def _ways(values: NDArray[Any]) -> Iterator[int]:
    """1 if values ascend, -1 if they descend."""
    if bool((values[1:] > values[:-1]).all()):
        yield 1
    if bool((values[1:] < values[:-1]).all()):
        yield -1
