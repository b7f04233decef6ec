"""The snapshots a repo object lists, as columns: ten thousand commits cost no ten thousand objects.

Metadata values stay encoded until a snapshot is looked at; in the repo object they are always
flexbuffers, also for snapshots whose own file is of version 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints, find_id, spread
from icefloe.format.flatbuffer.read import Rows
from icefloe.format.flatbuffer.schema import METADATA_ITEM, SNAPSHOT_INFO
from icefloe.format.flatbuffer.segments import contiguous
from icefloe.format.metadata.items import encode_metadata, write_item_vector, write_items
from icefloe.format.metadata.values import decode_flexbuffer, decode_flexbuffers
from icefloe.ids import SnapshotId
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple, filled, record

if TYPE_CHECKING:
    from icefloe.format.flatbuffer import write as flat_write
    from icefloe.format.flatbuffer.write import FewTables, FlatWriter, TableWriter
    from icefloe.format.metadata import flexbuffer_columns
else:
    flat_write = on_demand("icefloe.format.flatbuffer.write")
    flexbuffer_columns = on_demand("icefloe.format.metadata.flexbuffer_columns")

_METADATA_VERSION = 2


@record(frozen=True)
class SnapshotInfo:
    """What the repo object knows of one snapshot. `flushed_at` is in microseconds."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()


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
        data = np.frombuffer(b"".join(contiguous(writer.segments())), np.uint8)
        position = np.array(tables.position, np.int64)
        return cls(data, position, position + np.array(tables.place("parent_offset"), np.int64))

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
        added = b"".join(contiguous(writer.segments()))
        position = len(self.data) + row.position
        return _Encoded(
            np.concatenate((self.data, np.frombuffer(added, np.uint8))),
            _insert(self.position, at, position),
            _insert(self.parent_at, at, position + row.place("parent_offset")),
        )


