"""Sources side by side: the box of an array that each file fills, and the ledger of files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import TimeUnits
from icefloe.paths import INTERNAL_GROUP
from icefloe.virtual.model.description import (
    Json,
    SharedVariables,
    SourceDescription,
    SourceVersion,
    VariableDescription,
    digest_in,
    digest_of,
    form_of,
    forms_of,
    join_path,
    scope_of,
)
from icefloe.virtual.planning.axes import Axis, AxisKey, find_static, time_units
from icefloe.virtual.planning.plan import IngestOptions

Axes = Mapping[AxisKey, Axis]
Sources = Sequence[SourceDescription | None]
_Forms = tuple[tuple[str, int], ...]


class FileBox(NamedTuple):
    """The part of an array that one file fills; dimensions are those of the target."""

    variable: VariableDescription
    dimensions: tuple[str, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    concat_axes: tuple[int, ...]
    num_new_axes: int
    times: TimeUnits | None


class _Form(NamedTuple):
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
        assert source is not None
        start = tuple(0 if axis is None else axis.starts.get(number, 0) for axis in form.axes)
        return form.box._replace(variable=source.variables[self.path], start=start)

    def digest(self, number: int) -> bytes | None:
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
        columns = {
            path: (np.array(found, np.int64), np.array(codes[path], np.int64))
            for path, found in numbers.items()
        }
        return {path: FileBoxes(path, sources, self._forms, *columns[path]) for path in columns}

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
            scope = scope_of(source.groups, variable.group, name)
            own.append(None if scope is None else self.axes.get((scope, name)))
        new = [
            (name, self.axes["", name])
            for name in self.concat_dims
            if ("", name) in self.axes and number in self.axes["", name].is_new
        ]
        if variable.path in dict(new):
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
                found[join_path(variable.group, name)] = variable.attributes
    return found


LEDGER_GROUP = INTERNAL_GROUP
"""The group, inside of the one it is about, in which an ingest keeps its own tables."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The files brought over so far, in the order they came, and the state each had then."""

    versions: dict[str, SourceVersion] = field(default_factory=dict)
    extents: dict[str, str] = field(default_factory=dict)
    """What `extent_of` said of them, where it is known."""
    made_with: dict[str, Json] = field(default_factory=dict)
    """What the first ingest was told of what holds for the group; see `IngestOptions`."""

    def compare(self, source: SourceDescription) -> Literal["new", "same", "changed"]:
        """Whether a file is known, and still what it was."""
        known = self.versions.get(source.location)
        if known is None:
            return "new"
        return "same" if is_same_version(known, source.version) else "changed"


def is_same_version(known: SourceVersion, found: SourceVersion) -> bool:
    """Whether a file is still what it was.

    By its ETag or its fingerprint where both sides have one; else by its size and the time of its
    last change.
    """
    if known.etag is not None and found.etag is not None:
        return known.etag == found.etag
    if known.fingerprint is not None and found.fingerprint is not None:
        return (known.fingerprint, known.size_bytes) == (found.fingerprint, found.size_bytes)
    return (known.size_bytes, known.last_modified) == (found.size_bytes, found.last_modified)


def extent_of(source: SourceDescription, concat_dims: Sequence[str]) -> str:
    """A hash of what a file fills: its variables, and its places along the joined dimensions."""
    hashed = hashlib.blake2b(digest_size=16)
    for path in sorted(source.variables):
        variable = source.variables[path]
        if not set(concat_dims) & {*variable.dimensions, path}:
            continue
        hashed.update(f"{path} {variable.shape}\n".encode())
        if variable.name in concat_dims and variable.values is not None:
            units = time_units(variable)
            values = np.atleast_1d(variable.values)
            hashed.update(digest_of(values if units is None else units.decode(values)))
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Existing:
    """A group of a repository that is added to: what it holds, and what it was made of."""

    description: SourceDescription
    documents: dict[str, dict[str, Json]]
    """zarr.json of its arrays, by path relative to the group."""
    ledger: Ledger = field(default_factory=Ledger)
    num_holes: dict[str, int] = field(default_factory=dict)
    """How many places of an array are new and not filled yet."""

    @property
    def is_ingested(self) -> bool:
        """Whether the arrays are those of this group, not just of groups below it."""
        return bool(self.ledger.versions) or any("/" not in path for path in self.documents)


