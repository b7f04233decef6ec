"""Virtual chunks: what a reader has authorised, and from a location to bytes or to an error.

The saved configuration of a repository is not trusted. It may say where chunks are, but not how the
reader's credentials are used. A chunk is read only if the reader has authorised exactly the prefix
of its container. If a saved container would send a secret, or the credentials of the machine, to a
host that it chooses, the reader has to name that host; see `virtual_sources.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from icefloe.assets.cache import BoundedCache
from icefloe.config.containers import (
    ContainerSet,
    ContainerSource,
    VirtualChunkContainer,
    has_odd_segments,
    usable_containers,
)
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError, StorageError
from icefloe.format.chunk_refs import ChunkRef
from icefloe.storage.driver import ConditionFailed, Readable, Span

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential
    from icefloe.storage.cached import DiskCache
    from icefloe.storage.calls import Calls
    from icefloe.storage.external import ExternalReader

MOST_READERS = 50
_MAX_CACHED_LOCATIONS = 4096
_MAX_CONCURRENT_REQUESTS = 256
_SETTLED_S = 2  # references have times in whole seconds
Authorizations: TypeAlias = "Mapping[str, AnyCredential | None]"

_EXPECTED = {
    "S3": ("ContainerS3", "s3_anonymous_credentials() or s3_from_env_credentials()"),
    "S3Compatible": ("ContainerS3", "s3_credentials(...)"),
    "Tigris": ("ContainerS3", "s3_credentials(...)"),
    "Gcs": ("ContainerGcs", "gcs_credentials(...)"),
    "Azure": ("ContainerAzure", "azure_credentials(...)"),
    "Http": ("ContainerHttp", "credentials.HttpAccess"),
    "LocalFileSystem": ("ContainerLocalFileSystem", "credentials.LocalFileSystemAccess"),
}
"""By class of store: the class of its credential, and an example for messages."""


@dataclass(frozen=True, slots=True)
class VirtualAccess:
    """The effective containers and the reader's authorisations."""

    containers: ContainerSet = field(default_factory=lambda: ContainerSet([]))
    authorizations: Authorizations = field(default_factory=dict)
    are_own: bool = False
    """Whether the containers come from the reader, not from the saved configuration."""
    problems: tuple[str, ...] = ()
    """Why containers of the saved configuration cannot be used."""

    @classmethod
    def make(
        cls,
        containers: Mapping[str, VirtualChunkContainer] | None,
        authorizations: Mapping[str, AnyCredential | None] | None,
        *,
        are_own: bool,
    ) -> VirtualAccess:
        """Check the kind of each credential against its container.

        Raises:
            StorageError: a credential is of another kind than its container's store.
        """
        if not containers and not authorizations:
            return cls(are_own=are_own)
        from icefloe import credentials as given

        usable, problems = usable_containers((containers or {}).values())
        known = given.containers_credentials({**authorizations}) if authorizations else {}
        access = cls(ContainerSet(usable), known, are_own, tuple(problems))
        for container in usable:
            if access.is_authorized(container):
                _check_kind(container, access.credential(container))
        return access

    def is_authorized(self, container: VirtualChunkContainer) -> bool:
        """Whether exactly this prefix was authorised. A trailing `/` is optional."""
        return self._key(container) is not None

    def credential(self, container: VirtualChunkContainer) -> AnyCredential | None:
        """The credential that the reader gave for a container."""
        key = self._key(container)
        if key is None:
            raise InvalidInputError(
                f"virtual chunks below {container.url_prefix!r}"
                + (f" (container {container.name!r})" if container.name else "")
                + " may not be read: the container is not authorised; pass "
                f"authorize_virtual_chunk_access={{{container.url_prefix!r}: ...}} with "
                f"{_expected(container)[1]} when you open the repository",
                ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            )
        return self.authorizations[key]

    def _key(self, container: VirtualChunkContainer) -> str | None:
        prefix = container.url_prefix
        if prefix in self.authorizations:
            return prefix
        bare = prefix.removesuffix("/")
        return bare if bare in self.authorizations else None

    def resolve(self, location: str) -> ContainerSource:
        """The container and key of a location; see `ContainerSet.resolve`."""
        return self.containers.resolve(location)

    def may_follow(self, url: str) -> bool:
        """Whether a redirect to this URL may be followed: it is below a prefix authorised for
        HTTP."""
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            return False
        from icefloe import credentials as given

        for prefix, credential in self.authorizations.items():
            if prefix.startswith(("http://", "https://")) and (
                credential is None or isinstance(credential, given.ContainerHttp)
            ):
                allowed = urlsplit(prefix if prefix.endswith("/") else prefix + "/")
                if (parts.scheme, parts.netloc) == (allowed.scheme, allowed.netloc) and (
                    _is_plain_path(parts.path) and parts.path.startswith(allowed.path)
                ):
                    return True
        return False


