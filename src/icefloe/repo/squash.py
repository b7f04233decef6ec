"""Squash: the last commits of a branch become one.

The new snapshot has the nodes and manifests of the tip, and an earlier snapshot as its parent. The
branch moves to it by one conditional write. The old snapshots stay until they expire.
"""

from __future__ import annotations

from icefloe.assets.computed_logs import differing_chunks
from icefloe.changes.diff import make_diff, paths_by_id
from icefloe.changes.divergence import log_between
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.repo.clock_checks import later_than
from icefloe.repo.handle import NewCommit, RepoHandle
from icefloe.repo.merge_base import NOTES, merge_notes, merged_into
from icefloe.repo.replay import Replayed, ReplayRequest
from icefloe.repo.sessions import open_writable
from icefloe.repo.write_commit import store_commit


async def squash(handle: RepoHandle, since: SnapshotId, request: ReplayRequest) -> Replayed:
    """Replace the commits after `since` with one.

    Raises:
        ConflictError: the branch has moved in the meantime; nothing has changed.
    """
    handle.family.require_spec_folders("squashing")
    state = await open_writable(handle, request.branch)
    tip = state.snapshot
    line = await handle.family.ancestry(handle, tip.id)
    squashed = _since(line, since, request.branch)
    base = await handle.assets.snapshot(since)
    log = await _log(handle, base, tip)
    diff = make_diff([log], paths_by_id(base.nodes, tip.nodes))
    if request.dry_run:
        return Replayed(None, since, diff)
    messages = [info.message for info in reversed(squashed)]
    merged = [each for info in squashed for each in merged_into(info)]
    notes = {"squashed": tip.id.text, "commits": len(squashed)}  # the old tip leads to the others
    metadata = {
        **handle.shared.default_commit_metadata,
        **(request.metadata or {}),
        NOTES: {**notes, **(merge_notes(merged) if merged else {})},
    }
    handle.family.require_metadata(metadata)
    snapshot = Snapshot(
        log.id,
        tip.nodes,
        later_than(tip.flushed_at, handle.clock.now_us(), "the tip of the branch"),
        request.message if request.message is not None else "\n".join(messages),
        metadata,
        tip.manifest_files,
        since if handle.family.stores_parents else None,
    )
    stored = await store_commit(handle, snapshot, log)
    new = NewCommit(stored, tip.id, bool(log.moved_nodes), state.opened_at)
    await handle.family.publish_squashed(handle, new, request.branch, since)
    return Replayed(stored.id, since, diff)


def _since(line: list[SnapshotInfo], since: SnapshotId, branch: str) -> list[SnapshotInfo]:
    """The commits of a branch after a snapshot, newest first."""
    ids = [info.id for info in line]
    if since not in ids:
        raise InvalidInputError(
            f"snapshot {since} is not in the history of branch {branch!r}, so the commits after it "
            "cannot be squashed",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    if ids[0] == since:
        raise InvalidInputError(
            f"snapshot {since} is the tip of branch {branch!r}: there are no commits after it to "
            "squash; name the last snapshot that is to stay",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    return line[: ids.index(since)]


async def _log(handle: RepoHandle, base: Snapshot, tip: Snapshot) -> TransactionLog:
    """The net changes. What was changed and changed back is not listed."""
    before = {node.id: node for node in base.nodes}
    arrays = [node for node in tip.nodes if node.array is not None]
    pairs = {node.id: (before.get(node.id), node) for node in arrays}
    chunks = await differing_chunks(handle.assets, base.manifest_files, tip.manifest_files, pairs)
    return log_between(
        handle.new_id(SnapshotId), base.nodes, tip.nodes, chunks, lists_all_moves=True
    )
