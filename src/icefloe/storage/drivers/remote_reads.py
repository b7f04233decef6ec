"""Reading objects through obstore: one request for a small range, several for a large one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.config.resolved import ResolvedStorage
from icefloe.errors import ErrorKind, StorageError
from icefloe.observe import STORAGE, StorageCall
from icefloe.storage.client import failures
from icefloe.storage.client.backoff import pauses
from icefloe.storage.client.calls import BlockingCalls, Calls
from icefloe.storage.client.connect import Connection
from icefloe.storage.client.shared_requests import (
    MAX_SHARED_BYTES,
    SharedRequest,
    can_share,
    share_requests,
)
from icefloe.storage.driver import (
    ConditionFailed,
    ObjectInfo,
    ObjectPage,
    Readable,
    Span,
    Take,
    Version,
    object_page,
    taken,
)
from icefloe.storage.foreign.reads import ANY_ETAG, Unchanged, bare_etag
from icefloe.storage.keys import (
    check_key,
    check_span,
    decode_key,
    encode_key,
    microseconds,
    moment,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta


class Got(NamedTuple):
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


def _shared(
    wanted: Sequence[tuple[str, Span | None]],
) -> list[tuple[str, Span | None, list[int]]]:
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


class ObstoreReads:
    """The half of `ObstoreDriver` that reads: whole objects, parts of them, many at once."""

    is_local = False

    def __init__(self, connection: Connection, settings: ResolvedStorage, calls: Calls) -> None:
        self.settings = settings
        self.can_write = connection.can_write
        self.can_list = connection.can_list
        self.location = connection.location
        self._connection = connection
        self._calls = calls
        self.is_blocking = isinstance(calls, BlockingCalls)

    async def get(self, key: str, span: Span | None = None) -> Readable:
        if span is not None and can_share(span):
            return await self._calls.together(self._fetch_spans, key, span)
        found: list[Readable] = await self.get_many([(key, span)])
        return found[0]

    async def get_many(
        self, wanted: Sequence[tuple[str, Span | None]], take: Take | None = None
    ) -> list[Any]:
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
        if span.length <= 0 or span.start < 0:  # a range that cannot be asked for
            check_span(key, span, (await self.head(key)).size_bytes, self.location)
            return memoryview(b"")
        try:
            data = await self._fetch_range(key, span)
            if data is not None:
                return data
            got = await self._request(key, {"range": (span.start, span.start + span.length)})
        except failures.RangeNotSatisfiable:
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
                    data = memoryview(await self._calls.get_range(store, self._name(key), span))
                except failures.ClientError as error:
                    if failures.lacks_ranges(error):
                        raise NoRangesError(key) from None
                    if failures.broke_off(error):
                        return None
                    raise failures.translated(error, "read", key, self.location) from error
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

    async def _request(self, key: str, options: GetOptions | None) -> Got:
        """One read, started anew when the connection breaks while the bytes come in.

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
    ) -> Got:
        store = self._connection.reader()
        try:
            result = await self._calls.start_get(store, self._name(key), options)
        except failures.ClientError as error:
            if options and "range" in options and failures.lacks_ranges(error):
                raise NoRangesError(key) from None
            raise failures.translated(error, "read", key, self.location) from error
        meta, attributes, (start, end) = result.meta, result.attributes, result.range
        try:
            data = memoryview(await self._calls.finish_get(result))
        except failures.ClientError as error:
            trouble = failures.translated(error, "read", key, self.location)
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
        return Got(data, version, meta["size"], attributes, modified)

    async def get_if_unchanged(self, key: str, span: Span, condition: Unchanged) -> Readable:
        """See `icefloe.storage.foreign.reads.ForeignReader`."""
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
                found = await self._calls.head(self._connection.reader(), self._name(key))
        except failures.ClientError as error:
            raise failures.translated(error, "look up", key, self.location) from error
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

    # --- names and versions -------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return encode_key(key) if self._connection.encodes_keys else key

    def _key(self, name: str) -> str:
        return decode_key(name) if self._connection.encodes_keys else name

    def _version(self, meta: ObjectMeta | Mapping[str, Any]) -> Version:
        generation = meta["version"] if self._connection.has_generations else None
        return Version(meta["e_tag"], generation)


class _BrokenOffError(Exception):
    """The answer to a read ended early; a new request may do better."""

    def __init__(self, trouble: StorageError | ConditionFailed) -> None:
        self.trouble = trouble


class NoRangesError(Exception):
    """The server sent a whole object when asked for part of it."""


def _joined(parts: Sequence[memoryview]) -> memoryview:
    if len(parts) == 1:
        return parts[0]
    # Unlike `bytes.join`, numpy lets other threads work meanwhile and asks for huge pages.
    return memoryview(np.concatenate([np.frombuffer(part, np.uint8) for part in parts]))