@dataclass(eq=False)
class Arrangement:
    """The sources that take part. Source 0 is what is in the repository, if anything is."""

    options: IngestOptions
    existing: Existing | None
    live: list[SourceDescription | None]
    """None for a source that has been left out."""
    replaced: frozenset[int] = frozenset()
    """Sources that take the place of an earlier version of themselves."""
    concat_dims: tuple[str, ...] = ()
    axes: dict[AxisKey, Axis] = field(default_factory=dict)
    boxes: dict[str, FileBoxes] = field(default_factory=dict)
    unpacked: dict[str, np.dtype[Any]] = field(default_factory=dict)
    """Arrays whose files pack them differently, and the type they are stored in."""
    _ranks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The place of each source in their order along the axes."""

    @property
    def num_old(self) -> int:
        return 0 if self.existing is None else 1

    @property
    def names(self) -> list[str]:
        return ["" if source is None else source.location for source in self.live]

    @property
    def late(self) -> frozenset[int]:
        """Sources that may lie inside of what is there."""
        if self.options.late != "insert":
            return self.replaced
        return frozenset(range(self.num_old, len(self.live)))

    def new_sources(self) -> dict[int, SourceDescription]:
        """The sources of the plan by number, in the order of `IngestPlan.sources`."""
        numbered = enumerate(self.live[self.num_old :], self.num_old)
        return {number: source for number, source in numbered if source is not None}

    def make_boxes(self) -> None:
        """Find the box of every variable of every source, from the axes."""
        every = list(range(len(self.live)))
        every.sort(key=lambda number: (number >= self.num_old, *self.order(number)))
        self._ranks = np.argsort(np.array(every, np.int64))
        maker = BoxMaker(self.axes, self.concat_dims, find_static(self.live))
        self.boxes = maker.boxes(self.live)

    def first(self, boxes: FileBoxes) -> int:
        """The source that speaks for a variable: what is there, else the first along the axes."""
        return int(boxes.numbers[np.argmin(self._ranks[boxes.numbers])])

    def order(self, number: int) -> tuple[int, ...]:
        """Sorts sources by their places along the axes."""
        return (*(axis.starts.get(number, -1) for axis in self.axes.values()), number)

    def new(self, boxes: FileBoxes) -> FileBoxes:
        """The boxes of what is not in the repository."""
        return boxes.since(self.num_old)

    def document(self, path: str) -> dict[str, Json] | None:
        return None if self.existing is None else self.existing.documents.get(path)

    def old_shape(self, path: str) -> tuple[int, ...]:
        document = self.document(path)
        assert document is not None
        return tuple(document["shape"])

    def lengths(self, path: str, box: FileBox) -> tuple[int, ...]:
        """The shape of the whole array."""
        shape = list(box.shape)
        boxes = self.boxes[path]
        stops = (boxes.starts() + boxes.shapes()).max(axis=0).tolist() if box.concat_axes else []
        for at in box.concat_axes:
            name = box.dimensions[at]
            whole = [axis.length for (_, known), axis in self.axes.items() if known == name]
            shape[at] = max([stops[at], *(whole if len(whole) == 1 else [])])
        return tuple(shape)

    def has_holes(self, path: str, box: FileBox) -> bool:
        """Whether places remain that neither a file nor an earlier ingest fills."""
        if not box.concat_axes or is_coordinate(box):
            return False
        boxes = self.boxes[path]
        whole = prod(self.lengths(path, box))
        if self.existing is not None and self.document(path) is not None:
            before = prod(self.old_shape(path)) - self.existing.num_holes.get(path, 0)
            return before + self.new(boxes).without(self.replaced).num_cells() < whole
        return boxes.num_cells() < whole

    def comes_with_values(self, box: FileBox, new: FileBoxes) -> bool:
        """Whether the values of a small coordinate came with the descriptions."""
        is_known = all(item.variable.values is not None for item in new.kinds().values())
        return bool(new) and is_known and (is_coordinate(box) or not box.dimensions)


def is_coordinate(box: FileBox) -> bool:
    """Whether a box gives the positions along the dimension of its own name."""
    return box.dimensions == (box.variable.name,)
