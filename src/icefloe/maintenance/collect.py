"""Garbage collection: list, decide, make the decision final, delete.

This order makes it safe with concurrent writers:

1. All objects are listed. Only these can be deleted, and of them only the old ones.
2. What is in use is found by walking from the refs. Chunks that are in use now are kept, whatever
   happens later. Only the others are asked for their time, where a listing does not tell it.
3. The fence is raised (`icefloe.repo.fence`).
4. The decision becomes final in one conditional write. If a commit came in between, what it
   refers to is walked too, and the write is tried again. So a commit before this point keeps its
   objects. A commit after this point finds that a collection ran, and the fence.
5. The rest of the listed objects is deleted. A crash from here on leaves garbage, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.columns.id_set import IdSet
from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.format.repo_info.snapshots import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.deleting import Pace, delete_objects, would_delete
from icefloe.maintenance.expire import history_of
from icefloe.maintenance.garbage import (
    GarbagePlan,
    InUse,
    among,
    find_garbage,
    newest_before,
)
from icefloe.maintenance.listing import (
    LISTINGS_AT_ONCE,
    StoredObjects,
    with_times,
)
from icefloe.maintenance.live import DEFAULT_LIMITS, GrowingIdSet, Limits
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.retention import plan_collection, without
from icefloe.maintenance.summary import GCSummary
from icefloe.observe import MAINTENANCE, observed
from icefloe.on_demand import on_demand
from icefloe.repo import fence
from icefloe.repo.families.spec1 import refs as refs_v1
from icefloe.repo.families.spec2.checks import require_online
from icefloe.repo.families.spec2.update import Changed, update_repo
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import is_out_of_space

if TYPE_CHECKING:
    from icefloe.format.snapshot.file import Snapshot
    from icefloe.maintenance import collect_older
else:
    collect_older = on_demand("icefloe.maintenance.collect_older")

TRIES = 100
_MIN_RESERVE = 1 << 18
"""Bytes that a collection leaves occupied, so that the next one can run on a full disk."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to collect."""

    older_than: int
    """Objects stored at or after this time are kept (microseconds)."""
    limits: Limits = DEFAULT_LIMITS
    listings_at_once: int = LISTINGS_AT_ONCE
    pace: Pace = field(default_factory=Pace)


@observed("plan_garbage", MAINTENANCE)
async def plan_garbage(handle: RepoHandle, options: Options, report: Reporter) -> GarbagePlan:
    """The plan of what a collection would delete now. Changes nothing."""
    collection = _collection(handle, options, report)
    await collection.look()
    return await collection.plan()


@observed("collect_garbage", MAINTENANCE)
async def collect_garbage(
    handle: RepoHandle, options: Options, report: Reporter, *, dry_run: bool = False
) -> GCSummary:
    """Delete old objects that are not in use."""
    collection = _collection(handle, options, report)
    await collection.look()
    if dry_run:
        return would_delete((await collection.plan()).objects)
    return await collection.run()


@observed("run_garbage_plan", MAINTENANCE)
async def run_plan(
    handle: RepoHandle, plan: GarbagePlan, options: Options, report: Reporter
) -> GCSummary:
    """Delete the objects of a plan that still exist and are still not in use."""
    if plan.url != handle.storage.url:
        raise InvalidInputError(
            f"the plan is for the repository in {plan.url}, this one is in {handle.storage.url}"
        )
    collection = _collection(handle, replace(options, older_than=plan.older_than), report)
    await collection.look()
    collection.stored = among(collection.stored, plan)
    return await collection.run()


def _collection(handle: RepoHandle, options: Options, report: Reporter) -> Collection:
    if handle.family.has_spec_folders:
        return Collection(handle, options, report)
    return collect_older.collection_of(handle, options, report)


