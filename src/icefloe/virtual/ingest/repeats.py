"""Tries of an ingest that others overtook: chunks that an earlier try has written are used again.

The values of a chunk follow from the boxes of files in it. Where a new plan puts the same boxes at
the same places of a chunk, whichever chunk it is, its object is the same.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.api.session import Session
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.repo.session import restore_edits
from icefloe.storage.run import run_blocking
from icefloe.virtual.planning.plan import ArrayPlan, FillCounts, IngestPlan

_TRIES_KEPT = 3
"""The newest have what they took from those before."""

Contents = dict[int, tuple[Index, pa.Array]]
"""By how many boxes are in a chunk: the indices of such chunks, and what is in each, as bytes."""


class _Written(NamedTuple):
    """The chunks of one array that a try has written."""

    form: str
    contents: Contents
    refs: ChunkRefs


class EarlierTries:
    """Chunks that were written for commits that did not succeed."""

    def __init__(self) -> None:
        self._written: dict[str, list[_Written]] = {}
        self._codes: dict[Any, int] = {}
        self._opened_at: list[int] = []

    def keep(self, session: Session, plan: IngestPlan) -> None:
        """Keep what a session has written for a plan."""
        state = session.workspace.state
        run_blocking(restore_edits(session.workspace, state.changes.prepared))
        self._opened_at.append(state.opened_at)
        for array in plan.arrays:
            node = state.find_node(f"/{array.target}")
            edits = None if node is None else state.changes.chunks.get(node.id)
            if array.storage == "native" and edits is not None:
                found = _Written(_form_of(array), self._contents(plan, array), edits.columns()[0])
                before = self._written.get(array.target, ())
                self._written[array.target] = [found, *before][:_TRIES_KEPT]

    def use(self, session: Session, plan: IngestPlan) -> tuple[IngestPlan, FillCounts]:
        """Put chunks that a plan needs again into its session; the plan is then without them."""
        if not self._written:
            return plan, FillCounts()
        state, counts, arrays = session.workspace.state, FillCounts(), []
        # A collection since the first try may have taken what it wrote.
        state.opened_at = min(state.opened_at, *self._opened_at)
        for array in plan.arrays:
            tables, there = [], [np.empty((0, len(array.shape)), np.uint32)]
            left = self._contents(plan, array) if array.storage == "native" else {}
            for written in self._written.get(array.target, ()):
                if left and written.form == _form_of(array):
                    refs, index, left = _matching(written, left)
                    tables.append(refs)
                    there.append(index)
            refs = ChunkRefs.joined(tables, len(array.shape))
            if len(refs):
                with state.writing():
                    edits = state.edits(state.node(f"/{array.target}"))
                    assert edits is not None
                    edits.set_table(refs)
            counts, done = counts.plus(FillCounts.of(refs)), np.concatenate(there)
            arrays.append(replace(array, written=done) if len(done) else array)
        return replace(plan, arrays=tuple(arrays)), counts

    def _contents(self, plan: IngestPlan, array: ArrayPlan) -> Contents:
        """What is in each chunk whose values are known from the plan alone."""
        if not len(array.sources):
            return {}
        codes = []
        for number in array.sources.tolist():
            source, units = plan.sources[number], array.source_times.get(number)
            times = None if units is None else (array.times, units)
            about = (source.location, source.version, times, array.packings.get(number))
            codes.append(self._codes.setdefault(repr(about), len(self._codes)))
        row, index = array.chunk_rows()
        chunks = np.maximum(np.array(array.chunks, np.int64), 1)
        origin = index * chunks
        starts = array.starts[row]
        low = np.maximum(starts, origin)
        high = np.minimum(starts + array.shapes[row], origin + chunks)
        code = np.array(codes, np.int64)[row]
        boxes = np.column_stack([code, low - origin, high - origin, low - starts])
        grid = -(-np.array(array.shape, np.int64) // chunks)
        cell = np.ravel_multi_index(tuple(index.T), tuple(grid)) if len(grid) else code * 0
        order = np.lexsort((code, cell))
        _, first, number_of = np.unique(cell[order], return_index=True, return_counts=True)
        # Whole chunks, and chunks in which nothing was before.
        num_filled = np.add.reduceat((high - low).prod(axis=1)[order], first)
        index, origin = index[order][first], origin[order][first]
        size = (np.minimum(origin + chunks, array.shape) - origin).prod(axis=1)
        is_new = array.old_shape is None or (origin >= array.old_shape).any(axis=1)
        is_checked = np.isin(array.sources[row], list(array.guarded))  # values may be there
        is_checked = np.add.reduceat(is_checked[order], first) > 0
        is_known = ((num_filled == size) | is_new) & ~is_checked
        found: Contents = {}
        for count in np.unique(number_of[is_known]).tolist():
            chosen = np.flatnonzero(is_known & (number_of == count))
            rows = boxes[order[first[chosen, None] + np.arange(count)]]
            rows = np.ascontiguousarray(rows, np.int64)
            kind, data = pa.binary(rows[0].nbytes), pa.py_buffer(rows)
            values = pa.Array.from_buffers(kind, len(chosen), [None, data])
            found[count] = (index[chosen].astype(np.uint32), values)
        return found


def _matching(written: _Written, wanted: Contents) -> tuple[ChunkRefs, Index, Contents]:
    """References to what is wanted, the indices of all that was found, and what is left."""
    tables, there, left = [], [], {}
    for count, (index, values) in wanted.items():
        old, known = written.contents.get(count, (index[:0], values[:0]))
        at = pc.index_in(values, value_set=known)
        is_found = np.asarray(at.is_valid())
        rows = written.refs.lookup.find_many(old[np.asarray(at.drop_null(), np.int64)])
        # A chunk without a reference has nothing but fill values.
        goals = index[is_found]
        tables.append(written.refs.take(rows[rows >= 0]).relabelled(goals[rows >= 0]))
        there.append(goals)
        if not is_found.all():
            left[count] = (index[~is_found], values.filter(pa.array(~is_found)))
    ndim = written.refs.ndim
    return ChunkRefs.joined(tables, ndim), np.concatenate(there), left


def _form_of(array: ArrayPlan) -> str:
    """Everything besides files that bytes of chunks depend on."""
    names = ("data_type", "chunk_grid", "codecs", "fill_value")
    kept = {name: array.metadata.get(name) for name in names}
    return repr((array.path, array.num_new_axes, array.packed_as, json.dumps(kept, sort_keys=True)))
