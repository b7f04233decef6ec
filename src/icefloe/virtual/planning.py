"""Making the plan of an ingest from descriptions. Pure: nothing is read or written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.axes import Axis, AxisKey, place_along
from icefloe.virtual.concat import detect_concat_dims, find_keys, find_static, place_new
from icefloe.virtual.data_types import little_endian
from icefloe.virtual.description import Json, SourceDescription
from icefloe.virtual.layout import (
    Box,
    BoxMaker,
    as_matrix,
    drop_repeated,
    find_disagreements,
    find_inexact_times,
    find_overlaps,
)
from icefloe.virtual.ledger import Ledger
from icefloe.virtual.missing import (
    find_unfillable,
    json_equal,
    natural_fill_value,
    prepare_fill,
)
from icefloe.virtual.packing import common_type, packing_of, unpacked
from icefloe.virtual.plan import ArrayPlan, IngestOptions, IngestPlan, Problem
from icefloe.virtual.selection import select_variables
from icefloe.virtual.snapping import snap_coordinates
from icefloe.virtual.targets import (
    COPY_BYTES,
    MOST_CHUNK_BYTES,
    MOST_COMPARED_BYTES,
    MOST_COPIED_BYTES,
    are_tiny,
    array_document,
    choose_chunks,
    find_misaligned,
    find_unlike,
    native_codecs,
    same_codecs,
    virtual_chunks,
    widest,
)
from icefloe.virtual.times import convert_times

Boxes = dict[str, dict[int, Box]]
"""The box of each source, for each path."""


@dataclass(frozen=True, slots=True, eq=False)
class Existing:
    """A group of a repository that is appended to: what it holds, and what it was made of."""

    description: SourceDescription
    documents: dict[str, dict[str, Json]]
    """zarr.json of its arrays, by path relative to the group."""
    ledger: Ledger = field(default_factory=Ledger)


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
    found, kept, unchanged = list(problems), [], []
    for source in sources:
        state = None if existing is None else existing.ledger.compare(source)
        if state == "same":
            unchanged.append(source.location)
        elif state == "changed":
            reason = "it has changed since it was ingested"
            found.append(Problem(source.location, reason))
        else:
            kept.append(source.without_references())
    work = _Work(kept, options, existing)
    work.settle()
    found += work.problems
    arrays = work.arrays()
    used = sorted({int(number) for array in arrays for number in array.sources})
    uncompared = work.uncompared()
    return IngestPlan(
        options,
        tuple(work.live_sources()),
        work.groups() if used or existing is None else {},
        tuple(arrays),
        work.concat_dims,
        tuple(found),
        tuple(unchanged),
        tuple(work.notes),
        uncompared,
    )


class _Work:
    """One plan in the making. Source 0 is what is in the repository, if anything is."""

    def __init__(
        self, sources: list[SourceDescription], options: IngestOptions, existing: Existing | None
    ) -> None:
        self.options = options
        self.existing = existing
        self.num_old = 0 if existing is None else 1
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        old = [] if existing is None else [existing.description]
        self.live: list[SourceDescription | None] = [
            *snap_coordinates([*old, *self._selected(sources)])
        ]
        self.concat_dims: tuple[str, ...] = ()
        self.axes: dict[AxisKey, Axis] = {}
        self.boxes: Boxes = {}
        self.unpacked: dict[str, np.dtype[Any]] = {}
        """Arrays whose files pack them differently, and the type they are stored in."""
        self.ranks: dict[int, int] = {}
        """Sources in their order along the axes; empty until somebody asks."""

    def _selected(self, sources: list[SourceDescription]) -> list[SourceDescription]:
        chosen = []
        for source in sources:
            picked, reason = select_variables(source, self.options.variables)
            if reason is None:
                chosen.append(picked)
            else:
                self.problems.append(Problem(source.location, reason))
        return chosen

    def live_sources(self) -> list[SourceDescription]:
        """The sources of the plan; their numbers are those of `ArrayPlan.sources`."""
        return [source for source in self.live[self.num_old :] if source is not None]

    # -- settling who takes part

    def settle(self) -> None:
        """Leave out files until all others fit together; each pass leaves out at least one."""
        while True:
            wrong = self._pass()
            if not wrong:
                return
            for number, reason in sorted(wrong.items()):
                source = self.live[number]
                assert source is not None
                self.problems.append(Problem(source.location, reason))
                self.live[number] = None

    def _pass(self) -> dict[int, str]:
        self.concat_dims = self.options.concat_dims or detect_concat_dims(
            [source for source in self.live if source is not None]
        )
        self.axes = {}
        wrong: dict[int, str] = {}
        for name in self.concat_dims:
            if not find_keys(name, self.live[self.num_old :]):
                self.axes["", name] = place_new(name, self.live, self.num_old)
                continue
            for key in find_keys(name, self.live):
                result = place_along(key, self.live, self.num_old)
                self.axes[key] = result.axis
                wrong |= result.problems
        if wrong:
            return wrong
        self.boxes = self._make_boxes()
        names = ["" if source is None else source.location for source in self.live]
        self.unpacked = {}
        for path, boxes in self.boxes.items():
            wrong |= self._disagreements(path, boxes)
        if wrong:
            return wrong
        wrong |= drop_repeated(self.boxes, names)
        for path, boxes in self.boxes.items():
            wrong |= find_overlaps(path, boxes, self.num_old, names)
            first = boxes[self._first(boxes)]
            wrong |= find_inexact_times(path, boxes, first)
            wrong |= self._hole_trouble(path, boxes) | self._size_trouble(path, boxes)
        if wrong or self.options.mode == "native":
            return wrong
        for path, boxes in self.boxes.items():
            wrong |= self._virtual_trouble(path, boxes)
        return wrong

    def _disagreements(self, path: str, boxes: Mapping[int, Box]) -> dict[int, str]:
        """Files that do not fit; those that only pack their values differently are unpacked."""
        strict = find_disagreements(path, boxes, self.num_old)
        box = boxes[self._first(boxes)]
        is_copied = self.options.mode == "native" and bool(box.concat_axes)
        if not strict or not is_copied or box.times is not None or self._is_coordinate(box):
            return strict
        loose = find_disagreements(path, boxes, self.num_old, ignores_packing=True)
        kind = common_type(item.variable for n, item in boxes.items() if n not in loose)
        there = boxes[0].variable if self.num_old and 0 in boxes else None
        if kind is None or (there is not None and np.dtype(there.dtype) != kind):
            return strict
        self.unpacked[path] = kind
        return loose

    def _has_holes(self, path: str, box: Box) -> bool:
        """Whether there will be places that no file fills, and nobody filled before."""
        if not box.concat_axes or self._is_coordinate(box):
            return False
        boxes = self.boxes[path]
        if self._document(path) is not None:
            before = prod(self._existing_shape(path))
            new = sum(prod(item.shape) for item in self._new(boxes).values())
            return before + new < prod(self._lengths(path, box))
        return sum(prod(item.shape) for item in boxes.values()) < prod(self._lengths(path, box))

    def _existing_shape(self, path: str) -> tuple[int, ...]:
        document = self._document(path)
        assert document is not None
        return tuple(document["shape"])

    def _hole_trouble(self, path: str, boxes: Mapping[int, Box]) -> dict[int, str]:
        """Files without a variable that has no way to say so."""
        box = boxes[self._first(boxes)]
        if not self._has_holes(path, box):
            return {}
        is_virtual = self.options.mode == "virtual"
        document = self._document(path)
        reason = find_unfillable(path, box.variable, document, is_virtual=is_virtual)
        if reason is None:
            return {}
        live = [n for n in range(self.num_old, len(self.live)) if self.live[n] is not None]
        without = [number for number in live if number not in boxes]
        return dict.fromkeys(without or live, reason)

    def _make_boxes(self) -> Boxes:
        self.ranks = {}
        maker = BoxMaker(self.axes, self.concat_dims, find_static(self.live))
        boxes: Boxes = {}
        for number, source in enumerate(self.live):
            if source is not None:
                for path, box in maker.boxes(number, source):
                    boxes.setdefault(path, {})[number] = box
        return boxes

    def _first(self, boxes: Mapping[int, Box]) -> int:
        """The source that speaks for a variable: what is there, else the first along the axes."""
        if not self.ranks:
            every = [number for number, source in enumerate(self.live) if source is not None]
            every.sort(key=lambda number: (number >= self.num_old, *self._order(number)))
            self.ranks = {number: rank for rank, number in enumerate(every)}
        return min(boxes, key=self.ranks.__getitem__)

    def _order(self, number: int) -> tuple[int, ...]:
        return (*(axis.starts.get(number, -1) for axis in self.axes.values()), number)

    # -- arrays

    def _lengths(self, path: str, box: Box) -> tuple[int, ...]:
        """The shape of the whole array."""
        shape = list(box.shape)
        for at in box.concat_axes:
            ends = [other.start[at] + other.shape[at] for other in self.boxes[path].values()]
            name = box.dimensions[at]
            whole = [axis.length for (_, known), axis in self.axes.items() if known == name]
            shape[at] = max(ends + (whole if len(whole) == 1 else []))
        return tuple(shape)

    def _new(self, boxes: Mapping[int, Box]) -> dict[int, Box]:
        return {number: box for number, box in boxes.items() if number >= self.num_old}

    def _from_values(self, box: Box, new: Mapping[int, Box]) -> bool:
        is_known = all(item.variable.values is not None for item in new.values())
        return bool(new) and is_known and (self._is_coordinate(box) or not box.dimensions)

    def _is_coordinate(self, box: Box) -> bool:
        return box.dimensions == (box.variable.name,)

    def _document(self, path: str) -> dict[str, Json] | None:
        return None if self.existing is None else self.existing.documents.get(path)

    def _virtual_chunks(
        self, path: str, new: Mapping[int, Box], box: Box
    ) -> tuple[tuple[int, ...] | None, str | None]:
        if any(item.times != box.times for item in new.values()):
            return None, "its times have to be written in other units"
        document = self._document(path)
        if are_tiny(new):
            return None, "it is small, and has a chunk for every few values"
        if self._has_holes(path, box):
            natural = natural_fill_value(box.variable)
            for item in new.values():
                if item.variable.has_gaps and not json_equal(item.variable.fill_value, natural):
                    return None, "chunks that were never written do not mean missing values there"
        if document is None:
            return virtual_chunks(new, None)
        if not same_codecs(document, next(iter(new.values())).variable):
            return None, "the array in the repository is stored with other codecs"
        old = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
        return virtual_chunks(new, old)

    def _virtual_trouble(self, path: str, boxes: Mapping[int, Box]) -> dict[int, str]:
        """Files that keep a large variable from being made of references."""
        new, box = self._new(boxes), boxes[self._first(boxes)]
        if not new or self._from_values(box, new) or widest(new) <= COPY_BYTES:
            return {}
        if all(self._is_always_copied(number) for number in new):
            return {}
        chunks, reason = self._virtual_chunks(path, new, box)
        if chunks is None:
            odd = find_unlike(new) or dict.fromkeys(new, reason)
            return {
                number: f"variable {path!r} cannot be made of references: {why}; use "
                "mode='native', or leave it out with variables=[...]"
                for number, why in odd.items()
            }
        return find_misaligned(path, new, chunks, self._lengths(path, box))

    def _size_trouble(self, path: str, boxes: Mapping[int, Box]) -> dict[int, str]:
        """Files with arrays that HDF5 declares, but that nobody could ever have written."""
        box, new = boxes[self._first(boxes)], self._new(boxes)
        size = prod(self._lengths(path, box)) * box.variable.itemsize
        if self.options.mode == "virtual":
            return {}
        large = {
            number: f"variable {path!r} has chunks of more than a gigabyte, too large to be copied"
            for number, item in new.items()
            if not item.variable.is_contiguous
            and prod(item.variable.chunks) * item.variable.itemsize > MOST_CHUNK_BYTES
        }
        if size <= MOST_COPIED_BYTES:
            return large
        reason = f"variable {path!r} would have {size:,} bytes, too many to be copied"
        return dict.fromkeys(new, reason)

    def uncompared(self) -> dict[str, tuple[str, ...]]:
        """Variables that files repeat, but that are too large to have been compared by a scan."""
        found = {}
        for path, boxes in self.boxes.items():
            if len(boxes) < 2 or boxes[self._first(boxes)].concat_axes:
                continue
            unknown = [number for number, box in self._new(boxes).items() if _is_unread(box)]
            size = widest(boxes)
            if unknown and size > MOST_COMPARED_BYTES:
                self.notes.append(
                    f"variable {path!r} is not compared between files: it has {size:,} bytes"
                )
            elif unknown:
                sources = [self.live[number] for number in unknown]
                found[path] = tuple(source.location for source in sources if source is not None)
        return found

    def _is_always_copied(self, number: int) -> bool:
        source = self.live[number]
        return source is not None and source.format == "grib"

    def arrays(self) -> list[ArrayPlan]:
        """The plan of every array that changes."""
        renumbered: dict[int, int] = {}
        for number in range(self.num_old, len(self.live)):
            if self.live[number] is not None:
                renumbered[number] = len(renumbered)
        plans = []
        for path, boxes in self.boxes.items():
            new = self._new(boxes)
            box = boxes[self._first(boxes)]
            is_there = self._document(path) is not None
            if is_there and (not box.concat_axes or not self._grows(path, box, new)):
                continue
            if not box.concat_axes:
                first = self._first(new)
                new = {first: new[first]}
            plans.append(self._array(path, box, new, renumbered))
        return plans

    def _grows(self, path: str, box: Box, new: Mapping[int, Box]) -> bool:
        """Whether an array that is there changes: files without it make it longer too."""
        return bool(new) or self._lengths(path, box) != self._existing_shape(path)

    def _array(
        self, path: str, box: Box, new: dict[int, Box], renumbered: Mapping[int, int]
    ) -> ArrayPlan:
        shape = self._lengths(path, box)
        old = self._document(path)
        values = note = None
        chunks: tuple[int, ...] | None = None
        storage = "native"
        if self._from_values(box, new):
            storage = "values"
        elif self.options.mode == "virtual" and new:
            chunks, note = self._virtual_chunks(path, new, box)
            if chunks is not None and find_misaligned(path, new, chunks, shape):
                chunks, note = None, "files do not end where chunks do"
            storage = "native" if chunks is None else "virtual"
            if note is not None:
                self.notes.append(f"variable {path!r} is copied: {note}")
        self.notes += [f"variable {path!r}: {text}" for text in box.variable.notes]
        first, packings = box.variable, {}
        if path in self.unpacked:
            first = unpacked(box.variable, self.unpacked[path])
            self.notes += [f"variable {path!r}: {text}" for text in first.notes]
            for number, item in new.items():
                packing = packing_of(item.variable)
                assert packing is not None
                packings[renumbered[number]] = packing
        has_gaps = storage == "virtual" and any(item.variable.has_gaps for item in new.values())
        variable, reserved = prepare_fill(
            first, has_holes=self._has_holes(path, box), has_gaps=has_gaps
        )
        rows = list(new)
        starts = as_matrix([new[row].start for row in rows], len(shape))
        shapes = as_matrix([new[row].shape for row in rows], len(shape))
        if storage == "values":
            values = _joined_values(box, new)
            starts, shapes = (
                starts.min(axis=0, keepdims=True),
                as_matrix([values.shape], len(shape)),
            )
            rows = rows[:1]
        if old is not None:
            document = {**old, "shape": list(shape)}
        elif storage == "virtual":
            assert chunks is not None
            assert variable.codecs is not None
            document = array_document(variable, box.dimensions, shape, chunks, variable.codecs)
        else:
            chunks = choose_chunks(box, shape, self.options.chunks)
            codecs = native_codecs(variable.dtype, chunks)
            document = array_document(variable, box.dimensions, shape, chunks, codecs)
        others = {
            renumbered[number]: item.times
            for number, item in new.items()
            if item.times is not None and item.times != box.times
        }
        return ArrayPlan(
            path,
            _target(self.options.group, path),
            document,
            storage,  # type: ignore[arg-type]
            np.array([renumbered[row] for row in rows], np.int32),
            starts,
            shapes,
            next((item.num_new_axes for item in new.values()), box.num_new_axes),
            values,
            box.times if others else None,
            others,
            packings,
            None if old is None else tuple(old["shape"]),
            reserved if old is None else None,
            note,
        )

    def groups(self) -> dict[str, dict[str, Json]]:
        """Groups to be made, with the attributes of the first file that has them."""
        found: dict[str, dict[str, Json]] = {}
        there = set() if self.existing is None else set(self.existing.description.groups)
        for number in sorted(range(self.num_old, len(self.live)), key=self._order):
            source = self.live[number]
            if source is None:
                continue
            for path, group in source.groups.items():
                if path not in there:
                    found.setdefault(_target(self.options.group, path), group.attributes)
        return found


def _joined_values(box: Box, new: Mapping[int, Box]) -> NDArray[Any]:
    """The values of a small coordinate, put together and in the units of the first file."""
    text = box.variable.dtype
    dtype = np.dtype(object) if text == "string" else np.dtype(little_endian(text))
    if not box.dimensions:
        return np.asarray(next(iter(new.values())).variable.values, dtype)
    first = min(item.start[0] for item in new.values())
    last = max(item.start[0] + item.shape[0] for item in new.values())
    joined = np.zeros(last - first, dtype)
    for item in new.values():
        values = item.variable.values
        assert values is not None
        if item.times is not None and box.times is not None and item.times != box.times:
            values = convert_times(values, item.times, box.times, dtype)
            assert values is not None
        joined[item.start[0] - first : item.start[0] - first + item.shape[0]] = values
    return joined


def _is_unread(box: Box) -> bool:
    variable = box.variable
    return variable.digest is None and variable.dtype != "string" and variable.nbytes > 0


def _target(group: str, path: str) -> str:
    return "/".join(filter(None, (group.strip("/"), path)))


def with_sources(plan: IngestPlan, sources: Sequence[SourceDescription]) -> IngestPlan:
    """The plan with other descriptions of the same sources, such as ones with references."""
    return replace(plan, sources=tuple(sources))
