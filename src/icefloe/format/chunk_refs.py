"""`ChunkRefs`: chunk references as columns, looked up, merged, exchanged with Arrow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format import locations, small
from icefloe.format.chunk_index import (
    Index,
    SortedIndex,
    bounding_box,
    box_rows,
    follow_each_other,
    is_strictly_ascending,
    sort_rows,
)
from icefloe.format.columns import (
    BlobColumn,
    Bytes,
    numbers_from_arrow,
    numbers_to_arrow,
    pack_table,
    unpack_table,
)
from icefloe.format.locations import Coded
from icefloe.ids import ChunkId

if TYPE_CHECKING:
    import pyarrow as pa


# -- Columns that callers hand in: checked before anything is cast, exchanged with Arrow.


def whole_numbers(name: str, values: Any, dtype: Any) -> NDArray[Any]:
    """`values` as unsigned integers; refuses what a cast would quietly change."""
    given = np.asarray(values)
    if given.dtype == dtype:
        return given
    largest = int(np.iinfo(dtype).max)
    if given.size and given.dtype.kind not in "ui":
        raise InvalidInputError(f"{name} are {given.dtype}, expected whole numbers to {largest:,}")
    if given.size and (int(given.min()) < 0 or int(given.max()) > largest):
        raise InvalidInputError(
            f"{name} run from {int(given.min()):,} to {int(given.max()):,}, "
            f"expected 0 to {largest:,}"
        )
    return given.astype(dtype, copy=False)


def check_length(name: str, found: int, expected: int) -> None:
    """Refuse a column that has not one value for each chunk."""
    if found != expected:
        raise InvalidInputError(f"{name}: {found} given, expected {expected}, one for each chunk")


def coded_column(name: str, values: Any, count: int) -> Coded | None:
    """A text column from a list or an Arrow array; None when it has no value at all."""
    if isinstance(values, Coded):
        return values
    import pyarrow as pa

    check_length(name, len(values), count)
    if isinstance(values, Sequence):
        return Coded.from_blobs(BlobColumn.from_values(values, is_text=True))
    return Coded.from_arrow(values if isinstance(values, pa.Array) else pa.array(values))


def index_to_arrow(index: Index) -> pa.Array:
    """An index matrix as lists of fixed size."""
    count, ndim = index.shape
    flat = numbers_to_arrow(np.ascontiguousarray(index, np.uint32).reshape(-1))
    import pyarrow as pa

    kind = pa.list_(pa.uint32(), ndim)
    return pa.FixedSizeListArray.from_buffers(kind, count, [None], children=[flat])


def index_from_arrow(column: pa.Array) -> Index:
    """A matrix from lists of equal length, of fixed size or (as Spark makes them) not."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        ndim = column.type.list_size
    else:
        import pyarrow.compute as pc

        lengths = pc.list_value_length(column).unique().to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise InvalidInputError(
                f"chunk indices have {lengths} dimensions, expected the same number for all",
                ErrorKind.INVALID_CHUNK_INDEX,
            )
        ndim = lengths[0] if lengths else 0
    flat = whole_numbers("chunk indices", numbers_from_arrow(column.flatten()), np.uint32)
    return flat.reshape(len(column), ndim)


# -- The chunk references of one array as columns: what a manifest stores, a commit merges and a
# query returns. There is no Python object per chunk here, and there must not be.
#
# Rows ascend by chunk index. Columns that no row needs are None.


class ChunkKind(IntEnum):
    """Where a chunk's bytes are."""

    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3


_KINDS = {int(kind): kind for kind in ChunkKind}


