"""Virtual chunks: from a location to bytes, or to an error that says which chunk and why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from time import time
from typing import TYPE_CHECKING

from icefloe.assets.cache import BoundedCache
from icefloe.assets.virtual_access import VirtualAccess
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError, StorageError
from icefloe.format.manifest.chunk_refs import ChunkRef
from icefloe.on_demand import on_demand
from icefloe.records import record
from icefloe.storage.driver import ConditionFailed, Readable, Span

if TYPE_CHECKING:
    from icefloe.assets import virtual_sources
    from icefloe.config import stores, virtual_urls
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.storage.client import calls, eventloop, shared_requests
    from icefloe.storage.drivers.disk_cache import DiskCache
    from icefloe.storage.foreign import reads
    from icefloe.storage.foreign.reads import ForeignReader
else:
    reads = on_demand("icefloe.storage.foreign.reads")
    stores = on_demand("icefloe.config.stores")
    virtual_urls = on_demand("icefloe.config.virtual_urls")
    virtual_sources = on_demand("icefloe.assets.virtual_sources")
    calls = on_demand("icefloe.storage.client.calls")
    eventloop = on_demand("icefloe.storage.client.eventloop")
    shared_requests = on_demand("icefloe.storage.client.shared_requests")

MOST_READERS = 50
_MAX_CACHED_LOCATIONS = 4096
_MAX_CONCURRENT_REQUESTS = 256
_SETTLED_S = 2  # references have times in whole seconds


@record(frozen=True)
class _Found:
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
        self._readers: BoundedCache[ForeignReader] = BoundedCache(MOST_READERS)
        self._found: BoundedCache[_Found] = BoundedCache(_MAX_CACHED_LOCATIONS)

    @cached_property
    def _calls(self) -> calls.Calls:
        flavour = calls.BlockingCalls if self._is_blocking else eventloop.EventLoopCalls
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
        condition = reads.Unchanged(ref.etag, None if ref.etag else ref.last_modified)
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
        for number, ref in enumerate(refs):
            if ref.length > shared_requests.MAX_SHARED_BYTES:
                requests.append((ref, [number]))
            else:
                source = (ref.location, ref.etag, ref.last_modified)
                by_source.setdefault(source, []).append(number)
        for numbers in by_source.values():
            spans = [Span(refs[number].offset, refs[number].length) for number in numbers]
            for (start, length), members in shared_requests.share_requests(spans):
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
            if virtual_urls.has_odd_segments(url.path) or not url.key:
                raise InvalidInputError(
                    f"virtual chunk location {location!r}: its key {url.key!r} has empty, '.' or "
                    "'..' segments, which cannot be asked for",
                    ErrorKind.INVALID_VIRTUAL_REF,
                )
            key = url.key
            if not isinstance(container.store, stores.LocalFileSystem) and key.endswith("/"):
                key = key.removesuffix("/")
            found = _Found(container, key)
            self._found.put(location, found, 1)
        return found

    def _reader(self, container: VirtualChunkContainer) -> ForeignReader:
        reader = self._readers.get(container.url_prefix)
        if reader is None:
            # Two threads may both create one. Creating makes no connection, and only one is kept.
            reader = virtual_sources.make_reader(self.access, container, self._calls)
            self._readers.put(container.url_prefix, reader, 1)
        return reader
