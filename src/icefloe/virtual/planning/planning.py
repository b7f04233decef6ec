"""Making the plan of an ingest from descriptions. Pure: nothing is read or written here."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.errors import InvalidInputError
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
from icefloe.virtual.planning.plan import ArrayPlan, IngestOptions, IngestPlan, Problem
from icefloe.virtual.planning.selection import check_names, select_variables
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
    check_names(sources, options, None if existing is None else existing.description)
    found, kept, unchanged, replaced = list(problems), [], [], set()
    for source in sources:
        state = "new" if existing is None else existing.ledger.compare(source)
        if state == "same" or (state == "changed" and options.changed == "skip"):
            unchanged.append(source.location)
        elif state == "changed" and options.changed == "fail":
            reason = "it has changed since it was ingested; changed='replace' writes it again"
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
    first, later = _settle(work)
    found += first
    num_certain = len(found)
    found += later
    planner = ArrayPlanner(work)
    arrays = planner.plan_all()
    notes = list(planner.notes)
    uncompared, more_notes = find_uncompared(work)
    hints = [*_new_dimensions(work), *options.continued_hints]
    is_told = options.continued.get("mode") == "virtual" or "variables" in options.continued
    if work.live_sources():
        notes += _check_chunks(work, arrays)
        notes += hints if is_told else _new_dimensions(work)
    return IngestPlan(
        options,
        tuple(work.live_sources()),
        planner.groups() if work.live_sources() or existing is None else {},
        tuple(arrays),
        work.concat_dims,
        tuple(found),
        tuple(unchanged),
        tuple(notes + more_notes),
        uncompared,
        frozenset(source.location for source in work.live_sources()) & replaced,
        tuple(hints),
        num_certain,
    )


def _new_dimensions(work: Arrangement) -> list[str]:
    live = [source for source in work.live if source is not None]
    return [
        f"no file has a dimension {name!r}: it is new, with one step for each file"
        for name in work.concat_dims
        if live and not find_keys(name, live)
    ]


def _check_chunks(work: Arrangement, arrays: Sequence[ArrayPlan]) -> list[str]:
    """Notes about arrays that keep other chunks than those the user names.

    Raises:
        InvalidInputError: no array gets them.
    """
    options = work.options
    wanted = {} if "chunks" in options.continued else options.chunks
    kept, is_used = [], False
    for array in arrays:
        for name, size in zip(
            array.metadata.get("dimension_names") or (), array.chunks, strict=False
        ):
            is_used |= array.old_shape is None and name in wanted
            if array.old_shape is not None and wanted.get(name, size) != size:
                kept.append(f"array {array.path!r} has chunks of {size} along {name!r}")
    if kept and not is_used:
        raise InvalidInputError(
            f"chunks is {dict(wanted)}, but in the repository {kept[0]}, and arrays keep their "
            "chunks; leave chunks out, or use another group"
        )
    return [f"chunks are for new arrays: {text}, and keeps them" for text in kept]


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


def _settle(work: Arrangement) -> tuple[list[Problem], list[Problem]]:
    """Leave out files until all others fit together; each pass leaves out at least one.

    Returns what the first pass found, and what the others found.
    """
    first: list[Problem] = []
    later: list[Problem] = []
    while True:
        wrong = _pass(work)
        if not wrong:
            return first, later
        if wrong.keys() & range(work.num_old):  # what is there stays; nothing can be added to it
            new = (n for n in range(work.num_old, len(work.live)) if work.live[n] is not None)
            wrong = dict.fromkeys(new, f"in the repository, {wrong[0]}, so nothing can be appended")
        problems = later if first else first
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
                result = place_along(
                    key, work.live, num_old, may_overlap=work.late, replaced=work.replaced
                )
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
