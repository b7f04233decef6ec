"""The operations log as columns: a repo object carries up to a thousand entries, and every commit
reads and writes them all.

The kinds of entry have few fields between them, so one row has room for any kind: a text (name or
branch), two snapshot ids, three small numbers, and for a change of status the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns import BlobColumn, Bytes, Ints
from icefloe.format.flatbuffer import write as flat_write
from icefloe.format.flatbuffer.read import Rows, Table
from icefloe.format.flatbuffer.schema import REPO_STATUS, UPDATE, UPDATE_TYPES, TableSpec
from icefloe.ids import SnapshotId

if TYPE_CHECKING:
    from icefloe.format.flatbuffer.write import FlatWriter


class RepoAvailability(IntEnum):
    """Whether a repository takes writes."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


class RepoStatus(NamedTuple):
    """Availability, since when (microseconds), and why it is limited.

    `availability` is a `RepoAvailability`, or the plain number of one that a newer version added.
    """

    availability: int
    set_at: int
    limited_availability_reason: str | None = None


class UpdateKind(IntEnum):
    """What an entry of the operations log records, with the format's numbers."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    REPO_STATUS_CHANGED = 16


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of the operations log.

    `kind` is an `UpdateKind`, or the plain number of a kind that a newer version added. `values`
    has exactly the fields the format gives this kind, such as `branch` and `new_snap_id` for a
    commit; it is empty for an unknown kind. `backup_path` names the file in which this entry is
    the newest.
    """

    kind: int
    updated_at: int
    values: Mapping[str, Any] = field(default_factory=dict)
    backup_path: str | None = None


_IDS = ("previous_snap_id", "new_snap_id")
_NUMBERS = {"from_version": 0, "id": 0, "to_version": 1, "new_value": 1, "is_set": 2}
_FLAGS = ("new_value", "is_set")
_KNOWN = sorted(UPDATE_TYPES)  # without a gap
_NEVER = 2**64
_FIELDS = {number: (UpdateKind(number), tuple(UPDATE_TYPES[number].fields)) for number in _KNOWN}


class _Encoded(NamedTuple):
    """Entries as a file holds them. Every offset in there is relative, so that they can be put
    anywhere and behind others."""

    data: bytes
    position: Ints
    """Of each entry, from the start of `data`."""
    num_unused: int
    """Entries in `data` that the log has dropped."""


@dataclass(frozen=True, eq=False)
class UpdateTable(Sequence[Update]):
    """Entries of an operations log, newest first."""

    kind: NDArray[np.uint8]
    updated_at: NDArray[np.uint64]
    backup_path: BlobColumn
    text: BlobColumn
    ids: Bytes
    """One row an entry: the previous snapshot id and the new one, zeros for none."""
    numbers: NDArray[np.uint16]
    status: Mapping[int, RepoStatus]
    """By row; changes of status are rare."""

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        at = range(len(self))[row]
        return next(self._entries(at, at + 1))

    def snapshot_ids(self, name: str) -> Bytes:
        """The ids in a field, one row an entry."""
        at = _IDS.index(name) * SnapshotId.size
        return self.ids[:, at : at + SnapshotId.size]

    def __iter__(self) -> Iterator[Update]:
        return self._entries(0, len(self))

    def _entries(self, start: int, stop: int) -> Iterator[Update]:
        """Some entries. Columns become values together, which takes a tenth of the time."""
        columns: dict[str, Sequence[Any]] = {
            name: SnapshotId.of_rows(self.snapshot_ids(name)[start:stop]) for name in _IDS
        }
        numbers = self.numbers[start:stop]
        columns |= {name: numbers[:, at].tolist() for name, at in _NUMBERS.items()}
        columns |= {name: list(map(bool, columns[name])) for name in _FLAGS}
        columns["name"] = columns["branch"] = self.text[start:stop].to_list()
        columns["status"] = [self.status.get(row) for row in range(start, stop)]
        kinds, times = self.kind[start:stop].tolist(), self.updated_at[start:stop].tolist()
        backups = self.backup_path[start:stop].to_list()
        for row, entry in enumerate(zip(kinds, times, backups, strict=True)):
            number, updated_at, backup = entry
            kind, names = _FIELDS.get(number, (number, ()))
            yield Update(kind, updated_at, {name: columns[name][row] for name in names}, backup)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_updates(cls, updates: Iterable[Update]) -> UpdateTable:
        """Columns of these entries."""
        if isinstance(updates, UpdateTable):
            return updates
        entries = list(updates)
        values = [entry.values for entry in entries]
        texts = [row.get("name", row.get("branch")) for row in values]
        none = bytes(SnapshotId.size)
        raw = b"".join(bytes(row.get(name, none)) for row in values for name in _IDS)
        numbers = np.zeros((len(entries), 3), np.uint16)
        for at, row in enumerate(values):
            for name in row.keys() & _NUMBERS.keys():
                numbers[at, _NUMBERS[name]] = row[name]
        return cls(
            np.array([entry.kind for entry in entries], np.uint8),
            np.array([entry.updated_at for entry in entries], np.uint64),
            BlobColumn.from_values([entry.backup_path for entry in entries], is_text=True),
            BlobColumn.from_values(texts, is_text=True),
            np.frombuffer(raw, np.uint8).reshape(-1, 2 * SnapshotId.size),
            numbers,
            {at: row["status"] for at, row in enumerate(values) if "status" in row},
        )


