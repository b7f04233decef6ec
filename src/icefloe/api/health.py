"""The methods of `Repository` that verify and repair it.

The `x_async` twin of every method that touches storage is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefloe.api.arguments import check_arguments
from icefloe.api.authorize import authorizations
from icefloe.api.generated.health_async import RepositoryHealthAsync
from icefloe.api.handles import driver_for
from icefloe.config import RepositoryConfig
from icefloe.on_demand import on_demand
from icefloe.repo.handle import Clock
from icefloe.storage.run import run_blocking
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
class RepositoryHealth(RepositoryHealthAsync):
    """What `Repository` inherits: verification and repair."""

    def verify(
        self,
        *,
        read_chunks: bool = False,
        virtual_sources: bool = False,
        orphans: bool = True,
        max_findings: int = 1000,
        progress: Report | None = None,
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
        """
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
        progress: Report | None = None,
    ) -> VerifyReport:
        """`verify` for a repository that may be too damaged to open.

        Raises:
            RepositoryNotFoundError: there is no trace of a repository.
        """
        handle = run_blocking(
            open_damaged.open_damaged(
                storage,
                driver_for(storage, config, blocking=True),
                config,
                Clock(),
                authorize=authorizations(authorize_virtual_chunk_access),
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
        """
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
        """
        return run_blocking(
            repair.plan_repoint(self.handle, branch, old_prefix, new_prefix, check=check)
        )

    def run_repair(self, plan: RepairPlan, message: str | None = None) -> str:
        """Commit a repair plan. Returns the id of the new snapshot.

        Args:
            plan: what `plan_repair` or `plan_repoint` returned.
            message: of the commit.

        Raises:
            ConflictError: the branch has moved since the plan was made; make a new plan.
        """
        return run_blocking(repair.run_repair(self.handle, plan, message)).text

    @staticmethod
    def plan_rescue(storage: Storage) -> RescuePlan:
        """Plan how to rebuild a lost `repo` object or branch, for `run_rescue`.

        A repo object is rebuilt from its newest copy below `overwritten/` and the snapshots that
        were stored later. A branch whose tip is lost is reset to its newest remaining ancestor.
        """
        handle = run_blocking(
            open_damaged.open_damaged(
                storage, driver_for(storage, None, blocking=True), None, Clock()
            )
        )
        return run_blocking(rescue.plan_rescue(handle))

    @staticmethod
    def run_rescue(storage: Storage, plan: RescuePlan) -> None:
        """Execute a rescue plan.

        Args:
            plan: what `plan_rescue` returned.

        Raises:
            ConflictError: the repository has changed since the plan was made; make a new plan.
        """
        handle = run_blocking(
            open_damaged.open_damaged(
                storage, driver_for(storage, None, blocking=True), None, Clock()
            )
        )
        return run_blocking(rescue.run_rescue(handle, plan))
