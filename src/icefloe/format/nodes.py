"""The nodes of a snapshot, and the manifests of an array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import small
from icefloe.format.chunk_index import is_strictly_ascending
from icefloe.format.columns import (
    BlobColumn,
    Bytes,
    Ints,
    concat_optional,
    find_rows,
    id_rows,
    parts_of,
)
from icefloe.format.flatbuffer.read import FlatBuffer
from icefloe.ids import ManifestId, NodeId

# -- Columns of node paths found in files: checked all at once.


def check_paths(buffer: FlatBuffer, paths: Sequence[str], what: str) -> None:
    """Refuse a column with a path that is not absolute.

    Paths that are not canonical, such as `/q/` and `/g//x`, are in files that official clients
    wrote. Whoever reads them can move or delete the node; `paths.validate` refuses new ones.
    """
    if not all(map(str.startswith, paths, repeat("/"))):
        wrong = next(path for path in paths if not path.startswith("/"))
        buffer.fail(f"{what} {wrong!r} is not absolute")


# -- The manifests that an array refers to, and which of them may hold a chunk.
#
# An array may have many thousands of manifests, and a reader of one chunk needs one of them:
# those that were read are columns.


Extents = NDArray[np.uint32]
"""(from, to) of each manifest along each dimension."""


class ManifestRef(NamedTuple):
    """A manifest that holds chunks of an array, and the box of chunk indices it covers."""

    id: ManifestId
    extents: tuple[tuple[int, int], ...]


class ManifestRefs(Sequence[ManifestRef]):
    """The nodes as columns. Values are built on first access, then kept."""

    __slots__ = ("_values", "extents", "id")

    def __init__(self, ids: Bytes, extents: Extents) -> None:
        self.id = ids
        self.extents = extents
        self._values: list[ManifestRef | None] = [None] * len(ids)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return tuple(self)[row]
        value = self._values[row]
        if value is None:
            box = tuple(map(tuple, self.extents[row].tolist()))
            value = self._values[row] = ManifestRef(ManifestId(self.id[row].tobytes()), box)
        return value

    def __iter__(self) -> Iterator[ManifestRef]:
        if None in self._values:
            self._values = list(_values(self.id, self.extents))
        return iter(self._values)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ManifestRefs):
            return np.array_equal(self.id, other.id) and np.array_equal(self.extents, other.extents)
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return ManifestRefs, (self.id, self.extents)

    @property
    def ndim(self) -> int:
        return int(self.extents.shape[1])

    def take(self, rows: Any) -> ManifestRefs:
        """Some rows, in the order given."""
        return ManifestRefs(self.id[rows], self.extents[rows])


def manifest_refs(ids: Bytes, extents: Extents) -> Sequence[ManifestRef]:
    """The manifests of one array; those of a scalar have no axis to be ordered along."""
    return ManifestRefs(ids, extents) if extents.shape[1] else tuple(_values(ids, extents))


def ordered(refs: Sequence[ManifestRef]) -> Sequence[ManifestRef]:
    """All of the manifests, ascending by their boxes."""
    if not isinstance(refs, ManifestRefs):
        return tuple(sorted(refs, key=lambda ref: ref.extents))
    start, flat = refs.extents[:, 0, 0], refs.extents.reshape(len(refs), 2 * refs.ndim)
    if bool((start[1:] > start[:-1]).all()) or is_strictly_ascending(flat):
        return refs
    return refs.take(np.lexsort(flat.T[::-1]))


def joined(refs: Sequence[ManifestRef], more: Sequence[ManifestRef]) -> Sequence[ManifestRef]:
    """Manifests of one array and some more."""
    if not isinstance(refs, ManifestRefs):
        return [*refs, *more]
    ids = np.concatenate([refs.id, ids_of(more)])
    return ManifestRefs(ids, np.concatenate([refs.extents, extents_of(more, refs.ndim)]))


def picked(refs: Sequence[ManifestRef], rows: Ints) -> Sequence[ManifestRef]:
    """Some of the manifests."""
    if isinstance(refs, ManifestRefs):
        return refs if len(rows) == len(refs) else refs.take(rows)
    return [refs[row] for row in rows.tolist()]


def ids_of(refs: Sequence[ManifestRef]) -> Bytes:
    """The ids, one row each."""
    if isinstance(refs, ManifestRefs):
        return refs.id
    return id_rows((ref.id for ref in refs), ManifestId.size)


def extents_of(refs: Sequence[ManifestRef], ndim: int) -> Extents:
    """The boxes, one row each; `ndim` tells the rank if there are none."""
    if isinstance(refs, ManifestRefs):
        return refs.extents
    boxes = np.array([ref.extents for ref in refs], np.uint32)
    return boxes.reshape(len(refs), -1 if refs else ndim, 2)


def _values(ids: Bytes, extents: Extents) -> Iterator[ManifestRef]:
    boxes: list[Any] = [tuple(map(tuple, box)) for box in extents.tolist()]
    return map(ManifestRef, ManifestId.of_rows(ids), boxes)


# -- finding


class ManifestBoxes:
    """The boxes of an array's manifests, ordered along the first axis, where arrays are split."""

    __slots__ = ("_ordered", "_reach", "_start", "manifests")

    def __init__(self, manifests: Sequence[ManifestRef]) -> None:
        self.manifests = manifests
        self._ordered = ordered(manifests)
        # The reach is the farthest that this manifest or any one before it extends.
        if isinstance(self._ordered, ManifestRefs):
            start, stop = self._ordered.extents[:, 0].T
            self._start: list[int] = start.tolist()
            self._reach: list[int] = np.maximum.accumulate(stop).tolist()
        else:
            first = [ref.extents[0] if ref.extents else (0, 1) for ref in self._ordered]
            self._start = [low for low, _ in first]
            self._reach = list(accumulate((high for _, high in first), max))

    def around(self, coordinates: Sequence[int]) -> list[ManifestRef]:
        """Manifests whose box has the chunk in it: one, unless boxes overlap.

        The one that is listed first wins, as in Icechunk of every version.
        """
        leading = coordinates[0] if coordinates else 0
        at = bisect_right(self._start, leading) - 1
        found = []
        while at >= 0 and self._reach[at] > leading:
            if _is_inside(coordinates, self._ordered[at].extents):
                found.append(self._ordered[at])
            at -= 1
        if len(found) > 1:
            found.sort(key=self.manifests.index)
        return found


