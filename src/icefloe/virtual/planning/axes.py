"""Coordinates along each dimension: concatenation and snapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import TimeUnits, units_of
from icefloe.errors import InvalidInputError
from icefloe.virtual.model.description import (
    IN_REPOSITORY,
    SourceDescription,
    VariableDescription,
    digest_in,
    form_of,
    forms_of,
    has_values,
    join_path,
)
from icefloe.virtual.planning.plan import IngestOptions

# All coordinate values of a dimension are put in order; a file's place is where its own values
# are in that order. So names of files do not matter, files may follow each other along several
# dimensions at once, and files with the same values but other variables share a place.

AxisKey = tuple[str, str]
"""The group that defines a dimension, and its name."""
THE_REPOSITORY, OTHER_FILES = "the repository", "other files"
"""What a file is compared with, in messages."""
_NO_VALUES = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One dimension of the target. `starts[i]` is the place of source i along it."""

    length: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    is_new: frozenset[int] = frozenset()
    """Sources that do not have the dimension themselves: one step each."""
    problems: dict[int, str] = field(default_factory=dict)
    """Sources that stand in its way, and why."""


def time_units(
    variable: VariableDescription, parent: Mapping[str, Any] | None = None
) -> TimeUnits | None:
    """The time units of a variable, if it holds times; bounds have those of their `parent`."""
    if variable.dtype == "string" or np.dtype(variable.dtype).kind not in "iuf":
        return None
    found: TimeUnits | None = units_of(variable.attributes, parent)
    return found


@dataclass
class Marks:
    """The coordinate values that sources have along one dimension, in forms that compare."""

    values: dict[int, NDArray[Any]] = field(default_factory=dict)
    units: dict[int, TimeUnits | None] = field(default_factory=dict)
    new: set[int] = field(default_factory=set)
    """Sources that do not have the dimension, but a scalar of its name."""
    counted: dict[int, int] = field(default_factory=dict)
    """The lengths of the dimension in sources without a coordinate for it."""
    problems: dict[int, str] = field(default_factory=dict)

    def comparable(self) -> dict[int, NDArray[Any]]:
        """Times in microseconds, unless all count alike: then the numbers as they are."""
        if len(set(self.units.values())) <= 1:
            return self.values
        return {
            number: values if (own := self.units[number]) is None else own.decode(values)
            for number, values in self.values.items()
        }


def marks_of(key: AxisKey, sources: Sequence[SourceDescription | None]) -> Marks:
    """What sources say about their places along one dimension."""
    scope, name = key
    marks = Marks()
    times: TimeUnits | None = None
    whose = ""
    for number, source in enumerate(sources):
        if source is None:
            continue
        coordinate = source.variables.get(join_path(scope, name))
        group = source.groups.get(scope)
        has_dimension = group is not None and name in group.dimensions
        if not has_dimension and (coordinate is None or coordinate.shape):
            continue
        if coordinate is None or (has_dimension and not coordinate.is_coordinate):
            assert group is not None
            marks.counted[number] = group.dimensions[name]
            continue
        if coordinate.values is None:
            count = coordinate.shape[0]
            marks.problems[number] = f"coordinate {name!r} is too long ({count:,} values)"
            continue
        units = time_units(coordinate)
        if units is not None and times is not None and units.calendar != times.calendar:
            marks.problems[number] = (
                f"coordinate {name!r} counts days of the calendar {units.calendar!r}, {whose} "
                f"those of {times.calendar!r}"
            )
            continue
        if times is None:
            times, whose = units, THE_REPOSITORY if source.format == IN_REPOSITORY else OTHER_FILES
        marks.values[number] = np.atleast_1d(coordinate.values)
        marks.units[number] = units
        if not has_dimension:
            marks.new.add(number)
    return marks


