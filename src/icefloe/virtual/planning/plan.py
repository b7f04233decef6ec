"""`IngestPlan` and its parts: options, order of files, packing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from zarr.dtype import parse_dtype

from icefloe.cf.times import TimeUnits
from icefloe.changes.splits import ChunkSpan
from icefloe.display import counted
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.geometry import Slices, cut, grow_chunks, moved
from icefloe.scans.variables import find_coding
from icefloe.virtual.model.data_types import (
    FILL,
    MISSING,
    data_type_of,
    fill_value_json,
    missing_values_of,
)
from icefloe.virtual.model.description import Json, SourceDescription, VariableDescription

# Some archives number their files and leave the coordinate at zero. Such files follow each other
# as they are listed, or by a part of their names.

BY_COORDINATES, AS_LISTED = "coordinates", "listed"
_FIELD = re.compile(r"\{(\w+)\}")
_DIGITS = re.compile(r"(\d+)")

Rank = Any
"""Something that sorts as people read: 10 comes after 9."""


def named_dims(order: str) -> tuple[str, ...]:
    """The dimensions that a pattern of file names has a field for.

    Raises:
        InvalidInputError: it is no order at all.
    """
    if order in (BY_COORDINATES, AS_LISTED):
        return ()
    names = _FIELD.findall(order)
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(
            f"order is {order!r}, expected 'coordinates', 'listed', or a pattern of file names "
            "with each dimension once in braces, such as 'sst_{time}.nc'"
        )
    return tuple(names)


def ranks_in(location: str, order: str) -> dict[str, Rank] | None:
    """What the name of a file says, by dimension; None if it does not follow the pattern."""
    found = _compiled(order).fullmatch(unquote(location))
    return (
        None if found is None else {name: _rank(text) for name, text in found.groupdict().items()}
    )


def rank_all(
    order: str, dims: Sequence[str], locations: Mapping[int, str]
) -> tuple[dict[str, dict[int, Rank]], dict[int, str]]:
    """The ranks of files by dimension and number, and files whose names tell nothing."""
    if order == AS_LISTED:
        return {name: {number: number for number in locations} for name in dims}, {}
    ranks: dict[str, dict[int, Rank]] = {name: {} for name in named_dims(order)}
    problems: dict[int, str] = {}
    for number, location in locations.items() if ranks else ():
        found = ranks_in(location, order)
        if found is None:
            problems[number] = f"its name does not follow the pattern {order!r}"
            continue
        for name, rank in found.items():
            ranks[name][number] = rank
    return ranks, problems


def _compiled(order: str) -> re.Pattern[str]:
    parts = []
    for at, text in enumerate(_FIELD.split(order)):
        plain = re.escape(text).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append(f"(?P<{text}>[^/]+?)" if at % 2 else plain)
    return re.compile("(?:.*/)?" + "".join(parts))


def _rank(text: str) -> Rank:
    parts = _DIGITS.split(text)
    return tuple((1, int(part)) if at % 2 else (0, part) for at, part in enumerate(parts))


# Archives choose another scale and offset for every file. Such files can be joined by copying:
# values are unpacked as xarray does it, and stored as float64 with NaN for what is missing. Where
# only the types differ, values are stored in the smallest type that holds all of them. An array
# that is packed already stays so: what is appended is rounded to its steps, or refused if it lies
# out of its range.

_SCALES = ("scale_factor", "add_offset", "_Unsigned")
_RANGES = ("valid_min", "valid_max", "valid_range")
"""Said of packed values."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How the numbers of one file become values."""

    scale: float | None
    offset: float | None
    missing: tuple[Any, ...]
    """As they are stored."""
    view: str | None
    scaled: str = "f8"
    """The type in which numbers are scaled and moved."""

    @property
    def is_scaled(self) -> bool:
        return self.scale is not None or self.offset is not None

    @property
    def is_plain(self) -> bool:
        """Whether the numbers are the values."""
        return self == Packing(None, None, (), None)

    def unpack(self, stored: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The values, in a type that holds them."""
        numbers = stored if self.view is None else stored.view(self.view)
        is_missing = np.zeros(numbers.shape, bool)
        for mark in self.missing:
            is_missing |= np.asarray(stored == mark)
        values = numbers.astype(self.scaled if self.is_scaled else dtype)
        if self.scale is not None:
            values = values * self.scale
        if self.offset is not None:
            values = values + self.offset
        values = values.astype(dtype, copy=False)
        if is_missing.any():
            values[is_missing] = np.nan
        return values

    def pack(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Values as the nearest numbers that mean them; None if there are none of the type."""
        numbers = values.astype(np.float64)
        if self.offset is not None:
            numbers = numbers - self.offset
        if self.scale is not None:
            numbers = numbers / self.scale
        is_missing = np.isnan(numbers)
        kind = dtype if self.view is None else np.dtype(self.view)
        if kind.kind == "f":
            stored = numbers.astype(kind)
        else:
            rounded = np.rint(np.where(is_missing, 0, numbers))
            limits = np.iinfo(kind)
            if rounded.size and (rounded.min() < limits.min or rounded.max() > limits.max):
                return None
            stored = rounded.astype(kind)
        stored = stored.view(dtype)
        for mark in self.missing:
            if bool((stored[~is_missing] == mark).any()):
                return None
        if not is_missing.any():
            return stored
        if self.missing:
            stored[is_missing] = self.missing[0]
        elif kind.kind != "f":
            return None
        return stored


def packing_of(variable: VariableDescription) -> Packing | None:
    """How a variable is packed; None if its attributes make no sense."""
    attributes, kind = variable.attributes, np.dtype(variable.dtype)
    scale, offset = (attributes.get(name) for name in _SCALES[:2])
    if not all(isinstance(value, int | float | None) for value in (scale, offset)):
        return None
    if kind.kind not in "iuf":
        return Packing(scale, offset, (), None)
    said = {key: attributes[key] for key in (*_SCALES, FILL, MISSING) if key in attributes}
    coding = find_coding(variable.path, kind, said, decode=True)
    view = coding.view and f"{kind.byteorder.replace('|', '=')}{coding.view}"
    missing = missing_values_of(attributes, variable.dtype)
    return Packing(scale, offset, missing, view, coding.scaled)


def common_type(variables: Iterable[VariableDescription]) -> np.dtype[Any] | None:
    """The type that holds the values of all; None if there is none, or it would lose digits."""
    packings, kinds = [], []
    for variable in variables:
        if variable.dtype == "string" or np.dtype(variable.dtype).kind not in "iuf":
            return None
        packing = packing_of(variable)
        if packing is None:
            return None
        packings.append(packing)
        kinds.append(np.dtype(variable.dtype).newbyteorder("="))
    is_packed = any(not packing.is_plain for packing in packings)
    found = np.dtype("f8") if is_packed else np.result_type(*kinds)
    is_large = any(kind.kind in "iu" and kind.itemsize == 8 for kind in kinds)
    return None if found.kind == "f" and is_large else found


def unpacked(variable: VariableDescription, dtype: np.dtype[Any]) -> VariableDescription:
    """The variable as it is stored when files are unpacked."""
    gone = {*_SCALES, *_RANGES, FILL, MISSING}
    return replace(
        variable,
        dtype=dtype.newbyteorder("<").str,
        attributes={key: said for key, said in variable.attributes.items() if key not in gone},
        data_type=data_type_of(dtype),
        fill_value=fill_value_json(np.nan if dtype.kind == "f" else None, dtype),
        notes=(f"files pack it differently, so that it is stored unpacked, as {dtype}",),
    )


Mode = Literal["native", "virtual"]

BLOCK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What the user wants.

    Attributes:
        group: where in the repository; the root when empty.
        concat_dims: dimensions along which files follow each other; found out when None.
        variables: names or paths to bring over, their coordinates included; None for all.
        chunks: chunk lengths by dimension name, for native mode; the source's own where missing.
        mode: `native` copies values, `virtual` refers to the files.
        order: `coordinates`, `listed`, or a pattern of file names; see `named_dims`.
        late: whether values that belong before the end of the group are inserted there.
        changed: what becomes of files that changed since an earlier ingest.
        made_with: what the first ingest into the group was told, for the ledger.
        continued: the settings inherited here, because this ingest does not name them.
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
        """A sentence about inherited settings; none if all are named."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.continued.items())
        return [f"the group keeps its settings: {shown}"] if shown else []

    @property
    def ranked_dims(self) -> tuple[str, ...]:
        """Dimensions along which coordinates do not tell the place."""
        if self.order == AS_LISTED:
            return self.concat_dims or ()
        return named_dims(self.order)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file cannot be part of the ingest."""

    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason}"


