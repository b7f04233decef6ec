"""The values that repositories and sessions return: ids as text, times as datetimes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from icefloe.display import NamedNumber, Picture, Shown, as_field, as_value, qualified
from icefloe.errors import check_text
from icefloe.format import operations_log, snapshot, snapshot_table
from icefloe.format.operations_log import UpdateKind, UpdateTable
from icefloe.ids import encode_base32, encode_base32_rows
from icefloe.storage.driver import instant, microseconds
from icefloe.storage.run import each_blocking

if TYPE_CHECKING:
    from icefloe.changes.diff import Diff
    from icefloe.repo.handle import Line
    from icefloe.repo.history import OperationsPage
    from icefloe.repo.replay import Replayed

_FIRST_PAGE, _LARGEST_PAGE = 32, 4096
"""Rows."""
_EPOCH = instant(0)
_DATETIMES_END = microseconds(datetime.max.replace(tzinfo=UTC))


def to_datetimes(times_us: NDArray[np.uint64]) -> list[datetime]:
    """Many times as the format stores them."""
    if times_us.max(initial=0) >= _DATETIMES_END:
        return list(map(instant, times_us.tolist()))
    return [_EPOCH + since for since in times_us.view("<m8[us]").tolist()]


def _pages(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Slices of rows. Few callers look at more than the newest snapshots: pages start small."""
    first, size = 0, _FIRST_PAGE
    while first < len(rows):
        yield rows[first : first + size]
        first, size = first + size, min(4 * size, _LARGEST_PAGE)


class Value(Shown):
    """A value with fields, shown one per line."""

    __slots__ = ()

    def _picture_(self) -> Picture:
        names: tuple[str, ...] = self.__match_args__  # type: ignore[attr-defined]
        return Picture(self._title_(), [(name, _shown(getattr(self, name))) for name in names])


class ListedValue(Value):
    """A value of a long list. Its fields may be columns of a page that it shares with others."""

    __slots__ = ()

    def _values(self) -> tuple[Any, ...]:
        names: tuple[str, ...] = self.__match_args__  # type: ignore[attr-defined]
        return tuple(getattr(self, name) for name in names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ListedValue) and type(self).__qualname__ == type(other).__qualname__:
            return self._values() == other._values()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())


def _shown(value: object) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, RepoAvailability):
        return value.name.title().replace("_", "")
    return as_field(value)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SnapshotInfo(ListedValue):
    """A snapshot of the history."""

    shown_in: ClassVar[str] = "snapshots"

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: dict[str, Any]

    @classmethod
    def of(cls, info: snapshot_table.SnapshotInfo) -> SnapshotInfo:
        """Of an entry of the history (`info`)."""
        parent = None if info.parent_id is None else info.parent_id.text
        written_at = instant(info.flushed_at)
        return cls(info.id.text, parent, written_at, info.message, dict(info.metadata))

    @classmethod
    def along(cls, line: Line) -> Iterator[SnapshotInfo]:
        """The snapshots of a history (`line`), newest first, read by page without suspending."""
        if not isinstance(line, tuple):
            return map(cls.of, each_blocking(line))
        table, rows = line
        return chain.from_iterable(_HistoryPage(table, page) for page in _pages(rows))

    @classmethod
    async def along_async(cls, line: Line) -> AsyncIterator[SnapshotInfo]:
        """Like `along`, inside an event loop."""
        if isinstance(line, tuple):
            for info in cls.along(line):
                yield info
        else:
            async for entry in line:
                yield cls.of(entry)


class _HistoryPage:
    """Neighbouring rows of a history, each the child of the next. Columns are made when read."""

    def __init__(self, table: snapshot_table.SnapshotTable, rows: Any) -> None:
        self.table = table
        self.rows = rows

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return map(_ListedSnapshot, repeat(self), range(len(self.rows)))

    @cached_property
    def id(self) -> list[str]:
        return encode_base32_rows(self.table.id[self.rows])

    @cached_property
    def parent_id(self) -> list[str | None]:
        last = int(self.table.parent[self.rows[-1]])
        return [*self.id[1:], encode_base32(self.table.id[last].tobytes()) if last >= 0 else None]

    @cached_property
    def written_at(self) -> list[datetime]:
        return to_datetimes(self.table.columns.flushed_at[self.rows])

    @cached_property
    def message(self) -> list[str]:
        return self.table.columns.message.take(self.rows).to_list()

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        return self.table.metadata(self.rows)


