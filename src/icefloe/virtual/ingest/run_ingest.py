"""The one loop of an ingest, on any engine: scan, plan, transfer, commit."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Protocol, Unpack

import numpy as np
import pyarrow as pa
import zarr
from zarr.abc.store import Store

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.conflicts import ConflictDetector
from icefloe.display import Picture, Shown, counted, size_text
from icefloe.errors import RebaseFailedError
from icefloe.geometry import shape_of
from icefloe.maintenance.progress import Reporter
from icefloe.virtual.formats.opening import look_at, scan
from icefloe.virtual.ingest import insertion, transfer
from icefloe.virtual.ingest.destination import (
    Destination,
    describe_existing,
    enter_in_ledger,
    open_column,
    read_columns,
    require_free,
    require_group,
)
from icefloe.virtual.ingest.repeats import EarlierTries
from icefloe.virtual.ingest.request import IngestArguments, IngestRequest, make_request
from icefloe.virtual.ingest.transfer import Digested, Digests, FileToRead, OpenFiles, files_to_read
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.planning.file_boxes import LEDGER_GROUP, Existing, Ledger, is_same_version
from icefloe.virtual.planning.plan import FillCounts, IngestOptions, IngestPlan, Problem
from icefloe.virtual.planning.planner import plan_ingest, target_of
from icefloe.virtual.sources import SourceAccess, Sources, local_path

SCANS_AT_ONCE = 8


def scan_each(
    items: Sequence[tuple[str, SourceVersion | None]], options: IngestOptions, access: SourceAccess
) -> Iterator[tuple[str, SourceDescription | str]]:
    """Each source with its description, or with the reason why there is none.

    Remote files are mostly waited for, so that several are opened at once.
    """
    work = partial(_scan_one, options, access)
    if all(local_path(location) is not None for location, _ in items):
        yield from map(work, items)
        return
    with ThreadPoolExecutor(SCANS_AT_ONCE) as pool:
        waiting: deque[Future[tuple[str, SourceDescription | str]]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * SCANS_AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _scan_one(
    options: IngestOptions, access: SourceAccess, item: tuple[str, SourceVersion | None]
) -> tuple[str, SourceDescription | str]:
    """Describe a source, or say why it cannot be.

    One that an earlier ingest has brought over is not opened if it has not changed, nor if its
    change does not matter.
    """
    location, known = item
    try:
        seen = None if known is None else look_at(location, access)
        if known is not None and seen is not None:
            is_enough = options.changed != "replace" or is_same_version(known, seen.version)
            if is_enough:
                return location, seen
        is_virtual, dims = options.mode == "virtual", options.concat_dims
        found = scan(location, references=is_virtual, concat_dims=dims, access=access)
    except Exception as error:  # noqa: BLE001 - any error of a library is about the file
        return location, transfer.reason_of(error, location)
    return location, found


_SHOWN = 10
"""Problems that are shown."""


@dataclass(frozen=True, repr=False)
class IngestReport(Shown):
    """What an ingest did."""

    snapshot_id: str | None
    """The commit; None when nothing had to change."""
    files_added: int
    """Files brought over, those that replaced an earlier version of themselves included."""
    files_skipped: int
    """Files that are in the group already, from an earlier ingest."""
    files_failed: int
    """Files left out, unless `on_error` is "fail"; `problems` has the reasons."""
    chunks_written: int
    bytes_written: int
    refs_written: int
    seconds: float
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader has to know: arrays that were copied in virtual mode, and why; types."""
    tries: int = 1
    """How often the plan was made: once more for each commit of others that contradicted it."""
    seconds_waited: float = 0.0
    """Between tries."""
    chunks_redone: int = 0
    """Chunks that earlier tries wrote and that are not in the commit. They hold parts of several
    files, or of files that others brought meanwhile."""
    bytes_redone: int = 0

    def _picture_(self) -> Picture:
        there, failed = self.files_skipped, self.files_failed
        written = f"{counted(self.chunks_written, 'chunk')} ({size_text(self.bytes_written)})"
        fields = [
            ("commit", self.snapshot_id or "none, nothing had to change"),
            ("files", f"{self.files_added:,} added, {there:,} there already, {failed:,} left out"),
            ("written", f"{written}, {counted(self.refs_written, 'reference')}"),
            ("seconds", f"{self.seconds:.1f}"),
            *((("tries", self._tries()),) if self.tries > 1 else ()),
            *(("note", note) for note in self.notes),
            *(("left out", str(problem)) for problem in self.problems[:_SHOWN]),
        ]
        if len(self.problems) > _SHOWN:
            fields.append(("left out", f"{len(self.problems) - _SHOWN:,} more, see `problems`"))
        return Picture(self._title_(), fields)

    def _tries(self) -> str:
        redone = f"{counted(self.chunks_redone, 'chunk')} ({size_text(self.bytes_redone)})"
        return f"{self.tries}, {redone} written again, {self.seconds_waited:.1f} s waited"


