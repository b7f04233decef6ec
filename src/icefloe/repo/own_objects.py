"""Checks the objects that a commit has stored, when a garbage collection ran in the meantime.

A collection deletes unreferenced objects that are old enough. The objects of the session's base are
safe, because a branch leads to them.
"""

from __future__ import annotations

import numpy as np

from icefloe.assets.stored_objects import StoredObjects, list_folder, with_times
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format import layout
from icefloe.format.columns.id_set import IdSet
from icefloe.format.snapshot.file import ManifestFiles
from icefloe.ids import ManifestId, ObjectId
from icefloe.repo.fence import collected_before
from icefloe.repo.handle import NewCommit, RepoHandle

_MANIFESTS_AT_ONCE = 64
_MAX_HEAD_REQUESTS = 100  # objects; more of them are found by a listing


async def require_own_objects(handle: RepoHandle, commit: NewCommit) -> None:
    """Refuse to publish a commit that refers to objects a collection has deleted or may delete.

    Raises:
        SessionStateError: kind `objects-collected`; the session can no longer be committed.
    """
    fence = await collected_before(handle)
    base = await handle.assets.snapshot(commit.base)
    mine, theirs = commit.snapshot.manifest_files, base.manifest_files
    manifests = IdSet.of(mine.id).minus(IdSet.of(theirs.id))
    replaced = IdSet.of(theirs.id).minus(IdSet.of(mine.id))
    chunks = (await _chunks_of(handle, mine, manifests)).minus(
        await _chunks_of(handle, theirs, replaced)
    )
    one = IdSet.of_ids([commit.snapshot.id])
    for folder in (layout.SNAPSHOTS, layout.TRANSACTIONS):
        _require_none_gone(await _gone(handle, folder, one, fence), folder)
    _require_none_gone(await _gone(handle, layout.MANIFESTS, manifests, fence), layout.MANIFESTS)
    lost = await _gone(handle, layout.CHUNKS, chunks, fence)
    if lost.size:
        # Chunks that were moved within an array are old. The base may still refer to them.
        lost = lost.minus(await _chunks_of(handle, theirs, IdSet.of(theirs.id)))
    _require_none_gone(lost, layout.CHUNKS)


async def _chunks_of(handle: RepoHandle, files: ManifestFiles, wanted: IdSet) -> IdSet:
    """The chunk objects that some manifests refer to."""
    found = IdSet.of_ids(())
    ids = [ManifestId(row.tobytes()) for row in wanted.rows]
    for first in range(0, len(ids), _MANIFESTS_AT_ONCE):
        batch = [(key, files[key].size_bytes) for key in ids[first : first + _MANIFESTS_AT_ONCE]]
        rows = [manifest.native_chunk_ids() for manifest in await handle.assets.manifests(batch)]
        found = IdSet.union([found, IdSet.of(np.concatenate(rows))])
    return found


async def _gone(handle: RepoHandle, folder: str, wanted: IdSet, fence: int) -> IdSet:
    """The objects that are missing, or were stored before the fence."""
    if wanted.size > _MAX_HEAD_REQUESTS:
        stored = await list_folder(handle.driver, folder)
    else:
        stored = await _looked_up(handle, folder, wanted)
    return wanted.minus(IdSet.of(stored.id[stored.created_at >= fence]))


async def _looked_up(handle: RepoHandle, folder: str, wanted: IdSet) -> StoredObjects:
    unknown = np.full(wanted.size, -1, np.int64)
    asked = StoredObjects(folder, wanted.rows, unknown, unknown)
    return await with_times(handle.driver, asked)


def _require_none_gone(gone: IdSet, folder: str) -> None:
    if not gone.size:
        return
    shown = ", ".join(folder + ObjectId(row.tobytes()).text for row in gone.rows[:3])
    more = f" and {gone.size - 3:,} more" if gone.size > 3 else ""
    raise SessionStateError(
        f"a garbage collection that ran since this session was opened takes objects that the "
        f"session has stored but not committed: {shown}{more}. Nothing was committed. Write the "
        "changes again in a new session, and collect only objects older than the longest session",
        ErrorKind.OBJECTS_COLLECTED,
    )
