"""Sources side by side while a plan is made: their places along the axes, their boxes."""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.records import record
from icefloe.virtual.model.description import Json, SourceDescription
from icefloe.virtual.planning.axes import Axis, AxisKey
from icefloe.virtual.planning.concat import find_static
from icefloe.virtual.planning.file_boxes import BoxMaker, FileBox, FileBoxes
from icefloe.virtual.planning.ledger import Ledger
from icefloe.virtual.planning.plan import IngestOptions


@record(frozen=True, eq=False)
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


@record(eq=False)
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

    def live_sources(self) -> list[SourceDescription]:
        """The sources of the plan; their numbers are those of `ArrayPlan.sources`."""
        return [source for source in self.live[self.num_old :] if source is not None]

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
        """The zarr.json of an array that is there already."""
        return None if self.existing is None else self.existing.documents.get(path)

    def old_shape(self, path: str) -> tuple[int, ...]:
        """The shape of an array that is there already."""
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
