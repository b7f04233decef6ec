"""`Storage`: where a repository is, in a form that can be compared, printed and pickled.

It holds no connection. Drivers are made when they are asked for, once per process, flavour and
settings; the functions that make a `Storage` are in `constructors/common.py`.
"""

from __future__ import annotations

import os
from os import PathLike
from typing import TYPE_CHECKING, Any

from icefloe.config.resolved import ResolvedStorage
from icefloe.config.storage import StorageSettings
from icefloe.display.shown import Picture, Shown, qualified
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.on_demand import on_demand
from icefloe.records import changed
from icefloe.storage.driver import Driver, ObjectInfo
from icefloe.storage.drivers.local import LocalDriver
from icefloe.storage.places.locations import (
    LocalLocation,
    Location,
    MemoryLocation,
    RedirectLocation,
    TargetLocation,
)
from icefloe.storage.process_forks import Registry
from icefloe.storage.run import run_blocking

if TYPE_CHECKING:
    from icefloe.storage.client import calls, connect, eventloop
    from icefloe.storage.drivers import cached, disk_cache, memory, remote
    from icefloe.storage.drivers.disk_cache import CacheFolder, DiskCache
    from icefloe.storage.foreign import redirect
    from icefloe.storage.identity.attribution import Attribution
else:
    calls = on_demand("icefloe.storage.client.calls")
    cached = on_demand("icefloe.storage.drivers.cached")
    connect = on_demand("icefloe.storage.client.connect")
    disk_cache = on_demand("icefloe.storage.drivers.disk_cache")
    eventloop = on_demand("icefloe.storage.client.eventloop")
    memory = on_demand("icefloe.storage.drivers.memory")
    redirect = on_demand("icefloe.storage.foreign.redirect")
    remote = on_demand("icefloe.storage.drivers.remote")

MAX_CONCURRENT_REQUESTS = 256

_Key = tuple[TargetLocation, "Attribution | None", "CacheFolder | None", ResolvedStorage, bool, int]
_drivers: Registry[_Key, Driver] = Registry()
_caches: Registry[CacheFolder, DiskCache] = Registry()


