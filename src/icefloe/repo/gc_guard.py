"""What keeps garbage collection and writers out of each other's way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from icefloe.assets.assets import Assets, StoredObjects, with_times
from icefloe.errors import (
    ErrorKind,
    FormatError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
    UnknownOutcomeError,
)
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet
from icefloe.format.snapshot import ManifestFiles
from icefloe.ids import ManifestId, ObjectId
from icefloe.repo.handle import NewCommit, RepoHandle
from icefloe.storage.driver import ConditionFailed, Version, find_object

# -- What maintenance tells writers: the fence, and whether an upgrade to spec version 2 is under
# way.
#
# The fence is the time before which a collection may have deleted unreferenced objects. A
# collection raises it before it commits its decision, and deletes objects only afterwards. A
# writer that finds a concurrent collection checks that its own objects are newer than the fence.
# The fence never goes down.
#
# Both are in one small object, so that a commit of version 1 reads them with one request.


_TRIES = 100


class Fence(NamedTuple):
    """The content of the object."""

    collected_before: int = 0
    """No collection deleted an object stored at or after this time (microseconds, storage clock).
    0 when icefloe has never collected in this repository."""
    is_upgrading: bool = False
    """Whether an upgrade or a migration in place has stopped writers."""


async def collected_before(handle: RepoHandle) -> int:
    """No collection deleted an object stored at or after this time."""
    return (await _read(handle))[0].collected_before


async def raise_fence(handle: RepoHandle, instant: int) -> None:
    """Raise the fence: unreferenced objects stored before `instant` may be deleted."""
    await _change(
        handle, lambda now: now._replace(collected_before=max(now.collected_before, instant))
    )


async def mark_upgrade(handle: RepoHandle, *, is_upgrading: bool) -> None:
    """Stop the writers before version 2, or take that back once `repo` exists."""
    await _change(handle, lambda now: now._replace(is_upgrading=is_upgrading))


async def _change(handle: RepoHandle, change: Callable[[Fence], Fence]) -> None:
    for _ in range(_TRIES):
        present, version = await _read(handle)
        wanted = change(present)
        if wanted == present:
            return
        document: dict[str, int] = {"collected_before": wanted.collected_before}
        if wanted.is_upgrading:
            document["is_upgrading"] = True
        data = json.dumps(document).encode()
        try:
            await handle.driver.put_if(
                layout.COLLECTED, data, previous=version, content_type="application/json"
            )
        except ConditionFailed:
            continue  # another process replaced the file first
        return
    raise StorageError(
        f"{layout.COLLECTED} was changed by others at each of {_TRIES} attempts", ErrorKind.UNKNOWN
    )


async def require_open(handle: RepoHandle, outcome: str = "was not made") -> int:
    """Refuse to write during and after an upgrade to version 2. Returns the fence of collections.

    A write under the version of a branch calls this after it has read that version, because an
    upgrade gives branches new versions once it has stopped writers. Any other write calls
    `require_still_open` afterwards too.
    """
    # In this order: an upgrade lets writers go on after `repo` exists.
    fence, _ = await _read(handle)
    if fence.is_upgrading:
        call = "upgrade_icechunk_repository" if handle.format.spec_version else "migrate_repository"
        raise ReadOnlyError(
            "the repository is being upgraded to spec version 2, and takes no changes until then; "
            f"this change {outcome}. Open the repository again when the upgrade has ended. If it "
            f"was interrupted, call {call} again",
            ErrorKind.READ_ONLY_REPOSITORY,
        )
    await require_not_migrated(handle)
    return fence.collected_before


async def require_still_open(handle: RepoHandle) -> int:
    """Refuse a change that was just made, if an upgrade that started meanwhile may have missed it.

    Raises:
        UnknownOutcomeError: the storage does not say.
    """
    try:
        return await require_open(handle, "may not be part of it")
    except StorageError as error:
        raise UnknownOutcomeError(
            "the change was made, and whether an upgrade or a garbage collection at the same time "
            f"has missed it cannot be told: {error}; look at the present state before trying again"
        ) from error


async def require_not_migrated(handle: RepoHandle) -> None:
    """Refuse to use the refs after a migration: other clients no longer do."""
    try:
        await handle.driver.head(layout.REPO)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return
        raise
    raise FormatError(
        "the repository was migrated to spec version 2 since it was opened, so no reader would see "
        "this change; open it again",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def objects_collected(shown: str) -> SessionStateError:
    """The error of a writer whose own objects were collected."""
    return SessionStateError(
        f"a garbage collection that ran since this session was opened takes objects that the "
        f"session has stored but not committed: {shown}. Nothing was committed. Write the "
        "changes again in a new session, and collect only objects older than the longest session",
        ErrorKind.OBJECTS_COLLECTED,
    )


async def _read(handle: RepoHandle) -> tuple[Fence, Version | None]:
    stored = await find_object(handle.driver, layout.COLLECTED)
    if stored is None:
        return Fence(), None
    try:
        found = json.loads(stored[0])
        is_upgrading = bool(found.get("is_upgrading", False))
        return Fence(int(found["collected_before"]), is_upgrading), stored[1]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{layout.COLLECTED}: expected a JSON object with the number 'collected_before'"
        ) from error


# -- Checks the objects that a commit has stored, when a garbage collection ran in the meantime.
#
# A collection deletes unreferenced objects that are old enough. The objects of the session's base
# are safe, because a branch leads to them. So are those of the snapshot that a merge, cherry-pick
# or undo takes chunks from: format versions check that they keep it.


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
    if handle.format.has_spec_folders:
        files["transaction_logs"] = files["snapshots"]
        known["transaction_logs"] = known["snapshots"]
    for kind in (kind for kind in assets.folders if kind in files):
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
    if wanted.size > _MAX_HEAD_REQUESTS or not handle.format.has_spec_folders:
        stored = await handle.assets.list_objects(kind, with_foreign=True)
    else:
        unknown = np.full(wanted.size, -1, np.int64)
        asked = StoredObjects(handle.assets.folders[kind], wanted.rows, unknown, unknown)
        stored = await with_times(handle.driver, asked)
    return wanted.minus(IdSet.of(stored.id[stored.created_at >= fence]))


def _require_none_gone(assets: Assets, kind: str, gone: IdSet) -> None:
    if not gone.size:
        return
    folder = assets.folders[kind]
    shown = ", ".join(folder + ObjectId(row.tobytes()).text for row in gone.rows[:3])
    more = f" and {gone.size - 3:,} more" if gone.size > 3 else ""
    raise objects_collected(shown + more)