class _ListedSnapshot(SnapshotInfo):
    """A snapshot of a page of the history."""

    __slots__ = ("_page", "_row")
    __qualname__ = SnapshotInfo.__qualname__
    __setattr__ = object.__setattr__  # the fields are properties, so they stay as they are

    def __init__(self, page: _HistoryPage, row: int) -> None:
        self._page = page
        self._row = row

    def __reduce__(self) -> Any:
        return SnapshotInfo, self._values()

    id = property(lambda self: self._page.id[self._row])
    parent_id = property(lambda self: self._page.parent_id[self._row])
    written_at = property(lambda self: self._page.written_at[self._row])
    message = property(lambda self: self._page.message[self._row])
    metadata = property(lambda self: self._page.metadata[self._row])


@dataclass(frozen=True, slots=True, repr=False)
class ManifestFileInfo(Value):
    """A manifest file of a snapshot."""

    shown_in: ClassVar[str] = "snapshots"

    id: str
    size_bytes: int
    num_chunk_refs: int

    @classmethod
    def of(cls, info: snapshot.ManifestFileInfo) -> ManifestFileInfo:
        """Of an entry of a snapshot (`info`)."""
        return cls(info.id.text, info.size_bytes, info.num_chunk_refs)


class RepoAvailability(NamedNumber):
    """Whether a repository accepts writes."""

    online = 0
    read_only = 1


@dataclass(frozen=True, slots=True, repr=False)
class RepoStatus(Value):
    """Availability of a repository; `set_at` is now unless given."""

    shown_in: ClassVar[str] = "repository"

    availability: RepoAvailability
    set_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    limited_availability_reason: str | None = None

    @classmethod
    def of(cls, status: operations_log.RepoStatus) -> RepoStatus:
        """Of the `status` in a repo object."""
        # The third state, offline, is declared but never used, and newer versions may declare more.
        # None of them allows writes.
        is_online = status.availability == operations_log.RepoAvailability.ONLINE
        availability = RepoAvailability.online if is_online else RepoAvailability.read_only
        reason = status.limited_availability_reason
        return cls(availability, instant(status.set_at), reason)

    def stored(self) -> operations_log.RepoStatus:
        reason = self.limited_availability_reason
        return operations_log.RepoStatus(
            operations_log.RepoAvailability(self.availability.value),
            microseconds(self.set_at),
            reason if reason is None else check_text(reason, "limited_availability_reason"),
        )


