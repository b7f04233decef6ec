"""Garbage collection: list, decide, make the decision final, delete.

This order makes it safe with concurrent writers:

1. All objects are listed. Only these can be deleted, and of them only the old ones.
2. What is in use is found by walking from the refs. Chunks that are in use now are kept, whatever
   happens later. Only the others are asked for their time, where a listing does not tell it.
3. The fence is raised (`icefloe.repo.gc_guard`).
4. The decision becomes final in one conditional write. If a commit came in between, what it
   refers to is walked too, and the write is tried again. So a commit before this point keeps its
   objects. A commit after this point finds that a collection ran, and the fence.
5. The rest of the listed objects is deleted. A crash from here on leaves garbage, nothing else.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import LISTINGS_AT_ONCE, StoredObjects, with_times
from icefloe.display import ShownAsText, size_text
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.chunk_index import IdSet
from icefloe.format.manifest import Manifest
from icefloe.format.operations_log import UpdateKind
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.expire import history_of, plan_collection, without
from icefloe.maintenance.live import DEFAULT_LIMITS, GrowingIdSet, Limits
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import GCSummary
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo import gc_guard
from icefloe.repo.handle import RepoHandle
from icefloe.repo.spec2_publish import Changed, require_online, update_repo
from icefloe.storage.driver import Driver, is_out_of_space

# -- the plan: what is deleted, and why

REASONS = {
    "snapshots": "no branch or tag leads to them",
    "transaction_logs": "nothing needs them to tell what changed",
    "attributes": "no snapshot that stays uses them",
    "manifests": "no snapshot that stays uses them",
    "chunks": "no manifest that stays refers to them",
}
_FORMAT = "icefloe garbage collection plan 1"


class InUse(NamedTuple):
    """The ids of all objects that have to stay."""

    snapshots: IdSet
    transaction_logs: IdSet
    manifests: IdSet
    chunks: IdSet
    attributes: IdSet = IdSet.of_ids(())
    """Only generations before spec version 1 have such files."""


@dataclass(frozen=True, slots=True, repr=False)
class GarbagePlan(ShownAsText):
    """The objects that can be deleted. The plan can be printed, saved, reviewed and run.

    A run checks the repository again: objects that came into use since then stay.

    >>> plan = repo.plan_garbage_collection(datetime.now(UTC))
    >>> plan.num_bytes()
    0
    """

    url: str
    """Where the repository is."""
    made_at: int
    older_than: int
    """Objects stored at or after this time stay, in microseconds since the epoch."""
    objects: Mapping[str, StoredObjects]
    """By kind: `snapshots`, `transaction_logs`, `manifests`, `chunks`; before spec version 1 also
    `attributes`."""
    num_forgotten: int = 0
    """The number of snapshots that are removed from the repository's list. Other deleted snapshots
    were never listed: they were left by failed commits, forks and tasks."""
    num_strange: int = 0
    """The number of objects whose names are not ids. They stay."""

    def num_objects(self, kind: str | None = None) -> int:
        """The number of objects to delete, of one kind or of all.

        Args:
            kind: `chunks`, `manifests`, `snapshots` or `transaction_logs`.

        >>> repo.plan_garbage_collection(datetime.now(UTC)).num_objects("chunks")
        0
        """
        kinds = self.objects if kind is None else [kind]
        return sum(len(self.objects[each]) for each in kinds)

    def num_bytes(self, kind: str | None = None) -> int:
        """The bytes of the objects to delete.

        Args:
            kind: `chunks`, `manifests`, `snapshots` or `transaction_logs`.

        >>> repo.plan_garbage_collection(datetime.now(UTC)).num_bytes("chunks")
        0
        """
        kinds = self.objects if kind is None else [kind]
        return sum(int(self.objects[each].size_bytes.sum()) for each in kinds)

    def keys(self, kind: str) -> list[str]:
        """The keys of all objects of a kind to delete.

        Args:
            kind: `chunks`, `manifests`, `snapshots` or `transaction_logs`.

        >>> repo.plan_garbage_collection(datetime.now(UTC)).keys("chunks")
        []
        """
        return self.objects[kind].all_keys()

    def __str__(self) -> str:
        times = f"stored before {_time(self.older_than)} (looked at {_time(self.made_at)})"
        lines = [f"Garbage in {self.url}, {times}:"]
        for kind in self.objects:
            number, size = self.num_objects(kind), self.num_bytes(kind)
            name = kind.replace("_", " ")
            lines.append(f"  {name:<17}{number:>10,}{size_text(size):>12}   {REASONS[kind]}")
        number, size = self.num_objects(), self.num_bytes()
        lines.append(f"  {'together':<17}{number:>10,}{size_text(size):>12}")
        if self.num_forgotten:
            lines.append(f"  {self.num_forgotten:,} of the snapshots leave the repository's list.")
        if self.num_strange:
            lines.append(f"  {self.num_strange:,} objects with names that are no ids stay.")
        return "\n".join(lines)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file.

        Args:
            path: of the file.

        >>> repo.plan_garbage_collection(datetime.now(UTC)).save("plan.parquet")
        """
        header = {
            "format": _FORMAT,
            "url": self.url,
            "made_at": self.made_at,
            "older_than": self.older_than,
            "num_forgotten": self.num_forgotten,
            "num_strange": self.num_strange,
            "folders": {kind: found.folder for kind, found in self.objects.items()},
        }
        columns: dict[str, Any] = {"header": np.array(json.dumps(header))}
        for kind, found in self.objects.items():
            columns[f"{kind}.id"] = found.id
            columns[f"{kind}.size_bytes"] = found.size_bytes
            columns[f"{kind}.created_at"] = found.created_at
            if found.name is not None:
                columns[f"{kind}.name"] = found.name
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **columns)
        Path(path).write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> GarbagePlan:
        """Read a plan that `save` has written.

        Args:
            path: of the file.

        Raises:
            FormatError: it is no plan, or a damaged one.

        >>> repo.plan_garbage_collection(datetime.now(UTC)).save("plan.parquet")
        >>> summary = repo.run_garbage_collection(icefloe.GarbagePlan.load("plan.parquet"))
        """
        data = Path(path).read_bytes()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as columns:
                header = json.loads(str(columns["header"]))
                if header.pop("format") != _FORMAT:
                    raise ValueError("another format")
                objects = {
                    kind: _stored(columns, kind, folder)
                    for kind, folder in header.pop("folders").items()
                }
                plan = cls(str(header.pop("url")), objects=objects, **header)
                _ = str(plan)  # all numbers are numbers
        except Exception as error:  # damaged files cause many kinds in numpy and zlib
            raise FormatError(
                f"{path}: not a plan of a garbage collection, or a damaged one "
                f"({type(error).__name__}: {error}); make another plan"
            ) from error
        return plan


