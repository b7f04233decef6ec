"""Where two lines of history part.

A snapshot has one parent. A commit that merges another line notes it in its metadata, under the
key `__icefloe`. So a second merge of the same branch takes only what is new on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import SnapshotId
from icefloe.repo.handle import RepoHandle

NOTES = "__icefloe"
_MERGED = "merged"

History = dict[SnapshotId, SnapshotInfo]


def merge_notes(merged: Iterable[str]) -> dict[str, list[str]]:
    """The part of a commit's notes that says which snapshots it contains besides its parent."""
    return {_MERGED: sorted(set(merged))}


def merged_into(info: SnapshotInfo) -> list[str]:
    """The snapshots that a commit has merged."""
    notes = info.metadata.get(NOTES)
    merged: Any = notes.get(_MERGED) if isinstance(notes, Mapping) else None
    return [each for each in merged if isinstance(each, str)] if isinstance(merged, list) else []


async def merge_base(handle: RepoHandle, ours: SnapshotId, tip: SnapshotId) -> SnapshotId:
    """The newest snapshot that both contain.

    Raises:
        InvalidInputError: there is none.
    """
    known: History = {}
    mine = await _contained_in(handle, ours, known)
    both = mine & await _contained_in(handle, tip, known)
    if not both:
        raise InvalidInputError(
            f"snapshots {ours} and {tip} have no ancestor in common, or it has expired",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    # Times increase along a line, so the newest one is no ancestor of another.
    return max(both, key=lambda key: (known[key].flushed_at, key))


async def _contained_in(handle: RepoHandle, tip: SnapshotId, known: History) -> set[SnapshotId]:
    """A snapshot, its ancestors, the snapshots that they merged, and the ancestors of those."""
    found: set[SnapshotId] = set()
    waiting = [tip]
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        try:
            line = await handle.family.ancestry(handle, key)
        except NotFoundError:
            if key == tip:
                raise
            continue  # a merged snapshot has expired
        for info in line:
            known[info.id] = info
            if info.id not in found:
                found.add(info.id)
                waiting.extend(map(handle.snapshot_id, merged_into(info)))
    return found
