"""Asynchronous twins of `RepositoryMaintenance`. Made by tools/make_async_twins.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.api.arguments import check_arguments, virtual_credentials
from icefloe.api.handles import Handles, opening
from icefloe.config import RepositoryConfig
from icefloe.repo.handle import RepoHandle
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
class RepositoryMaintenanceAsync:
    """What `RepositoryMaintenance` inherits: its methods that touch storage, to be awaited."""

    _handles: Handles

    @property
    def handle(self) -> RepoHandle:
        """The repository as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return self._handles.blocking

    @property
    def _aio_handle(self) -> RepoHandle:
        return self._handles.eventloop

    async def expire_snapshots_async(
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
        """Like `expire_snapshots`, inside an event loop.

        Remove old snapshots from the history. Returns their ids. No data is deleted.
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
        expired = await expire.expire_snapshots(self._aio_handle, chosen, dry_run=dry_run)
        maintenance_values.warn_about_forks(expired)
        return {one.text for one in expired.snapshots}

    async def garbage_collect_async(
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
        """Like `garbage_collect`, inside an event loop.

        Delete objects that are unreachable from branches and tags and were stored before a time.
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
            return await collect(self._aio_handle, options, report, dry_run=dry_run)

    async def plan_garbage_collection_async(
        self,
        delete_object_older_than: datetime,
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> GarbagePlan:
        """Like `plan_garbage_collection`, inside an event loop.

        A plan of what a collection would delete, and why. It can be printed, saved and run.
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import gc

        options = maintenance_values.collection_options(delete_object_older_than)
        with maintenance_values.reporter(progress) as report:
            return await gc.plan_garbage(self._aio_handle, options, report)

    async def run_garbage_collection_async(
        self,
        plan: GarbagePlan,
        *,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        progress: Callable[[Progress], None] | None = None,
    ) -> GCSummary:
        """Like `run_garbage_collection`, inside an event loop.

        Delete the objects of a plan, except those that came into use since it was made.
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import gc

        options = maintenance_values.collection_options(
            None,
            max_concurrent_deletes=max_concurrent_deletes,
            max_consecutive_delete_failures=max_consecutive_delete_failures,
        )
        with maintenance_values.reporter(progress) as report:
            return await gc.run_plan(self._aio_handle, plan, options, report)

    async def chunk_storage_stats_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
        progress: Callable[[Progress], None] | None = None,
    ) -> ChunkStorageStats:
        """Like `chunk_storage_stats`, inside an event loop.

        The bytes of the chunks of all snapshots that are reachable from branches and tags.
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
            return await stats.chunk_storage_stats(self._aio_handle, limits, report)

    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Like `total_chunks_storage`, inside an event loop.

        The native bytes of `chunk_storage_stats`, which replaces this method.
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
        return (await stats.chunk_storage_stats(self._aio_handle, limits)).native_bytes

    async def packed_objects_async(self) -> PackedObjects:
        """Like `packed_objects`, inside an event loop.

        Objects that hold several chunks, and how much of each is in use.
        """
        from icefloe.maintenance import stats

        return await stats.packed_objects(self._aio_handle)

    async def repack_chunks_async(
        self, message: str, *, branch: str, min_dead_fraction: float = 0.5
    ) -> str | None:
        """Like `repack_chunks`, inside an event loop.

        Rewrite packed objects of which at least this fraction is dead, and commit.
        """
        from icefloe.maintenance import stats

        made = await stats.repack(self._aio_handle, branch, message, min_dead_fraction)
        return None if made is None else made.text

    async def inspect_snapshot_async(self, snapshot_id: str) -> dict[str, Any]:
        """Like `inspect_snapshot`, inside an event loop.

        The nodes of a snapshot and their manifests, as plain values.
        """
        from icefloe.maintenance import inspect

        return await inspect.inspect_snapshot(self._aio_handle, snapshot_id)

    async def inspect_manifest_async(self, manifest_id: str) -> dict[str, Any]:
        """Like `inspect_manifest`, inside an event loop.

        The number of chunks of each kind in the manifest `manifest_id`, as plain values.
        """
        from icefloe.maintenance import inspect

        return await inspect.inspect_manifest(self._aio_handle, manifest_id)

    async def inspect_transaction_log_async(self, snapshot_id: str) -> dict[str, Any]:
        """Like `inspect_transaction_log`, inside an event loop.

        The changes of a commit, and of expired commits right before it, as plain values.
        """
        from icefloe.maintenance import inspect

        return await inspect.inspect_transaction_log(self._aio_handle, snapshot_id)

    async def inspect_repo_info_async(self) -> dict[str, Any]:
        """Like `inspect_repo_info`, inside an event loop.

        Refs, snapshots and newest operations, as plain values. Needs spec version 2.
        """
        from icefloe.maintenance import inspect

        return await inspect.inspect_repo_info(self._aio_handle)

    async def verify_async(
        self,
        *,
        read_chunks: bool = False,
        virtual_sources: bool = False,
        orphans: bool = True,
        max_findings: int = 1000,
        progress: Callable[[Progress], None] | None = None,
    ) -> VerifyReport:
        """Like `verify`, inside an event loop.

        Check that everything reachable from refs exists, is complete and is consistent.
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import verify

        options = verify.VerifyOptions(read_chunks, virtual_sources, orphans, max_findings)
        with maintenance_values.reporter(progress) as report:
            return await verify.verify(self._aio_handle, options, report)

    @staticmethod
    async def verify_storage_async(
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
        """Like `verify_storage`, inside an event loop.

        `verify` for a repository that may be too damaged to open.
        """
        from icefloe.api import maintenance_values
        from icefloe.maintenance import rescue, verify

        handle = await rescue.open_damaged(
            *opening(storage, config, blocking=False),
            authorize=virtual_credentials(authorize_virtual_chunk_access),
        )
        options = verify.VerifyOptions(read_chunks, virtual_sources, orphans, max_findings)
        with maintenance_values.reporter(progress) as report:
            return await verify.verify(handle, options, report)

    async def plan_repair_async(
        self, *, branch: str = "main", virtual_sources: bool = False
    ) -> RepairPlan:
        """Like `plan_repair`, inside an event loop.

        Find the dangling references of a branch, for `run_repair` to drop.
        """
        from icefloe.maintenance import repair

        return await repair.plan_repair(self._aio_handle, branch, virtual_sources=virtual_sources)

    async def plan_repoint_async(
        self, old_prefix: str, new_prefix: str, *, branch: str = "main", check: bool = True
    ) -> RepairPlan:
        """Like `plan_repoint`, inside an event loop.

        Plan to point virtual references of a branch at files that moved; see `run_repair`.
        """
        from icefloe.maintenance import repair

        return await repair.plan_repoint(
            self._aio_handle, branch, old_prefix, new_prefix, check=check
        )

    async def run_repair_async(self, plan: RepairPlan, message: str | None = None) -> str:
        """Like `run_repair`, inside an event loop.

        Commit a `plan` that `plan_repair` or `plan_repoint` made. Returns the new snapshot's id.
        """
        from icefloe.maintenance import repair

        return (await repair.run_repair(self._aio_handle, plan, message)).text

    @staticmethod
    async def plan_rescue_async(storage: Storage) -> RescuePlan:
        """Like `plan_rescue`, inside an event loop.

        Plan how to rebuild a lost `repo` object or branch, for `run_rescue`.
        """
        from icefloe.maintenance import rescue

        handle = await rescue.open_damaged(*opening(storage, None, blocking=False))
        return await rescue.plan_rescue(handle)

    @staticmethod
    async def run_rescue_async(storage: Storage, plan: RescuePlan) -> None:
        """Like `run_rescue`, inside an event loop: Execute a `plan` that `plan_rescue` made."""
        from icefloe.maintenance import rescue

        handle = await rescue.open_damaged(*opening(storage, None, blocking=False))
        return await rescue.run_rescue(handle, plan)