def _stored(columns: Mapping[str, Any], kind: str, folder: Any) -> StoredObjects:
    names = ("size_bytes", "created_at")
    sizes, times = (np.asarray(columns[f"{kind}.{name}"], np.int64) for name in names)
    ids = np.asarray(columns[f"{kind}.id"], np.uint8).reshape(-1, 12)
    name = columns.get(f"{kind}.name")
    if kind not in REASONS or not len(ids) == len(sizes) == len(times):
        raise ValueError(f"columns of {kind} do not fit")
    return StoredObjects(str(folder), ids, sizes, times, name=name)


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# -- deleting: concurrent batches, with back-off when the storage throttles

KEYS_AT_ONCE = 1000
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 30.0
_MAX_MESSAGES = 10


class Pace(NamedTuple):
    """How hard to try."""

    batches_at_once: int = 10
    failures_in_a_row: int = 50
    """The number of consecutive failed requests after which deleting ends with an error."""


class _Deleting:
    """The state of one run."""

    def __init__(self, driver: Driver, pace: Pace, summary: GCSummary, report: Reporter) -> None:
        self.driver = driver
        self.pace = pace
        self.summary = summary
        self.report = report
        self.at_once = 1
        self.pause = 0.0
        self.in_a_row = 0

    async def delete(self, kind: str, objects: StoredObjects) -> bool:
        """Delete all objects of a kind. Returns whether all requests succeeded."""
        todo = [
            objects.take(slice(at, at + KEYS_AT_ONCE))
            for at in range(0, len(objects), KEYS_AT_ONCE)
        ]
        failed_before, done = self.summary.objects_failed_to_delete, 0
        while todo:
            batches, todo = todo[: self.at_once], todo[self.at_once :]
            outcomes = await self.driver.delete_batches([each.all_keys() for each in batches])
            throttled = [
                batch
                for batch, outcome in zip(batches, outcomes, strict=True)
                if not self._note(kind, batch, outcome)
            ]
            done += sum(map(len, batches)) - sum(map(len, throttled))
            self.report.tell(f"deleting {kind.replace('_', ' ')}", done, len(objects))
            todo = [*throttled, *todo]
            await self._adapt(has_throttled=bool(throttled))
        return self.summary.objects_failed_to_delete == failed_before

    async def _adapt(self, *, has_throttled: bool) -> None:
        if not has_throttled:
            self.at_once, self.pause = min(2 * self.at_once, self.pace.batches_at_once), 0.0
            return
        self.at_once = max(1, self.at_once // 2)
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE_S), _MAX_PAUSE_S)
        await self.driver.sleep(self.pause)

    def _note(self, kind: str, batch: StoredObjects, outcome: StorageError | None) -> bool:
        """Count a batch. Returns False if it has to be retried."""
        summary = self.summary
        if outcome is None:
            self.in_a_row = 0
            name = f"{kind}_deleted"
            setattr(summary, name, getattr(summary, name) + len(batch))
            summary.bytes_deleted += int(batch.size_bytes.sum())
            return True
        if outcome.kind == ErrorKind.THROTTLED and self.pause < _MAX_PAUSE_S:
            summary.throttled_batches += 1
            return False
        summary.objects_failed_to_delete += len(batch)
        messages = summary.delete_errors
        if outcome.message not in messages and len(messages) < _MAX_MESSAGES:
            messages.append(outcome.message)
        self.in_a_row += 1
        if self.in_a_row >= self.pace.failures_in_a_row:
            raise StorageError(
                f"{self.in_a_row} requests to delete objects failed in a row, the last one: "
                f"{outcome.message}; so far {summary}",
                ErrorKind.GC_DELETES_FAILING,
            )
        return True