def place_along(
    key: AxisKey,
    sources: Sequence[SourceDescription | None],
    num_old: int = 0,
    *,
    may_overlap: frozenset[int] = frozenset(),
    replaced: frozenset[int] = frozenset(),
) -> Axis:
    """Put sources in order along one dimension; the first `num_old` keep the place they have.

    A None stands for a source that has been left out. Those of `may_overlap` may have values that
    the old ones have; those of `replaced` may have no others.
    """
    name = key[1]
    marks = marks_of(key, sources)
    problems, counted = marks.problems, marks.counted
    if marks.values and counted:
        if any(number < num_old for number in counted):
            why = f"it has a coordinate {name!r}, the dimension in the repository has none"
            return Axis(problems=problems | dict.fromkeys(marks.values, why))
        has_one = f"{THE_REPOSITORY} has" if min(marks.values) < num_old else f"{OTHER_FILES} have"
        problems |= dict.fromkeys(
            counted, f"it has dimension {name!r} without a coordinate, {has_one} one"
        )
        counted = {}
    if counted or not marks.values:  # files follow each other in the order they are listed
        stops = np.cumsum(list(counted.values()), dtype=np.int64).tolist()
        starts = dict(zip(counted, [0, *stops], strict=False))
        return Axis(stops[-1] if stops else 0, starts, problems=problems)
    axis = _by_value(name, marks.comparable(), num_old, may_overlap, replaced)
    return replace(axis, is_new=frozenset(marks.new), problems=axis.problems | problems)


def place_by_rank(
    key: AxisKey,
    sources: Sequence[SourceDescription | None],
    num_old: int,
    ranks: Mapping[int, Any],
) -> Axis:
    """Order sources by their ranks along one dimension, ignoring its values.

    Sources of the same rank share a place. New ones come after the old ones.
    """
    scope, name = key
    sizes: dict[int, int] = {}
    new: set[int] = set()
    for number, source in enumerate(sources):
        if source is None:
            continue
        group = source.groups.get(scope)
        length = None if group is None else group.dimensions.get(name)
        if length is None and number >= num_old:
            new.add(number)
        sizes[number] = (1 if number >= num_old else 0) if length is None else length
    at = sum(sizes[number] for number in sizes if number < num_old)
    starts = dict.fromkeys((number for number in sizes if number < num_old), 0)
    problems: dict[int, str] = {}
    by_rank: dict[Any, list[int]] = {}
    for number in sizes:
        if number >= num_old:
            by_rank.setdefault(ranks[number], []).append(number)
    for rank in sorted(by_rank):
        first, *others = by_rank[rank]
        for number in others:
            if sizes[number] != sizes[first]:
                problems[number] = (
                    f"it has {sizes[number]} along {name!r}, and another file at the same place "
                    f"{sizes[first]}"
                )
        starts |= dict.fromkeys(by_rank[rank], at)
        at += sizes[first]
    return Axis(at, starts, frozenset(new), problems)


def _by_value(
    name: str,
    marks: dict[int, NDArray[Any]],
    num_old: int,
    may_overlap: frozenset[int],
    replaced: frozenset[int],
) -> Axis:
    problems = _find_other_kinds(name, marks, num_old)
    if problems:
        return Axis(problems=problems)
    is_descending = are_descending(marks)
    keys: dict[int, NDArray[Any]] = {}
    for number, values in marks.items():
        ordered = ascending(values) if is_descending else values
        trouble = find_disorder(name, ordered, is_descending=is_descending)
        if trouble and number < num_old:
            wrong = f"in the repository, {trouble}, so nothing can be appended"
            return Axis(problems={new: wrong for new in marks if new >= num_old})
        if trouble:
            problems[number] = trouble
        else:
            keys[number] = ordered
    there = keys.get(0, _NO_VALUES) if num_old else _NO_VALUES
    new = {number: values for number, values in keys.items() if number >= num_old}
    problems |= _before_end(name, there, new, may_overlap, replaced)
    for number in problems:
        keys.pop(number, None)
    if not keys:
        return Axis(problems=problems)
    union = np.unique(np.concatenate(list(keys.values())))
    starts = {}
    for number, values in keys.items():
        start = int(np.searchsorted(union, values[0])) if len(values) else 0
        found = union[start : start + len(values)]
        if len(found) == len(values) and bool((found == values).all()):
            starts[number] = start
        elif number >= num_old:
            is_old = len(there) and values[0] <= there[-1] and there[0] <= values[-1]
            problems[number] = (
                f"its values of {name!r} overlap with those of "
                f"{THE_REPOSITORY if is_old else OTHER_FILES} without being the same"
            )
    return Axis(len(union), starts, problems=problems)


