"""Where files go along the dimensions they are joined by.

All coordinate values of a dimension are put in order; a file's place is where its own values are in
that order. So names of files do not matter, files may follow each other along several dimensions at
once, and files with the same values but other variables share a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import TimeUnits, units_of
from icefloe.records import record
from icefloe.virtual.model.description import IN_REPOSITORY, SourceDescription, VariableDescription

AxisKey = tuple[str, str]
"""The group that defines a dimension, and its name."""
THE_REPOSITORY, OTHER_FILES = "the repository", "other files"
"""What a file is compared with, in messages."""


@record(frozen=True, eq=False)
class Axis:
    """One dimension of the target. `starts[i]` is the place of source i along it."""

    length: int
    starts: dict[int, int]
    sizes: dict[int, int]
    is_new: frozenset[int] = frozenset()
    """Sources that do not have the dimension themselves: one step each."""


@record()
class AxisResult:
    """The axis, unless files stand in its way: then which and why."""

    axis: Axis
    problems: dict[int, str] = field(default_factory=dict)


def coordinate_of(source: SourceDescription, scope: str, name: str) -> VariableDescription | None:
    """The coordinate of a dimension: in the group that defines it."""
    return source.variables.get(f"{scope}/{name}" if scope else name)


def scope_of(source: SourceDescription, group: str, name: str) -> str | None:
    """The group that defines dimension `name` as seen from `group`; None when none does."""
    while True:
        found = source.groups.get(group)
        if found is not None and name in found.dimensions:
            return group
        if not group:
            return None
        group = group.rpartition("/")[0]


def time_units(
    variable: VariableDescription, parent: Mapping[str, Any] | None = None
) -> TimeUnits | None:
    """The time units of a variable, if it holds times; bounds have those of their `parent`."""
    if variable.dtype == "string" or np.dtype(variable.dtype).kind not in "iuf":
        return None
    found: TimeUnits | None = units_of(variable.attributes, parent)
    return found


@record()
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
        coordinate = coordinate_of(source, scope, name)
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
        if units is not None and times is not None and not units.is_comparable(times):
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
) -> AxisResult:
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
            return AxisResult(Axis(0, {}, {}), problems | dict.fromkeys(marks.values, why))
        has_one = f"{THE_REPOSITORY} has" if min(marks.values) < num_old else f"{OTHER_FILES} have"
        problems |= dict.fromkeys(
            counted, f"it has dimension {name!r} without a coordinate, {has_one} one"
        )
        counted = {}
    if counted or not marks.values:
        return AxisResult(_by_order(counted), problems)
    result = _by_value(name, marks.comparable(), num_old, may_overlap, replaced)
    result.problems |= problems
    axis = result.axis
    result.axis = Axis(axis.length, axis.starts, axis.sizes, frozenset(marks.new))
    return result


def place_by_rank(
    key: AxisKey,
    sources: Sequence[SourceDescription | None],
    num_old: int,
    ranks: Mapping[int, Any],
) -> AxisResult:
    """Put sources in the order of their ranks along one dimension, whatever its values are.

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
    return AxisResult(Axis(at, starts, sizes, frozenset(new)), problems)


def _by_order(sizes: dict[int, int]) -> Axis:
    """Without coordinates files follow each other in the order they are listed."""
    starts, at = {}, 0
    for number, size in sizes.items():
        starts[number] = at
        at += size
    return Axis(at, starts, sizes)


def _by_value(
    name: str,
    marks: dict[int, NDArray[Any]],
    num_old: int,
    may_overlap: frozenset[int],
    replaced: frozenset[int],
) -> AxisResult:
    problems = _find_other_kinds(name, marks, num_old)
    if problems:
        return AxisResult(Axis(0, {}, {}), problems)
    is_descending = are_descending(marks)
    keys: dict[int, NDArray[Any]] = {}
    for number, values in marks.items():
        ordered = ascending(values) if is_descending else values
        trouble = find_disorder(name, ordered, is_descending=is_descending)
        if trouble and number < num_old:
            wrong = f"in the repository, {trouble}, so nothing can be appended"
            return AxisResult(Axis(0, {}, {}), {new: wrong for new in marks if new >= num_old})
        if trouble:
            problems[number] = trouble
        else:
            keys[number] = ordered
    for number in [number for number in keys if number < num_old]:
        problems |= _against_old(name, keys, number, num_old, may_overlap, replaced)
    for number in problems:
        keys.pop(number, None)
    if not keys:
        return AxisResult(Axis(0, {}, {}), problems)
    union = np.unique(np.concatenate(list(keys.values())))
    starts, sizes = {}, {}
    for number, values in keys.items():
        start = int(np.searchsorted(union, values[0])) if len(values) else 0
        found = union[start : start + len(values)]
        if len(found) == len(values) and bool((found == values).all()):
            starts[number], sizes[number] = start, len(values)
        elif number >= num_old:
            old = [other for other in keys if other < num_old and _overlap(keys[other], values)]
            problems[number] = (
                f"its values of {name!r} overlap with those of "
                f"{THE_REPOSITORY if old else OTHER_FILES} without being the same"
            )
    return AxisResult(Axis(len(union), starts, sizes), problems)


def _overlap(values: NDArray[Any], others: NDArray[Any]) -> bool:
    return bool(len(values) and len(others)) and bool(
        values[0] <= others[-1] and others[0] <= values[-1]
    )


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


def _against_old(
    name: str,
    keys: dict[int, NDArray[Any]],
    old: int,
    num_old: int,
    may_overlap: frozenset[int],
    replaced: frozenset[int],
) -> dict[int, str]:
    """Files that would have to go before the end of what is there already.

    The very same values are no problem yet: the file may bring other variables.
    """
    there = keys[old]
    problems = {}
    for number, values in keys.items():
        if number < num_old or not len(there) or not len(values) or values[0] > there[-1]:
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
