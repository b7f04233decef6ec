"""Commit, amend and flush: their checks, and the files they write."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from icefloe.changes.change_set import ChangeSet, Pack, check_placed
from icefloe.changes.chunk_edits import Coordinates
from icefloe.changes.commit_plan import (
    CommitPlan,
    ManifestFile,
    NewManifest,
    build_manifests,
    build_snapshot,
    plan_commit,
    union_of_logs,
)
from icefloe.changes.shared_manifests import (
    NOTHING_SHARED,
    SharedLimits,
    SharedNodes,
    all_nodes,
    build_shared,
    shared_limits,
)
from icefloe.changes.splits import Box, SplitRewrite, SplitsPlan, split_sizes
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    SessionStateError,
    StorageError,
)
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import Node
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.observe import COMMIT, observed
from icefloe.repo.gc_guard import objects_collected
from icefloe.repo.handle import MAX_CLOCK_SKEW_S, NewCommit, RepoHandle, SeenTip, later_than
from icefloe.repo.session import SessionMode, SessionState, Workspace

if TYPE_CHECKING:
    from icefloe.changes.conflicts import ConflictSolver


# -- Writing the manifests of a commit: fetch the old ones, apply the edits, write the new ones.
#
# This is done in batches that fit into memory, so a commit may have any size.


_REFS_AT_ONCE = 1 << 20
_FILES_AT_ONCE = 1 << 10


Item = TypeVar("Item")
_Key = tuple[NodeId, Box, tuple[ManifestId, ...]]


class ManifestReuse:
    """What earlier attempts of a commit wrote, with the state of the session's edits."""

    def __init__(self) -> None:
        self.splits: dict[_Key, tuple[object, list[NewManifest]]] = {}
        """By array, split and old manifests of the split."""
        self.shared: tuple[object, SharedNodes] = (None, NOTHING_SHARED)
        """The last attempt's arrays that share manifests."""


class _Task(NamedTuple):
    """The manifest of one split, or of several that share one, to be written."""

    node_id: NodeId
    rewrite: SplitRewrite

    @property
    def key(self) -> _Key:
        return self.node_id, self.rewrite.box, tuple(ref.id for ref in self.rewrite.sources)

    def num_refs(self, files: ManifestFiles) -> int:
        """An upper bound of the references that it needs in memory."""
        return self.rewrite.num_edits + files.refs_in([ref.id for ref in self.rewrite.sources])


async def write_manifests(
    handle: RepoHandle,
    arrays: Mapping[NodeId, SplitsPlan],
    files: ManifestFiles,
    changes: ChangeSet | None = None,
    reuse: ManifestReuse | None = None,
) -> dict[NodeId, list[NewManifest]]:
    """Write the manifests of the plans; returns the new ones of each array.

    Manifests in `reuse` are not written again, if the edits of the array in `changes` are the same.
    """
    made = (ManifestReuse() if reuse is None else reuse).splits
    edits = {} if changes is None else {key: one.state for key, one in changes.chunks.items()}
    tasks_of = {
        node_id: [_Task(node_id, rewrite) for rewrite in array_plan.rewrites]
        for node_id, array_plan in arrays.items()
    }
    tasks = [
        task
        for node_id, mine in tasks_of.items()
        for task in mine
        if (state := edits.get(node_id)) is None or made.get(task.key, (None,))[0] is not state
    ]
    # A large manifest that is cut is a source of many batches. It is dropped after the last one.
    uses = Counter(ref.id for task in tasks for ref in task.rewrite.sources)
    held: dict[ManifestId, Manifest] = {}
    most_files = handle.settings.manifest.max_concurrent_manifest_fetches_during_commit
    most_files = most_files or _FILES_AT_ONCE
    for batch in batches(tasks, lambda task: task.num_refs(files), _REFS_AT_ONCE, most_files):
        sources = [ref.id for task in batch for ref in task.rewrite.sources]
        missing = [key for key in dict.fromkeys(sources) if key not in held]
        held.update(await _held(handle, missing, files))
        built = [(task, _build(handle, task, held)) for task in batch]
        new = [file for _, written in built for file in written]
        await handle.assets.put_metadata_files(
            [(handle.assets.manifest_key(file.new.ref.id), file.data) for file in new]
        )
        for file in new:
            handle.assets.caches.keep_manifest(file.manifest)
        for task, written in built:
            made[task.key] = edits.get(task.node_id), [file.new for file in written]
        uses.subtract(sources)
        held = {key: manifest for key, manifest in held.items() if uses[key]}
    return {
        node_id: [manifest for task in mine for manifest in made[task.key][1]]
        for node_id, mine in tasks_of.items()
    }