def _is_plain_path(path: str) -> bool:
    """Whether no server can interpret the path as one above the prefix."""
    lowered = path.lower().replace("%2e", ".").replace("%2f", "/").replace("\\", "/")
    return ".." not in lowered.replace("%5c", "/").split("/")


def _expected(container: VirtualChunkContainer) -> tuple[type, str]:
    from icefloe import credentials as given
    from icefloe.config import stores

    for store, (credential, example) in _EXPECTED.items():
        if isinstance(container.store, getattr(stores, store)):
            return getattr(given, credential), example
    raise InvalidInputError(
        f"no virtual chunk can be read from a {type(container.store).__name__} store",
        ErrorKind.BAD_PREFIX,
    )


def _check_kind(container: VirtualChunkContainer, credential: AnyCredential | None) -> None:
    from icefloe.config import stores

    expected, example = _expected(container)
    if isinstance(credential, expected):
        return
    if credential is None and not isinstance(container.store, stores.Azure):
        return
    raise StorageError(
        f"container {container.url_prefix!r} is a {type(container.store).__name__} store, which "
        f"{'None' if credential is None else type(credential).__name__} does not open; expected "
        f"{example}",
        ErrorKind.STORAGE_OTHER,
    )


# -- reading


class _Found(NamedTuple):
    """The target of a location. It has the key of the reader only, which may be recreated."""

    container: VirtualChunkContainer
    key: str


