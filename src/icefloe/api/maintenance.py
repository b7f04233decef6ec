"""The methods of `Repository` that keep a repository healthy.

The `x_async` twin of every method is generated from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.api.arguments import check_arguments
from icefloe.api.generated.maintenance_async import RepositoryMaintenanceAsync
from icefloe.on_demand import on_demand
from icefloe.storage.run import run_blocking

if TYPE_CHECKING:
    from icefloe.api import maintenance_values
    from icefloe.maintenance import collect, expire, inspect, packed, stats
    from icefloe.maintenance.garbage import GarbagePlan
    from icefloe.maintenance.packed import PackedObjects
    from icefloe.maintenance.progress import Report
    from icefloe.maintenance.retention import Keep
    from icefloe.maintenance.summary import ChunkStorageStats, GCSummary
else:
    maintenance_values = on_demand("icefloe.api.maintenance_values")
    collect = on_demand("icefloe.maintenance.collect")
    expire = on_demand("icefloe.maintenance.expire")
    inspect = on_demand("icefloe.maintenance.inspect")
    packed = on_demand("icefloe.maintenance.packed")
    stats = on_demand("icefloe.maintenance.stats")


@check_arguments
class RepositoryMaintenance(RepositoryMaintenanceAsync):
    """What `Repository` inherits: expiration, collection, statistics, inspection."""

    def expire_snapshots(
        self,
        older_than: datetime | None = None,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        keep_last: int = 0,
        keep_tagged: bool = False,
        keep_fork_points: bool = False,
        branches: Mapping[str, Keep] | None = None,
        snapshot_ids: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> set[str]:
        """Remove old snapshots from the history. Returns their ids. No data is deleted.

        Snapshots older than `older_than` expire. The first snapshot, the tip of `main`, and the
        tips of other branches and tags stay; those with expired tips can be deleted instead.

        Beyond Icechunk: `keep_last` keeps the newest snapshots of every branch (without
        `older_than` all others expire). `keep_tagged` keeps tagged snapshots with their ancestors.
        `keep_fork_points` keeps the snapshots where branches and tags part, which a merge needs.
        `branches` has a rule `Keep(since=..., last=...)` per branch. `snapshot_ids` expires exactly
        these snapshots. With any of them, a snapshot that loses its parent gets the nearest
        remaining ancestor as its parent, or else the first snapshot of the history.
        `dry_run` only returns what would expire.

        A warning names the branches and tags that lose the snapshot where they part: they can be
        merged until its files are collected, and in spec version 1 not at all.

        Args:
            delete_expired_branches: also delete branches whose tip has expired.
            delete_expired_tags: also delete such tags; their names stay taken.
        """
        chosen = maintenance_values.expiration_rules(
            older_than,
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
            keep_last=keep_last,
            keep_tagged=keep_tagged,
            keep_fork_points=keep_fork_points,
            branches=branches,
            snapshot_ids=snapshot_ids,
        )
        expired = run_blocking(expire.expire_snapshots(self.handle, chosen, dry_run=dry_run))
        maintenance_values.warn_about_forks(expired)
        return {one.text for one in expired.snapshots}

    def garbage_collect(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        max_concurrent_listings: int | None = None,
        progress: Report | None = None,
    ) -> GCSummary:
        """Delete objects that are unreachable from branches and tags and were stored before a time.

        A session of icefloe fails to commit if it wrote objects before that time. Sessions of
        official Icechunk do not detect this, so the time has to be before the start of the longest
        one. `dry_run` only counts.

        `progress` is called regularly with a `Progress`. Without it, a terminal shows a bar.

        Args:
            delete_object_older_than: younger objects stay, because a session may be about to use
                them.
            max_snapshots_in_memory: snapshots decoded at once.
            max_compressed_manifest_mem_bytes: manifests in flight, as they are stored.
            max_decoded_manifest_mem_bytes: manifests decoded at once.
            max_concurrent_manifest_fetches: manifests fetched at once.
            max_concurrent_deletes: requests that delete at once.
            max_consecutive_delete_failures: give up after so many in a row.
            max_concurrent_listings: listings at once.
        """
        options = maintenance_values.collection_options(
            delete_object_older_than,
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
            max_concurrent_deletes=max_concurrent_deletes,
            max_consecutive_delete_failures=max_consecutive_delete_failures,
            max_concurrent_listings=max_concurrent_listings,
        )
        with maintenance_values.reporter(progress) as report:
            return run_blocking(
                collect.collect_garbage(self.handle, options, report, dry_run=dry_run)
            )

    def plan_garbage_collection(
        self, delete_object_older_than: datetime, *, progress: Report | None = None
    ) -> GarbagePlan:
        """A plan of what a collection would delete, and why. It can be printed, saved and run.

        Arguments as in `garbage_collect`.

        Args:
            progress: called with the stage and how far it is.
        """
        options = maintenance_values.collection_options(delete_object_older_than)
        with maintenance_values.reporter(progress) as report:
            return run_blocking(collect.plan_garbage(self.handle, options, report))

    def run_garbage_collection(
        self,
        plan: GarbagePlan,
        *,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        progress: Report | None = None,
    ) -> GCSummary:
        """Delete the objects of a plan, except those that came into use since it was made.

        A run that was interrupted can be repeated with the same plan.

        Other arguments as in `garbage_collect`.

        Args:
            plan: what `plan_garbage_collection` returned; objects that are in use by now stay.
            progress: called with the stage and how far it is.

        Raises:
            InvalidInputError: the plan is for another repository.
        """
        options = maintenance_values.collection_options(
            None,
            max_concurrent_deletes=max_concurrent_deletes,
            max_consecutive_delete_failures=max_consecutive_delete_failures,
        )
        with maintenance_values.reporter(progress) as report:
            return run_blocking(collect.run_plan(self.handle, plan, options, report))

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
        progress: Report | None = None,
    ) -> ChunkStorageStats:
        """The bytes of the chunks of all snapshots that are reachable from branches and tags.

        Other arguments as in `garbage_collect`.

        Args:
            progress: called with the stage and how far it is.
        """
        limits = maintenance_values.limits(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        with maintenance_values.reporter(progress) as report:
            return run_blocking(stats.chunk_storage_stats(self.handle, limits, report))

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """The native bytes of `chunk_storage_stats`, which replaces this method.

        Arguments as in `garbage_collect`.
        """
        maintenance_values.warn_about_total_chunks_storage()
        limits = maintenance_values.limits(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return run_blocking(stats.chunk_storage_stats(self.handle, limits)).native_bytes

    def packed_objects(self) -> PackedObjects:
        """Objects that hold several chunks, and how much of each is in use."""
        return run_blocking(packed.packed_objects(self.handle))

    def repack_chunks(
        self, message: str, *, branch: str, min_dead_fraction: float = 0.5
    ) -> str | None:
        """Rewrite packed objects of which at least this fraction is dead, and commit.

        Returns the id of the new snapshot, or None if no object is dead enough. The old objects
        become garbage when the snapshots that need them have expired.

        Args:
            message: of the commit.
            branch: the branch to commit to.
            min_dead_fraction: objects with a smaller unused part stay as they are.
        """
        made = run_blocking(packed.repack(self.handle, branch, message, min_dead_fraction))
        return None if made is None else made.text

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """The nodes of a snapshot and their manifests, as plain values."""
        return run_blocking(inspect.inspect_snapshot(self.handle, snapshot_id))

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """The number of chunks of each kind in a manifest, as plain values.

        Args:
            manifest_id: its id, as text.
        """
        return run_blocking(inspect.inspect_manifest(self.handle, manifest_id))

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """The changes of a commit, and of expired commits right before it, as plain values."""
        return run_blocking(inspect.inspect_transaction_log(self.handle, snapshot_id))

    def inspect_repo_info(self) -> dict[str, Any]:
        """Refs, snapshots and newest operations, as plain values. Needs spec version 2."""
        return run_blocking(inspect.inspect_repo_info(self.handle))
