"""The values that repositories and sessions return: ids as text, times as datetimes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from icefloe.display.rendering import as_field, as_value
from icefloe.display.shown import NamedNumber, Picture, Shown, qualified
from icefloe.errors import check_text
from icefloe.format.repo_info import file as repo_info
from icefloe.format.repo_info import snapshots as snapshot_table
from icefloe.format.repo_info.updates import UpdateTable
from icefloe.format.snapshot import file as snapshot
from icefloe.ids import encode_base32, encode_base32_rows
from icefloe.storage.run import each_blocking

if TYPE_CHECKING:
    from icefloe.repo.handle import Line
    from icefloe.repo.history import OperationsPage

Paged = TypeVar("Paged", bound="PagedValue")

_FIRST_PAGE, _LARGEST_PAGE = 32, 4096
"""Rows. Few callers look at more than the newest snapshots, so pages start small and grow."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATETIMES_END = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def to_datetime(microseconds: int) -> datetime:
    """A time as the format stores it."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_datetimes(microseconds: NDArray[np.uint64]) -> list[datetime]:
    """Many times as the format stores them."""
    if microseconds.max(initial=0) >= _DATETIMES_END:
        return list(map(to_datetime, microseconds.tolist()))
    return [_EPOCH + since for since in microseconds.view("<m8[us]").tolist()]


def to_microseconds(instant: datetime) -> int:
    """A time as the format stores it. A time without a zone is local time."""
    return (instant.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


@cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


class Value(Shown):
    """A value with fields, shown one per line."""

    __slots__ = ()

    def _picture_(self) -> Picture:
        names = _field_names(cast(Any, type(self)))
        return Picture(self._title_(), [(name, _shown(getattr(self, name))) for name in names])


class PagedValue(Value):
    """A value of which there are many. Its fields may be in columns that it shares with others."""

    __slots__ = ()

    def _values_(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _field_names(cast(Any, type(self))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PagedValue) or type(self).__name__ != type(other).__name__:
            return NotImplemented
        return self._values_() == other._values_()

    def __hash__(self) -> int:
        return hash(self._values_())


def paged(base: type[Paged]) -> Callable[[Any, int], Paged]:
    """A function that makes values of the class `base` from a page and a row of it.

    The page has one list per field. A field is looked up there when it is wanted.
    """
    names = [field.name for field in fields(cast(Any, base))]
    body: dict[str, Any] = {name: property(_at_row(name)) for name in names}
    body["__slots__"] = ("_at", "_page")
    body["__reduce__"] = lambda self: (base, self._values_())
    cls: Any = type(base.__name__, (base,), body)
    cls.__module__, cls.__qualname__ = base.__module__, base.__qualname__
    new, set_page, set_at = cls.__new__, cls._page.__set__, cls._at.__set__

    def make(page: Any, at: int) -> Paged:
        made = new(cls)
        set_page(made, page)  # the class is frozen
        set_at(made, at)
        return cast(Paged, made)

    return make


def _at_row(name: str) -> Callable[[Any], Any]:
    # Compiled with the name in it, a field takes half the time.
    found: Callable[[Any], Any] = eval(f"lambda self: self._page.{name}[self._at]")
    return found


def _shown(value: object) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, RepoAvailability):
        return value.name.title().replace("_", "")
    return as_field(value)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SnapshotInfo(PagedValue):
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
        written_at = to_datetime(info.flushed_at)
        return cls(info.id.text, parent, written_at, info.message, dict(info.metadata))

    @classmethod
    def along(cls, line: Line) -> Iterator[SnapshotInfo]:
        """Snapshots and their ancestors, one page at a time, read without suspending.

        Args:
            line: the snapshots of a history, newest first.
        """
        if not isinstance(line, tuple):
            yield from map(cls.of, each_blocking(line))
            return
        table, rows = line
        first, size = 0, _FIRST_PAGE
        while first < len(rows):
            page = _Page(table, rows[first : first + size])
            yield from map(_make_snapshot_info, repeat(page), range(len(page.rows)))
            first, size = first + size, min(4 * size, _LARGEST_PAGE)

    @classmethod
    async def along_async(cls, line: Line) -> AsyncIterator[SnapshotInfo]:
        """Like `along`, inside an event loop.

        Args:
            line: the snapshots of a history, newest first.
        """
        if isinstance(line, tuple):
            for info in cls.along(line):
                yield info
        else:
            async for entry in line:
                yield cls.of(entry)


class _Page:
    """Neighbouring rows of a history. A column is made into values when one of them is wanted."""

    def __init__(self, table: snapshot_table.SnapshotTable, rows: Any) -> None:
        self.table = table
        self.rows = rows

    @cached_property
    def id(self) -> list[str]:
        return encode_base32_rows(self.table.id[self.rows])

    @cached_property
    def parent_id(self) -> list[str | None]:
        *_, last = self.table.parent[self.rows].tolist()
        found: list[str | None] = [*self.id[1:]]
        return [*found, encode_base32(self.table.id[last].tobytes()) if last >= 0 else None]

    @cached_property
    def written_at(self) -> list[datetime]:
        return to_datetimes(self.table.flushed_at[self.rows])

    @cached_property
    def message(self) -> list[str]:
        return self.table.message.take(self.rows).to_list()

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        return self.table.metadata(self.rows)


_make_snapshot_info = paged(SnapshotInfo)


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
    def of(cls, status: repo_info.RepoStatus) -> RepoStatus:
        # The third state, offline, is declared but never used, and newer versions may declare more.
        # None of them allows writes.
        """Of the `status` in a repo object."""
        is_online = status.availability == repo_info.RepoAvailability.ONLINE
        availability = RepoAvailability.online if is_online else RepoAvailability.read_only
        reason = status.limited_availability_reason
        return cls(availability, to_datetime(status.set_at), reason)

    def stored(self) -> repo_info.RepoStatus:
        reason = self.limited_availability_reason
        return repo_info.RepoStatus(
            repo_info.RepoAvailability(self.availability.value),
            to_microseconds(self.set_at),
            reason if reason is None else check_text(reason, "limited_availability_reason"),
        )


class UpdateType:
    """The kinds of entries of the operations log, one class each."""

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        if not named and len(values) == len(self.__match_args__):
            self.__dict__.update(zip(self.__match_args__, values, strict=True))
            return
        given = dict(zip(self.__match_args__, values, strict=False)) | named
        if len(values) + len(named) != len(given) or given.keys() != set(self.__match_args__):
            expected = ", ".join(self.__match_args__) or "nothing"
            raise TypeError(f"{type(self).__qualname__}() takes {expected}")
        self.__dict__.update(given)

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


def _update_class(kind: str) -> type[UpdateType]:
    words = kind.split("_")
    name = "".join("GC" if word == "GC" else word.capitalize() for word in words)
    body = {
        "__doc__": f"{kind.replace('_', ' ').capitalize()}.",
        "__match_args__": _ARGUMENTS.get(kind, ()),
    }
    made = type(name, (UpdateType,), body)
    made.__qualname__ = f"UpdateType.{name}"
    setattr(UpdateType, name, made)
    return made


_ARGUMENTS = {
    "REPO_MIGRATED": ("from_version", "to_version"),
    "TAG_CREATED": ("name",),
    "TAG_DELETED": ("name", "previous_snap_id"),
    "BRANCH_CREATED": ("name",),
    "BRANCH_DELETED": ("name", "previous_snap_id"),
    "BRANCH_RESET": ("name", "previous_snap_id"),
    "NEW_COMMIT": ("branch", "new_snap_id"),
    "COMMIT_AMENDED": ("branch", "previous_snap_id", "new_snap_id"),
    "NEW_DETACHED_SNAPSHOT": ("new_snap_id",),
    "FEATURE_FLAG_CHANGED": ("id", "new_value"),
    "REPO_STATUS_CHANGED": ("status",),
    "UNKNOWN": ("number",),
}
_UPDATE_CLASSES: dict[int, type[UpdateType]] = {
    kind: _update_class(kind.name) for kind in repo_info.UpdateKind
}
_UNKNOWN = _update_class("UNKNOWN")
_TEXTS, _IDS = ("name", "branch"), ("previous_snap_id", "new_snap_id")


def _update_types(updates: Sequence[repo_info.Update]) -> list[UpdateType]:
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
    cls = _UPDATE_CLASSES.get(number, _UNKNOWN)
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
    shown: dict[str, Any] = dict(values) if kind in _UPDATE_CLASSES else {"number": kind}
    if kind == repo_info.UpdateKind.FEATURE_FLAG_CHANGED and not shown.pop("is_set"):
        shown["new_value"] = None
    for name, value in shown.items():
        if isinstance(value, bytes):
            value = str(value)  # noqa: PLW2901 - ids are shown as text
        elif isinstance(value, repo_info.RepoStatus):
            value = RepoStatus.of(value)  # noqa: PLW2901
        shown[name] = value
    return _UPDATE_CLASSES.get(kind, _UNKNOWN)(**shown)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Update(PagedValue):
    """One entry of the operations log."""

    shown_in: ClassVar[str] = "ops"

    kind: UpdateType
    updated_at: datetime
    backup_path: str | None

    @classmethod
    def all_of(cls, page: OperationsPage) -> Iterator[Update]:
        """The entries of a page.

        Args:
            page: entries of the operations log.
        """
        values = _LogPage(page)
        return map(_make_update, repeat(values), range(len(page.updates)))


class _LogPage:
    """Entries of the operations log. See `_Page`."""

    def __init__(self, page: OperationsPage) -> None:
        self._page = page

    @cached_property
    def kind(self) -> list[UpdateType]:
        return _update_types(self._page.updates)

    @cached_property
    def updated_at(self) -> list[datetime]:
        return to_datetimes(self._page.times())

    @cached_property
    def backup_path(self) -> list[str | None]:
        return self._page.backup_paths()


_make_update = paged(Update)
