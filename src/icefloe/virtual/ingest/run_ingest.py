"""An ingest from the first look at the files to the commit. An engine does the work.

The loop is the same for one process and for a cluster: describe the sources, plan, make room where
values go between others, fill, commit. Files that turn out to be damaged while they are read are
left out, and the rest is planned anew, because the others may go elsewhere without them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from zarr.abc.store import Store

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.solvers import ConflictDetector
from icefloe.display.shown import counted
from icefloe.records import NamedTuple
from icefloe.virtual.ingest.comparing import Digests, digest_existing, with_digests
from icefloe.virtual.ingest.existing import describe_existing, require_free, require_group
from icefloe.virtual.ingest.keep_ledger import enter_in_ledger
from icefloe.virtual.ingest.quarantine import record_problems
from icefloe.virtual.ingest.report import IngestReport
from icefloe.virtual.ingest.request import IngestRequest
from icefloe.virtual.ingest.room import BlockMove, Room, moves_of_arrays, plan_room, reserve_arrays
from icefloe.virtual.ingest.transfer import require_containers, write_metadata, write_values
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.planning.arrangement import Existing
from icefloe.virtual.planning.ledger import Ledger
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan, Problem
from icefloe.virtual.planning.planning import plan_ingest


class FillCounts(NamedTuple):
    """Chunks and bytes written, and references set."""

    chunks: int = 0
    bytes: int = 0
    references: int = 0

    def plus(self, other: FillCounts, times: int = 1) -> FillCounts:
        """The sum, with the other counted some times."""
        return FillCounts(*(a + times * b for a, b in zip(self, other, strict=True)))


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
        ...

    def digest(self, plan: IngestPlan) -> tuple[Digests, dict[str, str]]:
        """The digests of `plan.uncompared`."""
        ...

    def move(self, session: Session, base: Store, moves: Sequence[BlockMove]) -> None:
        """Copy values of arrays from where `base` has them to where they are going to be."""
        ...

    def referred(self, plan: IngestPlan) -> list[str]:
        """Locations of files that the references of a plan lead to, as far as they are known."""
        ...

    def fill(self, session: Session, plan: IngestPlan) -> tuple[FillCounts, dict[str, str]]:
        """Fill the native and virtual arrays of a plan, in a session that has their metadata."""
        ...

    def close(self) -> None:
        """Release what the scan has kept."""
        ...


def run_ingest(engine: Engine, request: IngestRequest) -> IngestReport:
    """Run an ingest to its commit; `icefloe.spark.ingest` says what may be raised.

    A repository that is not there yet is created when the plan is settled, and not earlier.
    """
    started = time.monotonic()
    options, destination = request.options, request.destination
    session = existing = None
    if destination.repository is not None:
        destination.repository.handle.family.require_ingest(options.mode)
        session = destination.repository.writable_session(request.branch)
        existing = describe_existing(session.store, options.group, options.concat_dims)
        existing = require_group(existing, options, None, append=request.append)
    known = {} if existing is None else existing.ledger.versions
    found, problems = engine.scan(request.locations, options, known)
    try:
        existing = require_group(existing, options, found, append=request.append)
        while True:
            room, plan = _plan(found, options, existing, problems)
            if request.on_error == "fail":
                plan.raise_problems()
            if plan.uncompared:
                digests, damaged = engine.digest(plan)
                found = with_digests(found, digests)
                wanted = list(plan.uncompared)
                if session is not None:
                    existing = digest_existing(session.store, options.group, existing, wanted)
            elif not plan.arrays:
                counts = FillCounts()
                break
            else:
                if session is not None:
                    require_free(session, plan)
                require_containers(engine.referred(plan), destination.containers)
                repository = destination.settle()
                session = session or repository.writable_session(request.branch)
                counts, damaged = _fill(engine, repository, session, plan, room, existing)
                if not damaged:
                    break
                session.discard_changes()
            found = [source for source in found if source.location not in damaged]
            problems += [Problem(location, reason) for location, reason in damaged.items()]
    finally:
        engine.close()
    num_quarantined = 0
    if request.on_error == "quarantine" and (plan.problems or session is not None):
        session = session or destination.settle().writable_session(request.branch)
        num_quarantined = record_problems(
            session.store, options.group, plan.problems, request.locations
        )
    snapshot_id = None
    if session is not None and session.has_uncommitted_changes:
        message = request.message or _message(plan, num_quarantined)
        snapshot_id = session.commit(message, rebase_with=ConflictDetector())
    return IngestReport(
        snapshot_id,
        len(plan.sources) if plan.arrays else 0,
        len(plan.unchanged),
        len(plan.problems),
        *counts,
        time.monotonic() - started,
        plan.problems,
        plan.notes,
    )


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
) -> tuple[Room | None, IngestPlan]:
    """The plan, and the room that it needs between values that are there.

    Room is made for files that take part only, so that the plan is made again without the room
    of those that turn out not to fit.
    """
    while True:
        room = None if existing is None else plan_room(existing, found, options)
        if room is not None and room.refusal is not None:
            problems = [
                *problems,
                *(Problem(location, room.refusal) for location in room.needed_by),
            ]
            found = [source for source in found if source.location not in room.needed_by]
            continue
        plan = plan_ingest(found, options, existing if room is None else room.existing, problems)
        certain = plan.problems[: plan.num_certain]
        if room is None or len(plan.problems) == len(problems):
            return room, plan
        # The others may lack nothing but values in the room of these, which is not made then.
        problems = certain
        left_out = {problem.location for problem in certain}
        found = [source for source in found if source.location not in left_out]


def _fill(
    engine: Engine,
    repository: Repository,
    session: Session,
    plan: IngestPlan,
    room: Room | None,
    existing: Existing | None,
) -> tuple[FillCounts, dict[str, str]]:
    """Everything but the commit; also tells which files turn out to be damaged, and why."""
    if room is not None:
        reserve_arrays(session, room.arrays)
        base = repository.readonly_session(snapshot_id=session.snapshot_id).store
        engine.move(session, base, moves_of_arrays(room.arrays))
    write_metadata(session.store, plan)
    counts, damaged = engine.fill(session, plan)
    if not damaged:
        for array in plan.arrays:
            if array.storage == "values":
                write_values(session.store, array)
        enter_in_ledger(session.store, plan, Ledger() if existing is None else existing.ledger)
    return counts, damaged
