"""Whether collections keep a snapshot: decided from what is stored, not from caches.

A collection deletes what no ref leads to, if it is older than the fence. So a snapshot is kept if a
ref leads to it. One that no ref leads to, such as a flushed one, is kept if its parent is, and all
objects that it does not share with its parent are newer than the fence.
"""

from __future__ import annotations

from collections.abc import Iterable

from icefloe.assets.assets import Assets
from icefloe.errors import ErrorKind, IcechunkError, SnapshotNotFoundError
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import SnapshotId
from icefloe.repo.clock_checks import MOST_CLOCK_SKEW_US
from icefloe.repo.handle import NewCommit, RepoHandle
from icefloe.repo.own_objects import require_own_objects


async def require_kept(
    handle: RepoHandle, snapshot_id: SnapshotId, fence: int, *, besides: str | None = None
) -> None:
    """Refuse a snapshot that a collection has deleted or may delete, as a whole or in part.

    Args:
        besides: a ref (`branch.NAME` or `tag.NAME`) that does not count.

    Raises:
        SnapshotNotFoundError: its file is missing, or objects that it needs may be.
    """
    stored = handle.assets.past_disk_cache()
    try:
        current = await stored.load_snapshot(snapshot_id)
    except SnapshotNotFoundError:
        handle.assets.caches.snapshots.drop([snapshot_id])
        raise
    if not fence:
        return  # icefloe never collected here
    try:
        while not await _is_reachable(handle, stored, current, besides):
            if current.parent_id is None:
                raise SnapshotNotFoundError(f"no ref leads to {current.id}")
            await require_own_objects(handle, NewCommit(current, current.parent_id, False), fence)
            current = await stored.load_snapshot(current.parent_id)
    except IcechunkError as error:
        if isinstance(error, SnapshotNotFoundError) or error.kind == ErrorKind.OBJECTS_COLLECTED:
            raise SnapshotNotFoundError(
                f"no branch or tag leads to snapshot {snapshot_id}, and garbage collections have "
                "deleted objects that it needs, or may still do so; use a snapshot of a branch"
            ) from error
        raise


async def _is_reachable(
    handle: RepoHandle, stored: Assets, wanted: Snapshot, besides: str | None
) -> bool:
    """Whether a ref leads to a snapshot. Branches lead to nearly all, so they are read first."""
    branches = await handle.family.branches(handle)
    tips = {tip for name, tip in branches.items() if f"branch.{name}" != besides}
    if await _lead_to(stored, tips, wanted):
        return True
    tags = await handle.family.tags(handle)
    tips = {tip for name, tip in tags.items() if f"tag.{name}" != besides} - tips
    return await _lead_to(stored, tips, wanted)


async def _lead_to(stored: Assets, tips: Iterable[SnapshotId], wanted: Snapshot) -> bool:
    """Whether a snapshot is among these and their ancestors. Times increase along a line, so older
    ones are not followed."""
    waiting, seen = set(tips), set[SnapshotId]()
    while waiting:
        if wanted.id in waiting:
            return True
        current = waiting.pop()
        seen.add(current)
        try:
            snapshot = await stored.load_snapshot(current)
        except SnapshotNotFoundError:
            continue  # the history is cut here
        is_newer = snapshot.flushed_at > wanted.flushed_at - MOST_CLOCK_SKEW_US
        if is_newer and snapshot.parent_id is not None and snapshot.parent_id not in seen:
            waiting.add(snapshot.parent_id)
    return False
