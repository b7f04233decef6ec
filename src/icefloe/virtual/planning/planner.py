"""Descriptions of sources to an `IngestPlan`, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import convert_times
from icefloe.errors import InvalidInputError
from icefloe.virtual.model.data_types import little_endian, prepare_fill
from icefloe.virtual.model.description import (
    Json,
    SourceDescription,
    VariableDescription,
    form_of,
    join_path,
)
from icefloe.virtual.planning import agreement
from icefloe.virtual.planning.axes import (
    find_dimensions,
    find_keys,
    place_along,
    place_by_rank,
    snap_coordinates,
)
from icefloe.virtual.planning.file_boxes import (
    LEDGER_GROUP,
    Arrangement,
    Existing,
    FileBox,
    FileBoxes,
    extent_of,
    is_coordinate,
)
from icefloe.virtual.planning.plan import (
    BY_COORDINATES,
    ArrayPlan,
    IngestOptions,
    IngestPlan,
    Packing,
    Problem,
    packing_of,
    rank_all,
    ranks_in,
    unpacked,
)

_NEAR = 0.75
"""Similarity above which one name counts as a misspelling of the other."""


def check_names(
    sources: Sequence[SourceDescription],
    options: IngestOptions,
    existing: SourceDescription | None,
) -> None:
    """Refuse names that neither a file nor the group has; sources may be known by version only.

    A dimension to join along may be new, unless its name is almost that of another one.

    Raises:
        InvalidInputError: names it, and the nearest one that there is.
    """
    opened = [source for source in sources if source.groups]
    if not opened:
        return
    known = [*opened, *(() if existing is None else (existing,))]
    dimensions = {
        name for one in known for group in one.groups.values() for name in group.dimensions
    }
    joined = set(options.concat_dims or options.ranked_dims)
    for name in sorted(joined - dimensions):
        is_scalar = any(name in source.variables for source in known)
        near = get_close_matches(name.casefold(), [*map(str.casefold, dimensions)], 1, _NEAR)
        if near and not is_scalar:
            argument = "order" if options.concat_dims is None else "concat_dim"
            raise _unknown(argument, name, dimensions, "dimension")
    for name in options.chunks:
        if name not in dimensions | joined:
            raise _unknown("chunks", name, dimensions | joined, "dimension")
    for name in options.variables or ():
        is_known = any(
            name in source.variables or any(path.endswith(f"/{name}") for path in source.variables)
            for source in known
        )
        if not is_known:
            paths = {path for source in known[:100] for path in source.variables}
            raise _unknown("variables", name, paths, "variable")


def _unknown(argument: str, name: str, known: Iterable[str], what: str) -> InvalidInputError:
    by_folded = {each.casefold(): each for each in known}
    near = get_close_matches(name.casefold(), by_folded, 1)
    hint = f"did you mean {by_folded[near[0]]!r}? " if near else ""
    return InvalidInputError(
        f"{argument} names {name!r}, a {what} that no file has; {hint}They have "
        f"{', '.join(sorted(by_folded.values())) or 'none'}"
    )


def select_variables(
    source: SourceDescription, wanted: Sequence[str] | None
) -> tuple[SourceDescription, str | None]:
    """The source with only these variables, and why it cannot be used, if it cannot."""
    variables = source.variables
    if wanted is not None:
        chosen = {
            path: variable
            for path, variable in variables.items()
            if path in wanted or variable.name in wanted
        }
        variables = {**chosen, **_coordinates(source, chosen)}
        variables = {path: variables[path] for path in source.variables if path in variables}
    if not variables:
        if not source.variables:
            return source, "it has no variables"
        return source, f"it has none of {list(wanted or ())}; it has {sorted(source.variables)}"
    for path in variables:
        variable = form_of(variables, path)
        if not is_zarr_path(path):
            return source, f"the name {path!r} cannot be that of an array in Zarr"
        if variable.data_type is None:
            return source, (
                f"variable {path!r} cannot be stored: {variable.reason}; leave it out with "
                "variables=[...]"
            )
    return (source if wanted is None else replace(source, variables=variables)), None


def is_zarr_path(path: str) -> bool:
    """Whether Zarr leaves a path as it is; it takes backslashes for slashes."""
    names = path.split("/")
    is_plain = "\\" not in path and not {"", ".", "..", "zarr.json"} & set(names)
    return is_plain and names[0] != LEDGER_GROUP


def _coordinates(
    source: SourceDescription, chosen: dict[str, VariableDescription]
) -> dict[str, VariableDescription]:
    """Coordinates of the dimensions, those named in `coordinates`, bounds and grid mappings."""
    found: dict[str, VariableDescription] = {}
    todo = list(chosen.values())
    while todo:
        variable = todo.pop()
        attributes = variable.attributes
        names = [*variable.dimensions, str(attributes.get("bounds", ""))]
        names += str(attributes.get("coordinates", "")).split()
        names += str(attributes.get("grid_mapping", "")).split()
        for name in filter(None, names):
            other = _visible(source, variable.group, name)
            if other is not None and other.path not in found and other.path not in chosen:
                found[other.path] = other
                todo.append(other)
    return found


def _visible(source: SourceDescription, group: str, name: str) -> VariableDescription | None:
    """A variable of this name in the group or the nearest one above it."""
    while group and join_path(group, name) not in source.variables:
        group = group.rpartition("/")[0]
    return source.variables.get(join_path(group, name))


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
    old = [] if existing is None else [existing.description]
    live = snap_coordinates([*old, *kept])
    numbers = (number for number, source in enumerate(live) if source.location in replaced)
    work = Arrangement(options, existing, list(live), frozenset(numbers))
    unfit, num_first = _settle(work)
    num_certain = len(found) + num_first
    found += unfit
    planner = ArrayPlanner(work)
    arrays = planner.plan_all()
    notes = planner.notes
    uncompared, more_notes = agreement.find_uncompared(work)
    new_dimensions = [
        f"no file has a dimension {name!r}: it is new, with one step for each file"
        for name in work.concat_dims
        if any(work.live) and not find_keys(name, work.live)
    ]
    hints = [*new_dimensions, *options.continued_hints]
    is_told = options.continued.get("mode") == "virtual" or "variables" in options.continued
    sources = tuple(work.new_sources().values())
    if sources:
        notes += _check_chunks(work, arrays)
        notes += hints if is_told else new_dimensions
    return IngestPlan(
        options,
        sources,
        planner.groups() if sources or existing is None else {},
        tuple(arrays),
        work.concat_dims,
        tuple(found),
        tuple(unchanged),
        tuple(notes + more_notes),
        uncompared,
        frozenset(source.location for source in sources) & replaced,
        tuple(hints),
        num_certain,
    )


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


def _settle(work: Arrangement) -> tuple[list[Problem], int]:
    """Leave out files until all others fit together; each pass leaves out at least one.

    Returns what is wrong with them, and how many of them the first pass found.
    """
    problems: list[Problem] = []
    num_first = 0
    while wrong := _pass(work):
        sources = work.new_sources()
        if wrong.keys() & range(work.num_old):  # what is there stays; nothing can be added to it
            reason = f"in the repository, {wrong[0]}, so nothing can be appended"
            wrong = dict.fromkeys(sources, reason)
        for number, reason in sorted(wrong.items()):
            problems.append(Problem(sources[number].location, reason))
            work.live[number] = None
        num_first = num_first or len(problems)
    return problems, num_first


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
        wrong |= agreement.find_unlike_files(work, path)
    if wrong:
        return wrong
    wrong |= agreement.drop_repeated(work.boxes, work.names, work.replaced)
    for path in work.boxes:
        wrong |= agreement.find_trouble(work, path)
    if wrong or options.mode == "native":
        return wrong
    for path in work.boxes:
        wrong |= agreement.find_reference_trouble(work, path)
    return wrong


def _place_all(work: Arrangement) -> dict[int, str]:
    """Find the place of every source along every axis; returns those that have none."""
    options, num_old = work.options, work.num_old
    work.axes = {}
    new = {number: source.location for number, source in work.new_sources().items()}
    ranks, wrong = rank_all(options.order, work.concat_dims, new)
    wrong |= _find_out_of_order(work)
    if wrong:
        return wrong
    for name in work.concat_dims:
        keys = find_keys(name, work.live) or [("", name)]
        if name not in ranks and not find_keys(name, work.live[num_old:]):
            # No file has it: one step for each, in the order listed.
            keys, ranks[name] = [("", name)], {number: number for number in range(len(work.live))}
        for key in keys:
            if name in ranks:
                axis = place_by_rank(key, work.live, num_old, ranks[name])
            else:
                axis = place_along(
                    key, work.live, num_old, may_overlap=work.late, replaced=work.replaced
                )
            work.axes[key] = axis
            wrong |= axis.problems
    return wrong


def _find_other_extents(work: Arrangement) -> dict[int, str]:
    """Files that are replaced, but do not lie where they lay before."""
    if work.existing is None:
        return {}
    problems = {}
    extents = work.existing.ledger.extents
    sources = work.new_sources()
    for number in work.replaced & sources.keys():
        source = sources[number]
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
    sources = work.new_sources()
    if len(dims) > 1:
        reason = "files that names place along several dimensions cannot be appended"
        return dict.fromkeys(sources, reason)
    known = [ranks_in(location, options.order) for location in work.existing.ledger.versions]
    there = [found[dims[0]] for found in known if found is not None]
    reason = "its name comes before that of a file in the repository; files can only be appended"
    ranks = {n: ranks_in(source.location, options.order) for n, source in sources.items()}
    return {
        number: reason
        for number, found in ranks.items()
        if there and found is not None and found[dims[0]] <= max(there)
    }


Storage = Literal["virtual", "native", "values"]


@dataclass
class ArrayPlanner:
    """Makes the plans of all arrays, and notes about them."""

    work: Arrangement
    notes: list[str] = field(default_factory=list)
    _renumbered: dict[int, int] = field(default_factory=dict)
    """Numbers of the plan's sources, by their numbers in the arrangement."""

    def plan_all(self) -> list[ArrayPlan]:
        """The plan of every array that changes."""
        work = self.work
        self._renumbered = {number: row for row, number in enumerate(work.new_sources())}
        plans = []
        for path, boxes in work.boxes.items():
            new = work.new(boxes)
            box = boxes[work.first(boxes)]
            if work.document(path) is not None:
                # Files without an array that is there make it longer too.
                grows = bool(new) or work.lengths(path, box) != work.old_shape(path)
                if not box.concat_axes or not grows:
                    continue
            if not box.concat_axes:
                first = work.first(new)
                new = new.without([number for number in new if number != first])
            plans.append(self._plan(path, box, new))
        return plans

    def _plan(self, path: str, box: FileBox, new: FileBoxes) -> ArrayPlan:
        work = self.work
        shape = work.lengths(path, box)
        old = work.document(path)
        storage, chunks, note = self._storage(path, box, new)
        self.notes += [f"variable {path!r}: {text}" for text in box.variable.notes]
        kinds = new.kinds()
        first, packings, packed_as = self._packings(path, box, new)
        has_gaps = storage == "virtual" and any(item.variable.has_gaps for item in kinds.values())
        variable, reserved = prepare_fill(
            first, has_holes=work.has_holes(path, box), has_gaps=has_gaps
        )
        rows, values = list(new), None
        starts = new.starts() if rows else agreement.as_matrix([], len(shape))
        shapes = new.shapes() if rows else agreement.as_matrix([], len(shape))
        if storage == "values":
            start, values = _joined_values(box, new, work.boxes[path].get(0) if old else None)
            starts, shapes = (
                agreement.as_matrix([start], len(shape)),
                agreement.as_matrix([values.shape], len(shape)),
            )
            rows = rows[:1]
        others = {
            self._renumbered[number]: item.times
            for item, numbers in new.by_kind()
            if item.times is not None and item.times != box.times
            for number in numbers
        }
        return ArrayPlan(
            path,
            target_of(work.options.group, path),
            self._document(old, storage, variable, box, shape, chunks),
            storage,
            np.array([self._renumbered[row] for row in rows], np.int32),
            starts,
            shapes,
            next((item.num_new_axes for item in kinds.values()), box.num_new_axes),
            values,
            box.times if others else None,
            others,
            packings,
            packed_as,
            None if old is None else tuple(old["shape"]),
            reserved if old is None else None,
            note,
            self._guarded(old, box, new) if storage != "values" else frozenset(),
        )

    def _storage(
        self, path: str, box: FileBox, new: FileBoxes
    ) -> tuple[Storage, tuple[int, ...] | None, str | None]:
        """How an array is filled, the chunks of one made of references, and why it is copied."""
        work = self.work
        if work.comes_with_values(box, new):
            return "values", None, None
        if work.options.mode != "virtual" or not new:
            return "native", None, None
        chunks, note = agreement.reference_chunks(work, path, new, box)
        if chunks is not None and agreement.find_misaligned(
            path, new, chunks, work.lengths(path, box)
        ):
            chunks, note = None, "files do not end where chunks do"
        if note is not None:
            self.notes.append(f"variable {path!r} is copied: {note}")
        return ("native" if chunks is None else "virtual"), chunks, note

    def _packings(
        self, path: str, box: FileBox, new: FileBoxes
    ) -> tuple[VariableDescription, dict[int, Packing], Packing | None]:
        """The variable as it is stored, how files pack it, and how it is packed in the end."""
        kind = self.work.unpacked.get(path)
        if kind is None:
            return box.variable, {}, None
        packings: dict[int, Packing] = {}
        for item, numbers in new.by_kind():
            packing = packing_of(item.variable)
            assert packing is not None
            packings |= {self._renumbered[number]: packing for number in numbers}
        own = packing_of(box.variable)
        if self.work.document(path) is not None and own is not None and not own.is_plain:
            self.notes.append(
                f"variable {path!r}: files pack it in other ways than the repository, so that "
                f"values are rounded to its steps of {1 if own.scale is None else own.scale}"
            )
            return box.variable, packings, own
        first = unpacked(box.variable, kind)
        self.notes += [f"variable {path!r}: {text}" for text in first.notes]
        return first, packings, None

    def _document(
        self,
        old: dict[str, Json] | None,
        storage: Storage,
        variable: VariableDescription,
        box: FileBox,
        shape: tuple[int, ...],
        chunks: tuple[int, ...] | None,
    ) -> dict[str, Json]:
        if old is not None:
            return {**old, "shape": list(shape)}
        if storage == "virtual":
            assert chunks is not None
            assert variable.codecs is not None
            return agreement.array_document(
                variable, box.dimensions, shape, chunks, variable.codecs
            )
        chosen = agreement.choose_chunks(box, shape, self.work.options.chunks)
        codecs = agreement.native_codecs(variable.dtype, chosen)
        return agreement.array_document(variable, box.dimensions, shape, chosen, codecs)

    def _guarded(self, old: dict[str, Json] | None, box: FileBox, new: FileBoxes) -> frozenset[int]:
        """Sources that lie where values may be already; what they replace is theirs."""
        if old is None or self.work.options.late != "insert" or not len(new):
            return frozenset()
        axes = list(box.concat_axes)
        is_inside = (new.starts()[:, axes] < np.array(old["shape"])[axes]).all(axis=1)
        inside = set(new.numbers[is_inside].tolist()) - self.work.replaced
        return frozenset(self._renumbered[number] for number in inside)

    def groups(self) -> dict[str, dict[str, Json]]:
        """Groups to be made, with the attributes of the first file that has them."""
        work = self.work
        found: dict[str, dict[str, Json]] = {}
        there = set() if work.existing is None else set(work.existing.description.groups)
        sources = work.new_sources()
        for number in sorted(sources, key=work.order):
            for path in sources[number].groups:
                target = target_of(work.options.group, path)
                if path not in there and target not in found:
                    found[target] = sources[number].attributes_of(path)
        return found


def target_of(group: str, path: str) -> str:
    """The path in the repository of a path in the sources."""
    return "/".join(filter(None, (group.strip("/"), path)))


def _joined_values(
    box: FileBox, new: FileBoxes, old: FileBox | None
) -> tuple[tuple[int, ...], NDArray[Any]]:
    """The values of a small coordinate, put together and in the units of the first file.

    Also where they start. Between those of new files there may be old ones.
    """
    text = box.variable.dtype
    dtype = np.dtype(object) if text == "string" else np.dtype(little_endian(text))
    if not box.dimensions:
        return (), np.asarray(next(iter(new.values())).variable.values, dtype)
    assert is_coordinate(box)
    first, last = int(new.starts().min()), int((new.starts() + new.shapes()).max())
    joined = np.zeros(last - first, dtype)
    if old is not None and old.variable.values is not None:
        kept = old.variable.values[first:last]
        joined[: len(kept)] = kept
    for item in new.values():
        values = item.variable.values
        assert values is not None
        if item.times is not None and box.times is not None and item.times != box.times:
            values = convert_times(values, item.times, box.times, dtype)
            assert values is not None
        joined[item.start[0] - first : item.start[0] - first + item.shape[0]] = values
    return (first,), joined
