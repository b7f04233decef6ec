"""The plan of an ingest: which arrays there will be, and which part of which file goes where.

Plans are made from descriptions alone (`planning.py`), before anything is written, and are the same
for one process and for a cluster. Everything here is data and can be pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from zarr.dtype import parse_dtype

from icefloe.cf.times import TimeUnits
from icefloe.changes.split_grid import ChunkSpan
from icefloe.display.shown import counted
from icefloe.errors import InvalidInputError
from icefloe.geometry import Slices, cut, grow_chunks, moved
from icefloe.records import record
from icefloe.virtual.model.description import Json, SourceDescription
from icefloe.virtual.planning.cf_packing import Packing
from icefloe.virtual.planning.order import AS_LISTED, BY_COORDINATES, named_dims

Mode = Literal["native", "virtual"]

BLOCK_BYTES = 64 * 1024 * 1024


@record(frozen=True)
class IngestOptions:
    """What the user wants.

    Attributes:
        group: where in the repository; the root when empty.
        concat_dims: dimensions along which files follow each other; found out when None.
        variables: names or paths to bring over, their coordinates included; None for all.
        chunks: chunk lengths by dimension name, for native mode; the source's own where missing.
        mode: `native` copies values, `virtual` refers to the files.
        order: `coordinates`, `listed`, or a pattern of file names; see `order.py`.
        late: whether values that belong before the end of the group are inserted there.
        changed: what becomes of files that changed since an earlier ingest.
        made_with: what the first ingest into the group was told, for the ledger.
        continued: what of that goes on here, because this ingest does not name it.
    """

    group: str = ""
    concat_dims: tuple[str, ...] | None = None
    variables: tuple[str, ...] | None = None
    chunks: Mapping[str, int] = field(default_factory=dict)
    mode: Mode = "native"
    order: str = BY_COORDINATES
    late: Literal["fail", "insert"] = "fail"
    changed: Literal["fail", "replace", "skip"] = "fail"
    made_with: Mapping[str, Json] = field(default_factory=dict)
    continued: Mapping[str, Json] = field(default_factory=dict)

    @property
    def continued_hints(self) -> list[str]:
        """A sentence about what goes on as the group was made; none if all is named."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.continued.items())
        return [f"the group goes on as it was made, with {shown}"] if shown else []

    @property
    def ranked_dims(self) -> tuple[str, ...]:
        """Dimensions along which coordinates do not tell the place."""
        if self.order == AS_LISTED:
            return self.concat_dims or ()
        return named_dims(self.order)


@record(frozen=True)
class Problem:
    """Why a file cannot be part of the ingest."""

    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason}"


@record(frozen=True)
class Part:
    """A box of a source file and the box of the target array it fills."""

    source: int
    source_region: Slices
    target_region: Slices


@record(frozen=True)
class BoxIndex:
    """Boxes in the order of their starts along one axis, so that few are looked at for a region."""

    axis: int
    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    latest: NDArray[np.int64]
    """The largest stop along the axis up to each box."""

    @classmethod
    def of(cls, starts: NDArray[np.int64], shapes: NDArray[np.int64]) -> BoxIndex:
        """Index boxes along the axis with the most different starts."""
        ndim = starts.shape[1]
        kinds = [len(np.unique(starts[:, axis])) for axis in range(ndim)]
        axis = int(np.argmax(kinds)) if ndim and len(starts) else 0
        order = np.argsort(starts[:, axis], kind="stable") if ndim else np.arange(len(starts))
        low, high = starts[order], (starts + shapes)[order]
        latest = np.maximum.accumulate(high[:, axis]) if ndim else np.zeros(0, np.int64)
        return cls(axis, order, low, high, latest)

    def find(self, region: Slices) -> NDArray[np.int64]:
        """The boxes that overlap with a region, ascending."""
        if not region:
            return np.arange(len(self.order))
        span = region[self.axis]
        first = int(np.searchsorted(self.latest, span.start, "right"))
        last = int(np.searchsorted(self.starts[:, self.axis], span.stop, "left"))
        low = np.array([one.start for one in region], np.int64)
        high = np.array([one.stop for one in region], np.int64)
        near = slice(first, last)
        inside = ((self.starts[near] < high) & (self.stops[near] > low)).all(axis=1)
        return np.sort(self.order[near][inside])