class Storage(Shown):
    """One place where a repository is or can be. Made by the `..._storage` functions.

    Two objects for the same place are equal and share their connections. A pickle carries the
    credentials, unless they come from the environment or from a function.
    """

    __slots__ = ("_attribution", "_cache", "_drivers", "_location", "_target")

    def __init__(
        self,
        location: Location,
        attribution: Attribution | None = None,
        cache: CacheFolder | None = None,
        target: TargetLocation | None = None,
    ) -> None:
        self._location = location
        self._attribution = attribution
        self._cache = cache
        self._target = target
        """Where `location` led when this storage was bound."""
        self._drivers: dict[_Key, Driver] = {}

    @property
    def location(self) -> Location:
        """The description this storage is made of."""
        return self._location

    @property
    def attribution(self) -> Attribution | None:
        """The labels that requests carry."""
        return self._attribution

    def attributed(self, attribution: Attribution | None) -> Storage:
        """The same place, reached with these labels; itself when there are none.

        Args:
            attribution: the labels that requests will carry.
        """
        if attribution is None:
            return self
        return Storage(self._location, attribution, self._cache, self._target)

    def bound(self) -> Storage:
        """The same place for good: where a symbolic link or a redirect leads now.

        An open repository and its sessions, in this process and in others, use a storage that is
        bound. A link that is switched later changes nothing for them.
        """
        target = self.target
        if target is self._target or target is self._location:
            return self
        return Storage(self._location, self._attribution, self._cache, target)

    @property
    def target(self) -> TargetLocation:
        """Where the objects are: the end of a symbolic link or a redirect."""
        return self._target or self._find_target()

    def require_directory(self) -> None:
        """Refuse a directory that is missing, where another process had a repository open.

        A writer would make a directory of its own there, and its chunks would be in no commit.
        """
        target = self._target
        if isinstance(target, LocalLocation) and not os.path.isdir(target.path):  # noqa: PTH112
            raise StorageError(
                f"the repository in {self.url} was opened in the directory {target.path!r}, which "
                "is missing here; its processes need the same directory, by the same path",
                ErrorKind.STORAGE_CONFIG,
            )

    def _find_target(self) -> TargetLocation:
        location = self._location
        if isinstance(location, LocalLocation):
            return changed(location, path=os.path.realpath(location.path))
        if isinstance(location, RedirectLocation):
            return redirect.resolve_redirect(location.base_url)
        return location

    def cached(self, folder: str | PathLike[str], max_bytes: int | None = None) -> Storage:
        """The same place, with what is read kept in a folder of this machine.

        Chunks and metadata files that never change are kept, and virtual chunks whose references
        have a checksum or a time. Refs and the `repo` object are asked for as before. Processes
        may share the folder. It survives restarts and belongs to this user only.

        Args:
            folder: where to keep them, in a folder `icefloe-cache` that is made when it is needed.
                Other files there are left alone.
            max_bytes: the size of the cache, 10 GB if not given. What was not used for longest is
                deleted. Processes that write at the same time may exceed it by a sixteenth each.
        """
        limit = disk_cache.DEFAULT_MAX_BYTES if max_bytes is None else int(max_bytes)
        if limit <= 0:
            raise InvalidInputError(f"max_bytes is {max_bytes!r}, expected more than 0")
        # The same folder for other processes that get this storage, wherever they run.
        path = os.path.abspath(os.path.expanduser(folder))  # noqa: PTH100, PTH111 - keeps symlinks
        cache = disk_cache.CacheFolder(path, limit)
        return Storage(self._location, self._attribution, cache, self._target)

    def disk_cache(self) -> DiskCache | None:
        """The cache on disk, or None. The same one for all storages with the same folder."""
        folder = self._cache
        if folder is None:
            return None
        return _caches.find_or_make(folder, lambda: disk_cache.DiskCache(folder))

    @property
    def kind(self) -> str:
        """The kind of storage, such as `S3` or `local filesystem`."""
        return self._location.kind

    @property
    def url(self) -> str:
        """Where it is, for people and messages; without credentials."""
        return self._location.url

    @property
    def is_bucket_root(self) -> bool:
        """Whether nothing of the key is left to tell this place from the rest of a bucket."""
        return self._location.shown().get("prefix") == ""

    def default_settings(self) -> StorageSettings:
        """What this kind of storage sets; a repository's config goes on top of it."""
        return self._location.default_settings()

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[ObjectInfo]:
        """Every object, or those in the folder `prefix` and below it, sorted by key.

        Keys are relative to that folder.

        Args:
            settings: how to talk to the storage.
        """
        defaults = self.default_settings()
        in_force = defaults.merge(settings) if settings else defaults
        folder = (prefix or "").strip("/")
        start = folder and f"{folder}/"
        found = run_blocking(self.driver(in_force.resolved(), blocking=True).list(start))
        return [info._replace(key=info.key.removeprefix(start)) for info in found]

    def list_objects(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """Key and size of the objects that `list_objects_metadata` has.

        Args:
            settings: how to talk to the storage.
        """
        found = self.list_objects_metadata(settings, prefix)
        return [(info.key, info.size_bytes) for info in found]

    def driver(
        self,
        settings: ResolvedStorage | None = None,
        *,
        blocking: bool,
        max_concurrent_requests: int = MAX_CONCURRENT_REQUESTS,
    ) -> Driver:
        """Something to read and write with; the same one for the same arguments.

        A redirect is followed here, unless the storage is bound. That makes requests; nothing else
        here does.

        Args:
            settings: how to talk to the storage.
            blocking: whether calls block, or are awaited in an event loop.
            max_concurrent_requests: requests in flight.
        """
        in_force = settings or self.default_settings().resolved()
        target = self.target
        place = (target, self._attribution, self._cache)
        key = (*place, in_force, blocking, max_concurrent_requests)
        found = self._drivers.get(key)
        if found is None:
            found = self._drivers[key] = _drivers.find_or_make(
                key,
                lambda: self._cached_driver(target, in_force, blocking, max_concurrent_requests),
            )
        return found

    def _cached_driver(
        self,
        location: TargetLocation,
        settings: ResolvedStorage,
        blocking: bool,
        max_concurrent_requests: int,
    ) -> Driver:
        driver = self._make_driver(location, settings, blocking, max_concurrent_requests)
        cache = self.disk_cache()
        if cache is None:
            return driver
        return cached.cached_driver(driver, cache, repr(location.place))

    def _make_driver(
        self,
        location: TargetLocation,
        settings: ResolvedStorage,
        blocking: bool,
        max_concurrent_requests: int,
    ) -> Driver:
        if isinstance(location, MemoryLocation):
            return memory.MemoryDriver(location.objects, settings)
        if isinstance(location, LocalLocation):
            return LocalDriver(location.path, settings, is_durable=location.is_durable)
        flavour = calls.BlockingCalls if blocking else eventloop.EventLoopCalls
        connection = connect.connect(location, settings, self._attribution)
        return remote.ObstoreDriver(connection, settings, flavour(max_concurrent_requests))

    def is_same_place(self, other: Storage) -> bool:
        """Whether both are the same place, whatever the credentials and the way to reach it.

        Args:
            other: another storage.
        """
        mine, theirs = self._target or self._location, other._target or other._location
        return mine.place == theirs.place

    def is_within(self, other: Storage) -> bool:
        """Whether this is the same place as another storage, or a folder in it.

        Args:
            other: another storage.
        """
        (*mine, path), (*theirs, root) = self.target.place, other.target.place
        folder = str(root) and str(root).rstrip("/") + "/"
        return mine == theirs and f"{path}/".startswith(folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and self._location == other._location

    def __hash__(self) -> int:
        return hash(self._location)

    def describe(self) -> str:
        """Kind and place on one line, for messages."""
        return f"{self.kind} storage at {self.url}"

    def _picture_(self) -> Picture:
        fields = [(name, text) for name, text in self._location.shown().items() if text]
        return Picture(qualified("Storage"), [("type", self.kind), *fields])

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self._location, self._attribution, self._cache, self._target)


def require_outside(target: Storage, repository: Storage) -> None:
    """Refuse to copy a repository into itself."""
    if target.is_within(repository):
        raise InvalidInputError(
            f"the target {target.url} is inside of the repository {repository.url} itself; choose "
            "a place outside of it"
        )
