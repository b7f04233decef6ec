"""The parts of arrays that files fill, as columns: one row for each file that has the variable."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import TimeUnits
from icefloe.virtual.model.description import SourceDescription, VariableDescription
from icefloe.virtual.model.shared_variables import SharedVariables, digest_in, form_of, forms_of
from icefloe.virtual.planning.axes import Axis, AxisKey, scope_of, time_units

Axes = Mapping[AxisKey, Axis]
Sources = Sequence[SourceDescription | None]
_Forms = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class FileBox:
    """The part of an array that one file fills; dimensions are those of the target."""

    variable: VariableDescription
    dimensions: tuple[str, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    concat_axes: tuple[int, ...]
    num_new_axes: int
    times: TimeUnits | None


@dataclass(frozen=True, slots=True)
class _Form:
    """A box without its place, and the axes its dimensions lie along."""

    box: FileBox
    axes: tuple[Axis | None, ...]


class FileBoxes(Mapping[int, FileBox]):
    """The boxes of one array by the numbers of their sources, in ascending order.

    A box is made when it is looked at. What does not depend on places and values is asked of
    `kinds`, which are few; places are asked of `starts`.
    """

    __slots__ = ("_codes", "_forms", "_sources", "numbers", "path")

    def __init__(
        self,
        path: str,
        sources: Sources,
        forms: Sequence[_Form],
        numbers: NDArray[np.int64],
        codes: NDArray[np.int64],
    ) -> None:
        self.path = path
        self.numbers = numbers
        self._sources = sources
        self._forms = forms
        self._codes = codes

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __contains__(self, number: object) -> bool:
        row = int(np.searchsorted(self.numbers, number))  # type: ignore[call-overload]
        return row < len(self.numbers) and bool(self.numbers[row] == number)

    def __getitem__(self, number: int) -> FileBox:
        if number not in self:
            raise KeyError(number)
        return self._box(number, int(self._codes[np.searchsorted(self.numbers, number)]))

    def _box(self, number: int, code: int) -> FileBox:
        form, source = self._forms[code], self._sources[number]
        box = form.box
        assert source is not None
        return FileBox(
            source.variables[self.path],
            box.dimensions,
            tuple(0 if axis is None else axis.starts.get(number, 0) for axis in form.axes),
            box.shape,
            box.concat_axes,
            box.num_new_axes,
            box.times,
        )

    def digest(self, number: int) -> bytes | None:
        """The digest of the values of one source."""
        source = self._sources[number]
        return None if source is None else digest_in(source.variables, self.path)

    def kinds(self) -> dict[int, FileBox]:
        """One box of each kind: others differ from it in places and values only."""
        codes, rows = np.unique(self._codes, return_index=True)
        numbers = self.numbers[rows]
        return {
            number: self._box(number, code)
            for number, code in sorted(zip(numbers.tolist(), codes.tolist(), strict=True))
        }

    def by_kind(self) -> Iterator[tuple[FileBox, list[int]]]:
        """One box of each kind with the numbers of all that are like it."""
        order = np.argsort(self._codes, kind="stable")
        _, first = np.unique(self._codes[order], return_index=True)
        for rows in np.split(order, first[1:]) if len(order) else ():
            numbers: list[int] = self.numbers[rows].tolist()
            yield self._box(numbers[0], int(self._codes[rows[0]])), numbers

    def starts(self) -> NDArray[np.int64]:
        """Where the boxes start, a row each; all have the same number of dimensions."""
        axes = {id(axis): axis for form in self._forms for axis in form.axes if axis is not None}
        places = np.zeros((len(axes) + 1, len(self._sources)), np.int64)
        for row, axis in enumerate(axes.values()):
            count = len(axis.starts)
            numbers = np.fromiter(axis.starts.keys(), np.int64, count)
            places[row, numbers] = np.fromiter(axis.starts.values(), np.int64, count)
        row_of = {key: row for row, key in enumerate(axes)}
        lies = [[row_of.get(id(axis), -1) for axis in form.axes] for form in self._used()]
        along = np.array(lies, np.int64).reshape(len(lies), -1)
        return places[along[self._rank()], self.numbers[:, None]]

    def shapes(self) -> NDArray[np.int64]:
        """The shapes of the boxes, a row each."""
        sizes = [form.box.shape for form in self._used()]
        return np.array(sizes, np.int64).reshape(len(sizes), -1)[self._rank()]

    def num_cells(self) -> int:
        """How many values all boxes have together."""
        counts = np.bincount(self._codes)
        used = zip(np.flatnonzero(counts).tolist(), counts[counts > 0].tolist(), strict=True)
        return sum(prod(self._forms[code].box.shape) * count for code, count in used)

    def _used(self) -> list[_Form]:
        return [self._forms[code] for code in np.unique(self._codes).tolist()]

    def _rank(self) -> NDArray[np.int64]:
        return np.searchsorted(np.unique(self._codes), self._codes)

    def since(self, first: int) -> FileBoxes:
        """The boxes of the sources from a number on."""
        return self._rows(self.numbers >= first) if len(self) and self.numbers[0] < first else self

    def without(self, numbers: Collection[int]) -> FileBoxes:
        """All boxes but those of some sources."""
        return self._rows(~np.isin(self.numbers, list(numbers)))

    def _rows(self, mask: NDArray[np.bool_]) -> FileBoxes:
        numbers, codes = self.numbers[mask], self._codes[mask]
        return FileBoxes(self.path, self._sources, self._forms, numbers, codes)


@dataclass(slots=True)
class BoxMaker:
    """Makes boxes for files that have most of their variables in common.

    What holds for all files that share the form of a variable is found out once.
    """

    axes: Axes
    concat_dims: Sequence[str]
    static: frozenset[str]
    _forms: list[_Form] = field(default_factory=list)
    _codes: dict[tuple[int, int, tuple[bool, ...]], int] = field(default_factory=dict)
    _alike: dict[tuple[int, int, tuple[bool, ...]], _Forms] = field(default_factory=dict)
    """Forms of all variables, by the layout that files share."""

    def boxes(self, sources: Sources) -> dict[str, FileBoxes]:
        """The boxes of every variable of all sources, by path."""
        numbers: dict[str, list[int]] = {}
        codes: dict[str, list[int]] = {}
        for number, source in enumerate(sources):
            if source is not None:
                for path, code in self._forms_of(number, source):
                    numbers.setdefault(path, []).append(number)
                    codes.setdefault(path, []).append(code)
        return {
            path: FileBoxes(
                path,
                sources,
                self._forms,
                np.array(found, np.int64),
                np.array(codes[path], np.int64),
            )
            for path, found in numbers.items()
        }

    def _forms_of(self, number: int, source: SourceDescription) -> _Forms:
        is_new = tuple(number in axis.is_new for axis in self.axes.values())
        variables = source.variables
        if not isinstance(variables, SharedVariables):
            return self._found(number, source, is_new)
        key = (id(variables.layout), id(source.groups), is_new)
        if key not in self._alike:
            self._alike[key] = self._found(number, source, is_new)
        return self._alike[key]

    def _found(self, number: int, source: SourceDescription, is_new: tuple[bool, ...]) -> _Forms:
        parents = bounds_parents(source)
        codes = []
        for path in source.variables:
            form = form_of(source.variables, path)
            key = (id(form), id(source.groups), is_new)
            code = self._codes.get(key)
            if code is None:
                code = self._codes[key] = len(self._forms)
                self._forms.append(self._form(number, source, form, parents.get(path)))
            codes.append((path, code))
        return tuple(codes)

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
        whole = FileBox(
            replace(variable, values=None, digest=None),
            dimensions,
            (0,) * len(dimensions),
            (*(1 for _ in new), *variable.shape),
            concat,
            len(new),
            time_units(variable, parent),
        )
        return _Form(whole, (*(axis for _, axis in new), *own))


def bounds_parents(source: SourceDescription) -> dict[str, Mapping[str, Any]]:
    """The attributes of those variables that have bounds, by the path of the bounds."""
    found: dict[str, Mapping[str, Any]] = {}
    for variable in forms_of(source.variables):
        for attribute in ("bounds", "climatology"):
            name = variable.attributes.get(attribute)
            if isinstance(name, str) and time_units(variable) is not None:
                found[f"{variable.group}/{name}" if variable.group else name] = variable.attributes
    return found
