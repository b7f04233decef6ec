"""How the variables of many files fit together: the box of each file, and what does not agree.

Nothing is decided by which file comes first in a list: where files differ, the odd ones out are
those that most others do not agree with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.axes import Axis, AxisKey, scope_of, time_units
from icefloe.virtual.data_types import canonical_dtype
from icefloe.virtual.description import SourceDescription, VariableDescription
from icefloe.virtual.times import TimeUnits, convert_times

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes without which a number means something else."""


@dataclass(frozen=True, slots=True)
class Box:
    """The part of an array that one file fills; dimensions are those of the target."""

    variable: VariableDescription
    dimensions: tuple[str, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    concat_axes: tuple[int, ...]
    num_new_axes: int
    times: TimeUnits | None


Axes = Mapping[AxisKey, Axis]


@dataclass(slots=True)
class BoxMaker:
    """Makes boxes for files that have most of their variables in common.

    What holds for all files that share a description of a variable is found out once; a file adds
    where it starts. Files that share even that, because nothing is joined there, share the box.
    """

    axes: Axes
    concat_dims: Sequence[str]
    static: frozenset[str]
    _forms: dict[tuple[int, int, tuple[bool, ...]], _Form] = field(default_factory=dict)

    def boxes(self, number: int, source: SourceDescription) -> Iterator[tuple[str, Box]]:
        """The box of every variable of source `number`."""
        is_new = tuple(number in axis.is_new for axis in self.axes.values())
        parents: dict[str, Mapping[str, Any]] | None = None
        for path, variable in source.variables.items():
            key = (id(variable), id(source.groups), is_new)
            form = self._forms.get(key)
            if form is None:
                parents = bounds_parents(source) if parents is None else parents
                form = self._form(number, source, variable, parents.get(path))
                if variable.digest is None or not form.box.concat_axes:
                    self._forms[key] = form  # values along joined dimensions are nobody else's
            yield path, form.at(number)

    def _form(
        self,
        number: int,
        source: SourceDescription,
        variable: VariableDescription,
        parent: Mapping[str, Any] | None,
    ) -> _Form:
        """What a box of this variable is made of. `static` variables get no new dimensions."""
        own: list[Axis | None] = []
        for name in variable.dimensions:
            scope = scope_of(source, variable.group, name)
            own.append(None if scope is None else self.axes.get((scope, name)))
        new = [
            (name, self.axes["", name])
            for name in self.concat_dims
            if ("", name) in self.axes and number in self.axes["", name].is_new
        ]
        if variable.path in {name for name, _ in new}:
            new = [(name, axis) for name, axis in new if name == variable.path]
        elif variable.path in self.static or variable.is_coordinate:
            new = []
        dimensions = (*(name for name, _ in new), *variable.dimensions)
        concat = tuple(at for at, name in enumerate(dimensions) if name in self.concat_dims)
        whole = Box(
            variable,
            dimensions,
            (0,) * len(dimensions),
            (*(1 for _ in new), *variable.shape),
            concat,
            len(new),
            time_units(variable, parent),
        )
        return _Form(whole, (*(axis for _, axis in new), *own))


@dataclass(frozen=True, slots=True)
class _Form:
    """A box without its place, and the axes its dimensions lie along."""

    box: Box
    axes: tuple[Axis | None, ...]

    def at(self, number: int) -> Box:
        """The box of one source."""
        if not any(self.axes):
            return self.box
        box = self.box
        start = tuple(0 if axis is None else axis.starts.get(number, 0) for axis in self.axes)
        return Box(
            box.variable,
            box.dimensions,
            start,
            box.shape,
            box.concat_axes,
            box.num_new_axes,
            box.times,
        )


def bounds_parents(source: SourceDescription) -> dict[str, Mapping[str, Any]]:
    """The attributes of those variables that have bounds, by the path of the bounds."""
    found: dict[str, Mapping[str, Any]] = {}
    for variable in source.variables.values():
        for attribute in ("bounds", "climatology"):
            name = variable.attributes.get(attribute)
            if isinstance(name, str) and time_units(variable) is not None:
                found[f"{variable.group}/{name}" if variable.group else name] = variable.attributes
    return found


# -- what has to be the same


@dataclass(frozen=True, slots=True)
class Signature:
    """What all files have to agree on about one variable."""

    dimensions: tuple[str, ...]
    dtype: str
    shape: tuple[int | None, ...]
    packing: tuple[tuple[str, str], ...]
    digest: bytes | None

    def difference(self, other: Signature) -> str:
        """What this one has and the other one has not."""
        if self.dimensions != other.dimensions:
            return f"dimensions {self.dimensions}, other files {other.dimensions}"
        if self.dtype != other.dtype:
            return f"type {self.dtype}, other files {other.dtype}"
        if self.shape != other.shape:
            sizes = [
                f"{name} {mine}, other files {theirs}"
                for name, mine, theirs in zip(self.dimensions, self.shape, other.shape, strict=True)
                if mine != theirs
            ]
            return f"size of {'; '.join(sizes)}"
        mine, theirs = dict(self.packing), dict(other.packing)
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                return f"{name} {mine.get(name, 'not set')}, other files " + theirs.get(
                    name, "not set"
                )
        return "values that other files have not"


def signature_of(box: Box, *, ignores_packing: bool = False) -> Signature:
    """The signature of one file's variable. Sizes along joined dimensions do not count."""
    variable = box.variable
    attributes = variable.attributes
    counted = () if ignores_packing else PACKING
    packing = {name: json.dumps(attributes[name]) for name in counted if name in attributes}
    if box.times is not None:
        packing["calendar"] = box.times.calendar
    elif "units" in attributes:
        packing["units"] = json.dumps(attributes["units"])
    shape = tuple(None if at in box.concat_axes else size for at, size in enumerate(box.shape))
    return Signature(
        box.dimensions,
        "" if ignores_packing else canonical_dtype(variable.dtype),
        shape,
        tuple(sorted(packing.items())),
        None if box.concat_axes else variable.digest,
    )


def find_disagreements(
    path: str, boxes: Mapping[int, Box], num_old: int, *, ignores_packing: bool = False
) -> dict[int, str]:
    """Sources whose variable is not like that of most others, or of the repository."""
    known: dict[tuple[int, TimeUnits | None, tuple[str, ...]], Signature] = {}
    equal: dict[Signature, Signature] = {}
    signatures = {}
    for number, box in boxes.items():
        key = (id(box.variable), box.times, box.dimensions)
        found = known.get(key)
        if found is None:
            made = signature_of(box, ignores_packing=ignores_packing)
            found = equal.setdefault(made, made)
            if not box.concat_axes or box.variable.digest is None:
                known[key] = found
        signatures[number] = found
    if len(equal) < 2:
        return {}
    old = [signature for number, signature in signatures.items() if number < num_old]
    usual = old[0] if old else Counter(signatures.values()).most_common(1)[0][0]
    return {
        number: f"variable {path!r} has {signature.difference(usual)}"
        for number, signature in signatures.items()
        if signature != usual and number >= num_old and not _is_unknown(signature, usual)
    }


def _is_unknown(found: Signature, usual: Signature) -> bool:
    """Whether they differ only in values that one side was too large to look at."""
    if found.digest is not None and usual.digest is not None:
        return False
    return (found.dimensions, found.dtype, found.shape, found.packing) == (
        usual.dimensions,
        usual.dtype,
        usual.shape,
        usual.packing,
    )


def find_inexact_times(path: str, boxes: Mapping[int, Box], wanted: Box) -> dict[int, str]:
    """Sources whose times cannot be written in the units of the first file."""
    if wanted.times is None:
        return {}
    problems = {}
    dtype = np.dtype(wanted.variable.dtype)
    for number, box in boxes.items():
        if box.times is None or box.times == wanted.times:
            continue
        values = box.variable.values
        if values is None:
            continue
        if convert_times(values, box.times, wanted.times, dtype) is None:
            units = wanted.variable.attributes.get("units")
            problems[number] = (
                f"times of {path!r} are no whole {dtype} in {units!r}, the units of the first file"
            )
    return problems


# -- overlaps


def find_overlaps(
    path: str,
    boxes: Mapping[int, Box],
    num_old: int,
    names: Sequence[str],
    late: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """Sources that fill what an earlier one (in the order listed) fills already.

    Coordinates have been put in order already: at the same place they have the same values. Those
    of `late` may lie inside of what is in the repository.
    """
    placed = [
        (number, box)
        for number, box in boxes.items()
        if box.concat_axes and box.dimensions != (box.variable.name,)
    ]
    if len(placed) < 2:
        return {}
    num_placed_old = sum(number < num_old for number, _ in placed)
    axes = placed[0][1].concat_axes
    starts = np.array([[box.start[at] for at in axes] for _, box in placed], np.int64)
    sizes = np.array([[box.shape[at] for at in axes] for _, box in placed], np.int64)
    if _is_disjoint(starts, sizes):
        return {}
    edges = [
        np.unique(np.concatenate([low, low + size]))
        for low, size in zip(starts.T, sizes.T, strict=True)
    ]
    owner = np.full([len(edge) for edge in edges], -1, np.int64)
    problems = {}
    for row, (number, _) in enumerate(placed):
        spans = tuple(
            slice(*np.searchsorted(edge, [low, low + size]).tolist())
            for edge, low, size in zip(edges, starts[row], sizes[row], strict=True)
        )
        taken = owner[spans]
        if number in late:
            taken = taken[taken >= num_placed_old]
        if bool((taken >= 0).any()):
            other = placed[int(taken.max())][0]
            where = "the repository" if other < num_old else names[other]
            problems[number] = f"variable {path!r} has values at places that {where} fills already"
        else:
            owner[spans] = row
    return problems


def drop_repeated(
    all_boxes: Mapping[str, dict[int, Box]],
    names: Sequence[str],
    replaced: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """Take boxes out that fill the very same place with the very same values as another source.

    Files with different variables bring the same bounds. A file of which nothing is left is the
    same as another one, and is returned with the reason, unless it is `replaced`.
    """
    brought: Counter[int] = Counter()
    repeated: dict[int, list[int]] = {}
    for boxes in all_boxes.values():
        for number, box in boxes.items():
            brought[number] += bool(box.concat_axes) and box.dimensions != (box.variable.name,)
        for number, other in _repeated(boxes).items():
            del boxes[number]
            repeated.setdefault(number, []).append(other)
    return {
        number: f"it holds the same as {names[others[0]]}"
        for number, others in repeated.items()
        if len(others) == brought[number] and number not in replaced
    }


def _repeated(boxes: Mapping[int, Box]) -> dict[int, int]:
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    found = {}
    for number, box in boxes.items():
        is_coordinate = box.dimensions == (box.variable.name,)
        if box.variable.digest is None or not box.concat_axes or is_coordinate:
            continue
        first = seen.setdefault((box.start, box.shape), number)
        if first != number and boxes[first].variable.digest == box.variable.digest:
            found[number] = first
    return found


def _is_disjoint(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    if starts.shape[1] != 1:
        return False
    order = np.argsort(starts[:, 0], kind="stable")
    first, last = starts[order, 0], starts[order, 0] + sizes[order, 0]
    return bool((first[1:] >= last[:-1]).all())


def as_matrix(rows: Sequence[Sequence[int]], ndim: int) -> NDArray[np.int64]:
    """Rows of numbers as a matrix, also when there are none."""
    return np.array(rows, np.int64).reshape(len(rows), ndim)


def fill_of(variable: VariableDescription) -> Any:
    """The stored number that marks a missing value of an integer variable, if there is one."""
    found = variable.attributes.get("_FillValue")
    return found if isinstance(found, int) else None
