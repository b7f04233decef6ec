"""Copying objects from one storage to another, bounded in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from icefloe.api.handles import driver_for
from icefloe.api.repository import Repository
from icefloe.assets.assets import object_metadata
from icefloe.display.shown import counted, qualified, size_text
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.format import layout
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.driver import Driver, without_cache
from icefloe.storage.drivers.local import LocalDriver
from icefloe.storage.spec import Storage, require_outside

_OBJECTS_AT_ONCE = 64
_BYTES_AT_ONCE = 64 << 20
_DESCRIBED = (layout.SNAPSHOTS, layout.MANIFESTS, layout.TRANSACTIONS, layout.OVERWRITTEN)


class ExportReport(NamedTuple):
    """The number of objects that this run has copied, and their bytes."""

    objects: int
    num_bytes: int

    def __repr__(self) -> str:
        return f"<{qualified('ExportReport')}> {counted(self.objects, 'object')} copied, " + (
            size_text(self.num_bytes)
        )


class Sized(NamedTuple):
    """An object to copy. The size only limits how many are in memory at once."""

    key: str
    size_bytes: int


def as_repository(repository: Repository | str) -> Repository:
    """A repository that is given as it is, or by its URL."""
    if isinstance(repository, str):
        return Repository.open(storage_from_url(repository))
    if isinstance(repository, Repository):
        return repository
    raise InvalidInputError(
        f"repository is {repository!r:.80}, expected an icefloe.Repository or a URL such as "
        "'s3://bucket/prefix'"
    )


def as_storage(target: Storage | str) -> Storage:
    """A storage that is given as it is, or by its URL; bound, because tasks write to it too."""
    return (storage_from_url(target) if isinstance(target, str) else target).bound()


def target_driver(target: Storage | str, *, outside: Storage) -> Driver:
    """What writes to the target of an export, which is not in the repository at `outside`."""
    storage = as_storage(target)
    require_outside(storage, outside)
    return driver_for(storage, None, blocking=True)


def remove_working_folders(driver: Driver, *folders: str) -> None:
    """Leave only what was exported: a directory also has folders that its writers need.

    Args:
        folders: further ones to remove, which are empty by now.
    """
    behind = without_cache(driver)
    if isinstance(behind, LocalDriver):
        behind.remove_working_folders(*folders)


async def copy_objects(source: Driver, target: Driver, wanted: Iterable[Sized]) -> ExportReport:
    """Copy objects, some at a time."""
    objects = size = 0
    for some in _batches(wanted):
        found = await source.get_many([(key, None) for key in some])
        pairs = [(key, bytes(data)) for key, data in zip(some, found, strict=True)]
        plain = [pair for pair in pairs if not pair[0].startswith(_DESCRIBED)]
        described = [pair for pair in pairs if pair[0].startswith(_DESCRIBED)]
        await target.put_many(plain)
        await target.put_many(described, describe=object_metadata)
        objects += len(pairs)
        size += sum(len(data) for _, data in pairs)
    return ExportReport(objects, size)


def _batches(wanted: Iterable[Sized]) -> Iterator[Sequence[str]]:
    keys: list[str] = []
    size = 0
    for one in wanted:
        if keys and (len(keys) >= _OBJECTS_AT_ONCE or size + one.size_bytes > _BYTES_AT_ONCE):
            yield keys
            keys, size = [], 0
        keys.append(one.key)
        size += one.size_bytes
    if keys:
        yield keys


async def exists(driver: Driver, key: str) -> bool:
    """Whether there is an object under a key."""
    try:
        await driver.head(key)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return False
        raise
    return True
