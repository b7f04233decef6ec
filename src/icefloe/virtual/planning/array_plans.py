"""The plan of every array, once it is settled which sources take part and where they go."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import convert_times
from icefloe.records import record
from icefloe.virtual.model.data_types import little_endian
from icefloe.virtual.model.description import Json, VariableDescription
from icefloe.virtual.model.missing import prepare_fill
from icefloe.virtual.planning.agreement import as_matrix
from icefloe.virtual.planning.arrangement import Arrangement, is_coordinate
from icefloe.virtual.planning.cf_packing import Packing, packing_of, unpacked
from icefloe.virtual.planning.checks import reference_chunks
from icefloe.virtual.planning.file_boxes import FileBox, FileBoxes
from icefloe.virtual.planning.plan import ArrayPlan
from icefloe.virtual.planning.targets import (
    array_document,
    choose_chunks,
    find_misaligned,
    native_codecs,
)

Storage = Literal["virtual", "native", "values"]


@record()
class ArrayPlanner:
    """Makes the plans of all arrays, and notes about them."""

    work: Arrangement
    notes: list[str] = field(default_factory=list)
    _renumbered: dict[int, int] = field(default_factory=dict)
    """Numbers of the plan's sources, by their numbers in the arrangement."""

    def plan_all(self) -> list[ArrayPlan]:
        """The plan of every array that changes."""
        work = self.work
        for number in range(work.num_old, len(work.live)):
            if work.live[number] is not None:
                self._renumbered[number] = len(self._renumbered)
        plans = []
        for path, boxes in work.boxes.items():
            new = work.new(boxes)
            box = boxes[work.first(boxes)]
            is_there = work.document(path) is not None
            if is_there and (not box.concat_axes or not self._grows(path, box, new)):
                continue
            if not box.concat_axes:
                first = work.first(new)
                new = new.without([number for number in new if number != first])
            plans.append(self._plan(path, box, new))
        return plans

    def _grows(self, path: str, box: FileBox, new: FileBoxes) -> bool:
        """Whether an array that is there changes: files without it make it longer too."""
        return bool(new) or self.work.lengths(path, box) != self.work.old_shape(path)

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
        starts = new.starts() if rows else as_matrix([], len(shape))
        shapes = new.shapes() if rows else as_matrix([], len(shape))
        if storage == "values":
            start, values = _joined_values(box, new, work.boxes[path].get(0) if old else None)
            starts, shapes = as_matrix([start], len(shape)), as_matrix([values.shape], len(shape))
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
        chunks, note = reference_chunks(work, path, new, box)
        if chunks is not None and find_misaligned(path, new, chunks, work.lengths(path, box)):
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
            return array_document(variable, box.dimensions, shape, chunks, variable.codecs)
        chosen = choose_chunks(box, shape, self.work.options.chunks)
        codecs = native_codecs(variable.dtype, chosen)
        return array_document(variable, box.dimensions, shape, chosen, codecs)

    def _guarded(self, old: dict[str, Json] | None, box: FileBox, new: FileBoxes) -> frozenset[int]:
        """Sources that lie where values may be already; what they replace is theirs."""
        if old is None or self.work.options.late != "insert":
            return frozenset()
        if not len(new):
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
        for number in sorted(range(work.num_old, len(work.live)), key=work.order):
            source = work.live[number]
            if source is None:
                continue
            for path in source.groups:
                target = target_of(work.options.group, path)
                if path not in there and target not in found:
                    found[target] = source.attributes_of(path)
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
