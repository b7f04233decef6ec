"""Boxes of arrays: whatever the shape, pieces cover every cell once and share no chunk."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.geometry import (
    cells_of,
    chunks_of,
    cut,
    grow_chunks,
    inside,
    shape_of,
    shrink_chunks,
    whole,
)

GRIDS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=0, max_size=3)


@given(GRIDS, st.integers(0, 5000))
def test_blocks_are_whole_chunks_no_larger_than_asked_for(
    grid: list[tuple[int, int]], max_cells: int
) -> None:
    shape, chunks = [length for length, _ in grid], [chunk for _, chunk in grid]
    steps = grow_chunks(shape, chunks, max_cells)
    assert all(step % chunk == 0 for step, chunk in zip(steps, chunks, strict=True))
    size = prod(min(step, length) for step, length in zip(steps, shape, strict=True))
    is_one_chunk = list(steps) == chunks
    assert is_one_chunk or size <= max_cells
    for axis, (step, length) in enumerate(zip(steps, shape, strict=True)):
        if step < length:  # the axes behind the first one that is cut are whole
            assert all(s == c for s, c in zip(steps[:axis], chunks[:axis], strict=True))


@given(GRIDS, st.data())
def test_a_box_is_cut_into_pieces_that_cover_it_once(
    grid: list[tuple[int, int]], data: st.DataObject
) -> None:
    box = []
    for length, _ in grid:
        start = data.draw(st.integers(0, length))
        box.append(slice(start, data.draw(st.integers(start, length))))
    shape, steps = [length for length, _ in grid], [step for _, step in grid]
    times = np.zeros(shape, int)
    for piece in cut(tuple(box), steps):
        times[piece] += 1
        assert shape_of(chunks_of(piece, steps)) == (1,) * len(shape)
        one = np.zeros(shape_of(tuple(box)), int)
        one[inside(piece, tuple(box))] = 1
        assert one.sum() == prod(shape_of(piece))
    expected = np.zeros(shape, int)
    expected[tuple(box)] = 1
    np.testing.assert_array_equal(times, expected)


@given(GRIDS)
def test_chunks_of_all_cells_are_all_chunks_and_the_other_way_round(
    grid: list[tuple[int, int]],
) -> None:
    shape, chunks = [length for length, _ in grid], [chunk for _, chunk in grid]
    every = chunks_of(whole(shape), chunks)
    assert shape_of(every) == tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    assert cells_of(every, chunks, shape) == whole(shape)


@given(st.lists(st.integers(0, 10**6), max_size=4), st.integers(1, 16))
def test_chunks_nobody_chose_have_at_most_their_size(shape: list[int], itemsize: int) -> None:
    chunks = shrink_chunks(shape, itemsize, 1 << 16)
    assert prod(chunks) * itemsize <= 1 << 16
    assert all(1 <= chunk <= max(n, 1) for chunk, n in zip(chunks, shape, strict=True))
