"""The engine of an ingest in one process: the plain loops that say what the result has to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from zarr.abc.store import Store

from icefloe.api.session import Session
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.geometry import shape_of
from icefloe.maintenance.progress import Reporter
from icefloe.on_demand import on_demand
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.formats.opening import NativeReader
from icefloe.virtual.ingest.chunk_copy import copy_region
from icefloe.virtual.ingest.comparing import Digests, digest_file, files_to_read
from icefloe.virtual.ingest.open_files import OpenFiles, collecting
from icefloe.virtual.ingest.room import BlockMove
from icefloe.virtual.ingest.run_ingest import FillCounts
from icefloe.virtual.ingest.scanning import scan_each
from icefloe.virtual.ingest.transfer import place_references, placement_of, sources_of_references
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.planning.plan import ArrayPlan, IngestOptions, IngestPlan, Problem

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")


class LocalEngine:
    """Does the work of an ingest here, one piece after the other."""

    def __init__(self, access: SourceAccess, reporter: Reporter | None = None) -> None:
        self._access = access
        self._reporter = reporter or Reporter()
        self._references: dict[str, Mapping[str, pa.Table]] = {}

    def scan(
        self,
        locations: Sequence[str],
        options: IngestOptions,
        known: Mapping[str, SourceVersion],
    ) -> tuple[list[SourceDescription], list[Problem]]:
        """Describe all sources; those that cannot be read are problems."""
        found, problems = [], []
        items = [(location, known.get(location)) for location in locations]
        for done, (location, source) in enumerate(scan_each(items, options, self._access), 1):
            if isinstance(source, str):
                problems.append(Problem(location, source))
            else:
                self._references[location] = source.references or {}
                found.append(source)
            self._reporter.tell("scanning files", done, len(items))
        return found, problems

    def digest(self, plan: IngestPlan) -> tuple[Digests, dict[str, str]]:
        """The digests that a plan wants, and the files that turn out to be damaged."""
        digests: Digests = {}
        damaged: dict[str, str] = {}
        for source, wanted in files_to_read(plan.uncompared, plan.sources):
            found, reason = digest_file(source, wanted, self._access)
            digests |= found
            if reason is not None:
                damaged[source.location] = reason
        return digests, damaged

    def move(self, session: Session, base: Store, moves: Sequence[BlockMove]) -> None:
        """Copy values of arrays from where they were to where they are going to be."""
        for move in moves:
            move.run(base, session.store)

    def referred(self, plan: IngestPlan) -> list[str]:
        """Everything that references lead to."""
        found = {source.location for source in sources_of_references(plan)}
        for array in plan.arrays if len(found) < len(plan.sources) else ():
            rows = array.sources.tolist() if array.storage == "virtual" else []
            for source in (plan.sources[number] for number in rows):
                if source.location not in found:
                    table = self._references[source.location][array.path]
                    found.update(table["location"].unique().drop_null().to_pylist())
        return sorted(found)

    def fill(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        """Copy values and place references; also tells which files turn out to be damaged."""
        damaged: dict[str, str] = {}
        store = session.store
        filled = [array.target for array in plan.arrays if array.storage != "values"]
        before = _count(session, filled)  # chunks that made room
        total = sum(_cells(array) for array in plan.arrays if array.storage == "native")
        done = 0
        with OpenFiles(self._access) as files:
            for array in plan.arrays:
                if array.storage == "native":
                    for cells in _copy(store, plan, array, files, damaged):
                        done += cells
                        self._reporter.tell("copying values", done, total)
                elif array.storage == "virtual":
                    self._refer(store, plan, array, damaged)
        return _count(session, filled).plus(before, -1), damaged

    def close(self) -> None:
        """Nothing is kept; the bar goes away."""
        self._reporter.finish()

    def _refer(
        self, store: IcechunkStore, plan: IngestPlan, array: ArrayPlan, damaged: dict[str, str]
    ) -> None:
        found = (
            (placement_of(plan, array, row), self._references[source.location][array.path])
            for row, source in enumerate(plan.sources[n] for n in array.sources.tolist())
        )
        place_references(store, found, damaged)


def _copy(
    store: IcechunkStore,
    plan: IngestPlan,
    array: ArrayPlan,
    files: OpenFiles,
    damaged: dict[str, str],
) -> Iterator[int]:
    """Copies an array block by block; yields the number of cells of each."""

    def reader_of(number: int) -> NativeReader:
        return files.at(plan.sources[number].location)

    for region in array.blocks():
        with collecting(damaged):
            copy_region(store, plan, array, region, reader_of)
        yield prod(shape_of(region))


def _cells(array: ArrayPlan) -> int:
    return sum(prod(shape_of(region)) for region in array.blocks())


def _count(session: Session, targets: Sequence[str]) -> FillCounts:
    """What the session has set in these arrays."""
    state = session.workspace.state
    counts = FillCounts()
    for target in targets:
        edits = state.changes.chunks.get(state.node(f"/{target}").id)
        if edits is not None:
            refs, _ = edits.columns()
            is_virtual = refs.kind == ChunkKind.VIRTUAL
            size = int(refs.length[~is_virtual].sum())
            virtual = int(is_virtual.sum())
            counts = counts.plus(FillCounts(len(refs) - virtual, size, virtual))
    return counts
