"""Making the plan of an ingest from descriptions. Pure: nothing is read or written here."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.virtual.model.description import SourceDescription
from icefloe.virtual.planning.agreement import drop_repeated
from icefloe.virtual.planning.arrangement import Arrangement, Existing
from icefloe.virtual.planning.array_plans import ArrayPlanner
from icefloe.virtual.planning.axes import place_along, place_by_rank
from icefloe.virtual.planning.checks import (
    find_reference_trouble,
    find_trouble,
    find_uncompared,
    find_unlike_files,
)
from icefloe.virtual.planning.concat import find_dimensions, find_keys, place_new
from icefloe.virtual.planning.ledger import extent_of
from icefloe.virtual.planning.order import BY_COORDINATES, rank_all, ranks_in
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan, Problem
from icefloe.virtual.planning.selection import select_variables
from icefloe.virtual.planning.snapping import snap_coordinates


def plan_ingest(
    sources: Sequence[SourceDescription],
    options: IngestOptions,
    existing: Existing | None = None,
    problems: Sequence[Problem] = (),
) -> IngestPlan:
    """Decide what an ingest of these sources does.

    Files that do not fit are left out of the plan and listed in its `problems`, together with the
    `problems` that were found before; `IngestPlan.raise_problems` refuses such a plan.

    Raises:
        InvalidInputError: the options cannot be followed with any of the files.
    """
    found, kept, unchanged, replaced = list(problems), [], [], set()
    for source in sources:
        state = "new" if existing is None else existing.ledger.compare(source)
        if state == "same" or (state == "changed" and options.changed == "skip"):
            unchanged.append(source.location)
        elif state == "changed" and options.changed == "fail":
            reason = "it has changed since it was ingested; changed='replace' writes it anew"
            found.append(Problem(source.location, reason))
        else:
            picked, trouble = select_variables(source.without_references(), options.variables)
            if trouble is not None:
                found.append(Problem(source.location, trouble))
                continue
            kept.append(picked)
            if state == "changed":
                replaced.add(source.location)
    work = arrange(kept, options, existing, replaced)
    found += _settle(work)
    planner = ArrayPlanner(work)
    arrays = planner.plan_all()
    uncompared, notes = find_uncompared(work)
    return IngestPlan(
        options,
        tuple(work.live_sources()),
        planner.groups() if work.live_sources() or existing is None else {},
        tuple(arrays),
        work.concat_dims,
        tuple(found),
        tuple(unchanged),
        tuple(planner.notes + notes),
        uncompared,
    )


def arrange(
    sources: Sequence[SourceDescription],
    options: IngestOptions,
    existing: Existing | None,
    replaced: set[str],
) -> Arrangement:
    """Sources beside what is in the repository, before anything is known about their places."""
    old = [] if existing is None else [existing.description]
    live = snap_coordinates([*old, *sources])
    numbers = (number for number, source in enumerate(live) if source.location in replaced)
    return Arrangement(options, existing, list(live), frozenset(numbers))


def _settle(work: Arrangement) -> list[Problem]:
    """Leave out files until all others fit together; each pass leaves out at least one."""
    problems: list[Problem] = []
    while True:
        wrong = _pass(work)
        if not wrong:
            return problems
        for number, reason in sorted(wrong.items()):
            source = work.live[number]
            assert source is not None
            problems.append(Problem(source.location, reason))
            work.live[number] = None


def _pass(work: Arrangement) -> dict[int, str]:
    options = work.options
    live = [source for source in work.live if source is not None]
    work.concat_dims = find_dimensions(live, options)
    wrong = _find_other_extents(work) | _place_all(work)
    if wrong:
        return wrong
    work.make_boxes()
    work.unpacked = {}
    for path in work.boxes:
        wrong |= find_unlike_files(work, path)
    if wrong:
        return wrong
    wrong |= drop_repeated(work.boxes, work.names, work.replaced)
    for path in work.boxes:
        wrong |= find_trouble(work, path)
    if wrong or options.mode == "native":
        return wrong
    for path in work.boxes:
        wrong |= find_reference_trouble(work, path)
    return wrong


def _place_all(work: Arrangement) -> dict[int, str]:
    """Find the place of every source along every axis; returns those that have none."""
    options, num_old = work.options, work.num_old
    work.axes = {}
    new = [None if source is None else source.location for source in work.live]
    new[:num_old] = [None] * num_old
    ranks, wrong = rank_all(options.order, work.concat_dims, new)
    wrong |= _find_out_of_order(work)
    if wrong:
        return wrong
    for name in work.concat_dims:
        is_there = bool(find_keys(name, work.live[num_old:]))
        if name in ranks:
            for key in find_keys(name, work.live) or [("", name)]:
                result = place_by_rank(key, work.live, num_old, ranks[name])
                work.axes[key] = result.axis
                wrong |= result.problems
        elif not is_there:
            work.axes["", name] = place_new(name, work.live, num_old)
        else:
            for key in find_keys(name, work.live):
                result = place_along(key, work.live, num_old, may_overlap=work.late)
                work.axes[key] = result.axis
                wrong |= result.problems
    return wrong


def _find_other_extents(work: Arrangement) -> dict[int, str]:
    """Files that are replaced, but do not lie where they lay before."""
    if work.existing is None:
        return {}
    problems = {}
    extents = work.existing.ledger.extents
    for number in work.replaced:
        source = work.live[number]
        if source is None:
            continue
        if work.options.order != BY_COORDINATES:
            problems[number] = "it has changed, and where it was is known from coordinates only"
        elif extents.get(source.location) not in (None, extent_of(source, work.concat_dims)):
            problems[number] = (
                "it has changed, and has other coordinates or other variables than when it was "
                "ingested: what it no longer has would stay"
            )
    return problems


def _find_out_of_order(work: Arrangement) -> dict[int, str]:
    """Files whose names say that they come before files that are in the repository."""
    options = work.options
    dims = options.ranked_dims
    if work.existing is None or options.order in (BY_COORDINATES, "listed"):
        return {}
    new = [n for n in range(work.num_old, len(work.live)) if work.live[n] is not None]
    if len(dims) > 1:
        reason = "files that names place along several dimensions cannot be appended"
        return dict.fromkeys(new, reason)
    known = [ranks_in(location, options.order) for location in work.existing.ledger.versions]
    there = [found[dims[0]] for found in known if found is not None]
    problems = {}
    for number in new:
        source = work.live[number]
        assert source is not None
        found = ranks_in(source.location, options.order)
        if there and found is not None and found[dims[0]] <= max(there):
            problems[number] = (
                "its name comes before that of a file in the repository; files can only be appended"
            )
    return problems
