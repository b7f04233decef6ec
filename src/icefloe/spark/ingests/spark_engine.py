"""The engine of an ingest on Spark: executors scan, copy and place references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from zarr.abc.store import Store

from icefloe.api.session import ForkSession, Session
from icefloe.spark.ingests.copy import copy
from icefloe.spark.ingests.refer import refer
from icefloe.spark.ingests.scan_sources import descriptions_of, digest_all, scan_frame
from icefloe.spark.runtime.spark_session import is_one_process
from icefloe.spark.writes.write_items import write_items
from icefloe.virtual.ingest.comparing import Digests
from icefloe.virtual.ingest.local_engine import LocalEngine
from icefloe.virtual.ingest.room import BlockMove
from icefloe.virtual.ingest.run_ingest import FillCounts
from icefloe.virtual.ingest.transfer import sources_of_references
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.places.access import SourceAccess, local_path
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan, Problem

_FEW_FILES = 64  # a job takes as long as a look at so many


class SparkEngine:
    """Does the work of an ingest in jobs; see `icefloe.virtual.ingest.run_ingest.Engine`."""

    def __init__(self, spark: SparkSession, access: SourceAccess, num_tasks: int | None) -> None:
        self._spark, self._access, self._num_tasks = spark, access, num_tasks
        self._scanned: DataFrame | None = None
        """Rows of the scan with the references, kept by Spark in virtual mode."""

    def scan(
        self,
        locations: Sequence[str],
        options: IngestOptions,
        known: Mapping[str, SourceVersion],
    ) -> tuple[list[SourceDescription], list[Problem]]:
        """Describe all sources, each once."""
        if self._scans_here(locations, options):
            return LocalEngine(self._access).scan(locations, options, known)
        frame = scan_frame(self._spark, locations, options, self._access, known, self._num_tasks)
        if options.mode == "virtual":
            self._scanned = frame
        try:
            return descriptions_of(frame, locations)
        except BaseException:
            self.close()
            raise

    def _scans_here(self, locations: Sequence[str], options: IngestOptions) -> bool:
        """Whether a scan needs no job: few files, on the machine where tasks would run too."""
        return (
            options.mode == "native"
            and self._num_tasks is None
            and self._access.preprocess is None
            and len(locations) <= _FEW_FILES
            and is_one_process(self._spark)
            and all(local_path(location) is not None for location in locations)
        )

    def digest(self, plan: IngestPlan) -> tuple[Digests, dict[str, str]]:
        """Hash what files repeat."""
        return digest_all(self._spark, plan, self._access, self._num_tasks)

    def move(self, session: Session, base: Store, moves: Sequence[BlockMove]) -> None:
        """Copy values of arrays from where they were to where they are going to be."""
        write_items(self._spark, session, moves, partial(_move, base), num_tasks=self._num_tasks)

    def referred(self, plan: IngestPlan) -> list[str]:
        """The files of a plan. Where sets of references lead, only tasks see."""
        return [source.location for source in sources_of_references(plan)]

    def fill(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        """Copy values, then place references."""
        copied, damaged = copy(self._spark, session, plan, self._access, self._num_tasks)
        counts = FillCounts(copied.chunks_written, copied.bytes_written)
        if damaged or self._scanned is None:
            return counts, damaged
        referred, damaged = refer(self._spark, session, plan, self._scanned)
        return counts.plus(referred), damaged

    def close(self) -> None:
        """Let go of the references."""
        if self._scanned is not None:
            self._scanned.unpersist()
            self._scanned = None


def _move(base: Store, fork: ForkSession, move: BlockMove) -> None:
    move.run(base, fork.store)
