"""The snapshots a repo object lists, as columns: ten thousand commits cost no ten thousand objects.

Metadata values stay encoded until a snapshot is looked at; in the repo object they are always
flexbuffers, also for snapshots whose own file is of version 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import flexbuffers
from icefloe.format.columns import BlobColumn, Bytes, Ints, find_id, id_rows, parts_of, spread
from icefloe.format.flatbuffer import write as flat_write
from icefloe.format.flatbuffer.read import Rows
from icefloe.format.flatbuffer.schema import METADATA_ITEM, SNAPSHOT_INFO
from icefloe.format.metadata import (
    encode_metadata,
    write_item_vector,
    write_items,
)
from icefloe.ids import SnapshotId

if TYPE_CHECKING:
    from icefloe.format.flatbuffer.write import FlatWriter, TableWriter
    from icefloe.format.snapshot import Snapshot


_METADATA_VERSION = 2


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What the repo object knows of one snapshot. `flushed_at` is in microseconds."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()

    @classmethod
    def of(
        cls,
        one: Snapshot,
        parent_id: SnapshotId | None = None,
        pruned: tuple[SnapshotId, ...] = (),
    ) -> SnapshotInfo:
        """What is known of a snapshot, whose file names its parent only in version 1."""
        parent = parent_id or one.parent_id
        return cls(one.id, parent, one.flushed_at, one.message, one.metadata, pruned)


class _Encoded(NamedTuple):
    """Snapshots as a file holds them. Offsets are relative, so that the data can be put anywhere.

    Parents are row numbers, which change with every row that is added. They are filled in last.
    """

    data: Bytes
    position: Ints
    """Of each row, from the start of `data`."""
    parent_at: Ints
    """Where the parent of each row belongs."""

    @classmethod
    def of_table(cls, table: SnapshotTable) -> _Encoded:
        writer = flat_write.FlatWriter(has_head=False)
        tables = _add_rows(writer, table)
        data = np.frombuffer(writer.joined(), np.uint8)
        return cls(data, tables.position, tables.position + tables.place("parent_offset"))

    def with_row(self, at: int, info: SnapshotInfo, items: Mapping[str, bytes]) -> _Encoded:
        """With one more row, which is row `at` and lies behind all others."""
        writer = flat_write.FlatWriter(has_head=False)
        pruned = info.pruned_ancestor_tx_logs
        fields = ("id", "parent_offset", "flushed_at", "message", "metadata")
        row = writer.table(
            SNAPSHOT_INFO, (*fields, "pruned_ancestor_tx_logs") if pruned else fields
        )
        row.set("id", info.id)
        row.set("flushed_at", info.flushed_at)
        row.point("message", writer.text(info.message))
        row.point("metadata", write_item_vector(writer, items))
        if pruned:
            row.point("pruned_ancestor_tx_logs", writer.structs(b"".join(pruned), len(pruned)))
        added = writer.joined()
        position = len(self.data) + row.position
        return _Encoded(
            np.concatenate((self.data, np.frombuffer(added, np.uint8))),
            _insert(self.position, at, position),
            _insert(self.parent_at, at, position + row.place("parent_offset")),
        )


class SnapshotColumns(NamedTuple):
    """What is known of snapshots besides their ids and parents, in the order of the ids."""

    flushed_at: NDArray[np.uint64]
    message: BlobColumn
    num_metadata: Ints
    metadata_name: BlobColumn
    metadata_value: BlobColumn
    num_pruned: Ints
    pruned_id: Bytes


class SnapshotTable(Mapping[SnapshotId, SnapshotInfo], ABC):
    """All snapshots, ascending by id: `ListedSnapshots`, or with rows added `PendingSnapshots`."""

    def __init__(
        self, ids: Bytes, parent: NDArray[np.int32], encoded: _Encoded | None = None
    ) -> None:
        """`parent` holds row numbers, -1 for none."""
        self.id = ids
        self.parent = parent
        self._encoded = encoded
        """All rows, once they were written: the next commit adds one and writes them again."""

    @property
    @abstractmethod
    def columns(self) -> SnapshotColumns:
        """The other columns."""

    @abstractmethod
    def _with_row(self, row: _NewRow) -> tuple[ListedSnapshots, tuple[_NewRow, ...]]:
        """A table, and the rows that go to it, this one the last."""

    def __len__(self) -> int:
        return len(self.id)

    def __iter__(self) -> Iterator[SnapshotId]:
        return (SnapshotId(row.tobytes()) for row in self.id)

    def __getitem__(self, key: SnapshotId) -> SnapshotInfo:
        return self.info(self.row(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.find(key) >= 0

    def find(self, key: bytes) -> int:
        """The row of a snapshot, -1 when it is not listed."""
        return find_id(self.id, key)

    def row(self, key: bytes) -> int:
        """The row of a snapshot; KeyError when it is not listed."""
        row = self.find(key)
        if row < 0:
            raise KeyError(key)
        return row

    def info(self, row: int) -> SnapshotInfo:
        """One row as a value, metadata decoded."""
        parent = int(self.parent[row])
        return SnapshotInfo(
            SnapshotId(self.id[row].tobytes()),
            None if parent < 0 else SnapshotId(self.id[parent].tobytes()),
            int(self.columns.flushed_at[row]),
            self.columns.message[row],
            self._metadata_of(row),
            self._pruned_ids(row) if self.columns.num_pruned[row] else (),
        )

    def infos(self, rows: Ints) -> list[SnapshotInfo]:
        """Many rows as values, in the order given."""
        parent = self.parent[rows]
        parents = SnapshotId.of_rows(self.id[parent])
        return list(
            map(
                SnapshotInfo,
                SnapshotId.of_rows(self.id[rows]),
                [
                    found if at >= 0 else None
                    for at, found in zip(parent.tolist(), parents, strict=True)
                ],
                self.columns.flushed_at[rows].tolist(),
                self.columns.message.take(rows).to_list(),
                self.metadata(rows),
                self.pruned(rows),
            )
        )

    def metadata(self, rows: Any) -> list[dict[str, Any]]:
        """The metadata of some rows, decoded."""
        items = parts_of(self.columns.num_metadata, rows)
        if not len(items):
            return [{} for _ in range(len(rows))]
        name, raw = self.columns.metadata_name.take(items), self.columns.metadata_value.take(items)
        try:
            values = flexbuffers.decode_many(raw)
        except FormatError:
            for row in rows:
                self._metadata_of(row)  # says which it is
            raise
        counts = self.columns.num_metadata[rows].tolist()
        names = _shared_names(name, counts[0]) if min(counts) == max(counts) else None
        if names is not None:
            columns = [values[at :: len(names)] for at in range(len(names))]
            return flexbuffers.dicts(names, columns)
        pairs = zip(name.to_list(), values, strict=True)
        return [dict(islice(pairs, count)) if count else {} for count in counts]

    def _metadata_of(self, row: int) -> dict[str, Any]:
        """The metadata of one row, decoded."""
        first, found = int(self._first_item[row]), {}
        for item in range(first, first + int(self.columns.num_metadata[row])):
            name = self.columns.metadata_name[item]
            try:
                found[name] = flexbuffers.decode(self.columns.metadata_value[item])
            except FormatError as error:
                raise self._unreadable(row, name, error) from None
        return found

    @cached_property
    def _first_item(self) -> Ints:
        """The first item of metadata of each row."""
        return np.cumsum(self.columns.num_metadata) - self.columns.num_metadata

    def _unreadable(self, row: int, name: str, error: FormatError) -> FormatError:
        key = SnapshotId(self.id[row].tobytes())
        return FormatError(f"snapshot {key}: metadata {name!r}: {error.message}", error.kind)

    def ancestry(self, key: bytes) -> Iterator[SnapshotId]:
        """The snapshot and its ancestors, newest first."""
        row = self.row(key)
        while row >= 0:
            yield SnapshotId(self.id[row].tobytes())
            row = int(self.parent[row])

    def line(self, key: bytes) -> Ints:
        """Rows of the snapshot and its ancestors, newest first."""
        rows, parent = [self.row(key)], self.parent.tolist()
        while (row := parent[rows[-1]]) >= 0:
            rows.append(row)
        return np.array(rows, np.int64)

    def lines(self, rows: Iterable[int]) -> Ints:
        """These rows and those of all their ancestors, ascending."""
        seen = [False] * len(self)
        parent = self.parent.tolist()
        for start in rows:
            row = start
            while row >= 0 and not seen[row]:
                seen[row] = True
                row = parent[row]
        return np.flatnonzero(seen)

    def with_snapshot(self, info: SnapshotInfo) -> SnapshotTable:
        """A table with one more snapshot, whose parent must be listed already."""
        if not len(self):
            return SnapshotTable.from_infos([replace(info, parent_id=None)])
        keys = np.ascontiguousarray(self.id).view("S12").reshape(-1)
        at = int(keys.searchsorted(info.id))
        if at < len(self) and self.id[at].tobytes() == info.id:
            raise FormatError(
                f"snapshot {info.id} is listed already", ErrorKind.DUPLICATE_SNAPSHOT_ID
            )
        parent = -1 if info.parent_id is None else self.find(info.parent_id)
        if info.parent_id is not None and parent < 0:
            raise FormatError(
                f"snapshot {info.id} has a parent that is not listed: {info.parent_id}",
                ErrorKind.SERIALIZATION,
            )
        parents = _insert(self.parent, at, parent)
        parents[parents >= at] += 1  # every row from here on has moved back by one
        items = encode_metadata(info.metadata, _METADATA_VERSION)
        return PendingSnapshots(
            np.concatenate((self.id[:at], _ids([info.id]), self.id[at:])),
            parents,
            None if self._encoded is None else self._encoded.with_row(at, info, items),
            *self._with_row(_NewRow(info, items)),
        )

    def encoded(self) -> _Encoded:
        """All rows as a file holds them."""
        if self._encoded is None:
            self._encoded = _Encoded.of_table(self)
        return self._encoded

    def take(self, rows: Ints) -> SnapshotTable:
        """Some rows in a new order. Every parent of a row taken has to be among them."""
        number = np.full(len(self) + 1, -1, np.int32)
        number[rows] = np.arange(len(rows), dtype=np.int32)
        parent = number[self.parent[rows]]  # -1 reads the spare last entry
        if bool((parent[self.parent[rows] >= 0] < 0).any()):
            raise FormatError("a snapshot would lose its parent", ErrorKind.SERIALIZATION)
        return ListedSnapshots(self.id[rows], parent, _taken(self.columns, rows))

    def with_parents(
        self, parents: Mapping[int, int], pruned: Mapping[int, Sequence[bytes]]
    ) -> SnapshotTable:
        """Some rows with other parents (row numbers) and other lists of pruned logs."""
        parent, counts = self.parent.copy(), self.columns.num_pruned.copy()
        parent[list(parents)] = list(parents.values())
        counts[list(pruned)] = [len(ids) for ids in pruned.values()]
        kept = np.ones(len(self), np.bool_)
        kept[list(pruned)] = False
        pruned_id = np.zeros((int(counts.sum()), SnapshotId.size), np.uint8)
        unchanged = np.flatnonzero(kept)
        pruned_id[parts_of(counts, unchanged)] = self.columns.pruned_id[
            parts_of(self.columns.num_pruned, unchanged)
        ]
        for row, ids in pruned.items():
            pruned_id[parts_of(counts, np.array([row]))] = _ids(ids)
        columns = self.columns._replace(num_pruned=counts, pruned_id=pruned_id)
        return ListedSnapshots(self.id, parent, columns)

    def with_metadata(self, changed: Mapping[int, Mapping[str, Any]]) -> SnapshotTable:
        """Some rows with other metadata; all others stay as they are encoded."""
        if not changed:
            return self
        items = [encode_metadata(values, _METADATA_VERSION) for values in changed.values()]
        new = np.array([len(each) for each in items], np.int64)
        counts, first = self.columns.num_metadata.copy(), self._first_item.copy()
        counts[list(changed)] = new
        first[list(changed)] = int(self.columns.num_metadata.sum()) + np.cumsum(new) - new
        rows = spread(first, counts, 1)
        names = BlobColumn.from_values([name for each in items for name in each], is_text=True)
        values = BlobColumn.from_values([value for each in items for value in each.values()])
        columns = self.columns._replace(
            num_metadata=counts,
            metadata_name=BlobColumn.concat([self.columns.metadata_name, names]).take(rows),
            metadata_value=BlobColumn.concat([self.columns.metadata_value, values]).take(rows),
        )
        return ListedSnapshots(self.id, self.parent, columns)

    def pruned(self, rows: Ints) -> list[tuple[SnapshotId, ...]]:
        """The pruned logs of many rows."""
        found: list[tuple[SnapshotId, ...]] = [()] * len(rows)
        for at in np.flatnonzero(self.columns.num_pruned[rows]).tolist():
            found[at] = self._pruned_ids(int(rows[at]))
        return found

    def _pruned_ids(self, row: int) -> tuple[SnapshotId, ...]:
        return tuple(SnapshotId.of_rows(self.pruned_of(row)))

    def pruned_of(self, row: int) -> Bytes:
        """The pruned logs of one row, oldest first."""
        return self.columns.pruned_id[parts_of(self.columns.num_pruned, np.array([row]))]

    @staticmethod
    def from_infos(infos: Iterable[SnapshotInfo]) -> SnapshotTable:
        """These snapshots, sorted by id; parents must be among them."""
        ordered = sorted(infos, key=lambda info: info.id)
        number = {info.id: row for row, info in enumerate(ordered)}
        if len(number) != len(ordered):
            raise FormatError("a snapshot is listed twice", ErrorKind.DUPLICATE_SNAPSHOT_ID)
        parents = [-1 if info.parent_id is None else number[info.parent_id] for info in ordered]
        rows = [
            _NewRow(info, encode_metadata(info.metadata, _METADATA_VERSION)) for info in ordered
        ]
        ids = _ids([info.id for info in ordered])
        return ListedSnapshots(ids, np.array(parents, np.int32), _columns_of(rows))

    def equals(self, other: SnapshotTable) -> bool:
        """Same snapshots."""
        return dict(self) == dict(other)


class _NewRow(NamedTuple):
    """A snapshot and its encoded metadata."""

    info: SnapshotInfo
    items: Mapping[str, bytes]


class ListedSnapshots(SnapshotTable):
    """Snapshots whose columns are there."""

    def __init__(self, ids: Bytes, parent: NDArray[np.int32], columns: SnapshotColumns) -> None:
        super().__init__(ids, parent)
        self._columns = columns

    @property
    def columns(self) -> SnapshotColumns:
        """The other columns."""
        return self._columns

    def _with_row(self, row: _NewRow) -> tuple[ListedSnapshots, tuple[_NewRow, ...]]:
        return self, (row,)


class PendingSnapshots(SnapshotTable):
    """A table and the rows that commits have added to it. A commit looks at no more than ids and
    parents: the other columns are built on first access, for several commits at once."""

    def __init__(
        self,
        ids: Bytes,
        parent: NDArray[np.int32],
        encoded: _Encoded | None,
        table: ListedSnapshots,
        added: tuple[_NewRow, ...],
    ) -> None:
        super().__init__(ids, parent, encoded)
        self._table = table
        self._added = added

    @cached_property
    def columns(self) -> SnapshotColumns:
        """The other columns."""
        both = zip(self._table.columns, _columns_of(self._added), strict=True)
        joined = SnapshotColumns(*(_concatenated(old, new) for old, new in both))
        ids = np.concatenate((self._table.id, _ids(row.info.id for row in self._added)))
        return _taken(joined, np.argsort(ids.view("S12").reshape(-1), kind="stable"))

    def _with_row(self, row: _NewRow) -> tuple[ListedSnapshots, tuple[_NewRow, ...]]:
        if len(self._added) < _PENDING_ROWS:
            return self._table, (*self._added, row)
        return ListedSnapshots(self.id, self.parent, self.columns), (row,)


_PENDING_ROWS = 64
"""Rows that are merged at once."""


def _columns_of(rows: Sequence[_NewRow]) -> SnapshotColumns:
    """The columns of these snapshots."""
    infos = [row.info for row in rows]
    names = [name for row in rows for name in row.items]
    values = [value for row in rows for value in row.items.values()]
    return SnapshotColumns(
        np.array([info.flushed_at for info in infos], np.uint64),
        BlobColumn.from_values([info.message for info in infos], is_text=True),
        np.array([len(row.items) for row in rows], np.int64),
        BlobColumn.from_values(names, is_text=True),
        BlobColumn.from_values(values),
        np.array([len(info.pruned_ancestor_tx_logs) for info in infos], np.int64),
        _ids(each for info in infos for each in info.pruned_ancestor_tx_logs),
    )


def _concatenated(old: Any, new: Any) -> Any:
    """Two parts of one column."""
    join = BlobColumn.concat if isinstance(old, BlobColumn) else np.concatenate
    return join([old, new])


def _taken(columns: SnapshotColumns, rows: Ints) -> SnapshotColumns:
    """Some rows, in the order given."""
    metadata = parts_of(columns.num_metadata, rows)
    return SnapshotColumns(
        columns.flushed_at[rows],
        columns.message.take(rows),
        columns.num_metadata[rows],
        columns.metadata_name.take(metadata),
        columns.metadata_value.take(metadata),
        columns.num_pruned[rows],
        columns.pruned_id[parts_of(columns.num_pruned, rows)],
    )


def _shared_names(name: BlobColumn, count: int) -> list[str] | None:
    """The names that every `count` rows have, if they are the same."""
    length = name.length.reshape(-1, count)
    if not bool((length == length[0]).all()):
        return None
    data = name.data[name.offsets[0] : name.offsets[-1]].reshape(len(length), length[0].sum())
    return name[:count].to_list() if bool((data == data[0]).all()) else None


def decode_snapshot_table(rows: Rows) -> SnapshotTable:
    """Read the repo object's list of snapshots, and check that it is a forest sorted by id."""
    buffer = rows.buffer
    ids = rows.struct("id")
    keys = ids.view("S12").reshape(-1)
    if not bool((keys[1:] > keys[:-1]).all()):
        buffer.fail("snapshots do not ascend by id")
    parent = rows.scalar("parent_offset")
    if bool(((parent < -1) | (parent >= len(rows))).any()):
        buffer.fail(f"SnapshotInfo.parent_offset lies outside the {len(rows):,} snapshots")
    if _has_cycle(parent):
        buffer.fail("a snapshot is its own ancestor")
    items, num_items = rows.nested("metadata", METADATA_ITEM)
    pruned, num_pruned = rows.structs("pruned_ancestor_tx_logs", np.dtype("V12"))
    columns = SnapshotColumns(
        rows.scalar("flushed_at"),
        rows.strings("message"),
        num_items,
        items.strings("name"),
        items.blobs("value"),
        num_pruned,
        pruned.view(np.uint8).reshape(-1, SnapshotId.size),
    )
    return ListedSnapshots(ids, parent, columns)


