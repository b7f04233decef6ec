"""Object stores and web servers, through obstore. One body for both flavours of `calls.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.observe import StorageCall
from icefloe.storage.client import failures
from icefloe.storage.client.backoff import retry_cut
from icefloe.storage.driver import (
    ConditionFailed,
    Describe,
    ObjectInfo,
    ObjectPage,
    Version,
    object_page,
)
from icefloe.storage.drivers import conditional
from icefloe.storage.drivers.key_ranges import PagesOf, ranges_after
from icefloe.storage.drivers.remote_reads import ObstoreReads
from icefloe.storage.keys import PROBE_DIRECTORY, check_key, instant

Result = TypeVar("Result")

DELETE_AT_ONCE = 1000  # keys per request; what S3 allows


class ReadBack(NamedTuple):
    """See `icefloe.storage.drivers.conditional.Found`."""

    version: Version
    metadata: Mapping[str, str]
    data: bytes | None


class ObstoreDriver(ObstoreReads):
    """See `icefloe.storage.driver.Driver`. Reading is in `remote_reads.py`."""

    # --- listing ------------------------------------------------------------------------------

    async def list(self, prefix: str) -> list[ObjectInfo]:
        self._check_can_list()
        # obstore matches whole segments only: list the folder and choose from it.
        found = PagesOf(self._name(prefix.rpartition("/")[0]), None, None)
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
                found = await self._calls.list_top(self._connection.reader())
            folders = [self._key(path.rstrip("/")) + "/" for path in found["common_prefixes"]]
            return [*folders, *(self._key(meta["path"]) for meta in found["objects"])]

        return sorted(filter(_is_ours, await self._retried("list", "", request)))

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        """The first page tells whether there are many keys; the rest comes in ranges, at once."""
        self._check_can_list()
        has_ranges = self._connection.lists_ranges and at_once > 1
        start = PagesOf(self._name(folder), None, None, most=1 if has_ranges else None)
        await self._read_pages(start)
        if not start.is_cut:
            return self._as_pages(start, folder)
        ranges = ranges_after(self._name(folder), start.last)
        for first in range(0, len(ranges), at_once):
            await self._calls.each(self._read_pages, ranges[first : first + at_once])
        if any(part.is_unordered for part in (start, *ranges)):  # S3 Express, for one
            start, ranges = PagesOf(self._name(folder), None, None), []
            await self._read_pages(start)
        return [page for part in (start, *ranges) for page in self._as_pages(part, folder)]

    async def _read_pages(self, part: PagesOf) -> None:
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
        except failures.ClientError as error:
            raise failures.translated(error, action, key, self.location) from error

    def _as_pages(self, part: PagesOf, folder: str) -> Sequence[ObjectPage]:
        return [
            object_page([(self._key(name)[len(folder) :], size, time) for name, size, time in rows])
            for rows in part.pages
        ]

    async def is_empty(self) -> bool:
        self._check_can_list()
        first = PagesOf("", None, None, most=1)
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

    async def put(
        self,
        key: str,
        data: Any,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        storage_class: str | None = None,
    ) -> None:
        self._check_can_write(key)
        buffer = data if isinstance(data, bytes) else memoryview(data).cast("B")
        limits = self.settings.concurrency
        options = {
            "attributes": self._attributes(metadata, content_type, storage_class),
            "use_multipart": len(buffer) >= self.settings.minimum_size_for_multipart_upload,
            "chunk_size": limits.ideal_concurrent_request_size,
            "max_concurrency": limits.max_concurrent_requests_for_object,
        }

        async def request() -> None:
            async with self._calls.turn():
                with StorageCall("put", key, self.location) as call:
                    call.nbytes = len(buffer)
                    store = self._connection.writer()
                    await self._calls.put(store, self._name(key), buffer, options)

        await self._retried("write", key, request)

    async def put_many(
        self,
        objects: Sequence[tuple[str, Any]],
        *,
        describe: Describe | None = None,
        storage_class: str | None = None,
    ) -> None:
        async def put(one: tuple[str, Any]) -> None:
            key, data = one
            metadata = None if describe is None else describe(data)
            await self.put(key, data, metadata=metadata, storage_class=storage_class)

        await self._calls.each(put, objects)

    async def put_new(
        self,
        objects: Sequence[tuple[str, Any]],
        *,
        describe: Describe | None = None,
        storage_class: str | None = None,
    ) -> None:
        await self.put_many(objects, describe=describe, storage_class=storage_class)

    async def put_if(
        self,
        key: str,
        data: bytes,
        *,
        previous: Version | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        self._check_can_write(key)
        return await conditional.put_if(
            self, key, data, previous=previous, metadata=metadata, content_type=content_type
        )

    async def write_once(
        self,
        key: str,
        data: bytes,
        *,
        condition: Version | None,
        is_conditional: bool,
        metadata: Mapping[str, str],
        content_type: str | None,
    ) -> Version:
        """See `icefloe.storage.drivers.conditional.Primitives`."""
        options = {
            "attributes": self._attributes(metadata, content_type, None),
            "mode": _put_mode(condition) if is_conditional else "overwrite",
            "use_multipart": False,
        }
        store = self._connection.conditional_writer()
        try:
            with StorageCall("put", key, self.location) as request:
                request.nbytes = len(data)
                done = await self._calls.put(store, self._name(key), data, options)
        except failures.ClientError as error:
            trouble = failures.translated(error, "write", key, self.location)
            is_missing = getattr(trouble, "kind", None) == ErrorKind.OBJECT_NOT_FOUND
            if is_missing and condition is not None:  # some services answer 404 to If-Match
                raise ConditionFailed(key) from error
            raise trouble from error
        if done["e_tag"] is None and done["version"] is None:
            return (await self._request(key, {"head": True})).version
        return self._version(done)

    async def find(self, key: str, *, has_data: bool) -> ReadBack | None:
        """See `icefloe.storage.drivers.conditional.Primitives`."""
        try:
            got = await self._request(key, None if has_data else {"head": True})
        except StorageError as error:
            if error.kind == ErrorKind.OBJECT_NOT_FOUND:
                return None
            raise
        return ReadBack(got.version, got.attributes, bytes(got.data) if has_data else None)

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
                    await self._calls.delete(self._connection.writer(), [*names])
            except FileNotFoundError:
                return False
            return True

        # The answer does not say which of several was missing, nor whether others are gone.
        if not await self._retried("delete", names[0], request) and len(names) > 1:
            for name in names:
                await self._delete([name])

    async def sync(self) -> None:
        """Nothing to do: object stores answer when an object is safe."""

    async def sleep(self, seconds: float) -> None:
        await self._calls.sleep(seconds)

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        return await self._calls.wait_for(work, seconds)

    def turn(self) -> None:
        """There is no queue of writers."""

    def keep_reserve(self, num_bytes: int) -> None:
        """No disk can be full."""

    def give_up_reserve(self) -> bool:
        return False

    def _attributes(
        self,
        metadata: Mapping[str, str] | None,
        content_type: str | None,
        storage_class: str | None,
    ) -> dict[str, str]:
        attributes = dict(metadata or {}) if self.settings.unsafe_use_metadata else {}
        if content_type:
            attributes["Content-Type"] = content_type
        if storage_class or self.settings.storage_class:
            attributes["Storage-Class"] = storage_class or self.settings.storage_class or ""
        return attributes

    def _check_can_write(self, key: str) -> None:
        check_key(key)
        if not self.can_write:
            raise ReadOnlyError(
                f"cannot write {key!r}: {self.location} can only be read",
                ErrorKind.READ_ONLY_STORAGE,
            )


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"


def _is_ours(key: str) -> bool:
    return not key.startswith(PROBE_DIRECTORY + "/")


def _put_mode(condition: Version | None) -> str | dict[str, str]:
    if condition is None:
        return "create"
    named = {"e_tag": condition.etag, "version": condition.generation}
    return {name: value for name, value in named.items() if value is not None}