@record(frozen=True, eq=False)
class ArrayPlan:
    """One array of the repository and the files it is made of.

    Row i of `starts` and `shapes` is the box that file `sources[i]` fills. `storage` says how:
    `virtual` by references, `native` by copying, `values` from `values` (small coordinates, whose
    values came with the descriptions; the box of `starts[0]` is filled with them).
    """

    path: str
    """In the sources."""
    target: str
    """In the repository."""
    metadata: dict[str, Json]
    """The zarr.json to be written."""
    storage: Literal["virtual", "native", "values"]
    sources: NDArray[np.int32]
    starts: NDArray[np.int64]
    shapes: NDArray[np.int64]
    num_new_axes: int = 0
    """Leading dimensions that the files do not have; each file is one step along them."""
    values: NDArray[Any] | None = None
    times: TimeUnits | None = None
    """The units to convert to; None when no file needs it."""
    source_times: dict[int, TimeUnits] = field(default_factory=dict)
    """The units of the files that have others."""
    packings: dict[int, Packing] = field(default_factory=dict)
    """How files pack their values, where the array is unpacked."""
    packed_as: Packing | None = None
    """How the array packs them itself."""
    old_shape: tuple[int, ...] | None = None
    """The shape of the array that is appended to."""
    reserved: Any = None
    """A value that no file may hold, because here it means missing."""
    note: str | None = None
    """Why the array is copied in a virtual ingest."""
    guarded: frozenset[int] = frozenset()
    """Sources that may only fill what is missing so far."""
    _index: BoxIndex | None = field(default=None, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.metadata["shape"])

    @property
    def chunks(self) -> tuple[int, ...]:
        return tuple(self.metadata["chunk_grid"]["configuration"]["chunk_shape"])

    @property
    def itemsize(self) -> int:
        """Bytes a value takes in memory, at least one."""
        return itemsize_of(self.metadata)

    @property
    def new_chunks(self) -> ChunkSpan:
        """The chunks that the files fill."""
        chunks = np.maximum(np.array(self.chunks, np.int64), 1)
        first, last = self.starts // chunks, -(-(self.starts + self.shapes) // chunks)
        return ChunkSpan.of_boxes(first, last)

    def parts(self, region: Slices) -> list[Part]:
        """What has to be read to fill a region of the target."""
        found = []
        for row in self.rows_in(region).tolist():
            offset = self.starts[row].tolist()
            stops = (self.starts[row] + self.shapes[row]).tolist()
            target = tuple(
                slice(max(start, span.start), min(stop, span.stop))
                for start, stop, span in zip(offset, stops, region, strict=True)
            )
            own = moved(target, offset)[self.num_new_axes :]
            found.append(Part(int(self.sources[row]), own, target))
        return found

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Slices]:
        """The regions to be filled, cut at chunk borders: no two blocks share a chunk.

        Blocks without any file are left out.
        """
        if not len(self.sources) or 0 in self.shape:
            return
        low, high = self.starts.min(axis=0), (self.starts + self.shapes).max(axis=0)
        steps = grow_chunks(self.shape, self.chunks, max_bytes // self.itemsize)
        filled = tuple(map(slice, low.tolist(), high.tolist()))
        yield from (block for block in cut(filled, steps) if len(self.rows_in(block)))

    def rows_in(self, region: Slices) -> NDArray[np.int64]:
        """The rows whose boxes overlap with a region."""
        if self._index is None:
            object.__setattr__(self, "_index", BoxIndex.of(self.starts, self.shapes))
        assert self._index is not None
        return self._index.find(region)


@record(frozen=True, eq=False)
class IngestPlan:
    """Everything an ingest will do."""

    options: IngestOptions
    sources: tuple[SourceDescription, ...]
    """In the order of `ArrayPlan.sources`; without references."""
    groups: dict[str, dict[str, Json]]
    """Attributes of the groups to be written, by path in the repository."""
    arrays: tuple[ArrayPlan, ...]
    concat_dims: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    unchanged: tuple[str, ...] = ()
    """Files that an earlier ingest has brought over already."""
    notes: tuple[str, ...] = ()
    uncompared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Variables that must be equal in these files and were not compared yet."""
    replaced: frozenset[str] = frozenset()
    """Sources that take the place of an earlier version of themselves."""
    hints: tuple[str, ...] = ()
    """What may explain problems."""
    num_certain: int = 0
    """So many of the problems do not follow from others."""

    def raise_problems(self) -> None:
        """Refuse the plan if any file is left out of it.

        Raises:
            InvalidInputError: names the files and why, at most ten of them.
        """
        if not self.problems:
            return
        shown = "\n".join(f"- {problem}" for problem in self.problems[:10])
        more = len(self.problems) - 10
        rest = f"\n... and {more:,} more" if more > 0 else ""
        rest += "".join(f"\nnote: {hint}" for hint in self.hints)
        raise InvalidInputError(
            f"{counted(len(self.problems), 'file')} cannot be ingested (on_error='skip' leaves "
            f"{'it' if len(self.problems) == 1 else 'them'} out):\n{shown}{rest}"
        )


def itemsize_of(document: Mapping[str, Json]) -> int:
    """Bytes that a value of an array takes in memory, at least one."""
    kind: Any = parse_dtype(document["data_type"], zarr_format=3)
    return max(1, int(kind.to_native_dtype().itemsize))
