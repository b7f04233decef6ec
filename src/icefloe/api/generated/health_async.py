"""Asynchronous twins of `RepositoryHealth`. Made by tools/make_async_twins.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefloe.api.arguments import check_arguments
from icefloe.api.authorize import authorizations
from icefloe.api.handles import Handles, driver_for
from icefloe.config import RepositoryConfig
from icefloe.on_demand import on_demand
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.api import maintenance_values
    from icefloe.maintenance import open_damaged, repair, rescue, verify
    from icefloe.maintenance.findings import VerifyReport
    from icefloe.maintenance.progress import Report
    from icefloe.maintenance.repair import RepairPlan
    from icefloe.maintenance.rescue import RescuePlan
    from icefloe.storage.identity.containers import AnyCredential
else:
    maintenance_values = on_demand("icefloe.api.maintenance_values")
    open_damaged = on_demand("icefloe.maintenance.open_damaged")
    repair = on_demand("icefloe.maintenance.repair")
    rescue = on_demand("icefloe.maintenance.rescue")
    verify = on_demand("icefloe.maintenance.verify")


@check_arguments
class RepositoryHealthAsync:
    """What `RepositoryHealth` inherits: its methods that touch storage, to be awaited."""

    _handles: Handles

    @property
    def handle(self) -> RepoHandle:
        """The repository as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return self._handles.blocking

    @property
    def _aio_handle(self) -> RepoHandle:
        return self._handles.eventloop

    async def verify_async(
        self,
        *,
        read_chunks: bool = False,
        virtual_sources: bool = False,
        orphans: bool = True,
        max_findings: int = 1000,
        progress: Report | None = None,
    ) -> VerifyReport:
        """Like `verify`, inside an event loop.

        Check that everything reachable from refs exists, is complete and is consistent.
        """
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
        progress: Report | None = None,
    ) -> VerifyReport:
        """Like `verify_storage`, inside an event loop.

        `verify` for a repository that may be too damaged to open.
        """
        handle = await open_damaged.open_damaged(
            storage,
            driver_for(storage, config, blocking=False),
            config,
            Clock(),
            authorize=authorizations(authorize_virtual_chunk_access),
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
        return await repair.plan_repair(self._aio_handle, branch, virtual_sources=virtual_sources)

    async def plan_repoint_async(
        self, old_prefix: str, new_prefix: str, *, branch: str = "main", check: bool = True
    ) -> RepairPlan:
        """Like `plan_repoint`, inside an event loop.

        Plan to point virtual references of a branch at files that moved; see `run_repair`.
        """
        return await repair.plan_repoint(
            self._aio_handle, branch, old_prefix, new_prefix, check=check
        )

    async def run_repair_async(self, plan: RepairPlan, message: str | None = None) -> str:
        """Like `run_repair`, inside an event loop.

        Commit a repair plan. Returns the id of the new snapshot.
        """
        return (await repair.run_repair(self._aio_handle, plan, message)).text

    @staticmethod
    async def plan_rescue_async(storage: Storage) -> RescuePlan:
        """Like `plan_rescue`, inside an event loop.

        Plan how to rebuild a lost `repo` object or branch, for `run_rescue`.
        """
        handle = await open_damaged.open_damaged(
            storage, driver_for(storage, None, blocking=False), None, Clock()
        )
        return await rescue.plan_rescue(handle)

    @staticmethod
    async def run_rescue_async(storage: Storage, plan: RescuePlan) -> None:
        """Like `run_rescue`, inside an event loop: Execute a rescue plan."""
        handle = await open_damaged.open_damaged(
            storage, driver_for(storage, None, blocking=False), None, Clock()
        )
        return await rescue.run_rescue(handle, plan)