# Files that could not be brought over are kept in a table until they can: a group
# `.icefloe/problems` beside the ledger, with one 1-d array per column, so that any Zarr tool reads
# it, and Spark as a DataFrame.

PROBLEMS = f"{LEDGER_GROUP}/problems"
_Row = tuple[str, str, int]
_DTYPES = {"location": "string", "reason": "string", "seen_at": "int64"}
_SEEN_AT: dict[str, Any] = {"units": "seconds since 1970-01-01", "calendar": "standard"}


def record_problems(
    store: Store, group: str, problems: Sequence[Problem], looked_at: Collection[str]
) -> int:
    """Bring the table up to date: of files looked at, only those with problems stay in it.

    Returns how many files are new in it.
    """
    path = target_of(group, PROBLEMS)
    columns, _ = read_columns(store, path, _DTYPES)
    old: list[_Row] = list(zip(*columns.values(), strict=True))
    now = int(time.time())
    seen = {(location, reason): at for location, reason, at in old}
    again = set(looked_at) | {problem.location for problem in problems}
    rows = [row for row in old if row[0] not in again]
    rows += [
        (problem.location, problem.reason, seen.get((problem.location, problem.reason), now))
        for problem in problems
    ]
    if rows != old:
        table = zarr.open_group(store, path=path, mode="a", zarr_format=3)
        given = list(zip(*rows, strict=True)) or [()] * len(_DTYPES)
        for (name, dtype), values in zip(_DTYPES.items(), given, strict=True):
            attributes = _SEEN_AT if name == "seen_at" else {}
            column = open_column(table, name, dtype, "problem", attributes=attributes)
            column.resize((len(rows),))
            column[:] = np.array(values, object if dtype == "string" else dtype)
    return len({row[0] for row in rows} - {row[0] for row in old})


# Files that turn out to be damaged while they are read are left out, and the rest is planned
# again, because the others may go elsewhere without them.


