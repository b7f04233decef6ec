"""Typed access to the files of a repository: ids in, decoded objects out; listings as columns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.cache import BoundedCache, InFlight
from icefloe.assets.virtual import VirtualAccess, VirtualReader
from icefloe.config.repository import ResolvedConfig
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InternalError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format import layout
from icefloe.format import manifest as manifest_encode
from icefloe.format import snapshot as snapshot_encode
from icefloe.format.chunk_index import IdSet, id_keys
from icefloe.format.chunk_refs import ChunkKind, ChunkRef
from icefloe.format.columns import Bytes
from icefloe.format.envelope import WRITER_NAME, FileType
from icefloe.format.manifest import Manifest, decode_manifest
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.ids import (
    ChunkId,
    ManifestId,
    ObjectId,
    SnapshotId,
    decode_base32_rows,
    encode_base32_rows,
)
from icefloe.observe import CACHE
from icefloe.storage.driver import Driver, Readable, Span, Version, without_cache

if TYPE_CHECKING:
    from icefloe.format.transaction_log import TransactionLog


# -- The objects of a folder as columns: id, size, creation time.


LISTINGS_AT_ONCE = 32


class StoredObjects(NamedTuple):
    """The objects of one folder; rows in no particular order."""

    folder: str
    id: Bytes
    size_bytes: NDArray[np.int64]
    created_at: NDArray[np.int64]
    """By the storage's clock, in microseconds since the epoch; -1 if not asked for yet."""
    strange_names: tuple[str, ...] = ()
    """Names that are not ids. icefloe did not write these objects and ignores them."""
    name: NDArray[np.bytes_] | None = None
    """The names of the objects, if they are not the text of their ids."""

    def __len__(self) -> int:
        return len(self.id)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> StoredObjects:
        """Some of the rows."""
        return StoredObjects(
            self.folder,
            self.id[rows],
            self.size_bytes[rows],
            self.created_at[rows],
            self.strange_names,
            None if self.name is None else self.name[rows],
        )

    def all_keys(self) -> list[str]:
        """The key of every object."""
        return [self.folder + text for text in self.texts()]

    def texts(self) -> list[str]:
        """The name of every object."""
        if self.name is None:
            return list(encode_base32_rows(self.id))
        return [name.decode("utf-8", "surrogatepass") for name in self.name.tolist()]


Identify = Callable[[NDArray[np.bytes_]], tuple[Bytes, NDArray[np.bool_]]]
"""From names to the ids of those that have one, and which these are."""


def by_id(names: NDArray[np.bytes_]) -> tuple[Bytes, NDArray[np.bool_]]:
    """The ids of names that are the text of an id."""
    return decode_base32_rows(names, ObjectId.size)


async def list_folder(
    driver: Driver,
    folder: str,
    at_once: int = LISTINGS_AT_ONCE,
    *,
    names_only: bool = False,
    identify: Identify = by_id,
) -> StoredObjects:
    """Every object of a folder whose objects are named by ids.

    With `names_only`, sizes and times may be unknown until `with_times` asks for them: a directory
    has to look at every file for them.
    """
    ids: list[Bytes] = [np.empty((0, ObjectId.size), np.uint8)]
    size, created = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    names: list[NDArray[np.bytes_]] = [np.empty(0, np.bytes_)]
    strange: list[str] = []
    for page in await driver.list_pages(folder, at_once, names_only=names_only):
        if not len(page.name):
            continue
        rows, is_id = identify(page.name)
        ids.append(rows)
        size.append(page.size_bytes[is_id])
        created.append(page.created_at[is_id])
        if identify is not by_id:
            names.append(page.name[is_id])
        strange += [name.decode("utf-8", "replace") for name in page.name[~is_id].tolist()]
    return StoredObjects(
        folder,
        np.concatenate(ids),
        np.concatenate(size),
        np.concatenate(created),
        tuple(strange),
        None if identify is by_id else np.concatenate(names),
    )


def arrived(copies: StoredObjects, originals: StoredObjects) -> IdSet:
    """The copies that need not be made again: all but those of another size than the original."""
    order = np.argsort(id_keys(originals.id))
    keys, size = id_keys(originals.id)[order], originals.size_bytes[order]
    wanted = id_keys(copies.id)
    if not len(keys) or not len(wanted):
        return IdSet.of(copies.id)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    is_other = (keys[at] == wanted) & (size[at] != copies.size_bytes)
    return IdSet.of(copies.id[~is_other])