async def delete_objects(
    driver: Driver, objects: Mapping[str, StoredObjects], pace: Pace, report: Reporter
) -> GCSummary:
    """Delete referring objects before the objects they refer to.

    If objects of one kind could not be deleted, the later kinds are left for the next run.
    """
    summary = GCSummary()
    run = _Deleting(driver, pace, summary, report)
    is_well = True
    for kind, each in objects.items():
        if is_well:
            is_well = await run.delete(kind, each)
        else:
            summary.skipped_phases.append(kind)
    return summary


# -- the collection

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
    full_every: int = 1
    """How often an incremental collection is a full one."""


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
    return await collect(_collection(handle, options, report), dry_run=dry_run)


async def collect(collection: Collection, *, dry_run: bool) -> GCSummary:
    """Run a collection, or count what it would delete."""
    await collection.look()
    return await (collection.count() if dry_run else collection.run())


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
    collection.stored = {
        kind: objects.take(IdSet.of(plan.objects[kind].id).contains(objects.id))
        for kind, objects in collection.stored.items()
    }
    return await collection.run()


def _collection(handle: RepoHandle, options: Options, report: Reporter) -> Collection:
    if handle.format.has_spec_folders:
        return Collection(handle, options, report)
    older: Collection = handle.format.maintenance.collection_of(handle, options, report)
    return older