class VirtualReader:
    """Reads virtual chunks for one driver flavour. Thread-safe.

    Readers are created on first use and kept, one per container. Resolved locations are cached for
    the most recently used ones.
    """

    def __init__(
        self, access: VirtualAccess, *, blocking: bool, disk: DiskCache | None = None
    ) -> None:
        self.access = access
        self._is_blocking = blocking
        self._disk = disk
        self._readers: BoundedCache[ExternalReader] = BoundedCache(MOST_READERS)
        self._found: BoundedCache[_Found] = BoundedCache(_MAX_CACHED_LOCATIONS)

    @cached_property
    def _calls(self) -> Calls:
        from icefloe.storage import calls

        flavour = calls.BlockingCalls if self._is_blocking else calls.EventLoopCalls
        return flavour(_MAX_CONCURRENT_REQUESTS)

    def flavour(self, *, blocking: bool) -> VirtualReader:
        """The same access for the other driver flavour."""
        return VirtualReader(self.access, blocking=blocking, disk=self._disk)

    def past_disk_cache(self) -> VirtualReader:
        """A reader that asks the sources for everything."""
        return VirtualReader(self.access, blocking=self._is_blocking)

    async def fetch(self, ref: ChunkRef, span: Span | None) -> Readable:
        """The bytes of a virtual chunk, or a span of them.

        Raises:
            InvalidInputError: the location is not authorised, or it is not valid.
            StorageError: the source is missing, too short or forbidden, or it has changed.
        """
        kept = self._kept(ref, span)
        if kept is not None:
            return kept
        data = await self._fetch_source(ref, span)
        self._keep(ref, span, data)
        return data

    async def _fetch_source(self, ref: ChunkRef, span: Span | None) -> Readable:
        assert ref.location is not None
        start, length = (0, ref.length) if span is None else span
        from icefloe.storage import external

        condition = external.Unchanged(ref.etag, None if ref.etag else ref.last_modified)
        found = self._locate(ref.location)
        wanted = Span(ref.offset + start, length)
        try:
            reader = self._reader(found.container)
            return await reader.get_if_unchanged(found.key, wanted, condition)
        except ConditionFailed as error:
            raise StorageError(
                f"virtual chunk source {self._shown(ref.location)} has changed since it was "
                f"referenced: {error}",
                ErrorKind.VIRTUAL_CHUNK_MODIFIED,
            ) from error
        except StorageError as error:
            kind = error.kind
            raise StorageError(
                f"cannot read a virtual chunk of {self._shown(ref.location)}: {error.message}",
                kind if kind == ErrorKind.INVALID_OBJECT_SIZE else ErrorKind.VIRTUAL_CHUNK_FETCH,
            ) from error

    async def fetch_many(self, refs: Sequence[ChunkRef]) -> list[Readable]:
        """The bytes of several virtual chunks. Chunks close together in one file share a request.

        Raises:
            IcechunkError: one of them cannot be read; the error is that of the first.
        """
        found = {number: self._kept(ref, None) for number, ref in enumerate(refs)}
        missing = [number for number, data in found.items() if data is None]
        fetched = await self._fetch_sources([refs[number] for number in missing])
        for number, data in zip(missing, fetched, strict=True):
            self._keep(refs[number], None, data)
        arrived = {**found, **dict(zip(missing, fetched, strict=True))}
        return [data for data in arrived.values() if data is not None]

    async def _fetch_sources(self, refs: Sequence[ChunkRef]) -> list[Readable]:
        requests: list[tuple[ChunkRef, list[int]]] = []
        by_source: dict[tuple[str | None, str | None, int | None], list[int]] = {}
        from icefloe.storage import calls

        for number, ref in enumerate(refs):
            if ref.length > calls.MAX_SHARED_BYTES:
                requests.append((ref, [number]))
            else:
                source = (ref.location, ref.etag, ref.last_modified)
                by_source.setdefault(source, []).append(number)
        for numbers in by_source.values():
            spans = [Span(refs[number].offset, refs[number].length) for number in numbers]
            for (start, length), members in calls.share_requests(spans):
                whole = refs[numbers[0]]._replace(offset=start, length=length)
                requests.append((whole, [numbers[member] for member in members]))
        parts = await self._calls.each(lambda request: self._fetch_shared(refs, *request), requests)
        found: dict[int, Readable] = {}
        for (_, numbers), data in zip(requests, parts, strict=True):
            found.update(zip(numbers, data, strict=True))
        return [found[number] for number in range(len(refs))]

    async def _fetch_shared(
        self, refs: Sequence[ChunkRef], whole: ChunkRef, numbers: Sequence[int]
    ) -> list[Readable]:
        if len(numbers) == 1:
            return [await self._fetch_source(refs[numbers[0]], None)]
        try:
            data = memoryview(await self._fetch_source(whole, None))
        except StorageError:  # whichever chunk it is about says so itself
            return [await self._fetch_source(refs[number], None) for number in numbers]
        starts = [refs[number].offset - whole.offset for number in numbers]
        return [
            data[start : start + refs[number].length]
            for start, number in zip(starts, numbers, strict=True)
        ]

    async def fetch_all(self, refs: Sequence[ChunkRef]) -> list[Readable | IcechunkError]:
        """For several virtual chunks, fetched at once: the bytes, or the error of each."""

        async def outcome(ref: ChunkRef) -> Readable | IcechunkError:
            try:
                return await self.fetch(ref, None)
            except IcechunkError as error:
                return error

        return await self._calls.each(outcome, refs)

    # -- the cache on disk

    def _kept(self, ref: ChunkRef, span: Span | None) -> bytes | None:
        identity = self._identity(ref, span)
        return None if self._disk is None or identity is None else self._disk.get(identity)

    def _keep(self, ref: ChunkRef, span: Span | None, data: Readable) -> None:
        identity = self._identity(ref, span)
        if self._disk is not None and identity is not None:
            self._disk.put(identity, memoryview(data))

    def _identity(self, ref: ChunkRef, span: Span | None) -> str | None:
        """What the bytes of a chunk are, or None if its source may be replaced unnoticed.

        Fails as reading does if the location is not authorised.
        """
        if self._disk is None or ref.location is None:
            return None
        found = self._locate(ref.location)
        if not ref.etag and not ref.last_modified:
            return None
        if not ref.etag and (ref.last_modified or 0) > time() - _SETTLED_S:
            return None  # the source may still be written without the reference noticing
        start, length = (0, ref.length) if span is None else span
        source = f"{found.container.store!r}\n{self.access.containers.expand(ref.location)}"
        version = f"{ref.etag}\n{ref.last_modified}"
        return f"virtual\n{source}\n{version}\n{ref.offset + start}+{length}"

    def _shown(self, location: str) -> str:
        """The absolute URL for messages, without the query, which may contain a secret."""
        return repr(self.access.containers.expand(location).partition("?")[0])

    def _locate(self, location: str) -> _Found:
        found = self._found.get(location)
        if found is None:
            container, url = self.access.resolve(location)
            self.access.credential(container)  # raises if it is not authorised
            if has_odd_segments(url.path) or not url.key:
                raise InvalidInputError(
                    f"virtual chunk location {location!r}: its key {url.key!r} has empty, '.' or "
                    "'..' segments, which cannot be asked for",
                    ErrorKind.INVALID_VIRTUAL_REF,
                )
            key = url.key
            if "file" not in container.store.url_schemes and key.endswith("/"):
                key = key.removesuffix("/")
            found = _Found(container, key)
            self._found.put(location, found, 1)
        return found

    def _reader(self, container: VirtualChunkContainer) -> ExternalReader:
        reader = self._readers.get(container.url_prefix)
        if reader is None:
            from icefloe.assets import virtual_sources

            # Two threads may both create one. Creating makes no connection, and only one is kept.
            reader = virtual_sources.make_reader(self.access, container, self._calls)
            self._readers.put(container.url_prefix, reader, 1)
        return reader
