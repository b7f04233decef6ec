"""Object stores and web servers, through obstore. One body for both flavours of `calls.py`.

A small range is read with one request, a large one with several. Long listings are read in ranges
of keys at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import numpy as np

from icefloe.config.repository import ResolvedStorage
from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.observe import STORAGE, StorageCall
from icefloe.storage import client, conditional
from icefloe.storage.calls import (
    KEYS_OF_PAGE,
    MAX_SHARED_BYTES,
    BlockingCalls,
    Calls,
    SharedRequest,
    can_share,
    share_requests,
)
from icefloe.storage.client import Connection, pauses, retry_cut
from icefloe.storage.driver import (
    PROBE_DIRECTORY,
    About,
    AboutMany,
    ConditionFailed,
    Driver,
    ObjectInfo,
    ObjectPage,
    Objects,
    Readable,
    Reads,
    Span,
    Take,
    Version,
    about_one,
    check_key,
    check_span,
    decode_key,
    encode_key,
    instant,
    microseconds,
    moment,
    object_page,
    taken,
)
from icefloe.storage.external import ANY_ETAG, Unchanged, bare_etag

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutResult
    from obstore.store import ObjectStore

Result = TypeVar("Result")

DELETE_AT_ONCE = 1000  # keys per request; what S3 allows
_BORDERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Names are random ids in this alphabet, so these cut them into parts of one size."""


class ReadResult(NamedTuple):
    """An object or part of it, as one request returned it."""

    data: memoryview
    version: Version
    size_bytes: int
    """Of the whole object."""
    attributes: Mapping[str, str]
    last_modified: datetime


class ReadPart(NamedTuple):
    """One of the requests that a read is made of."""

    key: str
    span: Span | None


def _shared(wanted: Reads) -> list[tuple[str, Span | None, list[int]]]:
    """The requests for many reads: key, span, and the numbers of the reads in it."""
    requests: list[tuple[str, Span | None, list[int]]] = []
    small: dict[str, list[tuple[int, Span]]] = {}
    for number, (key, span) in enumerate(wanted):
        if span is not None and 0 < span.length <= MAX_SHARED_BYTES and span.start >= 0:
            small.setdefault(key, []).append((number, span))
        else:
            requests.append((key, span, [number]))
    for key, reads in small.items():
        for whole, members in share_requests([span for _, span in reads]):
            requests.append((key, whole, [reads[member][0] for member in members]))
    return requests


class KeyRange:
    """The keys of a folder behind `after`, up to and with `until`, as pages of rows."""

    def __init__(
        self, folder: str, after: str | None, until: str | None, most: int | None = None
    ) -> None:
        """`most` pages are read; None for all."""
        self.folder = folder
        self.after = after
        self.until = until
        self.last = after or ""
        self.pages: list[list[tuple[str, int, int]]] = []
        self.is_cut = False
        """Whether there may be more than `most` pages."""
        self.is_unordered = False
        """Whether keys came in an order that makes ranges of them meaningless."""
        self._most = most

    def start_again(self) -> None:
        """Forget pages that came in no order: it is unknown what follows them."""
        self.last, self.pages, self.is_unordered = self.after or "", [], False

    def take(self, page: Sequence[ObjectMeta]) -> bool:
        """Add a page; whether the next one is wanted."""
        rows = [(meta["path"], meta["size"], microseconds(meta["last_modified"])) for meta in page]
        paths = [self.last, *(path for path, _, _ in rows)]
        self.is_unordered |= any(first > second for first, second in pairwise(paths))
        self.last = paths[-1]
        if self.until is not None and self.last > self.until:
            self.pages.append([row for row in rows if row[0] <= self.until])
            return False
        self.pages.append(rows)
        is_full = len(rows) >= KEYS_OF_PAGE
        self.is_cut = is_full and self._most is not None and len(self.pages) >= self._most
        return not self.is_cut