@record(frozen=True, eq=False)
class SnapshotTable(Mapping[SnapshotId, SnapshotInfo]):
    """Columns of all snapshots, ascending by id; `parent` holds row numbers, -1 for none."""

    id: Bytes
    parent: NDArray[np.int32]
    flushed_at: NDArray[np.uint64]
    message: BlobColumn
    num_metadata: Ints
    metadata_name: BlobColumn
    metadata_value: BlobColumn
    num_pruned: Ints
    pruned_id: Bytes
    _encoded: list[_Encoded] = field(default_factory=list, init=False, repr=False)
    """All rows, once they were written: the next commit adds one and writes them again."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A commit adds a row and looks at no more than ids and parents. The other columns are
            made when they are asked for, for several commits at once."""
            if name not in _MADE_LATER:
                raise AttributeError(f"a SnapshotTable has no {name!r}")
            waiting = self.__dict__.get("_waiting")
            if waiting is not None:  # else another thread was faster
                self.__dict__.update(waiting.columns())
                self.__dict__.pop("_waiting", None)
            return self.__dict__[name]

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
            int(self.flushed_at[row]),
            self.message[row],
            self._metadata_of(row),
            self._pruned_ids(row) if self.num_pruned[row] else (),
        )

    def infos(self, rows: Ints) -> list[SnapshotInfo]:
        """Many rows as values, in the order given."""
        parent = self.parent[rows]
        parents = SnapshotId.of_rows(self.id[parent])
        columns = zip(
            SnapshotId.of_rows(self.id[rows]),
            [
                found if at >= 0 else None
                for at, found in zip(parent.tolist(), parents, strict=True)
            ],
            self.flushed_at[rows].tolist(),
            self.message.take(rows).to_list(),
            self.metadata(rows),
            self.pruned(rows),
            strict=True,
        )
        fields = [each.name for each in dataclasses.fields(SnapshotInfo)]
        return [filled(SnapshotInfo, dict(zip(fields, row, strict=True))) for row in columns]

    def metadata(self, rows: Any) -> list[dict[str, Any]]:
        """The metadata of some rows, decoded."""
        items = _rows_of(self.num_metadata, rows)
        if not len(items):
            return [{} for _ in rows]
        name, raw = self.metadata_name.take(items), self.metadata_value.take(items)
        try:
            values = decode_flexbuffers(raw)
        except FormatError:
            for row in rows:
                self._metadata_of(row)  # says which it is
            raise
        counts = self.num_metadata[rows].tolist()
        names = _shared_names(name, counts[0]) if min(counts) == max(counts) else None
        if names is not None:
            columns = [values[at :: len(names)] for at in range(len(names))]
            return flexbuffer_columns.dicts(names, columns)
        pairs = zip(name.to_list(), values, strict=True)
        return [dict(islice(pairs, count)) for count in counts]

    def _metadata_of(self, row: int) -> dict[str, Any]:
        """The metadata of one row, decoded."""
        first, found = int(self._first_item[row]), {}
        for item in range(first, first + int(self.num_metadata[row])):
            name = self.metadata_name[item]
            try:
                found[name] = decode_flexbuffer(self.metadata_value[item])
            except FormatError as error:
                raise self._unreadable(row, name, error) from None
        return found

    @cached_property
    def _first_item(self) -> Ints:
        """The first item of metadata of each row."""
        return np.cumsum(self.num_metadata) - self.num_metadata

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
        return filled(
            SnapshotTable,
            {
                "id": np.concatenate((self.id[:at], _ids([info.id]), self.id[at:])),
                "parent": parents,
                "_encoded": [one.with_row(at, info, items) for one in self._encoded],
                "_waiting": self._with_waiting(info, items),
            },
        )

    def _with_waiting(self, info: SnapshotInfo, items: Mapping[str, bytes]) -> _Waiting:
        table, added = self.__dict__.get("_waiting") or _Waiting(self, ())
        if len(added) >= _MOST_WAITING:
            _ = self.message  # makes the columns
            table, added = self, ()
        return _Waiting(table, (*added, (info, items)))

    def encoded(self) -> _Encoded:
        """All rows as a file holds them."""
        if not self._encoded:
            self._encoded.append(_Encoded.of_table(self))
        return self._encoded[0]

    def take(self, rows: Ints) -> SnapshotTable:
        """Some rows in a new order. Every parent of a row taken has to be among them."""
        number = np.full(len(self) + 1, -1, np.int32)
        number[rows] = np.arange(len(rows), dtype=np.int32)
        parent = number[self.parent[rows]]  # -1 reads the spare last entry
        if bool((parent[self.parent[rows] >= 0] < 0).any()):
            raise FormatError("a snapshot would lose its parent", ErrorKind.SERIALIZATION)
        metadata = _rows_of(self.num_metadata, rows)
        return SnapshotTable(
            self.id[rows],
            parent,
            self.flushed_at[rows],
            self.message.take(rows),
            self.num_metadata[rows],
            self.metadata_name.take(metadata),
            self.metadata_value.take(metadata),
            self.num_pruned[rows],
            self.pruned_id[_rows_of(self.num_pruned, rows)],
        )

    def with_parents(
        self, parents: Mapping[int, int], pruned: Mapping[int, Sequence[bytes]]
    ) -> SnapshotTable:
        """Some rows with other parents (row numbers) and other lists of pruned logs."""
        parent, counts = self.parent.copy(), self.num_pruned.copy()
        parent[list(parents)] = list(parents.values())
        counts[list(pruned)] = [len(ids) for ids in pruned.values()]
        kept = np.ones(len(self), np.bool_)
        kept[list(pruned)] = False
        pruned_id = np.zeros((int(counts.sum()), SnapshotId.size), np.uint8)
        unchanged = np.flatnonzero(kept)
        pruned_id[_rows_of(counts, unchanged)] = self.pruned_id[
            _rows_of(self.num_pruned, unchanged)
        ]
        for row, ids in pruned.items():
            pruned_id[_rows_of(counts, np.array([row]))] = _ids(ids)
        return replace(self, parent=parent, num_pruned=counts, pruned_id=pruned_id)

    def with_metadata(self, changed: Mapping[int, Mapping[str, Any]]) -> SnapshotTable:
        """Some rows with other metadata; all others stay as they are encoded."""
        if not changed:
            return self
        items = [encode_metadata(values, _METADATA_VERSION) for values in changed.values()]
        new = np.array([len(each) for each in items], np.int64)
        counts, first = self.num_metadata.copy(), self._first_item.copy()
        counts[list(changed)] = new
        first[list(changed)] = int(self.num_metadata.sum()) + np.cumsum(new) - new
        rows = spread(first, counts, 1)
        names = BlobColumn.from_values([name for each in items for name in each], is_text=True)
        values = BlobColumn.from_values([value for each in items for value in each.values()])
        return replace(
            self,
            num_metadata=counts,
            metadata_name=BlobColumn.concat([self.metadata_name, names]).take(rows),
            metadata_value=BlobColumn.concat([self.metadata_value, values]).take(rows),
        )

    def pruned(self, rows: Ints) -> list[tuple[SnapshotId, ...]]:
        """The pruned logs of many rows."""
        found: list[tuple[SnapshotId, ...]] = [()] * len(rows)
        for at in np.flatnonzero(self.num_pruned[rows]).tolist():
            found[at] = self._pruned_ids(int(rows[at]))
        return found

    def _pruned_ids(self, row: int) -> tuple[SnapshotId, ...]:
        return tuple(SnapshotId.of_rows(self.pruned_of(row)))

    def pruned_of(self, row: int) -> Bytes:
        """The pruned logs of one row, oldest first."""
        return self.pruned_id[_rows_of(self.num_pruned, np.array([row]))]

    @classmethod
    def from_infos(cls, infos: Iterable[SnapshotInfo]) -> SnapshotTable:
        """Columns of these snapshots, sorted by id; parents must be among them."""
        ordered = sorted(infos, key=lambda info: info.id)
        number = {info.id: row for row, info in enumerate(ordered)}
        if len(number) != len(ordered):
            raise FormatError("a snapshot is listed twice", ErrorKind.DUPLICATE_SNAPSHOT_ID)
        encoded = [encode_metadata(info.metadata, _METADATA_VERSION) for info in ordered]
        pruned = [item for info in ordered for item in info.pruned_ancestor_tx_logs]
        return cls(
            _ids([info.id for info in ordered]),
            np.array(
                [-1 if info.parent_id is None else number[info.parent_id] for info in ordered],
                np.int32,
            ),
            np.array([info.flushed_at for info in ordered], np.uint64),
            BlobColumn.from_values([info.message for info in ordered], is_text=True),
            np.array([len(items) for items in encoded], np.int64),
            BlobColumn.from_values([name for items in encoded for name in items], is_text=True),
            BlobColumn.from_values([value for items in encoded for value in items.values()]),
            np.array([len(info.pruned_ancestor_tx_logs) for info in ordered], np.int64),
            _ids(pruned),
        )

    def equals(self, other: SnapshotTable) -> bool:
        """Same snapshots."""
        return dict(self) == dict(other)