def _is_inside(coordinates: Sequence[int], extents: Sequence[tuple[int, int]]) -> bool:
    """Whether a chunk is in a box of as many dimensions."""
    if len(coordinates) != len(extents):
        return False
    for axis, place in enumerate(coordinates):  # `zip` would take twice as long
        start, stop = extents[axis]
        if not start <= place < stop:
            return False
    return True


# -- The nodes of a snapshot: values if they are few, else columns that values are taken out of.
#
# Ragged parts (dimensions of an array, manifests of an array, extents of a manifest) are flat
# columns plus a count for each owner.


ARRAY = 1
GROUP = 2


class Dimension(NamedTuple):
    """Size of one dimension: in elements and in chunks.

    Version-1 files store `chunk_length` instead of the number of chunks. It is kept as found,
    but only the count is to be trusted: true chunk sizes are in the node's zarr.json.
    """

    array_length: int
    num_chunks: int
    chunk_length: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayData:
    """What a snapshot knows of an array besides its zarr.json."""

    shape: tuple[Dimension, ...]
    dimension_names: tuple[str | None, ...] | None = None
    manifests: Sequence[ManifestRef] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A group, or with `array` an array. `user_data` is its zarr.json, byte for byte."""

    id: NodeId
    path: str
    user_data: bytes
    array: ArrayData | None = None
    extra: bytes | None = None


class NodeTable(Sequence[Node], ABC):
    """All nodes of a snapshot, ascending by path: as values (`NodeRows`) or as `NodeColumns`."""

    path: list[str]

    @staticmethod
    def from_nodes(nodes: Iterable[Node]) -> NodeTable:
        """A table of these nodes, in the form that suits their number."""
        ordered = sorted(nodes, key=lambda node: node.path)
        for first, second in pairwise(ordered):
            if first.path == second.path:
                raise FormatError(
                    f"node {first.path!r} appears twice in a snapshot", ErrorKind.SERIALIZATION
                )
        arrays = _arrays(ordered)
        for array in arrays:
            _check_ranks(array)
        rows = NodeRows([node.path for node in ordered], ordered)
        num_manifests = sum(len(array.manifests) for array in arrays)
        return rows if max(len(ordered), num_manifests) <= small.ROWS else rows.columns

    @property
    @abstractmethod
    def columns(self) -> NodeColumns:
        """The same nodes as columns."""

    @abstractmethod
    def users_of(
        self, manifests: Sequence[ManifestId], without: Iterable[str]
    ) -> tuple[Ints, Ints]:
        """The arrays that use any of these ascending manifests, without those at some paths: a row
        and the number of a manifest for each use."""

    @abstractmethod
    def node(self, row: int) -> Node:
        """One row as a value."""

    @abstractmethod
    def has_id(self, node_id: NodeId) -> bool:
        """Whether a node has this id."""

    @abstractmethod
    def used_manifests(self) -> Bytes:
        """The ids of all manifests, each once, ascending."""

    @abstractmethod
    def _user_data(self, row: int) -> bytes:
        """The zarr.json of one row."""

    def __len__(self) -> int:
        return len(self.path)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self.node(at) for at in range(*row.indices(len(self)))]
        return self.node(range(len(self))[row])

    def __iter__(self) -> Iterator[Node]:
        return map(self.node, range(len(self)))

    def _row(self, path: str) -> int | None:
        row = bisect_left(self.path, path)
        return row if row < len(self) and self.path[row] == path else None

    def find(self, path: str) -> Node | None:
        """The node at `path`, or None."""
        row = self._row(path)
        return None if row is None else self.node(row)

    def find_user_data(self, path: str) -> bytes | None:
        """The zarr.json of the node at `path`, or None."""
        row = self._row(path)
        return None if row is None else self._user_data(row)

    def rows_of(self, wanted: Iterable[str]) -> Ints:
        """Rows of these paths; paths that are not there are left out."""
        found = [row for path in wanted if (row := self._row(path)) is not None]
        return np.array(found, np.int64)

    def replace(self, without: Ints, nodes: Sequence[Node]) -> NodeTable:
        """The table without some rows and with other nodes, in order."""
        gone = set(without.tolist())
        kept = [node for row, node in enumerate(self) if row not in gone]
        return NodeTable.from_nodes([*kept, *nodes])

    def equals(self, other: NodeTable) -> bool:
        """Same nodes with the same contents."""
        return self.path == other.path and all(
            mine == yours for mine, yours in zip(self, other, strict=True)
        )


@dataclass(frozen=True, eq=False)
class NodeRows(NodeTable):
    """Few nodes, each a value."""

    path: list[str]
    nodes: list[Node]

    @cached_property
    def columns(self) -> NodeColumns:
        """The same nodes as columns."""
        return _columns_of(self.path, self.nodes)

    def node(self, row: int) -> Node:
        """One row as a value."""
        return self.nodes[row]

    def has_id(self, node_id: NodeId) -> bool:
        """Whether a node has this id."""
        return any(node.id == node_id for node in self.nodes)

    def used_manifests(self) -> Bytes:
        """The ids of all manifests, each once, ascending."""
        found = {ref.id for array in _arrays(self.nodes) for ref in array.manifests}
        return id_rows(sorted(found), ManifestId.size)

    def users_of(
        self, manifests: Sequence[ManifestId], without: Iterable[str]
    ) -> tuple[Ints, Ints]:
        """The rows of arrays that use any of the manifests, and the number of each."""
        number = {key: at for at, key in enumerate(manifests)}
        left = set(without)
        uses = [
            (row, number[ref.id])
            for row, node in enumerate(self.nodes)
            if node.array is not None and node.path not in left
            for ref in node.array.manifests
            if ref.id in number
        ]
        rows, numbers = np.array(uses, np.int64).reshape(-1, 2).T
        return rows, numbers

    def _user_data(self, row: int) -> bytes:
        return self.nodes[row].user_data


@dataclass(frozen=True, eq=False)
class NodeColumns(NodeTable):
    """Many nodes: a node object is built on access."""

    id: Bytes
    path: list[str]
    user_data: BlobColumn
    is_array: NDArray[np.bool_]
    extra: BlobColumn | None
    # one row per array, in node order
    num_dimensions: Ints
    has_names: NDArray[np.bool_]
    num_manifests: Ints
    # one row per dimension
    array_length: NDArray[np.uint64]
    num_chunks: NDArray[np.uint64]
    chunk_length: NDArray[np.uint64] | None
    dimension_name: BlobColumn
    # one row per manifest of an array
    manifest_id: Bytes
    # (from, to), as many rows a manifest as its array has dimensions
    extents: NDArray[np.uint32]

    @property
    def columns(self) -> NodeColumns:
        """The same nodes as columns."""
        return self

    def has_id(self, node_id: NodeId) -> bool:
        """Whether a node has this id."""
        return bool((self.id == np.frombuffer(node_id, np.uint8)).all(axis=1).any())

    def used_manifests(self) -> Bytes:
        """The ids of all manifests, each once, ascending."""
        keys = np.ascontiguousarray(self.manifest_id).view(f"S{ManifestId.size}").reshape(-1)
        return np.unique(keys).view(np.uint8).reshape(-1, ManifestId.size)

    def users_of(
        self, manifests: Sequence[ManifestId], without: Iterable[str]
    ) -> tuple[Ints, Ints]:
        """The rows of arrays that use any of the manifests, and the number of each."""
        used = find_rows(id_rows(manifests, ManifestId.size), self.manifest_id)
        arrays = np.repeat(np.flatnonzero(self.is_array), self.num_manifests)
        used[np.isin(arrays, self.rows_of(without))] = -1
        uses = np.flatnonzero(used >= 0)
        return arrays[uses], used[uses]

    def _user_data(self, row: int) -> bytes:
        found: bytes = self.user_data[row]
        return found

    def node(self, row: int) -> Node:
        """One row as a value."""
        array = self._array(self._starts.array[row]) if self.is_array[row] else None
        extra = None if self.extra is None else self.extra[row]
        user_data = self.user_data[row]
        return Node(NodeId(self.id[row].tobytes()), self.path[row], user_data, array, extra)

    def _array(self, row: int) -> ArrayData:
        ndim, first = int(self.num_dimensions[row]), self._starts.dimension[row]
        dimensions = range(first, first + ndim)
        shape = tuple(
            Dimension(
                int(self.array_length[at]),
                int(self.num_chunks[at]),
                None if self.chunk_length is None else int(self.chunk_length[at]),
            )
            for at in dimensions
        )
        names = None
        if self.has_names[row]:
            names = tuple(self.dimension_name[at] for at in dimensions)
        count, at = int(self.num_manifests[row]), self._starts.manifest[row]
        if not count:
            return ArrayData(shape, names)
        ids = self.manifest_id[at : at + count]
        at = self._starts.extent[row]
        boxes = self.extents[at : at + count * ndim].reshape(count, ndim, 2)
        return ArrayData(shape, names, manifest_refs(ids, boxes))

    @cached_property
    def _starts(self) -> _Starts:
        return _Starts(
            *(
                (np.cumsum(count) - count).tolist()
                for count in (
                    self.is_array.astype(np.int64),
                    self.num_dimensions,
                    self.num_manifests,
                    self.num_manifests * self.num_dimensions,
                )
            )
        )

    def take(self, rows: Ints) -> NodeColumns:
        """Some rows, in the order given."""
        arrays = (np.cumsum(self.is_array) - 1)[rows][self.is_array[rows]]
        dimensions = parts_of(self.num_dimensions, arrays)
        manifests = parts_of(self.num_manifests, arrays)
        extents = parts_of(self.num_manifests * self.num_dimensions, arrays)
        return NodeColumns(
            self.id[rows],
            [self.path[row] for row in rows.tolist()],
            self.user_data.take(rows),
            self.is_array[rows],
            None if self.extra is None else self.extra.take(rows),
            self.num_dimensions[arrays],
            self.has_names[arrays],
            self.num_manifests[arrays],
            self.array_length[dimensions],
            self.num_chunks[dimensions],
            None if self.chunk_length is None else self.chunk_length[dimensions],
            self.dimension_name.take(dimensions),
            self.manifest_id[manifests],
            self.extents[extents],
        )

    def replace(self, without: Ints, nodes: Sequence[Node]) -> NodeTable:
        """The table without some rows and with other nodes, in order. Only those cost Python."""
        if len(self) <= small.ROWS:
            return super().replace(without, nodes)
        stay = np.ones(len(self), np.bool_)
        stay[without] = False
        if not nodes:
            return self if stay.all() else self.take(np.flatnonzero(stay))
        added = NodeTable.from_nodes(nodes).columns
        if not stay.any():
            return added
        staying = np.flatnonzero(stay)
        before = np.array([bisect_left(self.path, path) for path in added.path], np.int64)
        rows = np.concatenate([staying, np.arange(len(self), len(self) + len(added))])
        place = np.concatenate([2 * staying + 1, 2 * before])
        return self._followed_by(added).take(rows[np.argsort(place, kind="stable")])

    def _followed_by(self, other: NodeColumns) -> NodeColumns:
        columns: dict[str, Any] = {
            "path": self.path + other.path,
            "extra": concat_optional([(self.extra, len(self)), (other.extra, len(other))]),
            "chunk_length": None,
        }
        if self.chunk_length is not None or other.chunk_length is not None:
            columns["chunk_length"] = np.concatenate([self.chunk_lengths(), other.chunk_lengths()])
        for each in fields(self):
            if each.name not in columns:
                both = getattr(self, each.name), getattr(other, each.name)
                join = BlobColumn.concat if isinstance(both[0], BlobColumn) else np.concatenate
                columns[each.name] = join(both)
        return NodeColumns(**columns)

    def chunk_lengths(self) -> NDArray[np.uint64]:
        """The chunk length of each dimension. One that is not stored is derived, such that readers
        of a version-1 file find the same number of chunks."""
        if self.chunk_length is not None:
            return self.chunk_length
        return _derived_chunk_lengths(self.array_length, self.num_chunks)


class _Starts(NamedTuple):
    """Where the part of a node, or of an array, begins in the flat columns."""

    array: list[int]
    dimension: list[int]
    manifest: list[int]
    extent: list[int]


def _arrays(nodes: Iterable[Node]) -> list[ArrayData]:
    return [node.array for node in nodes if node.array is not None]


def _columns_of(path: list[str], ordered: Sequence[Node]) -> NodeColumns:
    arrays = _arrays(ordered)
    shape = [dimension for array in arrays for dimension in array.shape]
    names = [
        name for array in arrays for name in (array.dimension_names or [None] * len(array.shape))
    ]
    array_length = np.array([dimension.array_length for dimension in shape], np.uint64)
    num_chunks = np.array([dimension.num_chunks for dimension in shape], np.uint64)
    chunk_length = None
    if any(dimension.chunk_length is not None for dimension in shape):
        chunk_length = _derived_chunk_lengths(array_length, num_chunks)
        for at, dimension in enumerate(shape):
            if dimension.chunk_length is not None:
                chunk_length[at] = dimension.chunk_length
    extents = [extents_of(array.manifests, len(array.shape)).reshape(-1, 2) for array in arrays]
    extra = [node.extra for node in ordered]
    return NodeColumns(
        id_rows([node.id for node in ordered], NodeId.size),
        path,
        BlobColumn.from_values([node.user_data for node in ordered]),
        np.array([node.array is not None for node in ordered], np.bool_),
        BlobColumn.from_values(extra) if any(e is not None for e in extra) else None,
        np.array([len(array.shape) for array in arrays], np.int64),
        np.array([array.dimension_names is not None for array in arrays], np.bool_),
        np.array([len(array.manifests) for array in arrays], np.int64),
        array_length,
        num_chunks,
        chunk_length,
        BlobColumn.from_values(names, is_text=True),
        _joined([ids_of(array.manifests) for array in arrays], np.uint8, ManifestId.size),
        _joined(extents, np.uint32, 2),
    )


def _derived_chunk_lengths(
    array_length: NDArray[np.uint64], num_chunks: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    count = np.maximum(num_chunks, np.uint64(1))
    whole = array_length // count
    return whole + (whole * count < array_length)


def _check_ranks(array: ArrayData) -> None:
    ndim = len(array.shape)
    if array.dimension_names is not None and len(array.dimension_names) != ndim:
        raise FormatError(
            f"an array of {ndim} dimensions has {len(array.dimension_names)} dimension names",
            ErrorKind.SERIALIZATION,
        )
    refs = array.manifests
    if isinstance(refs, ManifestRefs) and refs.ndim == ndim:
        return
    for ref in refs:
        if len(ref.extents) != ndim:
            raise FormatError(
                f"manifest {ref.id} covers {len(ref.extents)} dimensions of an array of {ndim}",
                ErrorKind.SERIALIZATION,
            )


def _joined(parts: Sequence[NDArray[Any]], dtype: Any, width: int) -> NDArray[Any]:
    return np.concatenate([np.empty((0, width), dtype), *parts])