def add_snapshot_table(writer: FlatWriter, table: SnapshotTable) -> int:
    """Place the list of snapshots; returns the position of its vector."""
    vector = writer.offsets(len(table))
    encoded = table.encoded()
    data = encoded.data.copy()
    data.view("<i4")[encoded.parent_at >> 2] = table.parent
    vector.point(writer.add(data, align=8) + encoded.position)
    return vector.position


def _add_rows(writer: FlatWriter, table: SnapshotTable) -> TableWriter:
    """Place all snapshots, without their parents."""
    columns = table.columns
    required = dict.fromkeys(("id", "parent_offset", "flushed_at", "message", "metadata"))
    tables = writer.tables(
        SNAPSHOT_INFO, len(table), {**required, "pruned_ancestor_tx_logs": columns.num_pruned > 0}
    )
    tables.set("id", table.id)
    tables.set("flushed_at", columns.flushed_at)
    tables.point("message", writer.blobs(columns.message))
    metadata = writer.nested_offsets(columns.num_metadata)
    tables.point("metadata", metadata.position)
    metadata.point(write_items(writer, columns.metadata_name, columns.metadata_value))
    if len(columns.pruned_id):
        raw = np.ascontiguousarray(columns.pruned_id).view("V12").reshape(-1)
        tables.point("pruned_ancestor_tx_logs", writer.vectors(raw, columns.num_pruned))
    return tables


def _has_cycle(parent: NDArray[np.int32]) -> bool:
    """Follow all parents at once, twice as far each round: only a cycle never ends."""
    ahead = np.append(parent, np.int32(-1))
    reach = 1
    while reach <= len(parent):
        ahead = ahead[ahead]
        reach *= 2
    return bool((ahead >= 0).any())


def _ids(ids: Iterable[bytes]) -> Bytes:
    return id_rows(ids, SnapshotId.size)


def _insert(column: NDArray[Any], at: int, value: int) -> NDArray[Any]:
    return np.concatenate((column[:at], np.array([value], column.dtype), column[at:]))