_MADE_LATER = frozenset(SnapshotTable.__match_args__) - {"id", "parent"}
_MOST_WAITING = 64


class _Waiting(NamedTuple):
    """Rows that were added to a table, with their encoded metadata."""

    table: SnapshotTable
    added: tuple[tuple[SnapshotInfo, Mapping[str, bytes]], ...]

    def columns(self) -> dict[str, Any]:
        """All columns but ids and parents, in the order of the ids."""
        table, infos = self.table, [info for info, _ in self.added]
        order = np.concatenate((table.id, _ids([info.id for info in infos]))).view("S12")
        order = np.argsort(order.reshape(-1), kind="stable")
        names = [name for _, items in self.added for name in items]
        values = [value for _, items in self.added for value in items.values()]
        num_metadata = [len(items) for _, items in self.added]
        pruned = [info.pruned_ancestor_tx_logs for info in infos]

        def numbers(column: NDArray[Any], added: Sequence[int]) -> NDArray[Any]:
            return np.concatenate((column, np.array(added, column.dtype)))

        def blobs(column: BlobColumn, added: Sequence[Any], rows: Ints) -> BlobColumn:
            new = BlobColumn.from_values(added, is_text=column.is_text)
            return BlobColumn.concat([column, new]).take(rows)

        all_metadata = numbers(table.num_metadata, num_metadata)
        all_pruned = numbers(table.num_pruned, [len(ids) for ids in pruned])
        metadata = _rows_of(all_metadata, order)
        pruned_id = np.concatenate((table.pruned_id, _ids(id_ for ids in pruned for id_ in ids)))
        return {
            "flushed_at": numbers(table.flushed_at, [info.flushed_at for info in infos])[order],
            "message": blobs(table.message, [info.message for info in infos], order),
            "num_metadata": all_metadata[order],
            "metadata_name": blobs(table.metadata_name, names, metadata),
            "metadata_value": blobs(table.metadata_value, values, metadata),
            "num_pruned": all_pruned[order],
            "pruned_id": pruned_id[_rows_of(all_pruned, order)],
        }


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
    return SnapshotTable(
        ids,
        parent,
        rows.scalar("flushed_at"),
        rows.strings("message"),
        num_items,
        items.strings("name"),
        items.blobs("value"),
        num_pruned,
        pruned.view(np.uint8).reshape(-1, SnapshotId.size),
    )


