"""The operations log as columns: a repo object carries up to a thousand entries, and every commit
reads and writes them all.

The kinds of entry have few fields between them, so one row has room for any kind: a text (name or
branch), two snapshot ids, three small numbers, and for a change of status the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints
from icefloe.format.flatbuffer.read import Rows, Table
from icefloe.format.flatbuffer.schema import REPO_STATUS, UPDATE, UPDATE_TYPES, TableSpec
from icefloe.format.flatbuffer.segments import contiguous
from icefloe.ids import SnapshotId
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple, filled, record

if TYPE_CHECKING:
    from icefloe.format.flatbuffer import write as flat_write
    from icefloe.format.flatbuffer.write import FlatWriter
else:
    flat_write = on_demand("icefloe.format.flatbuffer.write")


class RepoAvailability(IntEnum):
    """Whether a repository takes writes."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@record(frozen=True)
class RepoStatus:
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


@record(frozen=True)
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


@record(frozen=True, eq=False)
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
            return [self._entry(at) for at in range(*row.indices(len(self)))]
        return self._entry(range(len(self))[row])

    def snapshot_ids(self, name: str) -> Bytes:
        """The ids in a field, one row an entry."""
        at = _IDS.index(name) * SnapshotId.size
        return self.ids[:, at : at + SnapshotId.size]

    def __iter__(self) -> Iterator[Update]:
        """All entries. Columns become values together, which takes a tenth of the time."""
        columns: dict[str, Sequence[Any]] = {
            name: SnapshotId.of_rows(self.snapshot_ids(name)) for name in _IDS
        }
        columns |= {name: self.numbers[:, at].tolist() for name, at in _NUMBERS.items()}
        columns |= {name: list(map(bool, columns[name])) for name in _FLAGS}
        columns["name"] = columns["branch"] = self.text.to_list()
        backups = self.backup_path.to_list()
        moments = zip(self.kind.tolist(), self.updated_at.tolist(), backups, strict=True)
        for row, (number, updated_at, backup) in enumerate(moments):
            kind, names = _FIELDS.get(number, (number, ()))
            values = {
                name: self.status[row] if name == "status" else columns[name][row] for name in names
            }
            yield filled(
                Update,
                {"kind": kind, "updated_at": updated_at, "values": values, "backup_path": backup},
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _entry(self, row: int) -> Update:
        kind = int(self.kind[row])
        if kind not in UPDATE_TYPES:
            return Update(kind, int(self.updated_at[row]), {}, self.backup_path[row])
        kind = UpdateKind(kind)
        values: dict[str, Any] = {}
        for name in UPDATE_TYPES[kind].fields:
            if name in _IDS:
                values[name] = SnapshotId(self.snapshot_ids(name)[row].tobytes())
            elif name in _NUMBERS:
                number = int(self.numbers[row, _NUMBERS[name]])
                values[name] = bool(number) if name in _FLAGS else number
            else:
                values[name] = self.status[row] if name == "status" else self.text[row]
        return Update(kind, int(self.updated_at[row]), values, self.backup_path[row])

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
        "_unknown",
        "newest_collection_at",
        "oldest_at",
    )

    def __init__(self, read: UpdateTable) -> None:
        self._added: tuple[Update, ...] = ()
        self._read, self._rows = read, range(len(read))
        self._older: _Encoded | None = None
        self._unknown = np.flatnonzero((read.kind < _KNOWN[0]) | (read.kind > _KNOWN[-1])).tolist()
        is_collection = read.kind == UpdateKind.GC_RAN
        self.oldest_at = int(read.updated_at.min()) if len(read) else _NEVER
        """When the log begins. A later time after entries were dropped, but never an earlier."""
        self.newest_collection_at = int(read.updated_at[is_collection].max(initial=0))
        """The time of the newest garbage collection, also of one that the log has dropped."""

    @classmethod
    def of(cls, updates: Iterable[Update]) -> UpdateLog:
        """These entries as a log."""
        return updates if isinstance(updates, UpdateLog) else cls(UpdateTable.from_updates(updates))

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
        unknown = next((row for row in self._unknown if row in self._rows), None)
        return None if unknown is None else len(self._added) + self._rows.index(unknown)

    def with_first(self, entry: Update, backup_path: str, count: int) -> UpdateLog:
        """A new first entry before `count` old ones; the former first learns its backup."""
        log = UpdateLog.__new__(UpdateLog)
        log._read, log._rows, log._unknown = self._read, self._rows, self._unknown
        log._older = None
        added = self._added
        if not added and log._rows:
            added, log._rows = (self._read[self._rows[0]],), self._rows[1:]
        if count:
            former = added[0]
            named = Update(former.kind, former.updated_at, former.values, backup_path)
            added = (named, *added[1:])
        num_read = max(0, count - len(added))
        log._added, log._rows = (entry, *added[:count]), log._rows[:num_read]
        log.oldest_at = min(self.oldest_at, entry.updated_at)
        if count < len(self):
            log.oldest_at = log[-1].updated_at
        is_collection = entry.kind == UpdateKind.GC_RAN
        log.newest_collection_at = entry.updated_at if is_collection else self.newest_collection_at
        if self._older is not None and count:
            data, position, num_unused = self._older
            num_unused += len(self) - count
            if num_unused <= count // 4:
                writer = flat_write.FlatWriter(has_head=False)
                at = _add_entry(writer, log._added[1])
                before = b"".join(contiguous(writer.segments()))
                position = np.concatenate(([at], len(before) + position[: count - 1]))
                log._older = _Encoded(before + data, position, num_unused)
        return log

    def older(self) -> _Encoded:
        """All entries but the first, encoded."""
        if self._older is None:
            writer = flat_write.FlatWriter(has_head=False)
            added = [_add_entry(writer, entry) for entry in self._added[1:]]
            first = self._rows.start if self._added else min(1, len(self._rows))
            read = _add_entries(writer, self._read, first, self._rows.stop)
            position = np.concatenate((np.array(added, np.int64), read))
            self._older = _Encoded(b"".join(contiguous(writer.segments())), position, 0)
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
