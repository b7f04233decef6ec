"""`Storage`: where a repository is, in a form that can be compared, printed and pickled.

It holds no connection. Drivers are made when they are needed, once per process, flavour and
settings. The functions that make a `Storage` in memory, in a directory or on the web are at the
end; those for buckets are in `constructors.py`, URLs in `urls.py`. Names and arguments are
Icechunk's. None of them makes a request.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from icefloe.config.repository import ResolvedStorage, StorageSettings
from icefloe.display import Picture, Shown, qualified
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.driver import Driver, ObjectInfo
from icefloe.storage.local import LocalDriver
from icefloe.storage.locations import (
    HttpLocation,
    LocalLocation,
    Location,
    MemoryLocation,
    RedirectLocation,
    TargetLocation,
    as_headers,
)
from icefloe.storage.run import Registry, run_blocking

if TYPE_CHECKING:
    from icefloe.storage.cached import CacheFolder, DiskCache
    from icefloe.storage.locations import Attribution

MAX_CONCURRENT_REQUESTS = 256


class _DriverKey(NamedTuple):
    """What a driver is made of."""

    location: TargetLocation
    attribution: Attribution | None
    cache: CacheFolder | None
    settings: ResolvedStorage
    is_blocking: bool
    max_concurrent_requests: int

    def make(self) -> Driver:
        location, settings = self.location, self.settings
        if self.cache is not None:
            from icefloe.storage import cached

            inner = self._replace(cache=None).make()
            return cached.cached_driver(inner, _cache_in(self.cache), repr(location.place))
        if isinstance(location, MemoryLocation):
            from icefloe.storage import memory

            return memory.MemoryDriver(location.objects, settings)
        if isinstance(location, LocalLocation):
            return LocalDriver(location.path, settings, is_durable=location.is_durable)
        from icefloe.storage import calls, client, remote

        flavour = calls.BlockingCalls if self.is_blocking else calls.EventLoopCalls
        connection = client.connect(location, settings, self.attribution)
        return remote.ObstoreDriver(connection, settings, flavour(self.max_concurrent_requests))


_drivers: Registry[_DriverKey, Driver] = Registry()
_caches: Registry[CacheFolder, DiskCache] = Registry()


def _cache_in(folder: CacheFolder) -> DiskCache:
    from icefloe.storage import cached

    return _caches.find_or_make(folder, lambda: cached.DiskCache(folder))


class Storage(Shown):
    """One place where a repository is or can be. Made by the `..._storage` functions.

    Two objects for the same place are equal and share their connections. A pickle carries the
    credentials, unless they come from the environment or from a function.

    >>> storage = icefloe.local_filesystem_storage("weather")
    >>> len(storage.list_objects(prefix="snapshots"))
    3
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
        self._drivers: dict[_DriverKey, Driver] = {}

    @property
    def location(self) -> Location:
        """The description this storage is made of."""
        return self._location

    @property
    def attribution(self) -> Attribution | None:
        """The labels that requests carry."""
        return self._attribution

    def attributed(self, attribution: Attribution | None) -> Storage:
        """The same place, reached with the labels `attribution`; itself when there are none."""
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
            return replace(location, path=os.path.realpath(location.path))
        if isinstance(location, RedirectLocation):
            from icefloe.storage import web

            return web.resolve_redirect(location.base_url)
        return location

    def cached(self, folder: str | PathLike[str], max_bytes: int | None = None) -> Storage:
        """The same place, with what is read kept in a folder of this machine.

        Chunks and metadata files that never change are kept, and virtual chunks whose references
        have a checksum or a time. Refs and the `repo` object are read as before. Processes
        may share the folder. It survives restarts and belongs to this user only.

        Args:
            folder: where to keep them, in a folder `icefloe-cache` that is made when it is needed.
                Other files there are left alone.
            max_bytes: the size of the cache, 10 GB if not given. What was not used for longest is
                deleted. Processes that write at the same time may exceed it by a sixteenth each.

        >>> storage = icefloe.s3_storage(bucket="climate", prefix="era5", anonymous=True)
        >>> storage = storage.cached("cache", max_bytes=10 * 2**30)
        """
        from icefloe.storage import cached

        limit = cached.DEFAULT_MAX_BYTES if max_bytes is None else int(max_bytes)
        if limit <= 0:
            raise InvalidInputError(f"max_bytes is {max_bytes!r}, expected more than 0")
        # The same folder for other processes that get this storage, wherever they run.
        path = os.path.abspath(os.path.expanduser(folder))  # noqa: PTH100, PTH111 - keeps symlinks
        cache = cached.CacheFolder(path, limit)
        return Storage(self._location, self._attribution, cache, self._target)

    def disk_cache(self) -> DiskCache | None:
        """The cache on disk, or None. The same one for all storages with the same folder."""
        return None if self._cache is None else _cache_in(self._cache)

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
        """What this kind of storage sets; a repository's config goes on top of it.

        >>> settings = repo.storage.default_settings()
        """
        return self._location.default_settings()

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[ObjectInfo]:
        """Every object, or those in the folder `prefix` and below it, sorted by key.

        Keys are relative to that folder. `settings` say how to talk to the storage.

        >>> newest = max(info.created_at for info in repo.storage.list_objects_metadata())
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

        >>> len(repo.storage.list_objects(prefix="chunks"))
        6
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
        place = (self.target, self._attribution, self._cache)
        key = _DriverKey(*place, in_force, blocking, max_concurrent_requests)
        found = self._drivers.get(key)
        if found is None:
            found = self._drivers[key] = _drivers.find_or_make(key, key.make)
        return found

    def is_same_place(self, other: Storage) -> bool:
        """Whether `other` has the same location, ignoring credentials and transport."""
        mine, theirs = self._target or self._location, other._target or other._location
        return mine.place == theirs.place

    def is_within(self, other: Storage) -> bool:
        """Whether this is the same place as the storage `other`, or a folder in it."""
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


def in_memory_storage() -> Storage:
    """A repository in the memory of this process, gone with it.

    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    """
    from icefloe.storage import memory

    name = uuid.uuid4().hex
    return Storage(MemoryLocation(name, memory.memory_objects(name)))


def local_filesystem_storage(path: str | PathLike[str], *, durable: bool = True) -> Storage:
    """A repository in the directory `path`, created with the repository.

    Safe for any number of processes that use icefloe; see `storage/local.py` for what is
    guaranteed. `durable=False` does not wait for the disk: faster, but a power failure may lose
    commits, or leave a repository that cannot be opened.

    >>> repo = icefloe.Repository.open(icefloe.local_filesystem_storage("weather"))
    """
    text = os.fspath(path)
    try:
        is_path = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_path = False
    if "://" in text:
        raise InvalidInputError(
            f"{text!r} is a URL, and local_filesystem_storage takes the path of a directory; use "
            f"storage_from_url({text!r})",
            ErrorKind.INVALID_PATH,
        )
    if not text or not is_path:
        raise InvalidInputError(f"{path!r} is not the path of a directory", ErrorKind.INVALID_PATH)
    return Storage(LocalLocation(os.path.abspath(text), durable))  # noqa: PTH100 - keeps symlinks


def http_storage(
    base_url: str,
    opts: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository below a URL of a web server, to be read only.

    `opts` are options of the HTTP client, such as `timeout` or `proxy_url`.

    Args:
        base_url: `http://` or `https://`, the folder of the repository.
        headers: sent with every request.

    >>> storage = icefloe.http_storage("https://data.example.org/era5")
    """
    url = _checked_url("http_storage", base_url)
    if "?" in url or "#" in url:
        raise InvalidInputError(
            "http_storage got a URL with a query or fragment, which files below it cannot have",
            ErrorKind.CANNOT_PARSE_URL,
        )
    return Storage(HttpLocation(url, as_headers(opts), as_headers(headers)))


def redirect_storage(base_url: str) -> Storage:
    """The repository that the web address `base_url` redirects to, opened anonymously.

    The address is asked once per process, when the storage is first used.

    >>> storage = icefloe.redirect_storage("https://data.example.org/latest")
    """
    return Storage(RedirectLocation(_checked_url("redirect_storage", base_url)))


def _checked_url(function: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageError(
            f"{function} got a URL that starts with {parts.scheme!r}, expected 'http://host' or "
            "'https://host'",
            ErrorKind.CANNOT_PARSE_URL,
        )
    if "@" in parts.netloc:
        raise InvalidInputError(
            f"{function} got a URL with a user or password in it, which would be printed; use "
            "a header instead",
            ErrorKind.CANNOT_PARSE_URL,
        )
    return url
