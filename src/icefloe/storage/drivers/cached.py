"""A driver that keeps what it reads in a folder of this machine.

Only objects that never change are kept: chunks, manifests, transaction logs and snapshots, whose
names are random. Refs, the `repo` object and the configuration are always asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from icefloe.ids import FIRST_SNAPSHOT_ID
from icefloe.observe import CACHE
from icefloe.storage.driver import Driver, Readable, Span, Take, taken
from icefloe.storage.drivers.disk_cache import DiskCache

_FOLDERS = ("chunks/", "manifests/", "transactions/", "snapshots/")
_SNAPSHOTS = "snapshots/"
_VERSION_AT = 36
"""Where the header of a snapshot file has the spec version."""


class CachedDriver:
    """Reads through a cache; everything else goes to the driver inside."""

    def __init__(self, inner: Driver, cache: DiskCache, place: str) -> None:
        self.behind_cache = inner
        self.cache = cache
        self._place = place

    if not TYPE_CHECKING:  # so that type checkers see which methods are missing

        def __getattr__(self, name: str) -> Any:
            return getattr(self.behind_cache, name)

    async def get(self, key: str, span: Span | None = None) -> Readable:
        """The object's bytes, from the folder if they are there."""
        found: list[Readable] = await self.get_many([(key, span)])
        return found[0]

    async def get_many(
        self, wanted: Sequence[tuple[str, Span | None]], take: Take | None = None
    ) -> list[Any]:
        """Several reads; those that are not in the folder are made at once."""
        found: list[Readable | None] = [self._kept(key, span) for key, span in wanted]
        missing = [at for at, data in enumerate(found) if data is None]
        CACHE.debug("%d of %d objects are on disk", len(wanted) - len(missing), len(wanted))
        if len(missing) == 1:
            fetched = [await self.behind_cache.get(*wanted[missing[0]])]
        else:
            fetched = (
                await self.behind_cache.get_many([wanted[at] for at in missing]) if missing else []
            )
        for at, data in zip(missing, fetched, strict=True):
            found[at] = data
            self._keep(*wanted[at], data)
        return taken([data for data in found if data is not None], take)

    def _kept(self, key: str, span: Span | None) -> bytes | None:
        return self.cache.get(self._identity(key, span)) if _never_changes(key) else None

    def _keep(self, key: str, span: Span | None, data: Readable) -> None:
        if not _never_changes(key):
            return
        if key.startswith(_SNAPSHOTS) and bytes(data[_VERSION_AT : _VERSION_AT + 1]) < b"\2":
            return  # expiration writes snapshot files of version 1 again, with other parents
        self.cache.put(self._identity(key, span), memoryview(data))

    def _identity(self, key: str, span: Span | None) -> str:
        part = "all" if span is None else f"{span.start}+{span.length}"
        return f"{self._place}\n{key}\n{part}"


def cached_driver(inner: Driver, cache: DiskCache, place: str) -> Driver:
    """The driver with a cache in front of it."""
    return cast(Driver, CachedDriver(inner, cache, place))


def _never_changes(key: str) -> bool:
    """Whether an object has a random name. The first snapshot has the same in all repositories."""
    return key.startswith(_FOLDERS) and not key.endswith(FIRST_SNAPSHOT_ID.text)