async def write_shared(
    handle: RepoHandle, plan: CommitPlan, reuse: ManifestReuse | None = None
) -> SharedNodes:
    """Write the manifests that small arrays share."""
    shared = plan.shared
    if shared is None:
        return NOTHING_SHARED
    held = await _held(handle, shared.sources, plan.files)
    # What only serves to count dead references may be damaged: a repair deletes arrays.
    for key in shared.kept:
        if key not in held:
            try:
                held.update(await _held(handle, [key], plan.files))
            except IcechunkError as error:
                COMMIT.warning("arrays stay in manifest %s, which cannot be read: %s", key, error)
    nodes = all_nodes(shared, held)
    basis = nodes, shared.states
    if reuse is not None and reuse.shared[0] == basis:
        return reuse.shared[1]
    new_id, encode = partial(handle.new_id, ManifestId), handle.assets.encode_manifest
    nodes, files = build_shared(shared, nodes, held, new_id=new_id, encode=encode)
    await handle.assets.put_metadata_files(
        [(handle.assets.manifest_key(manifest.id), data) for manifest, data in files]
    )
    for manifest, _ in files:
        handle.assets.caches.keep_manifest(manifest)
    infos = [ManifestFileInfo(one.id, len(data), one.num_chunk_refs) for one, data in files]
    made = SharedNodes(nodes, infos)
    if reuse is not None:
        reuse.shared = basis, made
    return made


async def _held(
    handle: RepoHandle, keys: Sequence[ManifestId], files: ManifestFiles
) -> dict[ManifestId, Manifest]:
    loaded = await handle.assets.manifests([(key, files[key].size_bytes) for key in keys])
    return dict(zip(keys, loaded, strict=True))


def forget_replaced(handle: RepoHandle, before: Snapshot, after: Snapshot) -> None:
    """Drop replaced manifests from the cache, because they are rarely read again."""
    replaced = before.manifest_files.not_in(after.manifest_files)
    handle.assets.caches.manifests.drop(replaced)


def batches(
    items: Iterable[Item], size_of: Callable[[Item], int], most_size: int, most: int
) -> Iterator[list[Item]]:
    """What is in memory at once: up to `most` items of up to `most_size`. A larger one is alone."""
    batch: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (total + size > most_size or len(batch) >= most):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def _build(handle: RepoHandle, task: _Task, held: dict[ManifestId, Manifest]) -> list[ManifestFile]:
    found = (held[ref.id].find(task.node_id) for ref in task.rewrite.sources)
    return build_manifests(
        task.node_id,
        task.rewrite,
        (refs for refs in found if refs is not None),
        new_id=partial(handle.new_id, ManifestId),
        encode=handle.assets.encode_manifest,
    )


# -- Storing small chunks in packs. A pack is stored when it is full, or before a commit.


_MAX_PACKS_IN_FLIGHT = 8
_PAUSE_S = 0.005
_MAX_PAUSES = 12_000


def is_packed(handle: RepoHandle, size: int) -> bool:
    """Whether a chunk of this size, which is too large to be kept inline, goes into a pack."""
    return size <= handle.settings.packing.max_chunk_size_bytes


async def add_chunk(
    workspace: Workspace, node: Node, coordinates: Coordinates, data: bytes
) -> None:
    """Add a chunk to the session. A caller that fills a pack waits until the pack is stored.

    Raises:
        StorageError: a pack could not be stored. Its chunks stay in the session. The next chunk and
            the commit retry it.
    """
    handle, state = workspace
    await _make_room(workspace)
    with state.writing():
        edits, new_id = state.edits(node), partial(handle.new_id, ChunkId)
        if edits is None:
            return
        is_shared = not handle.settings.packing.is_one_array_each
        num_bytes = state.packs.add(edits, node.id, coordinates, data, new_id, is_shared=is_shared)
        if num_bytes < handle.settings.packing.target_size_bytes:
            return
        state.packs.close_pack(state.changes, None if is_shared else node.id)
        packs = state.packs.take()
    await store_closed(workspace, packs)