class Collection:
    """One collection: the stored objects, and those found to be in use so far."""

    def __init__(self, handle: RepoHandle, options: Options, report: Reporter) -> None:
        self.handle = handle
        self.options = options
        self.report = report
        self.stored: dict[str, StoredObjects] = {}
        self.walked = IdSet.of_ids(())
        self.manifests = IdSet.of_ids(())
        self.chunks = GrowingIdSet()
        self._reached: tuple[dict[str, SnapshotId], IdSet] | None = None

    async def require_open(self) -> None:
        """Refuse a repository that takes no writes."""
        self.handle.require_writable()
        if self.handle.family.has_repo_object:
            require_online((await self.handle.assets.repo_object()).info)

    async def look(self) -> None:
        """List everything."""
        await self.require_open()
        assets, at_once = self.handle.assets, self.options.listings_at_once
        for kind in assets.folders:
            is_chunk = kind == "chunks"
            self.stored[kind] = await assets.list_objects(kind, at_once, names_only=is_chunk)
            self.report.tell("listing", sum(map(len, self.stored.values())))

    async def plan(self) -> GarbagePlan:
        """The objects to delete, and why."""
        in_use, forgotten = await self._decide_and_narrow()
        return GarbagePlan(
            self.handle.storage.url,
            self.handle.clock.now_us(),
            self.options.older_than,
            find_garbage(self.stored, in_use, self.options.older_than),
            forgotten,
            sum(len(each.strange_names) for each in self.stored.values()),
        )

    async def run(self) -> GCSummary:
        """Make the decision final and delete."""
        await self._decide_and_narrow()
        driver = self.handle.driver
        try:
            in_use = await self._make_final()
        except StorageError as error:
            if not is_out_of_space(error):
                raise
            # The fence and the decision have to be written before anything is deleted.
            if not driver.give_up_reserve():
                raise _full_disk(error) from error
            in_use = await self._make_final()
        garbage = find_garbage(self.stored, in_use, self.options.older_than)
        repo = self.handle.assets.caches.repo
        self.handle.assets.caches.clear()
        summary = await delete_objects(driver, garbage, self.options.pace, self.report)
        room = _MIN_RESERVE if repo is None else 3 * len(repo.data) + _MIN_RESERVE
        driver.keep_reserve(1 << (room - 1).bit_length())
        return summary

    async def _make_final(self) -> InUse:
        """Raise the fence and publish; returns what has to stay."""
        bound = newest_before(self.stored, self.options.older_than)
        if bound:
            await self.raise_fence(bound)
        return await self.publish()

    async def raise_fence(self, bound: int) -> None:
        """Tell writers that unreferenced objects stored before `bound` may be deleted."""
        await fence.raise_fence(self.handle, bound)

    async def _decide_and_narrow(self) -> tuple[InUse, int]:
        """Decide for now, and leave chunks out of the listing that are in use."""
        in_use, num_gone = await self.decide()
        chunks = self.stored["chunks"]
        rest = chunks.take(~in_use.chunks.contains(chunks.id))
        self.stored["chunks"] = await with_times(self.handle.driver, rest)
        return in_use, num_gone

    async def decide(self) -> tuple[InUse, int]:
        """What has to stay now, and how many snapshots go."""
        if self.handle.family.has_repo_object:
            return await self._walk_to_the_end()
        tips = await live.ref_tips(self.handle)
        reached = await self._reached_from(tips)
        await self.walk(reached)
        # An upgrade to version 2 writes `repo` before it deletes refs. If there is none, no ref was
        # missing when they were read.
        await fence.require_not_migrated(self.handle)
        return self._in_use(reached, reached), 0

    async def publish(self) -> InUse:
        """Make the decision final; returns what has to stay."""
        if self.handle.family.has_repo_object:
            return await self._publish()
        return await self._publish_v1()

    # -- walking

    async def walk(self, snapshots: IdSet) -> None:
        """Record what these snapshots use, unless that is already recorded."""
        new = snapshots.minus(self.walked)
        if not new.size:
            return
        handle, limits = self.handle, self.options.limits
        files = await live.manifest_files(handle, new, limits, self.note_files)
        files = files.take(np.flatnonzero(~self.manifests.contains(files.id)))
        total = len(files)
        done = 0
        async for manifest in live.each_manifest(handle, files, limits):
            self.chunks.add(manifest.native_chunk_ids())
            done += 1
            self.report.tell("reading manifests", done, total)
        self.manifests = IdSet.union([self.manifests, IdSet.of(files.id)])
        self.walked = IdSet.union([self.walked, new])

    def note_files(self, snapshot: Snapshot) -> None:
        """Record files of a snapshot that are found in no other way."""
        return

    def _in_use(self, snapshots: IdSet, logs: IdSet) -> InUse:
        return InUse(snapshots, logs, self.manifests, self.chunks.finish())

    # -- version 2

    def _is_young(self, table: SnapshotTable) -> NDArray[np.bool_]:
        """The snapshots whose file this collection keeps: it is not listed, or not old."""
        files = self.stored["snapshots"]
        old = IdSet.of(files.id[files.created_at < self.options.older_than])
        return ~old.contains(table.id)

    def _decide(self, info: RepoInfo) -> tuple[SnapshotTable, int]:
        """The snapshots that stay, and the number of those that are removed."""
        plan = plan_collection(history_of(info), self._is_young)
        return without(info.snapshots, plan.released, plan.parents), len(plan.released)

    async def _walk_to_the_end(self) -> tuple[InUse, int]:
        for _ in range(TRIES):
            table, num_gone = self._decide((await self.handle.assets.repo_object()).info)
            try:
                await self.walk(IdSet.of(table.id))
            except (StorageError, SnapshotNotFoundError) as error:
                await self._require_change(error, table)
                continue
            return self._in_use_of(table), num_gone
        raise moved_too_often()

    async def _require_change(
        self, error: StorageError | SnapshotNotFoundError, table: SnapshotTable
    ) -> None:
        """Handle a missing object. Another collection may have deleted it since the refs were read.
        If the repository has not changed since then, the object is really missing."""
        if isinstance(error, StorageError) and error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise error
        now, _ = self._decide((await self.handle.assets.repo_object()).info)
        if np.array_equal(now.id, table.id):
            raise error

    def _in_use_of(self, table: SnapshotTable) -> InUse:
        snapshots = IdSet.of(table.id)
        return self._in_use(snapshots, IdSet.union([snapshots, IdSet.of(table.pruned_id)]))

    async def _publish(self) -> InUse:
        """Remove the snapshots from the repo object, after all remaining ones were walked."""
        final: list[SnapshotTable] = []

        def change(info: RepoInfo) -> Changed:
            table, _ = self._decide(info)
            if IdSet.of(table.id).minus(self.walked).size:
                raise NotWalkedError
            final[:] = [table]
            return replace(info, snapshots=table), UpdateKind.GC_RAN, {}

        for _ in range(TRIES):
            await self._walk_to_the_end()
            try:
                await update_repo(self.handle, change)
            except NotWalkedError:
                continue
            return self._in_use_of(final[0])
        raise moved_too_often()

    # -- version 1

    async def _reached_from(self, tips: Mapping[str, SnapshotId]) -> IdSet:
        """What the tips lead to. An expiration may cut histories meanwhile; then more is kept."""
        if self._reached is None or self._reached[0] != tips:
            self._reached = dict(tips), await live.reachable_snapshots(self.handle, tips.values())
        return self._reached[1]

    async def _publish_v1(self) -> InUse:
        """Give every branch file a new version, so that a commit that has not seen the fence cannot
        move the branch. A branch that has moved is walked and tried again."""
        touched: dict[str, SnapshotId] = {}
        for _ in range(TRIES):
            tips = await live.ref_tips(self.handle)
            reached = await self._reached_from(tips)
            await self.walk(reached)
            moved = {name: tip for name, tip in tips.items() if touched.get(name) != tip}
            if not moved:
                await fence.require_open(self.handle)
                # A writer may rely on a ref that was deleted since it was walked.
                return self._in_use(self.walked, self.walked)
            for name, tip in moved.items():
                kind, _, bare = name.partition(".")
                # Tags never move, so no writer has to be stopped.
                if kind == "tag" or await refs_v1.touch_branch(self.handle, bare, tip):
                    touched[name] = tip
        raise moved_too_often()


def _full_disk(error: StorageError) -> StorageError:
    return StorageError(
        f"{error.message}. Nothing was deleted: a collection has to write two small files first, "
        "which tell writers what it deletes. Free about a megabyte on this disk, outside the "
        "repository, and collect again",
        error.kind,
    )


class NotWalkedError(Exception):
    """A concurrent commit succeeded. The objects it uses are not known yet."""


def moved_too_often() -> ConflictError:
    """The error when writers were faster at every attempt."""
    return ConflictError(
        message=f"the repository changed at each of {TRIES} attempts to collect; try again when "
        "fewer writers are active",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )
