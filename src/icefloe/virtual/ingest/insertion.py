"""Inserts late data into the middle of a dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from icefloe.api.session import Session
from icefloe.cf.times import convert_times
from icefloe.geometry import Slices, cut, grow_chunks, shape_of, whole
from icefloe.virtual.ingest.transfer import write_document
from icefloe.virtual.model.description import Json, SourceDescription, digest_of, scope_of
from icefloe.virtual.planning.axes import (
    AxisKey,
    are_descending,
    ascending,
    find_dimensions,
    find_disorder,
    find_keys,
    marks_of,
    snap_coordinates,
)
from icefloe.virtual.planning.file_boxes import Existing
from icefloe.virtual.planning.plan import BLOCK_BYTES, IngestOptions, itemsize_of
from icefloe.virtual.planning.planner import select_variables, target_of

Positions = NDArray[np.int64]
"""The new index of every old one, ascending."""


class AxisRoom(NamedTuple):
    """A dimension with new values among the old ones."""

    positions: Positions
    values: NDArray[Any]
    """All values of its coordinate, as the array stores them."""

    @property
    def first_moved(self) -> int:
        """The first index that changes its place; the old length if only the end grows."""
        moved = np.flatnonzero(self.positions != np.arange(len(self.positions)))
        return int(moved[0]) if len(moved) else len(self.positions)


class ArrayRoom(NamedTuple):
    """An array that gets room: the new shape, and the positions along the axes that grow."""

    target: str
    document: dict[str, Json]
    """The zarr.json with the new shape."""
    old_shape: tuple[int, ...]
    axes: dict[int, AxisRoom]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.document["shape"])

    @property
    def chunks(self) -> tuple[int, ...]:
        return tuple(self.document["chunk_grid"]["configuration"]["chunk_shape"])

    def new_chunks(self, axis: int) -> Positions | None:
        """The new index of every chunk along an axis; None if a chunk does not stay whole."""
        length, old = self.chunks[axis], self.old_shape[axis]
        if axis not in self.axes:
            return np.arange(-(-old // length))
        positions = self.axes[axis].positions
        starts = positions[::length]
        ends = np.minimum(np.arange(1, len(starts) + 1) * length, old) - 1
        are_runs = positions[ends] - starts == ends - np.arange(len(starts)) * length
        # A last chunk that was not full must stay the last one: others would show its end.
        is_full = old % length == 0 or positions[-1] == self.shape[axis] - 1
        if not is_full or not bool((are_runs & (starts % length == 0)).all()):
            return None
        return starts // length

    @property
    def is_relabelled(self) -> bool:
        """Whether all chunks stay whole."""
        return all(self.new_chunks(axis) is not None for axis in self.axes)


class Room(NamedTuple):
    """Everything that has to move, and the group as it is afterwards."""

    arrays: list[ArrayRoom]
    existing: Existing
    needed_by: frozenset[str]
    """The sources that room is made for."""
    refusal: str | None
    """Why it cannot be made."""


class BlockMove(NamedTuple):
    """A part of an array that is written again, and where its values come from."""

    target: str
    region: Slices
    sources: tuple[tuple[slice, Positions], ...]
    """Along each axis: the old span, and its indices in the region."""

    def run(self, base: Store, store: Store) -> None:
        """Copy the values from the array as `base` has it; the rest is the fill value."""
        old = zarr.open_array(base, path=self.target, mode="r", zarr_format=3)
        new = zarr.open_array(store, path=self.target, mode="r+", zarr_format=3)
        shape = shape_of(self.region)
        block = np.full(shape, new.fill_value, new.dtype)
        if all(len(at) for _, at in self.sources):
            values = np.asarray(old[tuple(span for span, _ in self.sources)])
            block[np.ix_(*(at for _, at in self.sources))] = values
        new[self.region] = block


def plan_room(
    existing: Existing, sources: Sequence[SourceDescription], options: IngestOptions
) -> Room | None:
    """The room that sources need before the end of what is there; None if they need none."""
    if options.late != "insert":
        return None
    picked = (
        select_variables(source.without_references(), options.variables)
        for source in sources
        if existing.ledger.compare(source) == "new"
    )
    live = snap_coordinates(
        [existing.description, *(source for source, trouble in picked if trouble is None)]
    )
    axes: dict[AxisKey, AxisRoom] = {}
    late: set[int] = set()
    for name in find_dimensions(live, options):
        if name in options.ranked_dims:
            continue
        for key in find_keys(name, live):
            found = _axis_room(key, live, late)
            if found is not None:
                axes[key] = found
    if not axes:
        return None
    arrays, wide = _widen(existing, axes, options)
    refusal = None
    for array in arrays if options.mode == "virtual" else ():
        # Large arrays of references are never read: their chunks have to stay whole.
        size = prod(array.shape) * itemsize_of(array.document)
        if refusal is None and not array.is_relabelled and size > BLOCK_BYTES:
            refusal = (
                f"it belongs inside of a chunk of {array.target!r}, which cannot be cut without "
                "copying the array; use mode='native'"
            )
    return Room(arrays, wide, frozenset(live[number].location for number in late), refusal)


def _axis_room(key: AxisKey, live: Sequence[SourceDescription], late: set[int]) -> AxisRoom | None:
    """A dimension with the values of all sources; those that it is for are added to `late`."""
    marks = marks_of(key, live)
    keys = marks.comparable()
    if 0 not in keys or not len(keys[0]) or marks.values[0].dtype.kind not in "iuf":
        return None
    is_descending = are_descending(keys)
    ordered = {n: ascending(values) if is_descending else values for n, values in keys.items()}
    old, stored = ordered[0], marks.values[0]
    if find_disorder(key[1], old, is_descending=is_descending) is not None:
        return None
    all_keys, all_values = [old], [stored]
    for number, values in ordered.items():
        if number == 0 or find_disorder(key[1], values, is_descending=is_descending) is not None:
            continue
        is_late = (values <= old[-1]) & ~np.isin(values, old)
        own, theirs = marks.units[0], marks.units[number]
        given = marks.values[number][is_late]
        if own is not None and theirs is not None:
            converted = convert_times(given, theirs, own, stored.dtype)
        else:
            converted = given.astype(stored.dtype)
            converted = converted if bool((converted == given).all()) else None
        if converted is not None and len(converted):
            all_keys.append(values[is_late])
            all_values.append(converted)
            late.add(number)
    if len(all_keys) == 1:
        return None
    union, first = np.unique(np.concatenate(all_keys), return_index=True)
    return AxisRoom(np.searchsorted(union, old), np.concatenate(all_values)[first])


def _widen(
    existing: Existing, axes: Mapping[AxisKey, AxisRoom], options: IngestOptions
) -> tuple[list[ArrayRoom], Existing]:
    """The arrays that get room, and the group as it is afterwards."""
    description = existing.description
    arrays, documents, variables = [], dict(existing.documents), dict(description.variables)
    num_holes = dict(existing.num_holes)
    for path, variable in description.variables.items():
        own: dict[int, AxisRoom] = {}
        for at, name in enumerate(variable.dimensions):
            scope = scope_of(description.groups, variable.group, name)
            if scope is not None and (scope, name) in axes:
                own[at] = axes[scope, name]
        if not own:
            continue
        shape = list(variable.shape)
        for at, axis in own.items():
            shape[at] = len(axis.values)
        documents[path] = {**documents[path], "shape": shape}
        target = target_of(options.group, path)
        arrays.append(ArrayRoom(target, documents[path], variable.shape, own))
        num_holes[path] = num_holes.get(path, 0) + prod(shape) - prod(variable.shape)
        values = own[0].values if variable.is_coordinate else None
        digest = None if values is None else digest_of(values)
        variables[path] = replace(variable, shape=tuple(shape), values=values, digest=digest)
    groups = {
        scope: replace(
            group,
            dimensions={
                name: len(axes[scope, name].values) if (scope, name) in axes else size
                for name, size in group.dimensions.items()
            },
        )
        for scope, group in description.groups.items()
    }
    wide = replace(description, groups=groups, variables=variables)
    return arrays, Existing(wide, documents, existing.ledger, num_holes)


def reserve_arrays(session: Session, arrays: Iterable[ArrayRoom]) -> None:
    """Give arrays their new shapes, and chunks that stay whole their new places."""
    for array in arrays:
        write_document(session.store, array.target, array.document)
        if array.is_relabelled:
            _relabel(session, array)


def _relabel(session: Session, array: ArrayRoom) -> None:
    forward = [array.new_chunks(axis) for axis in range(len(array.shape))]
    there = [{} if f is None else {int(new): old for old, new in enumerate(f)} for f in forward]

    def to_new(index: Iterable[int]) -> tuple[int, ...]:
        return tuple(int(f[at]) for f, at in zip(forward, index, strict=True) if f is not None)

    def to_old(index: Iterable[int]) -> tuple[int, ...] | None:
        found = [known.get(at) for known, at in zip(there, index, strict=True)]
        return None if None in found else tuple(at for at in found if at is not None)

    session.reindex_array(f"/{array.target}", to_new, to_old)


def moves_of_arrays(arrays: Iterable[ArrayRoom]) -> list[BlockMove]:
    """The parts of arrays that have to be written again, because chunks do not stay whole."""
    return [move for array in arrays if not array.is_relabelled for move in _moves(array)]


def _moves(array: ArrayRoom) -> Iterator[BlockMove]:
    itemsize = itemsize_of(array.document)
    steps = grow_chunks(array.shape, array.chunks, BLOCK_BYTES // itemsize)
    for region in cut(whole(array.shape), steps):
        if all(region[at].stop <= axis.first_moved for at, axis in array.axes.items()):
            continue  # nothing changes here
        sources = []
        for at, span in enumerate(region):
            if at not in array.axes:
                stop = min(span.stop, array.old_shape[at])
                sources.append((slice(span.start, stop), np.arange(stop - span.start)))
                continue
            positions = array.axes[at].positions
            first, last = np.searchsorted(positions, [span.start, span.stop]).tolist()
            sources.append((slice(first, last), positions[first:last] - span.start))
        yield BlockMove(array.target, region, tuple(sources))