class FillCounts(NamedTuple):
    """Chunks and bytes written, and references set."""

    chunks: int = 0
    bytes: int = 0
    references: int = 0

    @classmethod
    def of(cls, refs: ChunkRefs) -> FillCounts:
        """What a table of references adds up to."""
        is_virtual = refs.kind == ChunkKind.VIRTUAL
        virtual = int(is_virtual.sum())
        return cls(len(refs) - virtual, int(refs.length[~is_virtual].sum()), virtual)

    def plus(self, other: FillCounts, times: int = 1) -> FillCounts:
        """The sum, with the other counted some times."""
        return FillCounts(*(a + times * b for a, b in zip(self, other, strict=True)))


class Part(NamedTuple):
    """A box of a source file and the box of the target array it fills."""

    source: int
    source_region: Slices
    target_region: Slices


class BoxIndex(NamedTuple):
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


@dataclass(frozen=True, eq=False)
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
    written: Index | None = None
    """Chunks that an earlier try of the same ingest has written; the session has them already."""

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
        if self.written is not None:
            yield from self._rest(filled)
            return
        yield from (block for block in cut(filled, steps) if len(self.rows_in(block)))

    def chunk_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every pair of a row and a chunk that it has a part of: row numbers and chunk indices."""
        chunks = np.maximum(np.array(self.chunks, np.int64), 1)
        first, last = self.starts // chunks, -(-(self.starts + self.shapes) // chunks)
        counts = (last - first).prod(axis=1)
        row = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        index = first[row]
        for axis in reversed(range(len(chunks))):
            number, at = np.divmod(number, (last - first)[row, axis])
            index[:, axis] += at
        return row, index

    def _rest(self, filled: Slices) -> Iterator[Slices]:
        """What is filled of each chunk that is not written."""
        grid = [-(-n // max(1, length)) for n, length in zip(self.shape, self.chunks, strict=True)]
        _, index = self.chunk_rows()
        cells = np.unique(np.ravel_multi_index(tuple(index.T), tuple(grid)))
        done = np.ravel_multi_index(tuple(np.asarray(self.written).T), tuple(grid))
        left = np.unravel_index(cells[~np.isin(cells, done)], grid)
        for at in np.stack(left, axis=1).tolist():
            sides = zip(at, self.chunks, filled, strict=True)
            yield tuple(
                slice(max(n * size, span.start), min((n + 1) * size, span.stop))
                for n, size, span in sides
            )

    def rows_in(self, region: Slices) -> NDArray[np.int64]:
        """The rows whose boxes overlap with a region."""
        return self._index.find(region)

    @cached_property
    def _index(self) -> BoxIndex:
        return BoxIndex.of(self.starts, self.shapes)


@dataclass(frozen=True, slots=True, eq=False)
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