class ChunkRef(NamedTuple):
    """One reference, taken out of the columns. For inline chunks `length` is that of `inline`.

    A native chunk is in the object with its `chunk_id`. In repositories of older generations
    objects may have any name: then `location` is its key.
    """

    kind: ChunkKind
    offset: int
    length: int
    chunk_id: ChunkId | None = None
    location: str | None = None
    etag: str | None = None
    last_modified: int | None = None
    inline: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRefs:
    """Columns, all of the same length. Make them with `native`, `virtual`, `inline_chunks`,
    `from_arrow`, or by merging others.

    >>> refs = ChunkRefs.virtual([[0, 0], [0, 1]], ["s3://b/f", "s3://b/f"], [0, 100], [100, 50])
    >>> refs.get((0, 1))
    ChunkRef(kind=<ChunkKind.VIRTUAL: 2>, offset=100, length=50, chunk_id=None, \
location='s3://b/f', etag=None, last_modified=None, inline=None)
    """

    index: Index
    kind: NDArray[np.uint8]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    chunk_id: Bytes | None = None
    location: Coded | None = None
    etag: Coded | None = None
    last_modified: NDArray[np.uint32] | None = None
    inline: BlobColumn | None = None
    extra: BlobColumn | None = None
    _lookup: list[SortedIndex] = field(default_factory=list, repr=False)

    # -- making

    @classmethod
    def empty(cls, ndim: int) -> ChunkRefs:
        none = np.empty(0, np.uint64)
        return cls(np.empty((0, ndim), np.uint32), np.empty(0, np.uint8), none, none)

    @classmethod
    def native(cls, index: Any, chunk_id: Any, offset: Any, length: Any) -> ChunkRefs:
        """Chunks in objects of their own, or packed in shared ones; ids are rows of 12 bytes."""
        refs = _plain(cls, index, ChunkKind.NATIVE, offset, length)
        ids = np.ascontiguousarray(chunk_id, np.uint8)
        check_length("chunk ids", ids.size, len(refs) * ChunkId.size)
        return replace(refs, chunk_id=ids.reshape(len(refs), ChunkId.size))._sorted()

    @classmethod
    def keyed(cls, index: Any, key: Any, offset: Any, length: Any) -> ChunkRefs:
        """Native chunks in objects that are not named by an id; keys as a list or Arrow array."""
        refs = _plain(cls, index, ChunkKind.NATIVE, offset, length)
        return replace(refs, location=coded_column("keys", key, len(refs)))._sorted()

    @classmethod
    def virtual(
        cls,
        index: Any,
        location: Any,
        offset: Any,
        length: Any,
        etag: Any = None,
        last_modified: Any = None,
    ) -> ChunkRefs:
        """Chunks inside foreign files; locations as a list or an Arrow (dictionary) array."""
        refs = _plain(cls, index, ChunkKind.VIRTUAL, offset, length)
        changes: dict[str, Any] = {"location": coded_column("locations", location, len(refs))}
        if etag is not None:
            changes["etag"] = coded_column("etags", etag, len(refs))
        if last_modified is not None:
            seconds = whole_numbers("last_modified", last_modified, np.uint32)
            check_length("last_modified", len(seconds), len(refs))
            changes["last_modified"] = seconds
        return replace(refs, **changes)._checked()._sorted()

    @classmethod
    def inline_chunks(cls, index: Any, data: Any) -> ChunkRefs:
        """Chunks whose bytes are kept in the manifest itself."""
        if isinstance(data, Sequence):
            column = BlobColumn.from_values(data)
        else:
            import pyarrow as pa

            column = BlobColumn.from_arrow(data.cast(pa.binary()))
        if column.null_count:
            raise InvalidInputError("inline chunks: a chunk has no bytes (None)")
        check_length("inline chunks", len(column), len(index))
        length = column.length.astype(np.uint64)
        refs = _plain(cls, index, ChunkKind.INLINE, np.zeros(len(column), np.uint64), length)
        return replace(refs, inline=column)._sorted()

    # -- looking

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ndim(self) -> int:
        return int(self.index.shape[1])

    @property
    def lookup(self) -> SortedIndex:
        """Made on first use, then kept."""
        if not self._lookup:
            self._lookup.append(SortedIndex(self.index))
        return self._lookup[0]

    def extents(self) -> list[tuple[int, int]]:
        """The tight bounding box of all indices: (from, to) along each dimension."""
        return bounding_box(self.index) if len(self) else [(0, 0)] * self.ndim

    def get(self, coordinates: Sequence[int]) -> ChunkRef | None:
        """The reference of one chunk, or None."""
        check_ndim(coordinates, self.ndim)
        row = self.lookup.find(coordinates)
        return None if row < 0 else self.row(row)

    def kind_at(self, coordinates: Sequence[int]) -> int:
        """The `ChunkKind` of one chunk; 0 if there is none."""
        check_ndim(coordinates, self.ndim)
        row = self.lookup.find(coordinates)
        return 0 if row < 0 else int(self.kind[row])

    def row(self, row: int) -> ChunkRef:
        """One row as a value."""
        kind = _KINDS[self.kind[row]]
        if kind is ChunkKind.INLINE:
            assert self.inline is not None
            data: bytes = self.inline[row]
            return ChunkRef(kind, 0, len(data), None, None, None, None, data)
        offset, length = int(self.offset[row]), int(self.length[row])
        if kind is ChunkKind.NATIVE:
            key = None if self.location is None else self.location.get(row)
            if key is not None:
                return ChunkRef(kind, offset, length, location=key)
            assert self.chunk_id is not None
            return ChunkRef(kind, offset, length, ChunkId(self.chunk_id[row].tobytes()))
        modified = 0 if self.last_modified is None else int(self.last_modified[row])
        return ChunkRef(
            kind,
            offset,
            length,
            location=None if self.location is None else self.location.get(row),
            etag=None if self.etag is None else self.etag.get(row),
            last_modified=modified or None,
        )

    def select(self, start: Sequence[int], stop: Sequence[int]) -> ChunkRefs:
        """The refs inside the half-open box [start, stop)."""
        rows = box_rows(self.index, start, stop)
        is_all = isinstance(rows, slice) and rows == slice(0, len(self))
        return self if is_all else self.take(rows)

    # -- combining

    def take(self, rows: Any) -> ChunkRefs:
        """Some rows, in the order given; keep them ascending. A slice shares the memory."""
        if isinstance(rows, np.ndarray) and len(rows) == len(self) and _are_all(rows):
            return self
        return ChunkRefs(
            self.index[rows],
            self.kind[rows],
            self.offset[rows],
            self.length[rows],
            None if self.chunk_id is None else self.chunk_id[rows],
            None if self.location is None else self.location.take(rows),
            None if self.etag is None else self.etag.take(rows),
            None if self.last_modified is None else self.last_modified[rows],
            _take_binary(self.inline, rows),
            _take_binary(self.extra, rows),
        )

    def relabelled(self, index: Index) -> ChunkRefs:
        """The same references under other indices; of equal ones the last counts."""
        return replace(self, index=index, _lookup=[])._sorted()

    def merge(self, edits: ChunkRefs, deleted: Index | None = None) -> ChunkRefs:
        """This table with `edits` laid over it and the `deleted` indices gone.

        An index in both is kept: the edit came after the deletion.
        """
        return ChunkRefs.overlay([(self, None), (edits, deleted)], self.ndim)[0]

    @staticmethod
    def overlay(layers: Sequence[Layer], ndim: int) -> tuple[ChunkRefs, Index]:
        """Many tables laid over each other at once, later ones on top.

        Each layer first deletes indices, then sets references. Returns the references that
        remain, and the indices deleted and not set again; both ascend.
        """
        tables = [refs for refs, _ in layers if len(refs)]
        gone = [deleted for _, deleted in layers if deleted is not None and len(deleted)]
        none = np.empty((0, ndim), np.uint32)
        if not tables:
            deleted = np.concatenate(gone) if gone else none
            return ChunkRefs.empty(ndim), deleted[sort_rows(deleted)]
        if not gone and follow_each_other([table.index for table in tables]):
            return ChunkRefs.concat(tables), none
        (base, earlier), rest = layers[0], layers[1:]
        if (earlier is None or not len(earlier)) and _count(rest) <= small.EDITS_SHARE * len(base):
            edits, deleted = ChunkRefs.overlay(rest, ndim)
            return ChunkRefs.concat([base, edits], _pieces(base, edits, deleted)), deleted
        matrices, is_deletion = [], []
        for refs, earlier in layers:
            for part, flag in ((none if earlier is None else earlier, True), (refs.index, False)):
                if len(part):
                    matrices.append(part)
                    is_deletion.append(np.full(len(part), flag))
        index = np.concatenate(matrices)
        last = sort_rows(index)
        is_gone = np.concatenate(is_deletion)
        row_of_ref = np.cumsum(~is_gone) - 1
        kept = last[~is_gone[last]]
        merged = ChunkRefs.concat(tables)
        if len(kept) != len(merged) or not bool((kept[1:] > kept[:-1]).all()):
            merged = merged.take(row_of_ref[kept])
        return merged, index[last[is_gone[last]]]

    @staticmethod
    def joined(tables: Iterable[ChunkRefs | None], ndim: int) -> ChunkRefs:
        """The references of an array's manifests. The first manifest that has a chunk wins.

        Tables of another rank were written before the rank of the array changed; they are left out.
        """
        parts = [refs for refs in tables if refs is not None and refs.ndim == ndim and len(refs)]
        apart = sorted(parts, key=lambda refs: refs.index[0].tolist())
        if parts and follow_each_other([refs.index for refs in apart]):
            return ChunkRefs.concat(apart)
        return ChunkRefs.overlay([(refs, None) for refs in reversed(parts)], ndim)[0]

    @staticmethod
    def concat(tables: Sequence[ChunkRefs], pieces: Pieces | None = None) -> ChunkRefs:
        """All rows, one table's after another's, or pieces of the tables, in the order given.

        The caller restores the order.
        """
        if pieces is None:
            if len(tables) == 1:
                return tables[0]
            pieces = [(number, slice(None)) for number in range(len(tables))]
        return ChunkRefs(
            _join([table.index for table in tables], pieces),
            _join([table.kind for table in tables], pieces),
            _join([table.offset for table in tables], pieces),
            _join([table.length for table in tables], pieces),
            _concat_optional(tables, "chunk_id", pieces, _no_ids),
            _concat_coded(tables, "location", pieces),
            _concat_coded(tables, "etag", pieces),
            _concat_optional(tables, "last_modified", pieces, partial(np.zeros, dtype=np.uint32)),
            _concat_optional(tables, "inline", pieces, BlobColumn.nulls),
            _concat_optional(tables, "extra", pieces, BlobColumn.nulls),
        )

    def _checked(self) -> ChunkRefs:
        is_virtual = self.kind == ChunkKind.VIRTUAL
        codes = None if self.location is None else self.location.codes
        lacking = is_virtual if codes is None else is_virtual & (codes < 0)
        if bool(lacking.any()):
            row = int(np.flatnonzero(lacking)[0])
            raise InvalidInputError(
                f"virtual chunk {tuple(self.index[row].tolist())} has no location",
                ErrorKind.INVALID_VIRTUAL_REF,
            )
        return self

    def _sorted(self) -> ChunkRefs:
        if len(self) < 2 or is_strictly_ascending(self.index):
            return self
        return self.take(sort_rows(self.index))

    # -- holding on to

    @property
    def nbytes(self) -> int:
        """Bytes of memory the columns take, with the keys that the first lookup makes."""
        total = 8 * len(self)
        columns = (self.index, self.kind, self.offset, self.length, self.chunk_id)
        for column in (*columns, self.last_modified, self.inline, self.extra):
            total += 0 if column is None else column.nbytes
        for text in (self.location, self.etag):
            total += 0 if text is None else text.nbytes
        return total

    def compact(self) -> ChunkRefs:
        """The same references in memory of their own, with no text that no row has.

        A slice keeps the whole table it was cut from alive; this does not.
        """
        columns = (self.index, self.kind, self.offset, self.length, self.chunk_id)
        is_slice = any(column is not None and column.base is not None for column in columns)
        refs = self.take(np.ones(len(self), np.bool_)) if is_slice else self
        if refs.location is None and refs.etag is None:
            return refs
        return replace(
            refs,
            location=None if refs.location is None else refs.location.compact(),
            etag=None if refs.etag is None else refs.etag.compact(),
        )

    # -- comparing and exchanging

    def equals(self, other: ChunkRefs) -> bool:
        """Same references; distinct values may be numbered differently."""
        return self.index.shape == other.index.shape and self.to_arrow(plain=True).equals(
            other.to_arrow(plain=True)
        )

    def to_arrow(self, *, plain: bool = False) -> pa.Table:
        """The columns as an Arrow table; `plain` spells dictionaries out."""
        n = len(self)
        ids = self.chunk_id
        import pyarrow as pa

        id_column = pa.nulls(n, pa.binary(ChunkId.size))
        if ids is not None and n:
            has_id = self.kind == ChunkKind.NATIVE
            if self.location is not None:
                has_id &= self.location.codes < 0
            id_column = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(ChunkId.size),
                n,
                [_validity(has_id), pa.py_buffer(np.ascontiguousarray(ids))],
            )
        columns = {
            "index": index_to_arrow(self.index),
            "kind": numbers_to_arrow(self.kind),
            "chunk_id": id_column,
            "offset": numbers_to_arrow(self.offset),
            "length": numbers_to_arrow(self.length),
            "location": _text_to_arrow(self.location, n),
            "etag": _text_to_arrow(self.etag, n),
            "last_modified": pa.nulls(n, pa.uint32())
            if self.last_modified is None
            else numbers_to_arrow(self.last_modified, self.last_modified == 0),
            "inline": pa.nulls(n, pa.binary()) if self.inline is None else self.inline.to_arrow(),
            "extra": pa.nulls(n, pa.binary()) if self.extra is None else self.extra.to_arrow(),
        }
        if plain:
            for name in ("location", "etag"):
                columns[name] = columns[name].cast(pa.string())
        return pa.table(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as compressed columns."""
        return ChunkRefs.unpack, (self.pack(),)

    def pack(self) -> bytes:
        """The columns as one compressed Arrow stream, without those that are all null."""
        table = self.to_arrow()
        empty = [name for name in table.column_names if table[name].null_count == len(self)]
        return pack_table(table.drop_columns(empty) if len(self) else table)

    @classmethod
    def unpack(cls, data: bytes) -> ChunkRefs:
        """The references of `pack`."""
        return cls.from_arrow(unpack_table(data))

    @classmethod
    def from_arrow(cls, table: pa.Table) -> ChunkRefs:
        """Columns from a table such as `to_arrow` makes; rows may come in any order."""
        column = {name: table[name].combine_chunks() for name in table.column_names}
        index = index_from_arrow(column["index"])
        kind = numbers_from_arrow(column["kind"]).astype(np.uint8, copy=False)
        ids = None
        if "chunk_id" in column and column["chunk_id"].null_count < table.num_rows:
            filled = column["chunk_id"].fill_null(bytes(ChunkId.size))
            raw = np.frombuffer(filled.buffers()[1], np.uint8)[filled.offset * ChunkId.size :]
            ids = raw[: table.num_rows * ChunkId.size].reshape(-1, ChunkId.size)
        modified = None
        if "last_modified" in column and column["last_modified"].null_count < table.num_rows:
            modified = numbers_from_arrow(column["last_modified"].fill_null(0)).astype(np.uint32)
        return (
            cls(
                index,
                kind,
                numbers_from_arrow(column["offset"]).astype(np.uint64, copy=False),
                numbers_from_arrow(column["length"]).astype(np.uint64, copy=False),
                ids,
                locations.Coded.from_arrow(column["location"]) if "location" in column else None,
                locations.Coded.from_arrow(column["etag"]) if "etag" in column else None,
                modified,
                _binary_or_none(column.get("inline")),
                _binary_or_none(column.get("extra")),
            )
            ._checked()
            ._sorted()
        )


def _are_all(rows: NDArray[Any]) -> bool:
    return rows.dtype != np.bool_ and bool((rows == np.arange(len(rows))).all())


Layer = tuple[ChunkRefs, Index | None]
"""References set, and indices deleted before that."""

Pieces = Sequence[tuple[int, slice]]
"""The number of a table, and rows of it."""


def _count(layers: Sequence[Layer]) -> int:
    return sum(len(refs) + (0 if deleted is None else len(deleted)) for refs, deleted in layers)


def _pieces(base: ChunkRefs, edits: ChunkRefs, deleted: Index) -> Pieces:
    """The rows of `base` that neither few edits nor few deletions touch, and the edits between."""
    touched = [(place, row) for row, place in enumerate(edits.index.tolist())]
    touched += [(place, -1) for place in deleted.tolist()]
    pieces: list[tuple[int, slice]] = []
    done = 0
    for place, row in sorted(touched):
        at = bisect_left(range(len(base)), place, done, key=lambda at: base.index[at].tolist())
        pieces.append((0, slice(done, at)))
        if row >= 0:
            pieces.append((1, slice(row, row + 1)))
        done = at + (at < len(base) and base.index[at].tolist() == place)
    return [*pieces, (0, slice(done, len(base)))]


def _join(columns: Sequence[NDArray[Any]], pieces: Pieces) -> NDArray[Any]:
    return np.concatenate([columns[number][rows] for number, rows in pieces])


def _plain(
    cls: type[ChunkRefs], index: Any, kind: ChunkKind, offset: Any, length: Any
) -> ChunkRefs:
    matrix = whole_numbers("chunk indices", index, np.uint32)
    if matrix.ndim != 2:
        raise InvalidInputError(
            f"chunk indices have shape {matrix.shape}, expected one row per chunk and one column "
            "per dimension",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    n = len(matrix)

    def column(name: str, values: Any) -> NDArray[np.uint64]:
        given = whole_numbers(name, values, np.uint64)
        if given.ndim:
            check_length(name, len(given), n)
        return given if given.shape == (n,) else np.broadcast_to(given, (n,))

    kinds = np.full(n, kind, np.uint8)
    return cls(matrix, kinds, column("offsets", offset), column("lengths", length))


def _concat_coded(tables: Sequence[ChunkRefs], name: str, pieces: Pieces) -> Coded | None:
    columns: list[Coded | None] = [getattr(table, name) for table in tables]
    there = [column for column in columns if column is not None]
    if not there:
        return None
    codes, first = [], 0
    for table, column in zip(tables, columns, strict=True):
        if column is None:
            codes.append(np.full(len(table), -1, np.int32))
            continue
        shifted = column.codes
        if first:
            shifted = np.where(shifted < 0, -1, shifted + first).astype(np.int32)
        codes.append(shifted)
        first += len(column.values)
    values = locations.Locations.concat([column.values for column in there])
    return locations.Coded(_join(codes, pieces), values)


def _concat_optional(
    tables: Sequence[ChunkRefs], name: str, pieces: Pieces, blank: Callable[[int], Any]
) -> Any:
    """A column that some tables may lack: they get `blank` of their length."""
    columns = [getattr(table, name) for table in tables]
    if all(column is None for column in columns):
        return None
    filled = [
        blank(len(table)) if column is None else column
        for table, column in zip(tables, columns, strict=True)
    ]
    join = BlobColumn.concat if isinstance(filled[0], BlobColumn) else np.concatenate
    return join([filled[number][rows] for number, rows in pieces])


def _no_ids(count: int) -> Bytes:
    return np.zeros((count, ChunkId.size), np.uint8)


def _take_binary(column: BlobColumn | None, rows: Any) -> BlobColumn | None:
    if column is None:
        return None
    if isinstance(rows, slice):
        part: BlobColumn = column[rows]
        return part
    rows = np.asarray(rows)
    return column.take(np.flatnonzero(rows) if rows.dtype == np.bool_ else rows)


def _binary_or_none(column: pa.Array | None) -> BlobColumn | None:
    if column is None or column.null_count == len(column):
        return None
    import pyarrow as pa

    return BlobColumn.from_arrow(column.cast(pa.binary()))


def _text_to_arrow(column: Coded | None, count: int) -> pa.Array:
    if column is None:
        import pyarrow as pa

        kind = pa.dictionary(pa.int32(), pa.string())
        return pa.nulls(count, kind)
    return column.to_arrow()


def _validity(is_there: NDArray[np.bool_]) -> pa.Buffer | None:
    if is_there.all():
        return None
    import pyarrow as pa

    return pa.py_buffer(np.packbits(is_there, bitorder="little"))


def check_ndim(coordinates: Sequence[int], ndim: int) -> None:
    """Refuse to look for a chunk of another kind of array."""
    if len(coordinates) != ndim:
        raise InvalidInputError(
            f"chunk index {tuple(coordinates)} has {len(coordinates)} dimensions, "
            f"the array has {ndim}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