async def store_packs(workspace: Workspace) -> None:
    """Store all chunks of the session that are only in memory."""
    state = workspace.state
    with state.lock:
        packs = close_packs(state)
    await store_closed(workspace, packs)


def close_packs(state: SessionState) -> list[Pack]:
    """Close the open pack, so that every chunk has its object and offset.

    The caller holds the lock.
    Returns the packs that have to be stored (`store_closed`) before a manifest refers to them.
    These include packs that another thread is storing: storing a pack twice is harmless and avoids
    a wait.
    """
    state.packs.close(state.changes)
    return state.packs.take(all_closed=True)


async def _make_room(workspace: Workspace) -> None:
    """Bound the memory: retry packs that failed to be stored, and limit the packs in flight."""
    handle, state = workspace
    with state.lock:
        failed = state.packs.take()
    await store_closed(workspace, failed)
    for _ in range(_MAX_PAUSES):
        with state.lock:
            if state.packs.num_taken < _MAX_PACKS_IN_FLIGHT:
                return
        await handle.driver.sleep(_PAUSE_S)


async def store_closed(workspace: Workspace, packs: list[Pack]) -> None:
    """Store closed packs. Packs that fail to be stored stay in the session."""
    handle, state = workspace
    if not packs:
        return
    objects = [(handle.assets.chunk_key(pack.id), pack.data) for pack in packs]
    storage_class = handle.settings.storage.chunks_storage_class
    try:
        await handle.driver.put_new(objects, storage_class=storage_class)
    except BaseException:
        with state.lock:
            state.packs.give_back(packs)
        raise
    with state.lock:
        state.packs.drop(packs)


# -- The clock: close to the storage's.


_CHECK_LASTS_US = 60_000_000


async def require_clock_of_storage(handle: RepoHandle, key: str, written_at: int) -> None:
    """Compare the clock with the time that the storage gave to a file just stored.

    The result of one comparison is valid for a minute.
    """
    checked_at = handle.shared.clock_checked_at
    if checked_at is not None and 0 <= written_at - checked_at < _CHECK_LASTS_US:
        return
    try:
        stored = await handle.driver.head(key)
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
        raise objects_collected(key) from error
    skew = written_at / 1e6 - stored.created_at.timestamp()
    if abs(skew) > MAX_CLOCK_SKEW_S:
        raise FormatError(
            f"this machine's clock is {skew:+.0f} s off the storage's; at most "
            f"{MAX_CLOCK_SKEW_S} s are allowed, set the clock right",
            ErrorKind.SNAPSHOT_TIMESTAMP,
        )
    handle.shared.clock_checked_at = written_at


# -- Writing the files of a commit: packs, manifests, snapshot and log.
#
# The files have new ids and nothing refers to them yet. A commit that fails here has no effect.


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
    reuse: ManifestReuse | None = None,
    is_aside: bool = False,
) -> WrittenCommit:
    """Write everything that a commit of the session needs.

    `branch` is checked before the upload. `amended` is the log of the amended commit. `reuse` has
    the manifests that earlier attempts of the same commit have written. With `is_aside`, nodes
    keep the ids that they have in the session.

    Raises:
        ConflictError: the branch has moved; nothing but packs was uploaded.
    """
    handle, state = workspace
    base = state.snapshot
    metadata = {**handle.shared.default_commit_metadata, **(request.metadata or {})}
    handle.format.require_metadata(metadata)
    snapshot_id = handle.new_id(SnapshotId)
    sizes = split_sizes(handle.settings.manifest)
    with state.lock:  # every chunk of the plan has its place in a pack; the packs are stored below
        packs = close_packs(state)
        check_placed(state.changes)
        changes = state.changes
        if not is_aside:
            changes = handle.format.with_node_ids(handle, base, changes)
        plan = plan_commit(
            base, changes, sizes, rewrite_all=request.rewrite_all, limits=limits_of(handle)
        )
        # Under the same lock, so that log and plan have the same changes.
        log = changes.log(snapshot_id, is_packed=amended is None)
    await store_closed(workspace, packs)
    seen = None
    if branch is not None and tip_check != TipCheck.NONE:
        seen = await _require_tip(handle, plan, branch, base.id, tip_check)
    snapshot = build_snapshot(
        plan,
        await write_manifests(handle, plan.arrays, plan.files, changes, reuse),
        snapshot_id=snapshot_id,
        parent_id=parent_id if handle.format.stores_parents else None,
        flushed_at=later_than(base.flushed_at, handle.clock.now_us(), "the parent snapshot"),
        message=request.message,
        metadata=metadata,
        shared=await write_shared(handle, plan, reuse),
    )
    if amended is not None:
        log = union_of_logs(amended, log)
    stored = await store_commits(handle, [(snapshot, log)], snapshot.flushed_at, seen)
    return WrittenCommit(stored[0], seen)


