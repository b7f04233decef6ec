"""Where two lines of history part.

A snapshot has one parent. A commit that merges another line notes it in its metadata, under the
key `__icefloe`. So a second merge of the same branch takes only what is new on it. A commit that
replaces others in a squash notes them too: branches that have the old ones part there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import SnapshotId
from icefloe.repo.handle import RepoHandle

NOTES = "__icefloe"
SQUASHED = "squashed"
REWRITTEN = "rewritten"
"""Keys of the notes that name an older snapshot with the same content."""
_MERGED = "merged"

History = dict[SnapshotId, SnapshotInfo]


def merge_notes(merged: Iterable[str]) -> dict[str, list[str]]:
    """The part of a commit's notes that says which snapshots it contains besides its parent."""
    return {_MERGED: sorted(set(merged))}


def notes_of(info: SnapshotInfo) -> Mapping[str, Any]:
    """What icefloe noted in the metadata of a commit."""
    notes = info.metadata.get(NOTES)
    return notes if isinstance(notes, Mapping) else {}


def merged_into(info: SnapshotInfo) -> list[str]:
    """The snapshots that a commit contains besides its parent."""
    notes = notes_of(info)
    merged: Any = notes.get(_MERGED)
    same = [notes.get(SQUASHED), notes.get(REWRITTEN)]
    found = [*(merged if isinstance(merged, list) else ()), *same]
    return [each for each in found if isinstance(each, str)]


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
