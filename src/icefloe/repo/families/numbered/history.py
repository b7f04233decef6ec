"""History of repositories in which a snapshot lists some of its ancestors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from icefloe.errors import SnapshotNotFoundError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import SnapshotId
from icefloe.legacy.numbered.model import Ancestor
from icefloe.repo.families.numbered.refs import assets_of
from icefloe.repo.handle import LineCommit, RepoHandle


def info_of(snapshot: Snapshot) -> SnapshotInfo:
    """The description of a snapshot whose file exists."""
    return SnapshotInfo(
        snapshot.id, snapshot.parent_id, snapshot.flushed_at, snapshot.message, snapshot.metadata
    )


async def reachable(handle: RepoHandle, tips: Iterable[SnapshotId]) -> AsyncIterator[SnapshotInfo]:
    """These snapshots and all their ancestors, each line newest first. Each is read once.

    A snapshot whose file is gone is described by a newer snapshot, without properties. A line ends
    where no file describes the next snapshot.
    """
    seen: set[SnapshotId] = set()
    for tip in tips:
        remembered: list[Ancestor] = []
        current: SnapshotId | None = tip
        while current is not None and current not in seen:
            info = await _info(handle, current, remembered, must_exist=current == tip)
            if info is None:
                break
            yield info
            seen.add(current)
            current = info.parent_id


async def _info(
    handle: RepoHandle, current: SnapshotId, remembered: list[Ancestor], *, must_exist: bool
) -> SnapshotInfo | None:
    """The description of one snapshot.

    `remembered` is updated: the ancestors that its file lists, or the rest of those that a newer
    file lists.
    """
    assets = assets_of(handle)
    try:
        snapshot = await assets.snapshot(current)
    except SnapshotNotFoundError:
        if must_exist or not remembered or not remembered[0].message:
            if must_exist:
                raise
            return None
        itself = remembered.pop(0)
        parent = assets.ids.snapshot_id(remembered[0].id) if remembered else None
        return SnapshotInfo(current, parent, itself.written_at, itself.message)
    remembered[:] = (await assets.history_after(current)).history[1:]
    return info_of(snapshot)


async def stored_history(handle: RepoHandle, tips: Iterable[SnapshotId]) -> list[SnapshotInfo]:
    """These snapshots and their ancestors whose files exist.

    The parent of each is its nearest ancestor among them.

    Raises:
        SnapshotNotFoundError: the file of a tip is missing.
    """
    wanted = list(tips)
    # Listed after the refs were read, so it has the files of all tips.
    stored = await _stored(handle)
    while True:
        try:
            return await _history_among(handle, wanted, stored)
        except SnapshotNotFoundError:
            before, stored = stored, await _stored(handle)
            if before == stored:
                raise  # else an expiration has deleted files meanwhile


async def _stored(handle: RepoHandle) -> set[bytes]:
    return {row.tobytes() for row in (await handle.assets.list_objects("snapshots")).id}


async def _history_among(
    handle: RepoHandle, tips: Sequence[SnapshotId], stored: set[bytes]
) -> list[SnapshotInfo]:
    assets, waiting = assets_of(handle), list(tips)
    for tip in waiting:
        if tip not in stored:
            raise SnapshotNotFoundError(f"a snapshot that is in use is missing: {tip}")
    found: dict[SnapshotId, SnapshotInfo] = {}
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        info = info_of(await assets.snapshot(current))
        named = (await assets.history_after(current)).history[1:]
        ancestors: list[SnapshotId | None] = [assets.ids.snapshot_id(one.id) for one in named]
        ancestors = ancestors or [info.parent_id]
        parent = next((one for one in ancestors if one in stored), None)
        found[current] = replace(info, parent_id=parent)
        if parent is not None:
            waiting.append(parent)
    return list(found.values())


async def line_since(
    handle: RepoHandle, tip: SnapshotId, base: SnapshotId
) -> list[LineCommit] | None:
    """The commits after `base` up to `tip`, oldest first; None if `base` is not before it."""
    assets = assets_of(handle)
    line: dict[SnapshotId, LineCommit] = {}
    current: SnapshotId | None = tip
    while current is not None and current not in line:
        try:
            history = (await assets.history_after(current)).history
        except SnapshotNotFoundError:
            return None
        for ancestor in history:
            found = assets.ids.snapshot_id(ancestor.id)
            if found == base:
                return list(line.values())[::-1]
            current = found if found not in line else None
            line.setdefault(found, LineCommit(found))
        # The file of the last ancestor may list more ancestors.
        if current is not None and len(history) > 1:
            del line[current]
        else:
            current = None
    return None
