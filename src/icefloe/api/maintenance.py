"""The methods of `Repository` that keep a repository healthy, verify and repair it.

The `x_async` twin of every method is generated from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.api.arguments import check_arguments, virtual_credentials
from icefloe.api.generated.maintenance_async import RepositoryMaintenanceAsync
from icefloe.api.handles import opening
from icefloe.config import RepositoryConfig
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential
    from icefloe.maintenance.expire import Keep
    from icefloe.maintenance.findings import VerifyReport
    from icefloe.maintenance.gc import GarbagePlan
    from icefloe.maintenance.progress import Progress
    from icefloe.maintenance.repair import RepairPlan
    from icefloe.maintenance.rescue import RescuePlan
    from icefloe.maintenance.stats import PackedObjects
    from icefloe.maintenance.summary import ChunkStorageStats, GCSummary


@check_arguments
class RepositoryMaintenance(RepositoryMaintenanceAsync):
    """What `Repository` inherits: expiration, collection, statistics, verification, repair."""

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
        tips of other branches and tags stay. `delete_expired_branches` and `delete_expired_tags`
        delete those with expired tips instead; the names of tags stay taken.

        Beyond Icechunk: `keep_last` keeps the newest snapshots of every branch (without
        `older_than` all others expire). `keep_tagged` keeps tagged snapshots with their ancestors.
        `keep_fork_points` keeps the snapshots where branches and tags part, which a merge needs.
        `branches` has a rule `Keep(since=..., last=...)` per branch. `snapshot_ids` expires exactly
        these snapshots. With any of them, a snapshot that loses its parent gets the nearest
        remaining ancestor as its parent, or else the first snapshot of the history.
        `dry_run` only returns what would expire.

        A warning names the branches and tags that lose the snapshot where they part: they can be
        merged until its files are collected, and in spec version 1 not at all.

        >>> len(repo.expire_snapshots(datetime.now(UTC), keep_last=1, keep_tagged=True))
        0
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import expire

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
        incremental: bool = False,
        full_every: int = 10,
        progress: Callable[[Progress], None] | None = None,
    ) -> GCSummary:
        """Delete objects that are unreachable from branches and tags and were stored before a time.

        A session of icefloe fails to commit if it wrote objects before that time. Sessions of
        official Icechunk do not detect this, so the time has to be before the start of the longest
        one. `dry_run` only counts.

        With `incremental`, only what was dropped since the last such collection is looked at: the
        objects of snapshots that expired, were amended, or lost their branch. Nothing is listed, so
        objects that no snapshot named stay until a full collection. Every `full_every`th one is
        full, and so is one that cannot rely on what the last one remembered (`full_because`).

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
            incremental: list nothing, if the last collection was one of these too.
            full_every: how often one of the incremental collections is a full one.

        >>> repo.garbage_collect(datetime.now(UTC) - timedelta(days=7)).chunks_deleted
        0
        >>> last = repo.garbage_collect(datetime.now(UTC) - timedelta(days=7), incremental=True)
        >>> last.looked_for_orphans, last.full_because
        (True, 'there is no memory of an earlier collection that came to its end')
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import gc
        from icefloe.maintenance import incremental as incrementally

        options = maintenance_values.collection_options(
            delete_object_older_than,
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
            max_concurrent_deletes=max_concurrent_deletes,
            max_consecutive_delete_failures=max_consecutive_delete_failures,
            max_concurrent_listings=max_concurrent_listings,
            full_every=full_every,
        )
        with maintenance_values.reporter(progress) as report:
            collect = incrementally.collect_garbage if incremental else gc.collect_garbage
            return run_blocking(collect(self.handle, options, report, dry_run=dry_run))

    def plan_garbage_collection(
        self,
        delete_object_older_than: datetime,
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> GarbagePlan:
        """A plan of what a collection would delete, and why. It can be printed, saved and run.

        Arguments as in `garbage_collect`.

        >>> plan = repo.plan_garbage_collection(datetime.now(UTC) - timedelta(days=7))
        >>> plan.num_objects()
        0
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import gc

        options = maintenance_values.collection_options(delete_object_older_than)
        with maintenance_values.reporter(progress) as report:
            return run_blocking(gc.plan_garbage(self.handle, options, report))

    def run_garbage_collection(
        self,
        plan: GarbagePlan,
        *,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        progress: Callable[[Progress], None] | None = None,
    ) -> GCSummary:
        """Delete the objects of a plan, except those that came into use since it was made.

        A run that was interrupted can be repeated with the same plan.

        The `plan` is what `plan_garbage_collection` returned. Other arguments as in
        `garbage_collect`.

        Raises:
            InvalidInputError: the plan is for another repository.

        >>> plan = repo.plan_garbage_collection(datetime.now(UTC) - timedelta(days=7))
        >>> summary = repo.run_garbage_collection(plan)
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import gc

        options = maintenance_values.collection_options(
            None,
            max_concurrent_deletes=max_concurrent_deletes,
            max_consecutive_delete_failures=max_consecutive_delete_failures,
        )
        with maintenance_values.reporter(progress) as report:
            return run_blocking(gc.run_plan(self.handle, plan, options, report))

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
        progress: Callable[[Progress], None] | None = None,
    ) -> ChunkStorageStats:
        """The bytes of the chunks of all snapshots that are reachable from branches and tags.

        Arguments as in `garbage_collect`.

        >>> repo.chunk_storage_stats().native_bytes > 0
        True
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import stats

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
        from icefloe.api import maintenance_values
        from icefloe.maintenance import stats

        maintenance_values.warn_about_total_chunks_storage()
        limits = maintenance_values.limits(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return run_blocking(stats.chunk_storage_stats(self.handle, limits)).native_bytes

    def packed_objects(self) -> PackedObjects:
        """Objects that hold several chunks, and how much of each is in use.

        >>> packed = repo.packed_objects()
        """
        from icefloe.maintenance import stats

        return run_blocking(stats.packed_objects(self.handle))

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

        >>> repo.repack_chunks("Drop unused bytes", branch="main", min_dead_fraction=0.3)
        """
        from icefloe.maintenance import stats

        made = run_blocking(stats.repack(self.handle, branch, message, min_dead_fraction))
        return None if made is None else made.text

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """The nodes of a snapshot and their manifests, as plain values.

        >>> nodes = repo.inspect_snapshot(repo.lookup_branch("main"))["nodes"]
        """
        from icefloe.maintenance import inspect

        return run_blocking(inspect.inspect_snapshot(self.handle, snapshot_id))

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """The number of chunks of each kind in the manifest `manifest_id`, as plain values.

        >>> file, *_ = repo.list_manifest_files(repo.lookup_branch("main"))
        >>> description = repo.inspect_manifest(file.id)
        """
        from icefloe.maintenance import inspect

        return run_blocking(inspect.inspect_manifest(self.handle, manifest_id))

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """The changes of a commit, and of expired commits right before it, as plain values.

        >>> changes = repo.inspect_transaction_log(repo.lookup_branch("main"))
        """
        from icefloe.maintenance import inspect

        return run_blocking(inspect.inspect_transaction_log(self.handle, snapshot_id))

    def inspect_repo_info(self) -> dict[str, Any]:
        """Refs, snapshots and newest operations, as plain values. Needs spec version 2.

        >>> sorted(repo.inspect_repo_info()["tags"])
        ['v1']
        """
        from icefloe.maintenance import inspect

        return run_blocking(inspect.inspect_repo_info(self.handle))

    def verify(
        self,
        *,
        read_chunks: bool = False,
        virtual_sources: bool = False,
        orphans: bool = True,
        max_findings: int = 1000,
        progress: Callable[[Progress], None] | None = None,
    ) -> VerifyReport:
        """Check that everything reachable from refs exists, is complete and is consistent.

        Every ref, snapshot, log and manifest is read and decoded; chunk objects are compared with
        a listing of the storage. Nothing is written. `report.is_healthy` is the result,
        `print(report)` a summary. `report.findings` and `report.to_arrow()` have all rows.

        Do not verify during a garbage collection: objects that it deletes are reported as missing.

        Args:
            read_chunks: read every chunk and decode it with the codecs of its array.
            virtual_sources: check with one request per virtual source that it exists, is long
                enough and is unchanged. The containers have to be authorised.
            orphans: report objects that nothing refers to.
            max_findings: the number of findings of each kind to keep. All are counted.
            progress: called regularly with a `Progress`. Without it, a terminal shows a bar.

        >>> repo.verify(read_chunks=True).is_healthy
        True
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import verify

        options = verify.VerifyOptions(read_chunks, virtual_sources, orphans, max_findings)
        with maintenance_values.reporter(progress) as report:
            return run_blocking(verify.verify(self.handle, options, report))

    @staticmethod
    def verify_storage(
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        *,
        read_chunks: bool = False,
        virtual_sources: bool = False,
        orphans: bool = True,
        max_findings: int = 1000,
        progress: Callable[[Progress], None] | None = None,
    ) -> VerifyReport:
        """`verify` for a repository that may be too damaged to open.

        Raises:
            RepositoryNotFoundError: there is no trace of a repository.

        >>> icefloe.Repository.verify_storage(repo.storage).is_healthy
        True
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import rescue, verify

        handle = run_blocking(
            rescue.open_damaged(
                *opening(storage, config, blocking=True),
                authorize=virtual_credentials(authorize_virtual_chunk_access),
            )
        )
        options = verify.VerifyOptions(read_chunks, virtual_sources, orphans, max_findings)
        with maintenance_values.reporter(progress) as report:
            return run_blocking(verify.verify(handle, options, report))

    def plan_repair(self, *, branch: str = "main", virtual_sources: bool = False) -> RepairPlan:
        """Find the dangling references of a branch, for `run_repair` to drop.

        These are references to chunk objects that are missing or too short, chunks without bytes,
        and manifests that cannot be read. With `virtual_sources`, they include references to files
        that are missing, too short or changed. Dropped chunks read as the fill value.

        >>> plan = repo.plan_repair(branch="main")
        """
        from icefloe.maintenance import repair

        return run_blocking(
            repair.plan_repair(self.handle, branch, virtual_sources=virtual_sources)
        )

    def plan_repoint(
        self, old_prefix: str, new_prefix: str, *, branch: str = "main", check: bool = True
    ) -> RepairPlan:
        """Plan to point virtual references of a branch at files that moved; see `run_repair`.

        With `check`, every file is requested at its new location, which has to be authorised.
        References to files that are missing or too short there are not changed, and the plan lists
        them. References keep their ETag if the file still has it. Other references require that the
        file does not change from now on.

        Args:
            old_prefix: where locations begin now.
            new_prefix: what they shall begin with.
            branch: the branch to repair.

        >>> plan = repo.plan_repoint("s3://old/", "s3://new/", check=False)
        """
        from icefloe.maintenance import repair

        return run_blocking(
            repair.plan_repoint(self.handle, branch, old_prefix, new_prefix, check=check)
        )

    def run_repair(self, plan: RepairPlan, message: str | None = None) -> str:
        """Commit a `plan` that `plan_repair` or `plan_repoint` made. Returns the new snapshot's id.

        Raises:
            ConflictError: the branch has moved since the plan was made; make a new plan.

        >>> plan = repo.plan_repair(branch="main")
        >>> snapshot_id = repo.run_repair(plan, "Drop what is lost")
        """
        from icefloe.maintenance import repair

        return run_blocking(repair.run_repair(self.handle, plan, message)).text

    @staticmethod
    def plan_rescue(storage: Storage) -> RescuePlan:
        """Plan how to rebuild a lost `repo` object or branch, for `run_rescue`.

        A repo object is rebuilt from its newest copy below `overwritten/` and the snapshots that
        were stored later. A branch whose tip is lost is reset to its newest remaining ancestor.

        >>> plan = icefloe.Repository.plan_rescue(repo.storage)
        """
        from icefloe.maintenance import rescue

        handle = run_blocking(rescue.open_damaged(*opening(storage, None, blocking=True)))
        return run_blocking(rescue.plan_rescue(handle))

    @staticmethod
    def run_rescue(storage: Storage, plan: RescuePlan) -> None:
        """Execute a `plan` that `plan_rescue` made.

        Raises:
            ConflictError: the repository has changed since the plan was made; make a new plan.

        >>> plan = icefloe.Repository.plan_rescue(repo.storage)
        >>> icefloe.Repository.run_rescue(repo.storage, plan)
        """
        from icefloe.maintenance import rescue

        handle = run_blocking(rescue.open_damaged(*opening(storage, None, blocking=True)))
        return run_blocking(rescue.run_rescue(handle, plan))
