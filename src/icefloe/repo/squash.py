"""Squash: several commits of a branch become one.

The new snapshot has the nodes and manifests of the newest of them, and an earlier snapshot as its
parent. Later commits are written again on top of it: the same content, message and time, another id
and parent. The branch moves by one conditional write. The old snapshots stay until they expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from icefloe.assets.computed_logs import differing_chunks
from icefloe.changes.diff import make_diff, paths_by_id
from icefloe.changes.divergence import log_between
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.repo.clock_checks import later_than
from icefloe.repo.commit_notes import (
    NOTES,
    REWRITTEN,
    SQUASHED,
    merge_notes,
    merged_into,
    moved_expired,
    notes_of,
)
from icefloe.repo.handle import NewCommit, RepoHandle
from icefloe.repo.merge_base import contained_since
from icefloe.repo.replay import Replayed, ReplayRequest
from icefloe.repo.sessions import open_writable
from icefloe.repo.write_commit import store_commits

_COMMITS_AT_ONCE = 64


async def squash(
    handle: RepoHandle, since: SnapshotId, request: ReplayRequest, until: SnapshotId | None = None
) -> Replayed:
    """Replace the commits after `since`, up to `until` or the tip, with one.

    Raises:
        ConflictError: the branch has moved in the meantime; nothing has changed.
    """
    handle.family.require_spec_folders("squashing")
    state = await open_writable(handle, request.branch)
    line: list[SnapshotInfo] = []
    ends = {since, until or since}
    async for info in handle.family.ancestors(handle, state.snapshot_id):
        line.append(info)
        ends.discard(info.id)
        if not ends:
            break
    later, squashed = _cut(line, since, until, request.branch)
    (base, newest), _ = await handle.assets.snapshots_and_logs([since, squashed[0].id], [])
    log = await _log(handle, base, newest)
    diff = make_diff([log], paths_by_id(base.nodes, newest.nodes))
    if request.dry_run:
        return Replayed(None, since, diff)
    now = handle.clock.now_us()
    messages = [info.message for info in reversed(squashed)]
    one = replace(
        newest,
        id=log.id,
        parent_id=since if handle.family.stores_parents else None,
        message=request.message if request.message is not None else "\n".join(messages),
        metadata=await _metadata(handle, since, squashed, request),
        # Times increase along a branch, and those of later commits stay.
        flushed_at=newest.flushed_at
        if later
        else later_than(newest.flushed_at, now, "the tip of the branch"),
    )
    handle.family.require_metadata(one.metadata)
    stored = await store_commits(handle, [(one, log)], now)
    new = [NewCommit(stored[0], newest.id, bool(log.moved_nodes), state.opened_at)]
    for last in range(len(later), 0, -_COMMITS_AT_ONCE):
        batch = later[max(0, last - _COMMITS_AT_ONCE) : last][::-1]
        new += await _written_again(handle, batch, new[-1].snapshot.id, state.opened_at)
    pruned = [info.pruned_ancestor_tx_logs for info in reversed(later)]
    await handle.family.publish_squashed(handle, new, request.branch, since, [(), *pruned])
    return Replayed(log.id, since, diff)


def _cut(
    line: list[SnapshotInfo], since: SnapshotId, until: SnapshotId | None, branch: str
) -> tuple[list[SnapshotInfo], list[SnapshotInfo]]:
    """The commits of a branch after `until`, and those after `since` up to it, newest first."""
    ids = [info.id for info in line]
    for key in (since, until):
        if key is not None and key not in ids:
            raise _unfit(
                f"snapshot {key} is not in the history of branch {branch!r}, so the commits "
                f"{'after' if key == since else 'up to'} it cannot be squashed"
            )
    first, last = ids.index(since), 0 if until is None else ids.index(until)
    if until is not None and last >= first:
        how = "is" if last == first else "comes before"
        raise _unfit(
            f"the range ends at snapshot {until}, which {how} the one that it starts after, "
            f"{since}: there are no commits to squash; name the last snapshot that is to stay "
            "first, then the newest that is to be squashed"
        )
    if first == 0:
        raise _unfit(
            f"snapshot {since} is the tip of branch {branch!r}: there are no commits after it to "
            "squash; name the last snapshot that is to stay"
        )
    return line[:last], line[last:first]


def _unfit(message: str) -> InvalidInputError:
    return InvalidInputError(message, ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF)


async def _metadata(
    handle: RepoHandle, since: SnapshotId, squashed: Sequence[SnapshotInfo], request: ReplayRequest
) -> dict[str, Any]:
    merged = [each for info in squashed for each in merged_into(notes_of(info.metadata))]
    contained = await contained_since(handle, since, squashed[0].id)
    if contained is not None:
        contained -= {squashed[0].id}
    # The newest one leads to the others.
    notes = {SQUASHED: squashed[0].id.text, "commits": len(squashed)}
    return {
        **handle.shared.default_commit_metadata,
        **(request.metadata or {}),
        NOTES: {**notes, **merge_notes(merged, contained)},
    }


async def _written_again(
    handle: RepoHandle, old: Sequence[SnapshotInfo], parent: SnapshotId, opened_at: int
) -> list[NewCommit]:
    """Store commits anew, oldest first, on another parent with the same content."""
    keys = [info.id for info in old]
    made = []
    for info, snapshot, log in zip(
        old, *await handle.assets.snapshots_and_logs(keys, keys), strict=True
    ):
        key = handle.new_id(SnapshotId)
        metadata = moved_expired(info, info.metadata, parent)
        metadata[NOTES] = {**notes_of(metadata), REWRITTEN: info.id.text}
        parent_id = parent if handle.family.stores_parents else None
        again = replace(snapshot, id=key, parent_id=parent_id, metadata=metadata)
        made.append((again, replace(log, id=key)))
        parent = key
    stored = await store_commits(handle, made, handle.clock.now_us())
    return [
        NewCommit(snapshot, info.id, bool(log.moved_nodes), opened_at)
        for snapshot, info, (_, log) in zip(stored, old, made, strict=True)
    ]


async def _log(handle: RepoHandle, base: Snapshot, tip: Snapshot) -> TransactionLog:
    """The net changes. What was changed and changed back is not listed."""
    before = {node.id: node for node in base.nodes}
    arrays = [node for node in tip.nodes if node.array is not None]
    pairs = {node.id: (before.get(node.id), node) for node in arrays}
    chunks = await differing_chunks(handle.assets, base.manifest_files, tip.manifest_files, pairs)
    return log_between(
        handle.new_id(SnapshotId), base.nodes, tip.nodes, chunks, lists_all_moves=True
    )