class Collection:
    """One collection: the stored objects, and those found to be in use so far.

    A collection on Spark replaces what holds objects: `look`, `narrow`, `walk`, `newest`, `count`
    and `delete`. One of an older generation replaces how it decides: `decide` and `publish`. An
    incremental one replaces how it finds garbage: `look`, `look_closer` and `garbage`.
    """

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
        if self.handle.format.has_repo_object:
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
        in_use, forgotten = await self.decide()
        await self.look_closer(in_use)
        return GarbagePlan(
            self.handle.storage.url,
            self.handle.clock.now_us(),
            self.options.older_than,
            self.garbage(in_use),
            forgotten,
            sum(len(each.strange_names) for each in self.stored.values()),
        )

    async def count(self) -> GCSummary:
        """What a run would delete."""
        plan = await self.plan()
        summary = GCSummary(bytes_deleted=plan.num_bytes())
        for kind in plan.objects:
            setattr(summary, f"{kind}_deleted", plan.num_objects(kind))
        return summary

    async def run(self) -> GCSummary:
        """Make the decision final and delete."""
        await self.narrow()
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
        repo = self.handle.assets.caches.repo
        self.handle.assets.caches.clear()
        summary = await self.delete(in_use)
        room = _MIN_RESERVE if repo is None else 3 * len(repo.data) + _MIN_RESERVE
        driver.keep_reserve(1 << (room - 1).bit_length())
        return summary

    async def _make_final(self) -> InUse:
        """Raise the fence and publish; returns what has to stay."""
        bound = self.newest()
        if bound:
            await self.raise_fence(bound)
        return await self.publish()

    def newest(self) -> int:
        """A time before which all objects to delete were stored; 0 if there are none."""
        older_than = self.options.older_than
        times = [
            objects.created_at[objects.created_at < older_than].max(initial=-1)
            for objects in self.stored.values()
        ]
        return int(max(times)) + 1

    async def delete(self, in_use: InUse) -> GCSummary:
        """Delete all the rest."""
        garbage = self.garbage(in_use)
        return await delete_objects(self.handle.driver, garbage, self.options.pace, self.report)

    def garbage(self, in_use: InUse) -> dict[str, StoredObjects]:
        """The stored objects that are old enough and not in use."""
        found = {}
        for kind, objects in self.stored.items():
            old = objects.take(objects.created_at < self.options.older_than)
            found[kind] = old.take(~getattr(in_use, kind).contains(old.id))
        return found

    def old_snapshots(self) -> IdSet:
        """The snapshots whose files are listed and old enough."""
        files = self.stored["snapshots"]
        return IdSet.of(files.id[files.created_at < self.options.older_than])

    async def raise_fence(self, bound: int) -> None:
        """Tell writers that unreferenced objects stored before `bound` may be deleted."""
        await gc_guard.raise_fence(self.handle, bound)

    async def narrow(self) -> None:
        """Look closer at what is not in use yet, before the decision."""
        in_use, _ = await self.decide()
        await self.look_closer(in_use)

    async def look_closer(self, in_use: InUse) -> None:
        """Leave out chunks that are in use already, before times of the others are asked for."""
        chunks = self.stored["chunks"]
        rest = chunks.take(~in_use.chunks.contains(chunks.id))
        self.stored["chunks"] = await with_times(self.handle.driver, rest)

    async def decide(self) -> tuple[InUse, int]:
        """What has to stay now, and how many snapshots go."""
        if self.handle.format.has_repo_object:
            return await self._walk_to_the_end()
        _, reached = await self.walk_refs()
        # An upgrade to version 2 writes `repo` before it deletes refs. If there is none, no ref was
        # missing when they were read.
        await gc_guard.require_not_migrated(self.handle)
        return self._in_use(reached, reached), 0

    async def publish(self) -> InUse:
        """Make the decision final; returns what has to stay."""
        if self.handle.format.has_repo_object:
            return await self._publish()
        return await self._publish_refs()

    async def walk(self, snapshots: IdSet) -> None:
        """Record what these snapshots use, unless that is already recorded."""
        new = snapshots.minus(self.walked)
        if not new.size:
            return
        handle, limits = self.handle, self.options.limits
        files = await live.manifest_files(handle, new, limits, self.note_files)
        files = files.take(np.flatnonzero(~self.manifests.contains(files.id)))
        async for manifest in live.each_manifest(handle, files, limits, self.report):
            self.note_manifest(manifest)
        self.manifests = IdSet.union([self.manifests, IdSet.of(files.id)])
        self.walked = IdSet.union([self.walked, new])

    def note_files(self, snapshot: Snapshot) -> None:
        """Record files of a snapshot that are found in no other way."""
        return

    def note_manifest(self, manifest: Manifest) -> None:
        """Record what a manifest refers to."""
        self.chunks.add(manifest.native_chunk_ids())

    def _in_use(self, snapshots: IdSet, logs: IdSet) -> InUse:
        return InUse(snapshots, logs, self.manifests, self.chunks.finish())

    # -- version 2

    def _is_young(self, table: SnapshotTable) -> NDArray[np.bool_]:
        """The snapshots whose file this collection keeps: it is not listed, or not old."""
        return ~self.old_snapshots().contains(table.id)

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
        return self._in_use(snapshots, IdSet.union([snapshots, IdSet.of(table.columns.pruned_id)]))

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

    async def walk_refs(self) -> tuple[dict[str, SnapshotId], IdSet]:
        """Walk from all refs. Returns these, and the snapshots they lead to."""
        tips = await live.ref_tips(self.handle)
        reached = await self._reached_from(tips)
        await self.walk(reached)
        return tips, reached

    async def all_in_use(self) -> InUse:
        """What has to stay, when no branch has moved since it was walked."""
        await gc_guard.require_open(self.handle)
        # A writer may rely on a ref that was deleted since it was walked.
        return self._in_use(self.walked, self.walked)

    async def _publish_refs(self) -> InUse:
        """Give every branch file a new version, so that a commit that has not seen the fence cannot
        move the branch. A branch that has moved is walked and tried again."""
        touched: dict[str, SnapshotId] = {}
        for _ in range(TRIES):
            tips, _ = await self.walk_refs()
            moved = {name: tip for name, tip in tips.items() if touched.get(name) != tip}
            if not moved:
                return await self.all_in_use()
            for name, tip in moved.items():
                kind, _, bare = name.partition(".")
                # Tags never move, so no writer has to be stopped.
                if kind == "tag" or await self.handle.format.touch_branch(self.handle, bare, tip):
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