def _find_other_kinds(name: str, marks: Mapping[int, NDArray[Any]], num_old: int) -> dict[int, str]:
    """Files whose coordinate is text where that of the repository, or of most others, is not."""
    is_text = {number: values.dtype.kind in "OTSU" for number, values in marks.items()}
    old = [kind for number, kind in is_text.items() if number < num_old]
    usual = old[0] if old else sum(is_text.values()) * 2 > len(is_text)
    words = {True: "text", False: "numbers"}
    return {
        number: f"coordinate {name!r} has {words[kind]}, {THE_REPOSITORY if old else OTHER_FILES} "
        f"{words[usual]}"
        for number, kind in is_text.items()
        if kind != usual
    }


def are_descending(marks: Mapping[int, NDArray[Any]]) -> bool:
    """Whether all that have several values have them in descending order."""
    several = [values for values in marks.values() if len(values) > 1]
    return bool(several) and all(
        values.dtype.kind in "iuf" and bool(values[0] > values[-1]) for values in several
    )


def ascending(values: NDArray[Any]) -> NDArray[Any]:
    """Descending values turned round."""
    dtype: Any = np.int64 if values.dtype.kind == "u" else values.dtype
    return -values.astype(dtype)


def find_disorder(name: str, values: NDArray[Any], *, is_descending: bool) -> str | None:
    """Why values cannot be places along an axis; None if they can."""
    if values.dtype.kind == "f" and bool(np.isnan(values).any()):
        return f"coordinate {name!r} has missing values"
    if len(values) < 2 or values.dtype.kind not in "iuf":
        return None
    steps = values[1:] > values[:-1]
    if bool(steps.all()):
        return None
    at = int(np.flatnonzero(~steps)[0])
    if values[at] == values[at + 1]:
        return f"coordinate {name!r} has a value twice (positions {at} and {at + 1})"
    how = "descending" if is_descending else "ascending"
    return f"coordinate {name!r} is not {how} at position {at + 1}"


def _before_end(
    name: str,
    there: NDArray[Any],
    new: Mapping[int, NDArray[Any]],
    may_overlap: frozenset[int],
    replaced: frozenset[int],
) -> dict[int, str]:
    """Files that would have to go before the end of what is there already.

    The very same values are no problem yet: the file may bring other variables.
    """
    problems = {}
    for number, values in new.items():
        if not len(there) or not len(values) or values[0] > there[-1]:
            continue
        inside = values[values <= there[-1]] if number in may_overlap else values
        if bool(np.isin(inside, there).all()):
            continue
        if number in replaced:
            problems[number] = (
                f"it has changed, and has values of {name!r} that it did not have when it was "
                "ingested"
            )
            continue
        if number not in may_overlap:
            why = "files can only be appended, unless late='insert'"
        elif values.dtype.kind not in "iuf":
            why = "only numbers and times can be inserted"
        else:
            why = "they cannot be written exactly in its type and units"
        problems[number] = (
            f"its values of {name!r} start before the end of those in the repository; {why}"
        )
    return problems


_TOLERANCE = 1e-10
"""Of the largest value, and far below the steps between values."""
_MAX_FORMS = 16
"""A coordinate with more different values than this is one that files are joined along."""


def snap_coordinates(sources: Sequence[SourceDescription]) -> list[SourceDescription]:
    """Give coordinates that are almost those of an earlier file the values of that file."""
    forms: dict[str, dict[bytes, VariableDescription]] = {}
    result = []
    for source in sources:
        changed: dict[str, VariableDescription] = {}
        variables = source.variables
        for path in variables:
            digest = digest_in(variables, path)
            if digest is None or not has_values(variables, path):
                continue
            known = forms.setdefault(path, {})
            if not form_of(variables, path).shape or (
                digest not in known and len(known) >= _MAX_FORMS
            ):
                continue
            variable = variables[path]
            if digest in known:
                same = known[digest]
            else:
                same = next((one for one in known.values() if _is_close(one, variable)), variable)
                known[digest] = same
            if same.digest != variable.digest:
                changed[path] = replace(variable, values=same.values, digest=same.digest)
        result.append(
            source if not changed else replace(source, variables={**variables, **changed})
        )
    return result