class UpdateType:
    """The kinds of entries of the operations log, one class each."""

    __match_args__: ClassVar[tuple[str, ...]] = ()
    _by_kind: ClassVar[dict[int, type[UpdateType]]] = {}

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.__match_args__
        rest = names[len(values) :]
        if len(values) > len(names) or named.keys() != {*rest}:
            raise TypeError(f"{type(self).__qualname__}() takes {', '.join(names) or 'nothing'}")
        for name, value in zip(names, (*values, *map(named.get, rest)), strict=True):
            setattr(self, name, value)

    def __init_subclass__(cls, kind: int | None = None, fields: tuple[str, ...] = ()) -> None:
        """Each kind is an attribute of this class, under the name that users know."""
        cls.__match_args__ = fields  # type: ignore[misc]
        cls.__qualname__ = f"UpdateType.{cls.__name__}"
        setattr(UpdateType, cls.__name__, cls)
        if kind is not None:
            cls._by_kind[kind] = cls

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.items()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={as_value(value)}" for name, value in vars(self).items())
        return f"{qualified(f'UpdateType.{type(self).__name__}', 'ops')}({values})"

    RepoInitialized: ClassVar[type[UpdateType]]
    RepoMigrated: ClassVar[type[UpdateType]]
    ConfigChanged: ClassVar[type[UpdateType]]
    MetadataChanged: ClassVar[type[UpdateType]]
    TagCreated: ClassVar[type[UpdateType]]
    TagDeleted: ClassVar[type[UpdateType]]
    BranchCreated: ClassVar[type[UpdateType]]
    BranchDeleted: ClassVar[type[UpdateType]]
    BranchReset: ClassVar[type[UpdateType]]
    NewCommit: ClassVar[type[UpdateType]]
    CommitAmended: ClassVar[type[UpdateType]]
    NewDetachedSnapshot: ClassVar[type[UpdateType]]
    GCRan: ClassVar[type[UpdateType]]
    ExpirationRan: ClassVar[type[UpdateType]]
    FeatureFlagChanged: ClassVar[type[UpdateType]]
    RepoStatusChanged: ClassVar[type[UpdateType]]
    Unknown: ClassVar[type[UpdateType]]
    """An operation of a newer version; `number` is its number in the format."""


class RepoInitialized(UpdateType, kind=UpdateKind.REPO_INITIALIZED):
    """Repo initialized."""


class RepoMigrated(
    UpdateType, kind=UpdateKind.REPO_MIGRATED, fields=("from_version", "to_version")
):
    """Repo migrated."""


class ConfigChanged(UpdateType, kind=UpdateKind.CONFIG_CHANGED):
    """Config changed."""


class MetadataChanged(UpdateType, kind=UpdateKind.METADATA_CHANGED):
    """Metadata changed."""


class TagCreated(UpdateType, kind=UpdateKind.TAG_CREATED, fields=("name",)):
    """Tag created."""


class TagDeleted(UpdateType, kind=UpdateKind.TAG_DELETED, fields=("name", "previous_snap_id")):
    """Tag deleted."""


class BranchCreated(UpdateType, kind=UpdateKind.BRANCH_CREATED, fields=("name",)):
    """Branch created."""


class BranchDeleted(
    UpdateType, kind=UpdateKind.BRANCH_DELETED, fields=("name", "previous_snap_id")
):
    """Branch deleted."""


class BranchReset(UpdateType, kind=UpdateKind.BRANCH_RESET, fields=("name", "previous_snap_id")):
    """Branch reset."""


class NewCommit(UpdateType, kind=UpdateKind.NEW_COMMIT, fields=("branch", "new_snap_id")):
    """New commit."""


class CommitAmended(
    UpdateType, kind=UpdateKind.COMMIT_AMENDED, fields=("branch", "previous_snap_id", "new_snap_id")
):
    """Commit amended."""


class NewDetachedSnapshot(
    UpdateType, kind=UpdateKind.NEW_DETACHED_SNAPSHOT, fields=("new_snap_id",)
):
    """New detached snapshot."""


class GCRan(UpdateType, kind=UpdateKind.GC_RAN):
    """Gc ran."""


class ExpirationRan(UpdateType, kind=UpdateKind.EXPIRATION_RAN):
    """Expiration ran."""


class FeatureFlagChanged(
    UpdateType, kind=UpdateKind.FEATURE_FLAG_CHANGED, fields=("id", "new_value")
):
    """Feature flag changed."""


class RepoStatusChanged(UpdateType, kind=UpdateKind.REPO_STATUS_CHANGED, fields=("status",)):
    """Repo status changed."""


class Unknown(UpdateType, fields=("number",)):
    """Unknown."""


_TEXTS, _IDS = ("name", "branch"), ("previous_snap_id", "new_snap_id")


def _update_types(updates: Sequence[operations_log.Update]) -> list[UpdateType]:
    """The kind of every entry."""
    if not isinstance(updates, UpdateTable):
        return [_update_type(entry.kind, entry.values) for entry in updates]
    found: list[Any] = [None] * len(updates)
    for number in np.unique(updates.kind).tolist():
        rows = np.flatnonzero(updates.kind == number)
        for row, made in zip(rows.tolist(), _of_one_kind(updates, number, rows), strict=True):
            found[row] = made
    return found