async def with_times(driver: Driver, objects: StoredObjects) -> StoredObjects:
    """The same objects with sizes and times. Those that are gone are left out."""
    is_unknown = objects.created_at < 0
    if not is_unknown.any():
        return objects
    asked = objects.take(is_unknown)
    found = await driver.head_many(asked.all_keys())
    size, created = objects.size_bytes.copy(), objects.created_at.copy()
    size[is_unknown], created[is_unknown] = found.size_bytes, found.created_at
    # `_replace` counts fields by `len`, which here is the number of rows.
    known = StoredObjects(
        objects.folder, objects.id, size, created, objects.strange_names, objects.name
    )
    return known.take(created >= 0)


# -- Fetching and storing the files of a repository, decoded and cached, and the bytes of chunks.


Loaded = TypeVar("Loaded")

_MAX_WAIT_S = 30.0  # for the load of another reader

_FILE_TYPE_NAMES = {
    FileType.SNAPSHOT: "snapshot",
    FileType.MANIFEST: "manifest",
    FileType.TRANSACTION_LOG: "transaction-log",
    FileType.REPO_INFO: "repo-info",
}

KIND_OF_FILE = {
    "snapshots": "snapshot",
    "transaction_logs": "transaction_log",
    "attributes": "attributes",
    "manifests": "manifest",
    "chunks": "chunk",
}
"""Of one file in each of `Assets.folders`."""

BYTES_PER_CHUNK_REF = 48
"""Bytes of cache per reference. A plain reference takes about 40. With many inline chunks, or one
location per chunk, the limit in bytes is reached before the limit by count."""


class RepoObject(NamedTuple):
    """The `repo` object as last seen: decoded, raw, and with its version."""

    info: RepoInfo
    data: bytes
    version: Version


class Caches:
    """Decoded objects, shared by every driver flavour of one repository."""

    def __init__(self, settings: ResolvedConfig) -> None:
        caching = settings.caching
        self.snapshots: BoundedCache[Snapshot] = BoundedCache(
            caching.num_snapshot_nodes, name="snapshot"
        )
        self.manifests: BoundedCache[Manifest] = BoundedCache(
            caching.num_chunk_refs, caching.num_chunk_refs * BYTES_PER_CHUNK_REF, name="manifest"
        )
        self.logs: BoundedCache[TransactionLog] = BoundedCache(
            caching.num_transaction_changes, name="transaction log"
        )
        self.chunks: BoundedCache[bytes] = BoundedCache(caching.num_bytes_chunks, name="chunk")
        """Bytes of native chunks, by key and span; off unless `num_bytes_chunks` is set."""
        self.repo: RepoObject | None = None

    def clear(self) -> None:
        """Clear all caches except the repo object, which is revalidated on every use."""
        for cache in (self.snapshots, self.manifests, self.logs, self.chunks):
            cache.clear()

    def keep_manifest(self, manifest: Manifest) -> None:
        self.manifests.put(manifest.id, manifest, max(1, manifest.num_chunk_refs), manifest.nbytes)


