"""The objects in use: refs -> snapshots -> manifests -> chunks, as columns.

Files are read in batches, without the caches. So the memory of a walk does not grow with the number
of snapshots and references, except for the ids themselves. A missing or undecodable file ends the
walk with an error that names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import LISTINGS_AT_ONCE
from icefloe.errors import ErrorKind, FormatError, SnapshotNotFoundError, StorageError
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet, id_keys
from icefloe.format.columns import Bytes
from icefloe.format.manifest import Manifest, decode_manifest
from icefloe.format.snapshot import ManifestFiles, Snapshot, decode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import ManifestId, ObjectId, SnapshotId, encode_base32_rows
from icefloe.maintenance.progress import Reporter
from icefloe.repo.commit import batches
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Driver, Readable, Span

MANIFEST_BYTES_AT_ONCE = 64 << 20
_OLDER_MANIFESTS_AT_ONCE = 16
_IDS_AT_ONCE, _FEW_IDS = 1 << 18, 1 << 14
_TEXTS_AT_ONCE = 4096


class Limits(NamedTuple):
    """The memory limits of a walk."""

    snapshots_at_once: int = 50
    manifest_bytes_at_once: int = MANIFEST_BYTES_AT_ONCE
    """Bytes of manifest files as stored. A larger file is read by itself."""
    manifests_at_once: int = 500


DEFAULT_LIMITS = Limits()


def require_spec_1_or_2(handle: RepoHandle, what: str) -> None:
    """Refuse older generations, whose files have other names."""
    if handle.format.name not in ("spec-1", "spec-2"):
        raise FormatError(
            f"{what} is not possible in {handle.format.noun}; migrate it first",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )


def each_key(folder: str, ids: Bytes) -> Iterator[str]:
    """The keys of objects of a folder, made some at a time."""
    for first in range(0, len(ids), _TEXTS_AT_ONCE):
        for text in encode_base32_rows(ids[first : first + _TEXTS_AT_ONCE]):
            yield folder + text


async def get_all(
    handle: RepoHandle, keys: Sequence[str], spans: Sequence[Span] = ()
) -> list[Readable | StorageError]:
    """The bytes of each object, or of a span of it, or its error."""
    wanted = list(zip_longest(keys, spans))
    try:
        return list(await handle.driver.get_many(wanted))
    except StorageError:  # one of them failed; read them one by one
        outcomes: list[Readable | StorageError] = []
        for key, span in wanted:
            try:
                outcomes.append(await handle.driver.get(key, span))
            except StorageError as error:
                outcomes.append(error)
        return outcomes


async def list_strays(driver: Driver) -> AsyncIterator[str]:
    """The keys of objects outside of the folders of a repository of spec version 1 or 2."""
    for name in await driver.list_top():
        if name in layout.TOP_LEVEL:
            continue
        if not name.endswith("/"):
            yield name
            continue
        for page in await driver.list_pages(name, LISTINGS_AT_ONCE):
            for inner in page.name.tolist():
                yield name + inner.decode("utf-8", "replace")


async def ref_tips(handle: RepoHandle) -> dict[str, SnapshotId]:
    """The snapshots of all branches (`branch.NAME`) and tags (`tag.NAME`)."""
    branches, tags = await handle.format.branches(handle), await handle.format.tags(handle)
    tips = {f"branch.{name}": tip for name, tip in sorted(branches.items())}
    return tips | {f"tag.{name}": tip for name, tip in sorted(tags.items())}


async def reachable_snapshots(handle: RepoHandle, tips: Iterable[SnapshotId]) -> IdSet:
    """These snapshots and all their ancestors."""
    if not handle.format.has_spec_folders:
        found = await handle.format.stored_history(handle, tips)
        return IdSet.of_ids([one.id for one in found])
    if handle.format.has_repo_object:
        table = (await handle.assets.repo_object()).info.snapshots
        return IdSet.of(table.id[table.lines([table.row(tip) for tip in tips])])
    return IdSet.of_ids([one.id for one in await reachable_infos(handle.driver, tips)])


async def reachable_infos(driver: Driver, tips: Iterable[SnapshotId]) -> list[SnapshotInfo]:
    """These snapshots and all their ancestors in version 1, where a file names its parent.

    All histories are followed concurrently, one snapshot of each at a time.
    """
    seen: dict[SnapshotId, SnapshotInfo] = {}
    frontier = set(tips)
    while frontier:
        for one in await fetch_snapshots(driver, sorted(frontier)):
            seen[one.id] = SnapshotInfo.of(one)
        parents = {seen[one].parent_id for one in frontier} - {None}
        frontier = {one for one in parents if one is not None and one not in seen}
    return list(seen.values())


async def fetch_snapshots(driver: Driver, ids: Sequence[SnapshotId]) -> list[Snapshot]:
    """Decoded snapshots, fetched at once and not cached."""
    keys = [layout.snapshot_key(one) for one in ids]
    try:
        blobs = await driver.get_many([(key, None) for key in keys])
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
        raise SnapshotNotFoundError(
            f"a snapshot that is in use is missing: {error.message}"
        ) from error
    found = [decode_snapshot(data, key) for data, key in zip(blobs, keys, strict=True)]
    for one, wanted, key in zip(found, ids, keys, strict=True):
        _check_id(one.id, wanted, key)
    return found


async def each_snapshot(
    handle: RepoHandle, ids: IdSet, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[Snapshot]:
    """Decoded snapshots, one by one."""
    if not handle.format.has_spec_folders:
        for row in ids.rows:
            yield await handle.assets.load_snapshot(SnapshotId(row.tobytes()))
        return
    step = limits.snapshots_at_once
    for first in range(0, ids.size, step):
        wanted = [SnapshotId(row.tobytes()) for row in ids.rows[first : first + step]]
        for snapshot in await fetch_snapshots(handle.driver, wanted):
            yield snapshot


async def manifest_files(
    handle: RepoHandle,
    snapshots: IdSet,
    limits: Limits = DEFAULT_LIMITS,
    note: Callable[[Snapshot], None] | None = None,
) -> ManifestFiles:
    """The distinct manifest files of many snapshots, ascending by id. `note` gets each snapshot.

    These include files that nodes refer to but the snapshot does not list. The size of such a file
    is 0, which means unknown.
    """
    listed: list[ManifestFiles] = []
    nodes: list[ManifestFiles] = []
    num_waiting = num_distinct = 0
    async for snapshot in each_snapshot(handle, snapshots, limits):
        if note is not None:
            note(snapshot)
        listed.append(snapshot.manifest_files)
        nodes.append(_files_of_nodes(snapshot))
        num_waiting += len(listed[-1]) + len(nodes[-1])
        if num_waiting > max(_IDS_AT_ONCE, num_distinct):
            listed, nodes = [distinct_files([*listed, *nodes])], []
            num_waiting, num_distinct = 0, len(listed[0])
    return distinct_files([*listed, *nodes])


def files_of(snapshot: Snapshot) -> ManifestFiles:
    """The distinct manifest files of one snapshot, as in `manifest_files`."""
    return distinct_files([snapshot.manifest_files, _files_of_nodes(snapshot)])


def _files_of_nodes(snapshot: Snapshot) -> ManifestFiles:
    rows = IdSet.of(snapshot.nodes.used_manifests()).rows
    none = np.zeros(len(rows), np.uint64)
    return ManifestFiles(rows, none, none.astype(np.uint32))


def distinct_files(parts: Sequence[ManifestFiles]) -> ManifestFiles:
    """The distinct files. The first entry of a file counts."""
    if not parts:
        return ManifestFiles.from_infos(())
    together = ManifestFiles(
        np.concatenate([part.id for part in parts]),
        np.concatenate([part.size_bytes for part in parts]),
        np.concatenate([part.num_chunk_refs for part in parts]),
    )
    return together.take(np.unique(id_keys(together.id), return_index=True)[1])


async def each_manifest(
    handle: RepoHandle,
    files: ManifestFiles,
    limits: Limits = DEFAULT_LIMITS,
    report: Reporter | None = None,
) -> AsyncIterator[Manifest]:
    """Decoded manifests, one by one. Several are fetched at once, within the limits."""
    done = 0
    async for manifest in _each_manifest(handle, files, limits):
        yield manifest
        done += 1
        if report is not None:
            report.tell("reading manifests", done, len(files))


async def _each_manifest(
    handle: RepoHandle, files: ManifestFiles, limits: Limits
) -> AsyncIterator[Manifest]:
    if not handle.format.has_spec_folders:
        for first in range(0, len(files), _OLDER_MANIFESTS_AT_ONCE):
            some = files.id[first : first + _OLDER_MANIFESTS_AT_ONCE]
            of_unknown_size = [(ManifestId(row.tobytes()), 0) for row in some]
            for loaded in await handle.assets.load_manifests(of_unknown_size):
                yield handle.assets.with_chunk_ids(loaded)
        return
    sizes = files.size_bytes.tolist()
    limit, most = limits.manifest_bytes_at_once, limits.manifests_at_once
    for rows in batches(range(len(files)), sizes.__getitem__, limit, most):
        ids = [ManifestId(row.tobytes()) for row in files.id[rows]]
        keys = [layout.manifest_key(one) for one in ids]
        spans = [Span(0, sizes[row]) if sizes[row] else None for row in rows]
        blobs = await handle.driver.get_many(list(zip(keys, spans, strict=True)))
        for at, (key, wanted) in enumerate(zip(keys, ids, strict=True)):
            manifest = decode_manifest(blobs[at], key)
            blobs[at] = b""  # decoded, so its bytes can be freed
            _check_id(manifest.id, wanted, key)
            yield manifest


class GrowingIdSet:
    """A set of many ids, deduplicated regularly, so it needs memory for distinct ids only.

    It is kept in parts, each at least twice as large as the next. So ids are moved a few times
    only, even if the set is asked for its members after each addition.
    """

    def __init__(self) -> None:
        self._parts: list[IdSet] = []
        self._waiting: list[Bytes] = []
        self._num_waiting = 0

    def add(self, rows: Bytes) -> None:
        # Manifests of one history mostly refer to the same chunks.
        rows = rows[~self._is_sorted(rows)]
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        num_sorted = sum(part.size for part in self._parts)
        if self._num_waiting > min(max(num_sorted, _FEW_IDS), _IDS_AT_ONCE):
            self._sort()

    def contains(self, rows: Bytes) -> NDArray[np.bool_]:
        """Which of these rows are in the set."""
        self._sort()
        return self._is_sorted(rows)

    def finish(self) -> IdSet:
        """All ids so far."""
        self._sort()
        self._parts = [IdSet.union(self._parts)]
        return self._parts[0]

    def _is_sorted(self, rows: Bytes) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        for part in self._parts:
            found |= part.contains(rows)
        return found

    def _sort(self) -> None:
        if not self._waiting:
            return
        new = IdSet.of(np.concatenate(self._waiting))
        self._waiting, self._num_waiting = [], 0
        while self._parts and self._parts[-1].size < 2 * new.size:
            new = IdSet.union([self._parts.pop(), new])
        self._parts.append(new)


async def chunk_ids(
    handle: RepoHandle, files: ManifestFiles, limits: Limits = DEFAULT_LIMITS
) -> IdSet:
    """The chunk objects that these manifests refer to."""
    found = GrowingIdSet()
    async for manifest in each_manifest(handle, files, limits):
        found.add(manifest.native_chunk_ids())
    return found.finish()


def _check_id(found: ObjectId, expected: ObjectId, key: str) -> None:
    if found != expected:
        raise FormatError(f"{key}: the file says it is {found}, expected {expected}")