def add_snapshot_table(writer: FlatWriter, table: SnapshotTable) -> int:
    """Place the list of snapshots; returns the position of its vector."""
    vector = writer.offsets(len(table))
    encoded = table.encoded()
    data = encoded.data.copy()
    data.view("<i4")[encoded.parent_at >> 2] = table.parent
    vector.point(writer.add(data, align=8) + encoded.position)
    return vector.position


def _add_rows(writer: FlatWriter, table: SnapshotTable) -> TableWriter | FewTables:
    """Place all snapshots, without their parents."""
    required = dict.fromkeys(("id", "parent_offset", "flushed_at", "message", "metadata"))
    tables = writer.tables(
        SNAPSHOT_INFO, len(table), {**required, "pruned_ancestor_tx_logs": table.num_pruned > 0}
    )
    tables.set("id", table.id)
    tables.set("flushed_at", table.flushed_at)
    tables.point("message", writer.blobs(table.message))
    metadata = writer.nested_offsets(table.num_metadata)
    tables.point("metadata", metadata.position)
    metadata.point(write_items(writer, table.metadata_name, table.metadata_value))
    if len(table.pruned_id):
        raw = np.ascontiguousarray(table.pruned_id).view("V12").reshape(-1)
        tables.point("pruned_ancestor_tx_logs", writer.vectors(raw, table.num_pruned))
    return tables


def _has_cycle(parent: NDArray[np.int32]) -> bool:
    """Follow all parents at once, twice as far each round: only a cycle never ends."""
    ahead = np.append(parent, np.int32(-1))
    reach = 1
    while reach <= len(parent):
        ahead = ahead[ahead]
        reach *= 2
    return bool((ahead >= 0).any())


def _rows_of(counts: Ints, rows: Ints) -> Ints:
    """Rows of a flat column that belong to these owners."""
    return spread((np.cumsum(counts) - counts)[rows], counts[rows], 1)


def _ids(ids: Iterable[bytes]) -> Bytes:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, SnapshotId.size)


def _insert(column: NDArray[Any], at: int, value: int) -> NDArray[Any]:
    return np.concatenate((column[:at], np.array([value], column.dtype), column[at:]))
