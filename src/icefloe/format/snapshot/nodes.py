"""The nodes of a snapshot as columns, and single nodes taken out of them.

Ragged parts (dimensions of an array, manifests of an array, extents of a manifest) are flat
columns plus a count for each owner.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints, spread
from icefloe.format.snapshot.manifest_refs import (
    ManifestRef,
    ManifestRefs,
    extents_of,
    ids_of,
    manifest_refs,
)
from icefloe.ids import ManifestId, NodeId
from icefloe.records import NamedTuple, filled, record

_FEW = 64  # nodes: below this, values beat columns
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


@record(frozen=True)
class ArrayData:
    """What a snapshot knows of an array besides its zarr.json."""

    shape: tuple[Dimension, ...]
    dimension_names: tuple[str | None, ...] | None = None
    manifests: Sequence[ManifestRef] = ()


@record(frozen=True)
class Node:
    """A group, or with `array` an array. `user_data` is its zarr.json, byte for byte."""

    id: NodeId
    path: str
    user_data: bytes
    array: ArrayData | None = None
    extra: bytes | None = None


@record(frozen=True, eq=False)
class NodeTable(Sequence[Node]):
    """All nodes of a snapshot, ascending by path."""

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
    _starts: list[dict[str, list[int]]] = field(default_factory=list, init=False, repr=False)
    few: list[Node] = field(default_factory=list, init=False, repr=False)
    """All nodes, if the table was made of few. It then has columns when they are asked for."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _COLUMNS:
                raise AttributeError(f"a NodeTable has no {name!r}")
            self.__dict__.update(_columns_of(self.few))
            return self.__dict__[name]

    def __len__(self) -> int:
        return len(self.path)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self.node(at) for at in range(*row.indices(len(self)))]
        return self.node(range(len(self))[row])

    def __iter__(self) -> Iterator[Node]:
        return map(self.node, range(len(self)))

    def find(self, path: str) -> Node | None:
        """The node at `path`, or None."""
        row = bisect_left(self.path, path)
        return self.node(row) if row < len(self) and self.path[row] == path else None

    def has_id(self, node_id: NodeId) -> bool:
        """Whether a node has this id."""
        return bool((self.id == np.frombuffer(node_id, np.uint8)).all(axis=1).any())

    def find_user_data(self, path: str) -> bytes | None:
        """The zarr.json of the node at `path`, or None."""
        row = bisect_left(self.path, path)
        if row == len(self) or self.path[row] != path:
            return None
        user_data: bytes = self.few[row].user_data if self.few else self.user_data[row]
        return user_data

    def used_manifests(self) -> Bytes:
        """The ids of all manifests, each once, ascending."""
        if self.few:
            found = {ref.id for array in _arrays(self.few) for ref in array.manifests}
            return _ids(sorted(found), ManifestId.size)
        keys = np.ascontiguousarray(self.manifest_id).view(f"S{ManifestId.size}").reshape(-1)
        return np.unique(keys).view(np.uint8).reshape(-1, ManifestId.size)

    def node(self, row: int) -> Node:
        """One row as a value."""
        if self.few:
            return self.few[row]
        array = self._array(self._start("array", row)) if self.is_array[row] else None
        extra = None if self.extra is None else self.extra[row]
        user_data = self.user_data[row]
        return Node(NodeId(self.id[row].tobytes()), self.path[row], user_data, array, extra)

    def _array(self, row: int) -> ArrayData:
        ndim, first = int(self.num_dimensions[row]), self._start("dimension", row)
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
        count, at = int(self.num_manifests[row]), self._start("manifest", row)
        if not count:
            return ArrayData(shape, names)
        ids = self.manifest_id[at : at + count]
        at = self._start("extent", row)
        boxes = self.extents[at : at + count * ndim].reshape(count, ndim, 2)
        return ArrayData(shape, names, manifest_refs(ids, boxes))

    def _start(self, what: str, row: int) -> int:
        """Where a row's part of a flat column begins; all starts are made on first use."""
        if not self._starts:
            counts = {
                "array": self.is_array.astype(np.int64),
                "dimension": self.num_dimensions,
                "manifest": self.num_manifests,
                "extent": self.num_manifests * self.num_dimensions,
            }
            starts = {name: (np.cumsum(c) - c).tolist() for name, c in counts.items()}
            self._starts.append(starts)
        return self._starts[0][what][row]

    def rows_of(self, wanted: Iterable[str]) -> Ints:
        """Rows of these paths; paths that are not there are left out."""
        rows = [(bisect_left(self.path, path), path) for path in wanted]
        found = [row for row, path in rows if row < len(self) and self.path[row] == path]
        return np.array(found, np.int64)

    def take(self, rows: Ints) -> NodeTable:
        """Some rows, in the order given."""
        arrays = (np.cumsum(self.is_array) - 1)[rows][self.is_array[rows]]
        dimensions = _parts_of(self.num_dimensions, arrays)
        manifests = _parts_of(self.num_manifests, arrays)
        extents = _parts_of(self.num_manifests * self.num_dimensions, arrays)
        return NodeTable(
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
        if len(self) <= _FEW:
            gone = set(without.tolist())
            kept = [node for row, node in enumerate(self) if row not in gone]
            return NodeTable.from_nodes([*kept, *nodes])
        stay = np.ones(len(self), np.bool_)
        stay[without] = False
        if not nodes:
            return self if stay.all() else self.take(np.flatnonzero(stay))
        added = NodeTable.from_nodes(nodes)
        if not stay.any():
            return added
        staying = self if stay.all() else self.take(np.flatnonzero(stay))
        both = staying._followed_by(added)
        order = sorted(range(len(both)), key=both.path.__getitem__)
        return both.take(np.array(order, np.int64))

    def _followed_by(self, other: NodeTable) -> NodeTable:
        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(self, name), getattr(other, name)])

        def joined_blobs(name: str) -> BlobColumn:
            return BlobColumn.concat([getattr(self, name), getattr(other, name)])

        chunk_length = None
        if self.chunk_length is not None or other.chunk_length is not None:
            chunk_length = np.concatenate([_chunk_lengths(self), _chunk_lengths(other)])
        extra = None
        if self.extra is not None or other.extra is not None:
            extra = BlobColumn.concat(
                [BlobColumn.nulls(len(t)) if t.extra is None else t.extra for t in (self, other)]
            )
        return NodeTable(
            joined("id"),
            self.path + other.path,
            joined_blobs("user_data"),
            joined("is_array"),
            extra,
            joined("num_dimensions"),
            joined("has_names"),
            joined("num_manifests"),
            joined("array_length"),
            joined("num_chunks"),
            chunk_length,
            joined_blobs("dimension_name"),
            joined("manifest_id"),
            joined("extents"),
        )

    def equals(self, other: NodeTable) -> bool:
        """Same nodes with the same contents."""
        return self.path == other.path and all(
            mine == yours for mine, yours in zip(self, other, strict=True)
        )

    @classmethod
    def from_nodes(cls, nodes: Iterable[Node]) -> NodeTable:
        """Columns of these nodes, sorted by path."""
        ordered = sorted(nodes, key=lambda node: node.path)
        for first, second in pairwise(ordered):
            if first.path == second.path:
                raise FormatError(
                    f"node {first.path!r} appears twice in a snapshot", ErrorKind.SERIALIZATION
                )
        for node in ordered:
            if node.array is not None:
                _check_ranks(node.array)
        paths = [node.path for node in ordered]
        num_manifests = sum(len(array.manifests) for array in _arrays(ordered))
        if 0 < len(ordered) <= _FEW and num_manifests <= _FEW:
            return filled(cls, {"path": paths, "few": ordered, "_starts": []})
        return cls(path=paths, **_columns_of(ordered))