def limits_of(handle: RepoHandle) -> SharedLimits | None:
    """What shared manifests may have; None if each array has its own."""
    return shared_limits(handle.settings.manifest) if handle.format.shares_manifests else None


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
    cached = handle.assets.caches.manifests
    infos = [plan.files[key] for key in plan.sources if cached.get(key) is None]
    if tip_check == TipCheck.WAS_DONE and not infos:
        return handle.format.seen_tip(handle, branch, base)
    if sum(info.num_chunk_refs for info in infos) < _MAX_PREFETCHED_REFS:
        await handle.assets.manifests([(info.id, info.size_bytes) for info in infos])
    return await handle.format.require_tip(handle, branch, base)


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


# -- The verbs of a commit: `commit`, `amend`, `flush`.
#
# Each writes the files of a snapshot (`write_commit`). The format version of the repository then
# publishes it with one conditional write.


_NOTES = "__icechunk"


@observed("commit")
async def commit(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    allow_empty: bool = False,
    rebase_with: ConflictSolver | None = None,
    rebase_tries: int = 1000,
    rewrite_all: bool = False,
    source: SnapshotId | None = None,
) -> SnapshotId:
    """Make the session's changes the new tip of its branch.

    `source` is another snapshot whose chunks the changes refer to, if there is one.

    Raises:
        ConflictError: the branch has moved since the session was opened. With a solver: it still
            moved after `rebase_tries` rebases. The session keeps its changes.
        RebaseFailedError: the solver could not settle a conflict.
    """
    state = workspace.state
    branch = _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    request = CommitRequest(message, metadata, rewrite_all, source)
    with state.sealed():
        if rebase_with is not None:
            return await _commit_rebasing(workspace, branch, request, rebase_with, rebase_tries)
        looks = workspace.handle.format.looks_before_upload
        tip_check = TipCheck.BEFORE_UPLOAD if looks else TipCheck.NONE
        return await _try_commit(workspace, branch, request, tip_check)


async def _commit_rebasing(
    workspace: Workspace,
    branch: str,
    request: CommitRequest,
    solver: ConflictSolver,
    rebase_tries: int,
) -> SnapshotId:
    """Alternate between rebasing and trying to commit."""
    handle = workspace.handle
    clock, contention = handle.clock, handle.shared.contention
    reuse = ManifestReuse()
    rebases = tries = overtaken = 0
    from icefloe.repo import rebase

    while True:
        if handle.driver.turn() is None:
            pause = contention.pause(clock.now_us(), tries, random.random())
            if pause:
                await handle.driver.sleep(pause)
        # Where writers can queue up, one that lost recently does so instead of losing again.
        turn = handle.driver.turn() if contention.is_crowded(clock.now_us()) else None
        with turn or nullcontext():
            started, tip_check = clock.now_us(), TipCheck.BEFORE_UPLOAD
            # A session that is behind its branch notices it before the first upload. If several
            # commits were ahead, more have probably followed while their logs were read.
            while rebases < rebase_tries:
                replayed = await rebase.rebase_sealed(workspace, solver)
                tip_check = TipCheck.WAS_DONE
                rebases, overtaken = rebases + (replayed > 0), overtaken + replayed
                if replayed <= 1:
                    break
            noted = request._replace(metadata=_with_rebase_attempts(request.metadata, rebases))
            try:
                landed = await _try_commit(workspace, branch, noted, tip_check, reuse)
            except ConflictError as conflict:
                if conflict.kind != ErrorKind.COMMIT_CONFLICT or rebases >= rebase_tries:
                    raise
                contention.lost(clock.now_us(), (clock.now_us() - started) / 1e6)
                tries += 1
            else:
                contention.won(clock.now_us(), (clock.now_us() - started) / 1e6, overtaken)
                return landed
        COMMIT.info("another commit to %r was first, trying again", branch)