def _is_close(one: VariableDescription, other: VariableDescription) -> bool:
    mine, theirs = one.values, other.values
    assert mine is not None
    assert theirs is not None
    if mine.shape != theirs.shape or mine.dtype.kind != "f" or mine.dtype != theirs.dtype:
        return False
    if one.attributes.get("units") != other.attributes.get("units"):
        return False
    allowed = _TOLERANCE * np.abs(mine[np.isfinite(mine)]).max(initial=0)
    steps = np.abs(np.diff(mine))
    if steps.size and allowed > steps.min() / 1000:
        return False
    return bool((np.abs(mine - theirs) <= allowed).all())


def find_dimensions(
    sources: Sequence[SourceDescription], options: IngestOptions
) -> tuple[str, ...]:
    """The dimensions that sources are joined along: those given, else those that differ."""
    return options.concat_dims or options.ranked_dims or detect_concat_dims(sources)


def detect_concat_dims(sources: Sequence[SourceDescription]) -> tuple[str, ...]:
    """Dimensions whose coordinates (or sizes, without coordinates) differ between files.

    Failing that, scalar coordinates that differ: they become dimensions. Files that share no
    variable but coordinates need none.

    Raises:
        InvalidInputError: files hold the same variables at the same coordinates.
    """
    if len(sources) < 2:
        return ()
    axes, scalars = _Differing(), _Differing()
    for source in sources:
        variables = source.variables
        for scope, group in source.groups.items():
            for name, size in group.dimensions.items():
                path = join_path(scope, name)
                units = ""
                if path in variables:
                    units = str(form_of(variables, path).attributes.get("units"))
                axes.see((scope, name), (size, digest_in(variables, path), units))
        named = _named_coordinates(source)
        for path in variables if named else ():
            if path in named and not form_of(variables, path).shape:
                scalars.see(path, digest_in(variables, path))
    differ = [name for _, name in axes.found()] or scalars.found()
    if not differ and _share_variables(sources):
        raise InvalidInputError(
            f"the {len(sources)} files have the same coordinates everywhere, so it is not known "
            "how they follow each other: name the dimension with concat_dim"
        )
    return tuple(dict.fromkeys(differ))


@dataclass
class _Differing:
    """Finds out what is not the same in all files, in memory that does not grow with them."""

    first: dict[Any, object] = field(default_factory=dict)
    differing: set[Any] = field(default_factory=set)

    def see(self, key: Any, value: object) -> None:
        if self.first.setdefault(key, value) != value:
            self.differing.add(key)

    def found(self) -> list[Any]:
        """Those that differ, in the order they were seen first."""
        return [key for key in self.first if key in self.differing]


def _named_coordinates(source: SourceDescription) -> set[str]:
    """Variables that others call their coordinates."""
    return {
        name
        for variable in forms_of(source.variables)
        for name in str(variable.attributes.get("coordinates", "")).split()
    }


def _share_variables(sources: Sequence[SourceDescription]) -> bool:
    seen: set[str] = set()
    for source in sources:
        for path in source.variables:
            is_coordinate = form_of(source.variables, path).is_coordinate
            if is_coordinate or digest_in(source.variables, path) is not None:
                continue
            if path in seen:
                return True
            seen.add(path)
    return False


def find_keys(name: str, sources: Sequence[SourceDescription | None]) -> list[AxisKey]:
    """The dimensions called `name`: in each group that defines it, or as a scalar at the root."""
    keys: dict[AxisKey, None] = {}
    for source in sources:
        if source is None:
            continue
        for scope, group in source.groups.items():
            if name in group.dimensions:
                keys[scope, name] = None
        if name in source.variables and not form_of(source.variables, name).shape:
            keys["", name] = None
    return list(keys)


def find_static(sources: Sequence[SourceDescription | None]) -> frozenset[str]:
    """Scalars, and variables that others call coordinates, that are the same in every file."""
    digests = _Differing()
    chosen: set[str] = set()
    for source in sources:
        if source is None:
            continue
        named = _named_coordinates(source)
        for path in source.variables:
            digests.see(path, digest_in(source.variables, path))
            if path in named or not form_of(source.variables, path).shape:
                chosen.add(path)
    known = {path for path, digest in digests.first.items() if digest is not None}
    return frozenset(chosen & known - digests.differing)