def _of_one_kind(updates: UpdateTable, number: int, rows: Any) -> Iterable[UpdateType]:
    """The kind of some entries. Names and ids are made from columns: nearly all have no more."""
    cls = UpdateType._by_kind.get(number, Unknown)
    names = cls.__match_args__
    if not {*names} <= {*_TEXTS, *_IDS}:
        return (_update_type(entry.kind, entry.values) for entry in map(updates.__getitem__, rows))
    columns = [
        encode_base32_rows(updates.snapshot_ids(name)[rows])
        if name in _IDS
        else updates.text.take(rows).to_list()
        for name in names
    ]
    return map(cls, *columns) if names else (cls() for _ in rows)


def _update_type(kind: int, values: Mapping[str, Any]) -> UpdateType:
    shown: dict[str, Any] = dict(values) if kind in UpdateType._by_kind else {"number": kind}
    if kind == UpdateKind.FEATURE_FLAG_CHANGED and not shown.pop("is_set"):
        shown["new_value"] = None
    for name, value in shown.items():
        if isinstance(value, bytes):
            value = str(value)  # noqa: PLW2901 - ids are shown as text
        elif isinstance(value, operations_log.RepoStatus):
            value = RepoStatus.of(value)  # noqa: PLW2901
        shown[name] = value
    return UpdateType._by_kind.get(kind, Unknown)(**shown)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Update(ListedValue):
    """One entry of the operations log."""

    shown_in: ClassVar[str] = "ops"

    kind: UpdateType
    updated_at: datetime
    backup_path: str | None

    @classmethod
    def all_of(cls, page: OperationsPage) -> Iterator[Update]:
        """The entries of a `page` of the operations log."""
        rows = _OperationRows(page)
        return map(_ListedUpdate, repeat(rows), range(len(page.updates)))


class _OperationRows:
    """The entries of a page of the operations log. Columns are made when read."""

    def __init__(self, page: OperationsPage) -> None:
        self.page = page

    @cached_property
    def kind(self) -> list[UpdateType]:
        return _update_types(self.page.updates)

    @cached_property
    def updated_at(self) -> list[datetime]:
        return to_datetimes(self.page.times())

    @cached_property
    def backup_path(self) -> list[str | None]:
        return self.page.backup_paths()


class _ListedUpdate(Update):
    """An entry of a page of the operations log."""

    __slots__ = ("_page", "_row")
    __qualname__ = Update.__qualname__
    __setattr__ = object.__setattr__  # the fields are properties, so they stay as they are

    def __init__(self, page: _OperationRows, row: int) -> None:
        self._page = page
        self._row = row

    def __reduce__(self) -> Any:
        return Update, self._values()

    kind = property(lambda self: self._page.kind[self._row])
    updated_at = property(lambda self: self._page.updated_at[self._row])
    backup_path = property(lambda self: self._page.backup_path[self._row])


@dataclass(frozen=True, repr=False)
class VersionChange(Shown):
    """The commit that `cherry_pick`, `undo`, `merge` or `squash` made, or would make."""

    shown_in: ClassVar[str] = "snapshots"

    snapshot_id: str | None
    """The new commit; None after a dry run. The tip of the branch, unless `squash` left others."""
    parent_id: str
    """The snapshot below it."""
    changes: Diff
    """What the new snapshot changes in its parent."""

    @classmethod
    def of(cls, done: Replayed) -> VersionChange:
        """Of what the operation returned (`done`)."""
        snapshot_id = None if done.snapshot_id is None else done.snapshot_id.text
        return cls(snapshot_id, done.parent_id.text, done.diff)

    def _picture_(self) -> Picture:
        rows = [("snapshot_id", str(self.snapshot_id)), ("parent_id", self.parent_id)]
        return Picture(self._title_(), [*rows, ("changes", self.changes._picture_())])
