"""Checks the objects that a commit has stored, when a garbage collection ran in the meantime.

A collection deletes unreferenced objects that are old enough. The objects of the session's base are
safe, because a branch leads to them. So are those of the snapshot that a merge, cherry-pick or undo
takes chunks from: families check that they keep it.
"""

from __future__ import annotations

import numpy as np

from icefloe.assets.assets import Assets
from icefloe.assets.stored_objects import StoredObjects, with_times
from icefloe.format.columns.id_set import IdSet
from icefloe.format.snapshot.file import ManifestFiles
from icefloe.ids import ManifestId, ObjectId
from icefloe.repo.fence import collected_before, objects_collected
from icefloe.repo.handle import NewCommit, RepoHandle

_MANIFESTS_AT_ONCE = 64
_MAX_HEAD_REQUESTS = 100  # objects; more of them are found by a listing


async def require_own_objects(
    handle: RepoHandle, commit: NewCommit, fence: int | None = None
) -> None:
    """Refuse to publish a commit that refers to objects a collection has deleted or may delete.

    `fence` is the one in force, if the caller knows it.

    Raises:
        SessionStateError: kind `objects-collected`; the session can no longer be committed.
    """
    if fence is None:
        fence = await collected_before(handle)
    assets = handle.assets
    base = await assets.snapshot(commit.base)
    mine, theirs = commit.snapshot.manifest_files, base.manifest_files
    new = IdSet.of(mine.id).minus(IdSet.of(theirs.id))
    replaced = IdSet.of(theirs.id).minus(IdSet.of(mine.id))
    chunks = (await _chunks_of(handle, mine, new)).minus(await _chunks_of(handle, theirs, replaced))
    files, known = assets.files_of(commit.snapshot), assets.files_of(base)
    if handle.family.has_spec_folders:
        files["transaction_logs"] = files["snapshots"]
        known["transaction_logs"] = known["snapshots"]
    for kind in assets.folders.keys() & files.keys():
        own = files[kind].minus(known[kind])
        _require_none_gone(assets, kind, await _gone(handle, kind, own, fence))
    lost = await _gone(handle, "chunks", chunks, fence)
    if lost.size:
        # Chunks that were moved within an array are old. The base may still refer to them.
        lost = lost.minus(await _chunks_of(handle, theirs, IdSet.of(theirs.id)))
    if lost.size and commit.source is not None:
        other = (await assets.snapshot(commit.source)).manifest_files
        own = IdSet.of(other.id).minus(IdSet.of(theirs.id))
        lost = lost.minus(await _chunks_of(handle, other, own))
    _require_none_gone(assets, "chunks", lost)


async def _chunks_of(handle: RepoHandle, files: ManifestFiles, wanted: IdSet) -> IdSet:
    """The chunk objects that some manifests refer to."""
    found = IdSet.of_ids(())
    ids = [ManifestId(row.tobytes()) for row in wanted.rows]
    for first in range(0, len(ids), _MANIFESTS_AT_ONCE):
        batch = [(key, files[key].size_bytes) for key in ids[first : first + _MANIFESTS_AT_ONCE]]
        loaded = await handle.assets.manifests(batch)
        rows = [handle.assets.with_chunk_ids(one).native_chunk_ids() for one in loaded]
        found = IdSet.union([found, IdSet.of(np.concatenate(rows))])
    return found


async def _gone(handle: RepoHandle, kind: str, wanted: IdSet, fence: int) -> IdSet:
    """The objects that are missing, or were stored before the fence."""
    if not wanted.size:
        return wanted
    if wanted.size > _MAX_HEAD_REQUESTS or not handle.family.has_spec_folders:
        stored = await handle.assets.list_objects(kind, with_foreign=True)
    else:
        stored = await _looked_up(handle, handle.assets.folders[kind], wanted)
    return wanted.minus(IdSet.of(stored.id[stored.created_at >= fence]))


async def _looked_up(handle: RepoHandle, folder: str, wanted: IdSet) -> StoredObjects:
    unknown = np.full(wanted.size, -1, np.int64)
    asked = StoredObjects(folder, wanted.rows, unknown, unknown)
    return await with_times(handle.driver, asked)


def _require_none_gone(assets: Assets, kind: str, gone: IdSet) -> None:
    if not gone.size:
        return
    folder = assets.folders[kind]
    shown = ", ".join(folder + ObjectId(row.tobytes()).text for row in gone.rows[:3])
    more = f" and {gone.size - 3:,} more" if gone.size > 3 else ""
    raise objects_collected(shown + more)