def _with_rebase_attempts(metadata: Mapping[str, Any] | None, number: int) -> dict[str, Any]:
    """Commit metadata that says how often the session was rebased."""
    noted = dict(metadata or {})
    inner = noted.get(_NOTES)
    notes = dict(inner) if isinstance(inner, Mapping) else {}
    return {**noted, _NOTES: {**notes, "rebase_attempts": number}}


async def _try_commit(
    workspace: Workspace,
    branch: str,
    request: CommitRequest,
    tip_check: TipCheck,
    reuse: ManifestReuse | None = None,
) -> SnapshotId:
    handle, state = workspace
    written = await write_commit(
        workspace,
        request,
        parent_id=state.snapshot_id,
        branch=branch,
        tip_check=tip_check,
        reuse=reuse,
    )
    new = _new_commit(state, written.snapshot)._replace(source=request.source)
    await handle.format.publish(handle, new, branch, written.seen)
    if COMMIT.isEnabledFor(logging.INFO):
        COMMIT.info("committed %s to %r of %s", written.snapshot.id, branch, handle.storage.url)
    return _finish(workspace, written.snapshot)


@observed("amend")
async def amend(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    allow_empty: bool = False,
    rewrite_all: bool = False,
) -> SnapshotId:
    """Replace the tip of the branch with a snapshot that also has the session's changes."""
    handle, state = workspace
    handle.format.require_amending()
    branch = _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    with state.sealed():
        parent = await handle.format.require_amendable(handle, state.snapshot_id)
        amended = await handle.assets.transaction_log(state.snapshot_id)
        _require_same_kind(state, amended)
        request = CommitRequest(message, metadata, rewrite_all)
        written = await write_commit(workspace, request, parent_id=parent, amended=amended)
        new = _new_commit(state, written.snapshot)
        await handle.format.publish_amended(handle, new, branch)
        COMMIT.info("%s replaced the tip of %r", written.snapshot.id, branch)
        return _finish(workspace, written.snapshot)


@observed("flush")
async def flush(
    workspace: Workspace, message: str, metadata: Mapping[str, Any] | None
) -> SnapshotId:
    """Store the session's changes as a snapshot that no branch points at."""
    handle, state = workspace
    _require_not_read_only(state)
    if state.is_fork:
        raise SessionStateError(
            "a fork cannot be flushed; merge it into the session it was forked from",
            ErrorKind.UNKNOWN,
        )
    with state.sealed():
        base = state.snapshot_id
        await handle.format.require_listed(handle, base)
        written = await write_commit(workspace, CommitRequest(message, metadata), parent_id=base)
        await handle.format.publish_detached(handle, _new_commit(state, written.snapshot))
        state.finish(written.snapshot)
        return written.snapshot.id


def _new_commit(state: SessionState, snapshot: Snapshot) -> NewCommit:
    moves_nodes = state.mode == SessionMode.rearrange or state.changes.moves.has_any
    return NewCommit(snapshot, state.snapshot_id, moves_nodes, state.opened_at)


def _finish(workspace: Workspace, snapshot: Snapshot) -> SnapshotId:
    handle, state = workspace
    forget_replaced(handle, state.snapshot, snapshot)
    state.finish(snapshot)
    return snapshot.id


def _require_not_read_only(state: SessionState) -> None:
    if state.mode == SessionMode.readonly:
        raise SessionStateError(
            state.why_read_only("the session is read-only; open a writable_session"),
            ErrorKind.COMMIT_NOT_ALLOWED,
        )


def _require_branch(state: SessionState) -> str:
    _require_not_read_only(state)
    if state.branch is None:
        raise SessionStateError(
            "this is a fork; merge it into the session it was forked from",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    return state.branch


def _require_changes(state: SessionState, *, allow_empty: bool) -> None:
    if state.changes.is_empty and not allow_empty:
        raise SessionStateError(
            "write something first, or pass allow_empty=True to commit anyway",
            ErrorKind.NO_CHANGES_TO_COMMIT,
        )


def _require_same_kind(state: SessionState, amended: TransactionLog) -> None:
    """Refuse to mix moves and edits in one log: readers expect one or the other."""
    if amended.moved_nodes and state.mode != SessionMode.rearrange:
        raise SessionStateError(
            "the commit to be amended moved nodes, only a rearrange_session can amend it; commit "
            "on top of it instead",
            ErrorKind.REARRANGE_SESSION_ONLY,
        )
