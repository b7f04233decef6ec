"""What exports have in common: the target, and copying objects to it, bounded in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from operator import attrgetter
from typing import NamedTuple

from icefloe.api.handles import driver_for
from icefloe.api.repository import Repository
from icefloe.assets.assets import object_metadata
from icefloe.display import counted, qualified, size_text
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import Node
from icefloe.format.snapshot import Snapshot
from icefloe.ids import ManifestId, NodeId
from icefloe.repo.commit import batches
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Driver, without_cache
from icefloe.storage.local import LocalDriver
from icefloe.storage.spec import Storage, require_outside
from icefloe.storage.urls import storage_from_url

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


class Places(NamedTuple):
    """The repository, and the target of an export."""

    handle: RepoHandle
    target: Driver

    @classmethod
    def of(cls, repository: Repository, target: Storage | str) -> Places:
        """The target is a storage or its URL, and not in the repository."""
        storage = as_storage(target)
        require_outside(storage, repository.storage)
        return cls(repository.handle, driver_for(storage, None, blocking=True))


class Sized(NamedTuple):
    """An object to copy. The size only limits how many are in memory at once."""

    key: str
    size_bytes: int


def as_storage(target: Storage | str) -> Storage:
    """A storage that is given as it is, or by its URL; bound, because tasks write to it too."""
    return (storage_from_url(target) if isinstance(target, str) else target).bound()


class ManifestOfArray(NamedTuple):
    """The chunks of one array in one manifest."""

    path: str
    number: int
    manifest_id: ManifestId
    node_id: NodeId
    size_bytes: int
    grid: tuple[int, ...]
    extents: tuple[tuple[int, int], ...]
    document: bytes

    async def refs(self, handle: RepoHandle) -> ChunkRefs | None:
        """The references, if there are any."""
        return (await handle.assets.manifest(self.manifest_id, self.size_bytes)).find(self.node_id)


def manifests_of(snapshot: Snapshot, nodes: Iterable[Node]) -> list[ManifestOfArray]:
    """The manifests of those nodes that are arrays."""
    return [
        ManifestOfArray(
            node.path,
            number,
            ref.id,
            node.id,
            snapshot.manifest_files[ref.id].size_bytes,
            tuple(dimension.num_chunks for dimension in node.array.shape),
            ref.extents,
            node.user_data,
        )
        for node in nodes
        if node.array is not None
        for number, ref in enumerate(node.array.manifests)
    ]


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
    for some in batches(wanted, attrgetter("size_bytes"), _BYTES_AT_ONCE, _OBJECTS_AT_ONCE):
        found = await source.get_many([(one.key, None) for one in some])
        pairs = [(one.key, bytes(data)) for one, data in zip(some, found, strict=True)]
        plain = [pair for pair in pairs if not pair[0].startswith(_DESCRIBED)]
        described = [pair for pair in pairs if pair[0].startswith(_DESCRIBED)]
        await target.put_many(plain)
        await target.put_many(described, describe=object_metadata)
        objects += len(pairs)
        size += sum(len(data) for _, data in pairs)
    return ExportReport(objects, size)


def together(*parts: ExportReport) -> ExportReport:
    """The sum of the parts."""
    return ExportReport(sum(one.objects for one in parts), sum(one.num_bytes for one in parts))


async def total(parts: AsyncIterator[ExportReport]) -> ExportReport:
    """The sum of parts that are still being copied."""
    return together(*[part async for part in parts])
