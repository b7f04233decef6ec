"""Objects in the memory of this process.

Nothing here ever suspends, and a conditional write is exact: one lock around compare and set.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Unpack

from icefloe.config.repository import ResolvedStorage
from icefloe.errors import StorageError
from icefloe.storage.driver import (
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
    check_key,
    check_span,
    microseconds,
    object_not_found,
    object_page,
    taken,
)
from icefloe.storage.run import Registry, repair_after_fork


class StoredObject(NamedTuple):
    """One object and the state it is in."""

    data: bytes
    version: Version
    created_at: datetime


class MemoryObjects:
    """What one in-memory storage holds; freed with its last `Storage` and driver.

    Made by `memory_objects`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, StoredObject] = {}
        self.lock = threading.Lock()
        self._versions = itertools.count(1)
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        # Another thread of the parent may have held it; no change spans several statements.
        self.lock = threading.Lock()

    def replace(self, key: str, data: Any) -> Version:
        """Store a copy of `data`; the caller holds the lock."""
        version = Version(str(next(self._versions)))
        self.objects[key] = StoredObject(bytes(data), version, datetime.now(UTC))
        return version


_registry: Registry[str, MemoryObjects] = Registry()


def memory_objects(name: str) -> MemoryObjects:
    """The objects of the in-memory storage `name`; none at first."""
    return _registry.find_or_make(name, lambda: MemoryObjects(name))


def find_memory_objects(name: str) -> MemoryObjects | None:
    """The objects of the in-memory storage `name`, if they live in this process."""
    return _registry.find(name)


class MemoryDriver(Driver):
    """See `icefloe.storage.driver.Driver`. User metadata and storage classes are not kept."""

    is_local = True
    can_write = True
    can_list = True

    def __init__(self, objects: MemoryObjects, settings: ResolvedStorage) -> None:
        self.settings = settings
        self._held = objects
        self._location = f"memory://{objects.name}"

    def _lookup(self, key: str) -> StoredObject:
        found = self._held.objects.get(key)
        if found is None:
            check_key(key)
            raise object_not_found(key, self._location)
        return found

    async def get(self, key: str, span: Span | None = None) -> Readable:
        return self._read(key, span)

    def _read(self, key: str, span: Span | None) -> Readable:
        data = self._lookup(key).data
        if span is None:
            return data
        check_span(key, span, len(data), self._location)
        return memoryview(data)[span.start : span.start + span.length]

    async def get_many(self, wanted: Reads, take: Take | None = None) -> list[Any]:
        return taken([self._read(key, span) for key, span in wanted], take)

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        found = self._lookup(key)
        return found.data, found.version

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        found = self._lookup(key)
        return None if found.version == version else (found.data, found.version)

    async def put(self, key: str, data: Any, **about: Unpack[About]) -> None:
        check_key(key)
        with self._held.lock:
            self._held.replace(key, data)

    async def put_many(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        for key, data in objects:
            await self.put(key, data)

    async def put_if(
        self, key: str, data: bytes, *, previous: Version | None, **about: Unpack[About]
    ) -> Version:
        check_key(key)
        with self._held.lock:
            found = self._held.objects.get(key)
            if (found.version if found else None) != previous:
                raise ConditionFailed(key)
            return self._held.replace(key, data)

    async def list(self, prefix: str) -> list[ObjectInfo]:
        with self._held.lock:
            found = [item for item in self._held.objects.items() if item[0].startswith(prefix)]
        return sorted(ObjectInfo(key, len(it.data), it.created_at) for key, it in found)

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        listed = await self.list(folder)
        return [
            object_page(
                [
                    (row.key[len(folder) :], row.size_bytes, microseconds(row.created_at))
                    for row in listed
                ]
            )
        ]

    async def list_top(self) -> Sequence[str]:
        with self._held.lock:
            parts = [key.partition("/") for key in self._held.objects]
        return sorted({name + slash for name, slash, _ in parts})

    async def is_empty(self) -> bool:
        return not self._held.objects

    async def delete_many(self, keys: Sequence[str]) -> None:
        with self._held.lock:
            for key in keys:
                self._held.objects.pop(key, None)

    async def delete_batches(
        self, batches: Sequence[Sequence[str]]
    ) -> Sequence[StorageError | None]:
        await self.delete_many([key for batch in batches for key in batch])
        return [None] * len(batches)

    async def head(self, key: str) -> ObjectInfo:
        found = self._lookup(key)
        return ObjectInfo(key, len(found.data), found.created_at)

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        with self._held.lock:
            found = [self._held.objects.get(key) for key in keys]
        return object_page(
            [
                (key, len(one.data), microseconds(one.created_at)) if one else (key, -1, -1)
                for key, one in zip(keys, found, strict=True)
            ]
        )
