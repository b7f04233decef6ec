"""Writing the files of a commit: packs, manifests, snapshot and log.

The files have new ids and nothing refers to them yet. A commit that fails here has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from icefloe.changes.build import CommitPlan, build_snapshot, plan_commit
from icefloe.changes.log_union import union_of_logs
from icefloe.changes.made_manifests import MadeManifests
from icefloe.changes.packs import check_placed
from icefloe.changes.split_sizes import split_sizes
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.records import NamedTuple
from icefloe.repo.clock_checks import later_than, require_clock_of_storage
from icefloe.repo.handle import RepoHandle, SeenTip
from icefloe.repo.packing import close_packs, store_closed
from icefloe.repo.workspace import Workspace
from icefloe.repo.write_manifests import write_manifests

_MAX_PREFETCHED_REFS = 1_000_000


class CommitRequest(NamedTuple):
    """Message and properties of a commit, and whether unchanged manifests are rewritten."""

    message: str
    metadata: Mapping[str, Any] | None
    rewrite_all: bool = False
    source: SnapshotId | None = None
    """Another snapshot whose chunks the commit refers to."""


class TipCheck(Enum):
    """How a commit checks before its uploads that its branch has not moved."""

    NONE = auto()
    BEFORE_UPLOAD = auto()
    WAS_DONE = auto()
    """The session was just at the tip. Checked again only if manifests have to be fetched."""


class WrittenCommit(NamedTuple):
    """A stored snapshot that nothing refers to yet, and what was seen of the branch."""

    snapshot: Snapshot
    seen: SeenTip | None


async def write_commit(
    workspace: Workspace,
    request: CommitRequest,
    *,
    parent_id: SnapshotId,
    branch: str | None = None,
    tip_check: TipCheck = TipCheck.NONE,
    amended: TransactionLog | None = None,
    made: MadeManifests | None = None,
    is_aside: bool = False,
) -> WrittenCommit:
    """Write everything that a commit of the session needs.

    `branch` is checked before the upload. `amended` is the log of the amended commit. `made` has
    the manifests that earlier attempts of the same commit have written. With `is_aside`, nodes
    keep the ids that they have in the session.

    Raises:
        ConflictError: the branch has moved; nothing but packs was uploaded.
    """
    handle, state = workspace
    base, made = state.snapshot, made or MadeManifests()
    metadata = {**handle.shared.default_commit_metadata, **(request.metadata or {})}
    handle.family.require_metadata(metadata)
    snapshot_id = handle.new_id(SnapshotId)
    sizes = split_sizes(handle.settings.manifest)
    with state.lock:  # every chunk of the plan has its place in a pack; the packs are stored below
        packs = close_packs(state)
        check_placed(state.changes)
        changes = state.changes
        if not is_aside:
            changes = handle.family.with_node_ids(handle, base, changes)
        plan = plan_commit(base, changes, sizes, rewrite_all=request.rewrite_all)
        # Under the same lock, so that log and plan have the same changes.
        log = changes.log(snapshot_id, is_packed=amended is None)
    await store_closed(workspace, packs)
    seen = None
    if branch is not None and tip_check != TipCheck.NONE:
        seen = await _require_tip(handle, plan, branch, base.id, tip_check)
    missing = made.missing(plan, changes)
    made.add(missing, await write_manifests(handle, missing, plan.files), changes)
    snapshot = build_snapshot(
        plan,
        made.of_plan(plan),
        snapshot_id=snapshot_id,
        parent_id=parent_id if handle.family.stores_parents else None,
        flushed_at=later_than(base.flushed_at, handle.clock.now_us(), "the parent snapshot"),
        message=request.message,
        metadata=metadata,
    )
    if amended is not None:
        log = union_of_logs(amended, log)
    stored = await store_commits(handle, [(snapshot, log)], snapshot.flushed_at, seen)
    return WrittenCommit(stored[0], seen)


async def store_aside(workspace: Workspace) -> Snapshot:
    """Store the current state of the session as an unlisted snapshot, for its forks to read.

    No commit refers to this snapshot. The next garbage collection deletes it.
    """
    parent_id = workspace.state.snapshot_id
    request = CommitRequest("fork", None)
    written = await write_commit(workspace, request, parent_id=parent_id, is_aside=True)
    return written.snapshot


async def _require_tip(
    handle: RepoHandle, plan: CommitPlan, branch: str, base: SnapshotId, tip_check: TipCheck
) -> SeenTip | None:
    """Check that the branch has not moved, as late as possible before the first upload.

    Old manifests that are needed are fetched first, because that takes time.
    """
    needed = {
        ref.id
        for array_plan in plan.arrays.values()
        for rewrite in array_plan.rewrites
        for ref in rewrite.sources
    }
    cached = handle.assets.caches.manifests
    infos = [plan.files[key] for key in needed if cached.get(key) is None]
    if tip_check == TipCheck.WAS_DONE and not infos:
        return handle.family.seen_tip(handle)
    if sum(info.num_chunk_refs for info in infos) < _MAX_PREFETCHED_REFS:
        await handle.assets.manifests([(info.id, info.size_bytes) for info in infos])
    return await handle.family.require_tip(handle, branch, base)


async def store_commits(
    handle: RepoHandle,
    commits: Sequence[tuple[Snapshot, TransactionLog]],
    written_at: int,
    seen: SeenTip | None = None,
) -> list[Snapshot]:
    """Upload snapshots and logs, and make all files of the commits survive a power failure.

    Returns the snapshots as readers will find them.
    """
    encoded = [await handle.assets.encode_commit(*commit) for commit in commits]
    files = [file for _, two in encoded for file in two]
    await handle.assets.put_metadata_files([*files, *(() if seen is None else seen.files)])
    await require_clock_of_storage(handle, files[-1][0], written_at)
    await handle.driver.sync()
    for snapshot, _ in encoded:
        handle.assets.caches.snapshots.put(snapshot.id, snapshot, max(1, len(snapshot.nodes)))
    return [snapshot for snapshot, _ in encoded]