class UpdateLog(Sequence[Update]):
    """An operations log that grows: entries that were added, before some rows of a table.

    Commits add one entry after the other. They stay values until the log is read again.
    """

    __slots__ = (
        "_added",
        "_older",
        "_read",
        "_rows",
        "newest_collection_at",
        "oldest_at",
    )

    def __init__(
        self,
        added: tuple[Update, ...],
        read: UpdateTable,
        rows: range,
        oldest_at: int,
        newest_collection_at: int,
        older: _Encoded | None = None,
    ) -> None:
        self._added = added
        self._read, self._rows = read, rows
        self._older = older
        self.oldest_at = oldest_at
        """When the log begins. A later time after entries were dropped, but never an earlier."""
        self.newest_collection_at = newest_collection_at
        """The time of the newest garbage collection, also of one that the log has dropped."""

    @classmethod
    def of(cls, updates: Iterable[Update]) -> UpdateLog:
        """These entries as a log."""
        if isinstance(updates, UpdateLog):
            return updates
        read = UpdateTable.from_updates(updates)
        oldest_at = int(read.updated_at.min()) if len(read) else _NEVER
        collected_at = int(read.updated_at[read.kind == UpdateKind.GC_RAN].max(initial=0))
        return cls((), read, range(len(read)), oldest_at, collected_at)

    def __len__(self) -> int:
        return len(self._added) + len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        num_added = len(self._added)
        return self._added[row] if row < num_added else self._read[self._rows[row - num_added]]

    def __iter__(self) -> Iterator[Update]:
        return chain(self._added, islice(self._read, self._rows.start, self._rows.stop))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def has_backup(self, row: int) -> bool:
        """Whether an entry names the file in which it is the newest."""
        num_added = len(self._added)
        if row < num_added:
            return self._added[row].backup_path is not None
        absent = self._read.backup_path.absent
        return absent is None or not absent[self._rows[row - num_added]]

    def first_unknown(self) -> int | None:
        """The first entry of a kind that only a newer version knows and can write again."""
        kinds = self._read.kind[self._rows.start : self._rows.stop]
        unknown = np.flatnonzero((kinds < _KNOWN[0]) | (kinds > _KNOWN[-1]))
        return len(self._added) + int(unknown[0]) if len(unknown) else None

    def with_first(self, entry: Update, backup_path: str, count: int) -> UpdateLog:
        """A new first entry before `count` old ones; the former first learns its backup."""
        added, rows, older = self._added, self._rows, None
        if not added and rows:
            added, rows = (self._read[rows[0]],), rows[1:]
        if count:
            added = (replace(added[0], backup_path=backup_path), *added[1:])
        rows = rows[: max(0, count - len(added))]
        is_collection = entry.kind == UpdateKind.GC_RAN
        collected_at = entry.updated_at if is_collection else self.newest_collection_at
        if self._older is not None and count:
            data, position, num_unused = self._older
            num_unused += len(self) - count
            if num_unused <= count // 4:
                writer = flat_write.FlatWriter(has_head=False)
                at = _add_entry(writer, added[0])
                before = writer.joined()
                position = np.concatenate(([at], len(before) + position[: count - 1]))
                older = _Encoded(before + data, position, num_unused)
        oldest_at = min(self.oldest_at, entry.updated_at)
        log = UpdateLog((entry, *added[:count]), self._read, rows, oldest_at, collected_at, older)
        if count < len(self):
            log.oldest_at = log[-1].updated_at
        return log

    def older(self) -> _Encoded:
        """All entries but the first, encoded."""
        if self._older is None:
            writer = flat_write.FlatWriter(has_head=False)
            added = [_add_entry(writer, entry) for entry in self._added[1:]]
            first = self._rows.start if self._added else min(1, len(self._rows))
            read = _add_entries(writer, self._read, first, self._rows.stop)
            position = np.concatenate((np.array(added, np.int64), read))
            self._older = _Encoded(writer.joined(), position, 0)
        return self._older


# -- reading


def decode_status(table: Table) -> RepoStatus:
    """A RepoStatus table."""
    availability = table.scalar("availability")
    if availability <= max(RepoAvailability):
        availability = RepoAvailability(availability)
    reason = table.string("limited_availability_reason")
    return RepoStatus(availability, table.scalar("set_at"), reason)