def _arrays(nodes: Iterable[Node]) -> list[ArrayData]:
    return [node.array for node in nodes if node.array is not None]


_COLUMNS = frozenset(NodeTable.__match_args__) - {"path"}


def _columns_of(ordered: Sequence[Node]) -> dict[str, Any]:
    """The columns of these nodes, apart from their paths."""
    arrays = _arrays(ordered)
    shape = [dimension for array in arrays for dimension in array.shape]
    names = [
        name for array in arrays for name in (array.dimension_names or [None] * len(array.shape))
    ]
    chunk_length = [
        dimension.chunk_length
        if dimension.chunk_length is not None
        else _derived_chunk_length(dimension)
        for dimension in shape
    ]
    has_chunk_length = any(dimension.chunk_length is not None for dimension in shape)
    extents = [extents_of(array.manifests, len(array.shape)).reshape(-1, 2) for array in arrays]
    extra = [node.extra for node in ordered]
    return {
        "id": _ids([node.id for node in ordered], NodeId.size),
        "user_data": BlobColumn.from_values([node.user_data for node in ordered]),
        "is_array": np.array([node.array is not None for node in ordered], np.bool_),
        "extra": BlobColumn.from_values(extra) if any(e is not None for e in extra) else None,
        "num_dimensions": np.array([len(array.shape) for array in arrays], np.int64),
        "has_names": np.array([array.dimension_names is not None for array in arrays], np.bool_),
        "num_manifests": np.array([len(array.manifests) for array in arrays], np.int64),
        "array_length": np.array([dimension.array_length for dimension in shape], np.uint64),
        "num_chunks": np.array([dimension.num_chunks for dimension in shape], np.uint64),
        "chunk_length": np.array(chunk_length, np.uint64) if has_chunk_length else None,
        "dimension_name": BlobColumn.from_values(names, is_text=True),
        "manifest_id": _joined(
            [ids_of(array.manifests) for array in arrays], np.uint8, ManifestId.size
        ),
        "extents": _joined(extents, np.uint32, 2),
    }


def derived_chunk_lengths(
    array_length: NDArray[np.uint64], num_chunks: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The chunk length a version-1 file needs so that readers find the same number of chunks."""
    count = np.maximum(num_chunks, np.uint64(1))
    whole = array_length // count
    return whole + (whole * count < array_length)


def _chunk_lengths(table: NodeTable) -> NDArray[np.uint64]:
    if table.chunk_length is not None:
        return table.chunk_length
    return derived_chunk_lengths(table.array_length, table.num_chunks)


def _parts_of(counts: Ints, owners: Ints) -> Ints:
    """Rows of a flat column that belong to these owners."""
    return spread((np.cumsum(counts) - counts)[owners], counts[owners], 1)


def _derived_chunk_length(dimension: Dimension) -> int:
    return -(-dimension.array_length // max(dimension.num_chunks, 1))


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


def _ids(ids: Sequence[bytes], size: int) -> Bytes:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, size)