class Engine(Protocol):
    """What does the work of an ingest. Damaged files are returned with the reason."""

    def scan(
        self,
        locations: Sequence[str],
        options: IngestOptions,
        known: Mapping[str, SourceVersion],
    ) -> tuple[list[SourceDescription], list[Problem]]:
        """Describe all sources, in the order given; those that cannot be read are problems.

        A source that is `known` in its present version is described by that version only.
        """

    def digest(self, items: Sequence[FileToRead]) -> Iterator[Digested]:
        """The digests of variables of files."""

    def move(self, session: Session, base: Store, moves: Sequence[insertion.BlockMove]) -> None:
        """Copy values of arrays from where `base` has them to where they are going to be."""

    def referred(self, plan: IngestPlan) -> list[str]:
        """Locations of files that the references of a plan lead to, as far as they are known."""

    def fill(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        """Fill the native and virtual arrays of a plan, in a session that has their metadata."""

    def close(self) -> None:
        """Release what the scan has kept."""


_TRIES = 100
_MAX_PAUSE_S = 1.0
_NOTHING = FillCounts()


def run_ingest(engine: Engine, request: IngestRequest) -> IngestReport:
    """Run an ingest to its commit; `icefloe.spark.ingest` says what may be raised.

    A repository that is not there yet is created when the plan is settled, and not earlier. Where
    another commit contradicts, the plan is made again on top of it, as if this ingest had started
    after that commit, and chunks that stay as they are are not written again.
    """
    started = time.monotonic()
    run = _Run(engine, request)
    try:
        while True:
            try:
                snapshot_id = run.try_once()
                break
            except RebaseFailedError:
                if run.tries >= _TRIES:
                    raise
            pause = random.random() * min(_MAX_PAUSE_S, 0.02 * 2**run.tries)
            time.sleep(pause)
            run.waited += pause
    finally:
        engine.close()
    plan = run.plan
    redone = run.written.plus(run.counts, -1)
    return IngestReport(
        snapshot_id,
        len(plan.sources) if plan.arrays else 0,
        len(plan.unchanged),
        len(plan.problems),
        *run.counts,
        time.monotonic() - started,
        plan.problems,
        plan.notes,
        run.tries,
        run.waited,
        redone.chunks,
        redone.bytes,
    )


@dataclass
class _Run:
    """An ingest with as many tries as it takes."""

    engine: Engine
    request: IngestRequest
    tries: int = 0
    waited: float = 0.0
    counts: FillCounts = _NOTHING
    """What is in the commit."""
    reused: FillCounts = _NOTHING
    """How much of that is from earlier tries."""
    written: FillCounts = _NOTHING
    """What all tries have written."""
    earlier: EarlierTries = field(default_factory=EarlierTries)
    found: list[SourceDescription] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    scanned_for: tuple[str, Any] | None = None
    """The mode and the dimensions that files are joined along."""
    plan: IngestPlan = field(init=False)
    session: Session | None = None

    def try_once(self) -> str | None:
        """Plan on the tip of the branch, fill and commit.

        Raises:
            RebaseFailedError: the branch has other files or arrays meanwhile.
        """
        request, destination = self.request, self.request.destination
        self.tries += 1
        options = request.options if self.tries == 1 else request.renewed()
        self.session = existing = None
        if destination.repository is not None:
            destination.repository.handle.format.require_ingest(options.mode)
            self.session = destination.repository.writable_session(request.branch)
            existing = describe_existing(self.session.store, options.group, options.concat_dims)
            existing = require_group(existing, options, None, append=request.append)
        self._scan(options, {} if existing is None else existing.ledger.versions)
        existing = require_group(existing, options, self.found, append=request.append)
        plan = self._plan_and_fill(options, existing)
        num_quarantined = 0
        if request.on_error == "quarantine" and (plan.problems or self.session is not None):
            self.session = self.session or destination.settle().writable_session(request.branch)
            num_quarantined = record_problems(
                self.session.store, options.group, plan.problems, request.locations
            )
        if self.session is None or not self.session.has_uncommitted_changes:
            return None
        message = request.message or _message(plan, num_quarantined)
        try:
            return self.session.commit(message, rebase_with=ConflictDetector())
        except RebaseFailedError:
            self.earlier.keep(self.session, plan)
            raise

    def _plan_and_fill(self, options: IngestOptions, existing: Existing | None) -> IngestPlan:
        """Everything but the commit, without files that turn out to be damaged."""
        engine, request = self.engine, self.request
        while True:
            room, plan = _plan(self.found, options, existing, self.problems)
            self.plan = plan
            if request.on_error == "fail":
                plan.raise_problems()
            if plan.uncompared:
                digests: Digests = {}
                damaged: dict[str, str] = {}
                for some, unread in engine.digest(files_to_read(plan.uncompared, plan.sources)):
                    digests |= some
                    damaged |= unread
                self.found = transfer.with_digests(self.found, digests)
                wanted = list(plan.uncompared)
                if self.session is not None:
                    existing = transfer.digest_existing(
                        self.session.store, options.group, existing, wanted
                    )
            elif not plan.arrays:
                self.counts = self.reused = _NOTHING
                return plan
            else:
                session = self._writable(plan)
                plan, damaged = self._fill(session, plan, room, existing)
                if not damaged:
                    return plan
                session.discard_changes()
            self.found = [one for one in self.found if one.location not in damaged]
            self.problems += [Problem(location, reason) for location, reason in damaged.items()]

    def _writable(self, plan: IngestPlan) -> Session:
        """A session that may do what the plan says; creates the repository."""
        destination = self.request.destination
        if self.session is not None:
            require_free(self.session, plan)
        transfer.require_containers(self.engine.referred(plan), destination.containers)
        repository = destination.settle()
        if self.session is None:
            self.session = repository.writable_session(self.request.branch)
            if self.session.workspace.state.all_paths():
                # Another writer was the first to commit to the new repository.
                raise RebaseFailedError(self.session.snapshot_id, [])
        return self.session

    def _scan(self, options: IngestOptions, known: Mapping[str, SourceVersion]) -> None:
        """Look at the files, unless an earlier try did so with the same in mind."""
        looked_for = options.mode, options.concat_dims
        if self.scanned_for != looked_for:
            if self.scanned_for is not None:
                self.engine.close()
            self.found, self.problems = self.engine.scan(self.request.locations, options, known)
            self.scanned_for = looked_for

    def _fill(
        self,
        session: Session,
        plan: IngestPlan,
        room: insertion.Room | None,
        existing: Existing | None,
    ) -> tuple[IngestPlan, dict[str, str]]:
        """Everything but the commit; also tells which files turn out to be damaged, and why."""
        if room is not None:
            insertion.reserve_arrays(session, room.arrays)
            repository = self.request.destination.settle()
            base = repository.readonly_session(snapshot_id=session.snapshot_id).store
            self.engine.move(session, base, insertion.moves_of_arrays(room.arrays))
        transfer.write_metadata(session.store, plan)
        plan, self.reused = self.earlier.use(session, plan)
        counts, damaged = self.engine.fill(session, plan)
        self.counts, self.written = counts.plus(self.reused), self.written.plus(counts)
        if not damaged:
            for array in plan.arrays:
                if array.storage == "values":
                    transfer.write_values(session.store, array)
            enter_in_ledger(session.store, plan, Ledger() if existing is None else existing.ledger)
        return plan, damaged


def _message(plan: IngestPlan, num_quarantined: int) -> str:
    """What a commit did, in the words of its log."""
    num_replaced = len(plan.replaced) if plan.arrays else 0
    num_new = len(plan.sources) - num_replaced if plan.arrays else 0
    parts = {"ingested": num_new, "replaced": num_replaced, "quarantined": num_quarantined}
    said = [f"{verb} {counted(count, 'file')}" for verb, count in parts.items() if count]
    return ", ".join(said) or "updated the list of quarantined files"


def _plan(
    found: Sequence[SourceDescription],
    options: IngestOptions,
    existing: Existing | None,
    problems: Sequence[Problem],
) -> tuple[insertion.Room | None, IngestPlan]:
    """The plan, and the room that it needs between values that are there.

    Room is made for files that take part only, so that the plan is made again without the room
    of those that turn out not to fit.
    """
    while True:
        room = None if existing is None else insertion.plan_room(existing, found, options)
        if room is not None and room.refusal is not None:
            refused = [Problem(location, room.refusal) for location in room.needed_by]
            problems = [*problems, *refused]
            found = [source for source in found if source.location not in room.needed_by]
            continue
        plan = plan_ingest(found, options, existing if room is None else room.existing, problems)
        if room is None or len(plan.problems) == len(problems):
            return room, plan
        # The others may lack nothing but values in the room of these, which is not made then.
        problems = plan.problems[: plan.num_certain]
        left_out = {problem.location for problem in problems}
        found = [source for source in found if source.location not in left_out]


class LocalEngine:
    """Does the work of an ingest here: plain loops that say what the result has to be."""

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

    def digest(self, items: Sequence[FileToRead]) -> Iterator[Digested]:
        return transfer.digest_files(self._access, items)

    def move(self, session: Session, base: Store, moves: Sequence[insertion.BlockMove]) -> None:
        for move in moves:
            move.run(base, session.store)

    def referred(self, plan: IngestPlan) -> list[str]:
        found = {source.location for source in transfer.sources_of_references(plan)}
        for array in plan.arrays if len(found) < len(plan.sources) else ():
            rows = array.sources.tolist() if array.storage == "virtual" else []
            for source in (plan.sources[number] for number in rows):
                if source.location not in found:
                    table = self._references[source.location][array.path]
                    found.update(table["location"].unique().drop_null().to_pylist())
        return sorted(found)

    def fill(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        damaged: dict[str, str] = {}
        store = session.store
        filled = [array.target for array in plan.arrays if array.storage != "values"]
        before = _count(session, filled)  # chunks that made room
        native = (array for array in plan.arrays if array.storage == "native")
        blocks = [(array, region) for array in native for region in array.blocks()]
        total, done = sum(prod(shape_of(region)) for _, region in blocks), 0
        with OpenFiles(self._access) as files:
            for array, region in blocks:
                with transfer.collecting(damaged):
                    transfer.copy_region(store, plan, array, region, files)
                done += prod(shape_of(region))
                self._reporter.tell("copying values", done, total)
        for array in (array for array in plan.arrays if array.storage == "virtual"):
            sources = [plan.sources[number] for number in array.sources.tolist()]
            tables = [self._references[one.location][array.path] for one in sources]
            places = [transfer.placement_of(plan, array, row) for row in range(len(sources))]
            transfer.place_references(store, zip(places, tables, strict=True), damaged)
        return _count(session, filled).plus(before, -1), damaged

    def close(self) -> None:
        self._reporter.finish()


def _count(session: Session, targets: Sequence[str]) -> FillCounts:
    """What the session has set in these arrays."""
    state = session.workspace.state
    counts = FillCounts()
    for target in targets:
        edits = state.changes.chunks.get(state.node(f"/{target}").id)
        if edits is not None:
            counts = counts.plus(FillCounts.of(edits.columns()[0]))
    return counts


def ingest_local(
    sources: Sources, repository: Repository, **arguments: Unpack[IngestArguments]
) -> IngestReport:
    """Bring NetCDF, HDF5, GRIB, Zarr and kerchunk sources into a group, in one commit.

    The arguments are those of `icefloe.spark.ingest`, and so is the result; the work is done here.
    """
    request = make_request(sources, Destination.of(repository), arguments)
    return run_ingest(LocalEngine(request.access), request)