def decode_updates(rows: Rows) -> UpdateTable:
    """The operations log of a repo object. The tables of unknown kinds are not looked at."""
    kind = rows.scalar("update_type_type")
    texts = [BlobColumn.nulls(0, is_text=True)]
    text_row = np.full(len(rows), -1, np.int64)
    ids = np.zeros((len(rows), 2 * SnapshotId.size), np.uint8)
    numbers = np.zeros((len(rows), 3), np.uint16)
    status: dict[int, RepoStatus] = {}
    for tag in np.unique(kind).tolist():
        if tag not in UPDATE_TYPES:
            continue
        which = np.flatnonzero(kind == tag)
        tables = rows.take(which).children("update_type", UPDATE_TYPES[tag])
        for name in UPDATE_TYPES[tag].fields:
            if name in _IDS:
                at = _IDS.index(name) * SnapshotId.size
                ids[which, at : at + SnapshotId.size] = tables.struct(name)
            elif name in _NUMBERS:
                numbers[which, _NUMBERS[name]] = tables.scalar(name)
            elif name == "status":
                places = tables.buffer.targets(tables.field(name)[0]).tolist()
                for row, place in zip(which.tolist(), places, strict=True):
                    status[row] = decode_status(Table(tables.buffer, place, REPO_STATUS))
            else:
                text_row[which] = sum(map(len, texts)) + np.arange(len(which))
                texts.append(tables.strings(name))
    text = BlobColumn.concat(texts).take(text_row)
    backups = rows.strings("backup_path")
    return UpdateTable(kind, rows.scalar("updated_at"), backups, text, ids, numbers, status)


# -- writing


def add_status(writer: FlatWriter, status: RepoStatus) -> int:
    """Place a RepoStatus table; returns its position."""
    reason = status.limited_availability_reason
    more = () if reason is None else ("limited_availability_reason",)
    table = writer.table(REPO_STATUS, ("availability", "set_at", *more))
    table.set("availability", status.availability)
    table.set("set_at", status.set_at)
    if reason is not None:
        table.point("limited_availability_reason", writer.text(reason))
    return table.position


def add_updates(writer: FlatWriter, updates: UpdateLog) -> int:
    """Place the operations log; returns the position of its vector."""
    vector = writer.offsets(len(updates))
    first = [_add_entry(writer, entry) for entry in updates[:1]]
    older = updates.older()
    at = writer.add(older.data, align=8)
    vector.point(np.concatenate((np.array(first, np.int64), at + older.position)))
    return vector.position


def _spec_of(kind: int) -> TableSpec:
    if kind not in UPDATE_TYPES:
        raise FormatError(
            f"an entry of the operations log is of kind {kind}, kinds 1 to {max(UPDATE_TYPES)} can "
            "be written; leave it to the backup that holds it",
            ErrorKind.SERIALIZATION,
        )
    return UPDATE_TYPES[kind]


def _add_entry(writer: FlatWriter, entry: Update) -> int:
    """Place one entry; returns its position."""
    fields = ("update_type_type", "update_type", "updated_at")
    table = writer.table(UPDATE, fields if entry.backup_path is None else (*fields, "backup_path"))
    table.set("update_type_type", entry.kind)
    table.set("updated_at", entry.updated_at)
    if entry.backup_path is not None:
        table.point("backup_path", writer.text(entry.backup_path))
    spec = _spec_of(entry.kind)
    values = writer.table(spec, spec.fields)
    table.point("update_type", values.position)
    for name in spec.fields:
        if name in _IDS or name in _NUMBERS:
            values.set(name, entry.values[name])
        elif name == "status":
            values.point(name, add_status(writer, entry.values[name]))
        else:
            values.point(name, writer.text(entry.values[name]))
    return table.position


def _add_entries(writer: FlatWriter, updates: UpdateTable, start: int, stop: int) -> Ints:
    """Place the entries from `start` to `stop`; returns their positions."""
    count = stop - start
    required = dict.fromkeys(("update_type_type", "update_type", "updated_at"))
    backups, kinds = updates.backup_path[start:stop], updates.kind[start:stop]
    has_backup = backups.is_valid()
    tables = writer.tables(UPDATE, count, {**required, "backup_path": has_backup})
    tables.set("update_type_type", kinds)
    tables.set("updated_at", updates.updated_at[start:stop])
    tables.point("backup_path", writer.blobs(backups))
    target = np.zeros(count, np.int64)
    for tag in np.unique(kinds).tolist():
        which = np.flatnonzero(kinds == tag)
        rows, spec = which + start, _spec_of(tag)
        fields = writer.tables(spec, len(rows), dict.fromkeys(spec.fields))
        for name in spec.fields:
            if name in _IDS:
                fields.set(name, updates.snapshot_ids(name)[rows])
            elif name in _NUMBERS:
                fields.set(name, updates.numbers[rows, _NUMBERS[name]])
            elif name == "status":
                placed = [add_status(writer, updates.status[row]) for row in rows.tolist()]
                fields.point(name, np.array(placed, np.int64))
            else:
                fields.point(name, writer.blobs(updates.text.take(rows)))
        target[which] = fields.position
    tables.point("update_type", target)
    return np.asarray(tables.position, np.int64)