def ranges_after(folder: str, last: str) -> list[KeyRange]:
    """What is behind the key `last` of a folder, in ranges."""
    borders = [last, *(folder + letter for letter in _BORDERS if folder + letter > last)]
    inner = [KeyRange(folder, first, second) for first, second in pairwise(borders)]
    return [*inner, KeyRange(folder, borders[-1], None)]


class ObstoreDriver(Driver):
    """See `icefloe.storage.driver.Driver`."""

    is_local = False

    def __init__(self, connection: Connection, settings: ResolvedStorage, calls: Calls) -> None:
        self.settings = settings
        self.can_write = connection.can_write
        self.can_list = connection.can_list
        self.location = connection.location
        self._connection = connection
        self._calls = calls
        self.is_blocking = isinstance(calls, BlockingCalls)

    # --- reading ------------------------------------------------------------------------------

    async def get(self, key: str, span: Span | None = None) -> Readable:
        if span is not None and can_share(span):
            return await self._calls.together(self._fetch_spans, key, span)
        found: list[Readable] = await self.get_many([(key, span)])
        return found[0]

    async def get_many(self, wanted: Reads, take: Take | None = None) -> list[Any]:
        """A span above the ideal request size is fetched in several parts; all share one limit.

        An object without a span is one request, because its size is not known beforehand. Small
        spans close together in one object share a request.
        """
        requests = _shared(wanted)
        split = [self._parts(key, span) for key, span, _ in requests]
        parts_of_all = [part for parts in split for part in parts]
        if take is not None and len(requests) == len(wanted) == len(parts_of_all):
            return await self._take_each(parts_of_all, [reads[0] for *_, reads in requests], take)
        fetched = iter(await self._calls.each(self._fetch, parts_of_all))
        found: dict[int, Readable] = {}
        for (_, whole, members), parts in zip(requests, split, strict=True):
            data = _joined([next(fetched) for _ in parts])
            for number in members:
                span = wanted[number][1]
                if len(members) == 1 or span is None or whole is None:
                    found[number] = data
                else:
                    start = span.start - whole.start
                    found[number] = memoryview(data)[start : start + span.length]
        return taken([found[number] for number in range(len(wanted))], take)

    async def _take_each(
        self, parts: Sequence[ReadPart], numbers: Sequence[int], take: Take
    ) -> list[Any]:
        """Reads of one request each: what is here is taken while the others are on their way."""

        async def fetch(one: tuple[ReadPart, int]) -> tuple[int, Any]:
            part, number = one
            return number, take(number, await self._fetch(part))

        done = dict(await self._calls.each(fetch, list(zip(parts, numbers, strict=True))))
        return [done[number] for number in range(len(parts))]

    def _parts(self, key: str, span: Span | None) -> list[ReadPart]:
        limits = self.settings.concurrency
        if span is None or span.length <= limits.ideal_concurrent_request_size:
            return [ReadPart(key, span)]
        num_ideal = -(-span.length // limits.ideal_concurrent_request_size)
        num_parts = min(num_ideal, limits.max_concurrent_requests_for_object)
        edges = [span.start + span.length * part // num_parts for part in range(num_parts + 1)]
        return [ReadPart(key, Span(start, end - start)) for start, end in pairwise(edges)]

    async def _fetch(self, part: ReadPart) -> memoryview:
        key, span = part
        if span is None:
            return (await self._request(key, None)).data
        if span.length <= 0 or span.start < 0:  # a range that no request can name
            check_span(key, span, (await self.head(key)).size_bytes, self.location)
            return memoryview(b"")
        try:
            data = await self._fetch_range(key, span)
            if data is not None:
                return data
            got = await self._request(key, {"range": (span.start, span.start + span.length)})
        except client.RangeNotSatisfiable:
            check_span(key, span, (await self.head(key)).size_bytes, self.location)
            raise
        except NoRangesError:
            whole = await self._request(key, None)
            check_span(key, span, whole.size_bytes, self.location)
            return whole.data[span.start : span.start + span.length]
        check_span(key, span, got.size_bytes, self.location)
        return got.data

    async def _fetch_range(self, key: str, span: Span) -> memoryview | None:
        """Part of an object by a single call of the client, which takes a quarter less CPU time.

        None if it did not come whole: `_request` learns enough about the object to find out why.
        """
        check_key(key)
        async with self._calls.turn():
            with StorageCall("get", key, self.location) as request:
                store = self._connection.reader()
                try:
                    data = memoryview(
                        await self._calls.request(
                            store.get_range,
                            store.get_range_async,
                            self._name(key),
                            start=span.start,
                            length=span.length,
                        )
                    )
                except client.ClientError as error:
                    if client.lacks_ranges(error):
                        raise NoRangesError(key) from None
                    if client.broke_off(error):
                        return None
                    raise client.translated(error, "read", key, self.location) from error
                request.nbytes = data.nbytes
        return data if data.nbytes == span.length else None

    async def _fetch_spans(self, key: str, spans: Sequence[Span]) -> list[Readable | Exception]:
        """Small spans of one object; neighbours share a request, but not each other's errors."""

        async def fetch(request: SharedRequest) -> list[Readable | Exception]:
            try:
                data = await self._fetch(ReadPart(key, request.span))
            except StorageError as error:
                if len(request.members) == 1:
                    return [error]
                alone = [SharedRequest(spans[number], [number]) for number in request.members]
                return [outcome for [outcome] in await self._calls.each(fetch, alone)]
            places = [spans[number].start - request.span.start for number in request.members]
            return [
                data[place : place + spans[number].length]
                for place, number in zip(places, request.members, strict=True)
            ]

        requests = share_requests(spans)
        outcomes: dict[int, Readable | Exception] = {}
        for request, found in zip(requests, await self._calls.each(fetch, requests), strict=True):
            outcomes.update(zip(request.members, found, strict=True))
        return [outcomes[number] for number in range(len(spans))]

    async def _request(self, key: str, options: GetOptions | None) -> ReadResult:
        """One read, started again when the connection breaks while the bytes come in.

        The client retries requests itself, but not once it has handed out the first bytes.
        """
        check_key(key)
        waits = pauses(self.settings.retries)
        while True:
            try:
                async with self._calls.turn():
                    with StorageCall("get", key, self.location) as request:
                        return await self._request_once(key, options, request)
            except _BrokenOffError as broken:
                trouble = broken.trouble
            pause = next(waits, None)
            if pause is None:
                raise trouble
            STORAGE.info("reading again in %.2f s: %s", pause, trouble)
            await self._calls.sleep(pause)

    async def _request_once(
        self, key: str, options: GetOptions | None, request: StorageCall
    ) -> ReadResult:
        store = self._connection.reader()
        try:
            result = await self._calls.request(
                store.get, store.get_async, self._name(key), options=options
            )
        except client.ClientError as error:
            if options and "range" in options and client.lacks_ranges(error):
                raise NoRangesError(key) from None
            raise client.translated(error, "read", key, self.location) from error
        meta, attributes, (start, end) = result.meta, result.attributes, result.range
        try:
            data = memoryview(await self._calls.request(result.bytes, result.bytes_async))
        except client.ClientError as error:
            trouble = client.translated(error, "read", key, self.location)
            raise _BrokenOffError(trouble) from error
        is_head = bool(options and options.get("head"))
        if not is_head and data.nbytes != end - start:
            raise _BrokenOffError(
                StorageError(
                    f"object {key!r} in {self.location}: {data.nbytes} bytes came in, expected "
                    f"{end - start}",
                    ErrorKind.INVALID_OBJECT_SIZE,
                )
            )
        request.nbytes = data.nbytes
        version, modified = self._version(meta), meta["last_modified"]
        return ReadResult(data, version, meta["size"], attributes, modified)

    async def get_if_unchanged(self, key: str, span: Span, condition: Unchanged) -> Readable:
        """See `icefloe.storage.external.ForeignReader`."""
        given: dict[str, Any] = {}
        if condition.etag is not None:
            etag = condition.etag
            given["if_match"] = etag if etag == ANY_ETAG else f'"{bare_etag(etag)}"'
        elif condition.last_modified is not None:
            given["if_unmodified_since"] = moment(condition.last_modified)

        async def fetch(part: ReadPart) -> memoryview:
            assert part.span is not None
            start, length = part.span
            options: Any = {**given, "range": (start, start + length)}
            try:
                got = await self._request(key, options)
            except NoRangesError:
                raise StorageError(
                    f"{self.location} sends whole objects when asked for part of {key!r}"
                ) from None
            condition.check(f"{key!r} in {self.location}", got.version.etag, got.last_modified)
            check_span(key, part.span, got.size_bytes, self.location)
            return got.data

        return _joined(await self._calls.each(fetch, self._parts(key, span)))

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        got = await self._request(key, None)
        return bytes(got.data), got.version

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        options: GetOptions | None = {"if_none_match": version.etag} if version.etag else None
        try:
            got = await self._request(key, options)
        except ConditionFailed:
            return None
        # Servers may ignore the header, and some have no ETags at all.
        unchanged = got.version == version and version != Version(None)
        return None if unchanged else (bytes(got.data), got.version)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        try:
            with StorageCall("head", key, self.location):
                store = self._connection.reader()
                found = await self._calls.request(store.head, store.head_async, self._name(key))
        except client.ClientError as error:
            raise client.translated(error, "look up", key, self.location) from error
        return ObjectInfo(key, found["size"], found["last_modified"])

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        return object_page(await self._calls.each(self._row_of, keys))

    async def _row_of(self, key: str) -> tuple[str, int, int]:
        try:
            found = await self.head(key)
        except StorageError as error:
            if error.kind != ErrorKind.OBJECT_NOT_FOUND:
                raise
            return key, -1, -1
        return key, found.size_bytes, microseconds(found.created_at)

    # --- listing ------------------------------------------------------------------------------

    async def list(self, prefix: str) -> list[ObjectInfo]:
        self._check_can_list()
        # obstore matches whole segments only: list the folder and choose from it.
        found = KeyRange(self._name(prefix.rpartition("/")[0]), None, None)
        await self._read_pages(found)
        infos = (
            ObjectInfo(self._key(name), size, instant(time))
            for rows in found.pages
            for name, size, time in rows
        )
        return sorted(info for info in infos if info.key.startswith(prefix) and _is_ours(info.key))

    async def list_top(self) -> Sequence[str]:
        self._check_can_list()

        async def request() -> Sequence[str]:
            with StorageCall("list", "", self.location):
                store = self._connection.reader()
                found = await self._calls.request(
                    store.list_with_delimiter, store.list_with_delimiter_async
                )
            folders = [self._key(path.rstrip("/")) + "/" for path in found["common_prefixes"]]
            return [*folders, *(self._key(meta["path"]) for meta in found["objects"])]

        return sorted(filter(_is_ours, await self._retried("list", "", request)))

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        """The first page tells whether there are many keys; the rest comes in ranges, at once."""
        self._check_can_list()
        has_ranges = self._connection.lists_ranges and at_once > 1
        start = KeyRange(self._name(folder), None, None, most=1 if has_ranges else None)
        await self._read_pages(start)
        if not start.is_cut:
            return self._as_pages(start, folder)
        ranges = ranges_after(self._name(folder), start.last)
        for first in range(0, len(ranges), at_once):
            await self._calls.each(self._read_pages, ranges[first : first + at_once])
        if any(part.is_unordered for part in (start, *ranges)):  # S3 Express, for one
            start, ranges = KeyRange(self._name(folder), None, None), []
            await self._read_pages(start)
        return [page for part in (start, *ranges) for page in self._as_pages(part, folder)]

    async def _read_pages(self, part: KeyRange) -> None:
        prefix = part.folder.removesuffix("/") or None

        async def request() -> None:
            """Pages behind those that are here."""
            if part.is_unordered:
                part.start_again()
            store, last = self._connection.reader(), part.last or None
            with StorageCall("list", part.folder, self.location):
                await self._calls.list_while(store, prefix, last, part.take)

        await self._retried("list", self._key(part.folder), request, lambda: part.last)

    async def _retried(
        self,
        action: str,
        key: str,
        request: Callable[[], Awaitable[Result]],
        progress: Callable[[], object] = lambda: None,
    ) -> Result:
        """The result of a request that may be repeated; see `retry_cut`."""
        try:
            return await retry_cut(request, self.settings.retries, self._calls.sleep, progress)
        except client.ClientError as error:
            raise client.translated(error, action, key, self.location) from error

    def _as_pages(self, part: KeyRange, folder: str) -> Sequence[ObjectPage]:
        return [
            object_page([(self._key(name)[len(folder) :], size, time) for name, size, time in rows])
            for rows in part.pages
        ]

    async def is_empty(self) -> bool:
        self._check_can_list()
        first = KeyRange("", None, None, most=1)
        await self._read_pages(first)
        return not any(_is_ours(self._key(name)) for rows in first.pages for name, _, _ in rows)

    def _check_can_list(self) -> None:
        if not self._connection.can_list:
            raise StorageError(
                f"{self.location} cannot be listed: web servers have no listing; open a "
                "repository of spec version 2, whose files are found without one",
                ErrorKind.STORAGE_OTHER,
            )

    # --- writing ------------------------------------------------------------------------------

    async def put(self, key: str, data: Any, **about: Unpack[About]) -> None:
        self._check_can_write(key)
        buffer = data if isinstance(data, bytes) else memoryview(data).cast("B")
        limits = self.settings.concurrency
        options = {
            "attributes": self._attributes(about),
            "use_multipart": len(buffer) >= self.settings.minimum_size_for_multipart_upload,
            "chunk_size": limits.ideal_concurrent_request_size,
            "max_concurrency": limits.max_concurrent_requests_for_object,
        }

        async def request() -> None:
            async with self._calls.turn():
                with StorageCall("put", key, self.location) as call:
                    call.nbytes = len(buffer)
                    store = self._connection.writer()
                    await self._put(store, key, buffer, options)

        await self._retried("write", key, request)

    async def _put(
        self, store: ObjectStore, key: str, data: Any, options: Mapping[str, Any]
    ) -> PutResult:
        name = self._name(key)
        return await self._calls.request(store.put, store.put_async, name, data, **options)

    async def put_many(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        async def put(one: tuple[str, Any]) -> None:
            key, data = one
            await self.put(key, data, **about_one(data, about))

        await self._calls.each(put, objects)

    async def put_if(
        self, key: str, data: bytes, *, previous: Version | None, **about: Unpack[About]
    ) -> Version:
        self._check_can_write(key)
        return await conditional.put_if(self, key, data, previous, about)

    async def write_once(self, write: conditional.Write) -> Version:
        """See `icefloe.storage.conditional.Primitives`."""
        key, data = write.key, write.data
        options = {
            "attributes": self._attributes(write.about),
            "mode": _put_mode(write.previous) if write.is_conditional else "overwrite",
            "use_multipart": False,
        }
        store = self._connection.conditional_writer()
        try:
            with StorageCall("put", key, self.location) as request:
                request.nbytes = len(data)
                done = await self._put(store, key, data, options)
        except client.ClientError as error:
            trouble = client.translated(error, "write", key, self.location)
            is_missing = getattr(trouble, "kind", None) == ErrorKind.OBJECT_NOT_FOUND
            if is_missing and write.previous is not None:  # some services answer 404 to If-Match
                raise ConditionFailed(key) from error
            raise trouble from error
        if done["e_tag"] is None and done["version"] is None:
            return (await self._request(key, {"head": True})).version
        return self._version(done)

    async def find(self, key: str, *, has_data: bool) -> conditional.ReadBack | None:
        """See `icefloe.storage.conditional.Primitives`."""
        try:
            got = await self._request(key, None if has_data else {"head": True})
        except StorageError as error:
            if error.kind == ErrorKind.OBJECT_NOT_FOUND:
                return None
            raise
        data = bytes(got.data) if has_data else None
        return conditional.ReadBack(got.version, got.attributes, data)

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check_can_write(key)
        names = [self._name(key) for key in keys]
        batches = [names[at : at + DELETE_AT_ONCE] for at in range(0, len(names), DELETE_AT_ONCE)]
        await self._calls.each(self._delete, batches)

    async def delete_batches(
        self, batches: Sequence[Sequence[str]]
    ) -> Sequence[StorageError | None]:
        async def delete(batch: Sequence[str]) -> StorageError | None:
            try:
                await self._delete([self._name(key) for key in batch])
            except StorageError as error:
                return error
            return None

        for key in (key for batch in batches for key in batch):
            self._check_can_write(key)
        return await self._calls.each(delete, batches)

    async def _delete(self, names: Sequence[str]) -> None:
        async def request() -> bool:
            try:
                with StorageCall("delete", _named(names), self.location):
                    store = self._connection.writer()
                    await self._calls.request(store.delete, store.delete_async, [*names])
            except FileNotFoundError:
                return False
            return True

        # The answer does not say which of several was missing, nor whether others are gone.
        if not await self._retried("delete", names[0], request) and len(names) > 1:
            for name in names:
                await self._delete([name])

    async def sleep(self, seconds: float) -> None:
        await self._calls.sleep(seconds)

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        return await self._calls.wait_for(work, seconds)

    # --- names and versions -------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return encode_key(key) if self._connection.encodes_keys else key

    def _key(self, name: str) -> str:
        return decode_key(name) if self._connection.encodes_keys else name

    def _version(self, meta: ObjectMeta | Mapping[str, Any]) -> Version:
        generation = meta["version"] if self._connection.has_generations else None
        return Version(meta["e_tag"], generation)

    def _attributes(self, about: About) -> dict[str, str]:
        metadata = about.get("metadata") if self.settings.unsafe_use_metadata else None
        named = {
            "Content-Type": about.get("content_type"),
            "Storage-Class": about.get("storage_class") or self.settings.storage_class,
        }
        return {**(metadata or {}), **{name: text for name, text in named.items() if text}}

    def _check_can_write(self, key: str) -> None:
        check_key(key)
        if not self.can_write:
            raise ReadOnlyError(
                f"cannot write {key!r}: {self.location} can only be read",
                ErrorKind.READ_ONLY_STORAGE,
            )


class _BrokenOffError(Exception):
    """The answer to a read ended early; a new request may do better."""

    def __init__(self, trouble: StorageError | ConditionFailed) -> None:
        self.trouble = trouble


class NoRangesError(Exception):
    """The server sent a whole object instead of part of it."""


def _joined(parts: Sequence[memoryview]) -> memoryview:
    if len(parts) == 1:
        return parts[0]
    # Unlike `bytes.join`, numpy lets other threads work meanwhile and asks for huge pages.
    return memoryview(np.concatenate([np.frombuffer(part, np.uint8) for part in parts]))


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"


def _is_ours(key: str) -> bool:
    return not key.startswith(PROBE_DIRECTORY + "/")


def _put_mode(condition: Version | None) -> str | dict[str, str]:
    if condition is None:
        return "create"
    named = {"e_tag": condition.etag, "version": condition.generation}
    return {name: value for name, value in named.items() if value is not None}