@dataclass(frozen=True, slots=True)
class Assets:
    """Typed access to one repository's files through one driver."""

    driver: Driver
    settings: ResolvedConfig
    caches: Caches
    loading: InFlight = field(default_factory=InFlight)
    """Loads in flight through this flavour of driver."""
    virtual: VirtualReader = field(
        default_factory=lambda: VirtualReader(VirtualAccess(), blocking=True)
    )

    spec_version: int = 2
    """Of files that are written."""

    def past_disk_cache(self) -> Assets:
        """The same, reading what is stored and not what is kept on this machine."""
        driver = without_cache(self.driver)
        return replace(self, driver=driver, virtual=self.virtual.past_disk_cache())

    # -- reading

    async def snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Decode a snapshot file.

        Raises:
            SnapshotNotFoundError: there is no such file.
        """
        cached = self.caches.snapshots.get(snapshot_id)
        if cached is not None:
            return cached
        key = self.snapshot_key(snapshot_id)

        async def load(_: Sequence[str]) -> list[Snapshot]:
            return [await self.load_snapshot(snapshot_id)]

        return (await self._load_together([key], load))[key]

    async def load_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Fetch and decode a snapshot that is not in the cache, and keep it there."""
        key = self.snapshot_key(snapshot_id)
        try:
            data = await self.driver.get(key)
        except StorageError as error:
            if error.kind != ErrorKind.OBJECT_NOT_FOUND:
                raise
            raise SnapshotNotFoundError(
                f"{snapshot_id} in this repository (there is no object {key})"
            ) from None
        return self._arrived_snapshot(snapshot_id, key, data)

    async def manifest(self, manifest_id: ManifestId, size_bytes: int) -> Manifest:
        """Decode a manifest file of known size (0 when it is not known)."""
        (manifest,) = await self.manifests([(manifest_id, size_bytes)])
        return manifest

    async def manifests(self, wanted: Sequence[tuple[ManifestId, int]]) -> list[Manifest]:
        """Decode several manifest files, fetched at once."""
        found = {manifest_id: self.caches.manifests.get(manifest_id) for manifest_id, _ in wanted}
        missing = {
            self.manifest_key(manifest_id): (manifest_id, size)
            for manifest_id, size in wanted
            if found[manifest_id] is None
        }

        async def load(keys: Sequence[str]) -> list[Manifest]:
            manifests = await self.load_manifests([missing[key] for key in keys])
            for manifest in manifests:
                self.caches.keep_manifest(manifest)
            return manifests

        if missing:
            loaded = await self._load_together(list(missing), load)
            found.update((missing[key][0], manifest) for key, manifest in loaded.items())
        return [manifest for row, _ in wanted if (manifest := found[row]) is not None]

    async def load_manifests(self, wanted: Sequence[tuple[ManifestId, int]]) -> list[Manifest]:
        """Fetch and decode manifests that are not in the cache."""
        keys = [self.manifest_key(manifest_id) for manifest_id, _ in wanted]
        spans = [Span(0, size) if size else None for _, size in wanted]

        def decode(number: int, data: Readable) -> Manifest:
            manifest = decode_manifest(data, keys[number])
            _check_id(manifest.id, wanted[number][0], keys[number])
            return manifest

        return await self.driver.get_many(list(zip(keys, spans, strict=True)), decode)

    async def transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """Decode the log of a commit; `object-not-found` when it has none."""
        cached = self.caches.logs.get(snapshot_id)
        if cached is not None:
            return cached
        key = self.transaction_log_key(snapshot_id)
        return self._arrived_log(snapshot_id, key, await self.driver.get(key))

    async def snapshots_and_logs(
        self, snapshot_ids: Sequence[SnapshotId], log_ids: Sequence[SnapshotId]
    ) -> tuple[list[Snapshot], list[TransactionLog]]:
        """Decode several snapshots and logs, fetched at once; `object-not-found` if any is
        missing."""
        snapshots = {key: self.caches.snapshots.get(key) for key in snapshot_ids}
        logs = {key: self.caches.logs.get(key) for key in log_ids}
        wanted = [self.snapshot_key(key) for key, found in snapshots.items() if found is None]
        wanted += [self.transaction_log_key(key) for key, found in logs.items() if found is None]
        blobs = await self.driver.get_many([(key, None) for key in wanted]) if wanted else []
        arrived = dict(zip(wanted, blobs, strict=True))
        for at in snapshots:
            if (data := arrived.get(key := self.snapshot_key(at))) is not None:
                snapshots[at] = self._arrived_snapshot(at, key, data)
        for at in logs:
            if (data := arrived.get(key := self.transaction_log_key(at))) is not None:
                logs[at] = self._arrived_log(at, key, data)
        return (
            [found for at in snapshot_ids if (found := snapshots[at]) is not None],
            [log for at in log_ids if (log := logs[at]) is not None],
        )

    def _arrived_snapshot(self, snapshot_id: SnapshotId, key: str, data: Readable) -> Snapshot:
        snapshot = decode_snapshot(data, key)
        _check_id(snapshot.id, snapshot_id, key)
        self.caches.snapshots.put(snapshot_id, snapshot, max(1, len(snapshot.nodes)))
        return snapshot

    def _arrived_log(self, snapshot_id: SnapshotId, key: str, data: Readable) -> TransactionLog:
        from icefloe.format import transaction_log

        log = transaction_log.decode_transaction_log(data, key)
        _check_id(log.id, snapshot_id, key)
        self.caches.logs.put(snapshot_id, log, max(1, log.num_changes))
        return log

    async def _load_together(
        self, keys: Sequence[str], load: Callable[[Sequence[str]], Awaitable[Sequence[Loaded]]]
    ) -> dict[str, Loaded]:
        """Load files that never change; concurrent readers share one load.

        If the load of another reader fails or takes too long, a waiting reader loads the file
        itself.
        """
        mine, theirs = self.loading.claim(keys)
        found: dict[str, Loaded] = {}
        try:
            if mine:
                found.update(zip(mine, await load(mine), strict=True))
        finally:
            self.loading.finish(mine, found)
        for key, work in theirs.items():
            if await self.driver.wait_for(work, _MAX_WAIT_S) and work.result() is not None:
                found[key] = work.result()
        left = [key for key in keys if key not in found]
        if left:
            found.update(zip(left, await load(left), strict=True))
        return found

    async def repo_object(self) -> RepoObject:
        """The current repo object; not fetched again if it has not changed since last time.

        A load of this object is never shared: a response in flight may be older than a commit that
        the caller knows.
        """
        cached = self.caches.repo
        if cached is None:
            data, version = await self.driver.get_versioned(layout.REPO)
        else:
            changed = await self.driver.get_if_changed(layout.REPO, cached.version)
            if changed is None:
                CACHE.debug("the repo object has not changed")
                return cached
            data, version = changed
        fetched = RepoObject(decode_repo_info(data, layout.REPO), data, version)
        self.caches.repo = fetched
        return fetched

    # -- naming

    def snapshot_key(self, snapshot_id: SnapshotId) -> str:
        """The file of a snapshot."""
        return layout.snapshot_key(snapshot_id)

    def manifest_key(self, manifest_id: ManifestId) -> str:
        """The file of a manifest."""
        return layout.manifest_key(manifest_id)

    def transaction_log_key(self, snapshot_id: SnapshotId) -> str:
        """The file of the log of a commit."""
        return layout.transaction_log_key(snapshot_id)

    def chunk_key(self, chunk_id: ChunkId) -> str:
        """The object of one native chunk, or of several packed together."""
        return layout.chunk_key(chunk_id)

    def chunk_keys(self, chunk_ids: Bytes) -> list[str]:
        """The objects of many native chunks; ids are rows of 12 bytes."""
        return layout.chunk_keys(chunk_ids)

    @property
    def kinds_of_files(self) -> dict[str, str]:
        """What lies below each prefix of the repository."""
        kinds = {folder: KIND_OF_FILE[name] for name, folder in self.folders.items()}
        return kinds | self.changing_files

    @property
    def changing_files(self) -> dict[str, str]:
        """The part of `kinds_of_files` that is not in `folders`."""
        return {
            layout.REFS: "ref",
            layout.OVERWRITTEN: "backup",
            layout.REPO: "repo",
            layout.CONFIG_YAML: "config",
        }

    def stored_ids(self, ids: Bytes) -> Bytes:
        """Rows of ids as the names of files have them."""
        return ids

    def manifest_file(self, manifest_id: ManifestId) -> str:
        """The file that holds a manifest of a snapshot that was read."""
        return self.manifest_key(manifest_id)

    async def other_files(self, snapshot_id: SnapshotId) -> list[str]:
        """Keys of the files that a snapshot refers to, besides manifests."""
        return []

    async def prepare_manifests(self, snapshot_id: SnapshotId) -> None:
        """Call this before loading manifests of a snapshot that another process has read."""

    # -- which files there are, for maintenance

    @property
    def folders(self) -> Mapping[str, str]:
        """The folders of objects that never change, by kind. Objects that refer to others come
        first."""
        return layout.KINDS

    async def list_objects(
        self,
        kind: str,
        at_once: int = LISTINGS_AT_ONCE,
        *,
        names_only: bool = False,
        with_foreign: bool = False,
    ) -> StoredObjects:
        """The objects of a folder. With `with_foreign`, those that other writers have named are
        among them, if the generation of the format allows any name."""
        return await list_folder(self.driver, self.folders[kind], at_once, names_only=names_only)

    def files_of(self, snapshot: Snapshot) -> dict[str, IdSet]:
        """The files that a loaded snapshot consists of and refers to, as `list_objects` has them,
        without logs and chunks."""
        used = IdSet.of(
            np.concatenate([snapshot.manifest_files.id, snapshot.nodes.used_manifests()])
        )
        return {"snapshots": IdSet.of_ids([snapshot.id]), "manifests": used}

    def with_chunk_ids(self, manifest: Manifest) -> Manifest:
        """The manifest with the ids of `list_objects` for all native chunks."""
        return manifest

    # -- writing

    async def encode_commit(
        self, snapshot: Snapshot, log: TransactionLog
    ) -> tuple[Snapshot, list[tuple[str, bytes]]]:
        """The snapshot as readers will find it, and its files.

        The log comes first. Where files are written one after the other, a collection by the age
        of the snapshot file then finds the log old enough too.
        """
        return snapshot, [self.encode_log(log), self.encode_snapshot(snapshot)]

    async def put_metadata_files(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write snapshots, manifests and logs concurrently. Nothing refers to them yet."""
        storage_class = self.settings.storage.metadata_storage_class
        await self.driver.put_new(files, describe=self.describe, storage_class=storage_class)

    def describe(self, data: bytes) -> dict[str, str]:
        """The user metadata that goes with a metadata file; no reader relies on it."""
        return object_metadata(data)

    def encode_snapshot(self, snapshot: Snapshot) -> tuple[str, bytes]:
        """Key and bytes of a snapshot file."""
        data = snapshot_encode.encode_snapshot(
            snapshot, spec_version=self.spec_version, level=self.settings.compression.level
        )
        return self.snapshot_key(snapshot.id), data

    def encode_log(self, log: TransactionLog) -> tuple[str, bytes]:
        """Key and bytes of a transaction log."""
        from icefloe.format import transaction_log

        data = transaction_log.encode_transaction_log(
            log, spec_version=self.spec_version, level=self.settings.compression.level
        )
        return self.transaction_log_key(log.id), data

    def encode_manifest(self, manifest: Manifest) -> bytes:
        """The bytes of a manifest file."""
        return manifest_encode.encode_manifest(
            manifest,
            spec_version=self.spec_version,
            level=self.settings.compression.level,
            locations=self.settings.manifest.virtual_chunk_location_compression,
        )


# -- chunks


async def fetch_chunk(assets: Assets, ref: ChunkRef, span: Span | None) -> Readable:
    """The bytes of a chunk, or a span of them. The span has to be inside the chunk."""
    if ref.inline is not None:  # also native chunks that are not stored yet
        return ref.inline if span is None else ref.inline[span.start : span.start + span.length]
    if ref.kind == ChunkKind.VIRTUAL:
        return await assets.virtual.fetch(ref, span)
    if ref.location is not None:
        key = ref.location
    elif ref.chunk_id is not None:
        key = assets.chunk_key(ref.chunk_id)
    else:
        raise InternalError("a native chunk has neither id nor key")
    start, length = (0, ref.length) if span is None else span
    [data] = await fetch_stored(assets, [(key, Span(ref.offset + start, length))])
    return data


async def fetch_stored(assets: Assets, wanted: Sequence[tuple[str, Span]]) -> list[Readable]:
    """Parts of many objects of the repository, fetched at once.

    These objects never change, so they can be cached. Virtual chunks are not cached, because their
    objects may be replaced by their owners.
    """
    if assets.settings.caching.num_bytes_chunks == 0:
        return await _fetch_parts(assets, wanted)
    cache = assets.caches.chunks
    found = {part: cache.get(part) for part in wanted}
    missing = [part for part, data in found.items() if data is None]
    for part, fetched in zip(missing, await _fetch_parts(assets, missing), strict=True):
        found[part] = bytes(fetched)
        cache.put(part, bytes(fetched), max(1, len(fetched)))
    return [data for part in wanted if (data := found[part]) is not None]


async def _fetch_parts(assets: Assets, wanted: Sequence[tuple[str, Span]]) -> list[Readable]:
    if len(wanted) == 1:  # `get` shares a request with other readers of the same object
        return [await assets.driver.get(*wanted[0])]
    return await assets.driver.get_many(wanted)


# -- metadata files


def object_metadata(data: bytes) -> dict[str, str]:
    """The user metadata that goes with a metadata file; no reader relies on it."""
    return {
        "icspecver": str(data[36]),
        "icclient": WRITER_NAME,
        "icfiletype": _FILE_TYPE_NAMES[FileType(data[37])],
        "iccompalg": "zstd",
    }


def _check_id(found: Any, expected: Any, key: str) -> None:
    if found != expected:
        raise FormatError(f"{key}: the file says it is {found}, expected {expected}")
