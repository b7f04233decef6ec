"""Chunk indices as sort keys, against a dictionary that does the same the slow way."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.chunk_index import (
    Index,
    KeySpace,
    SortedIndex,
    box_rows,
    follow_each_other,
    is_strictly_ascending,
    sort_rows,
)

Cell = tuple[int, ...]

TOP = 2**32 - 1
# Small numbers collide and make dense boxes, the others make boxes of more than 2**63 cells.
COORDINATE = st.integers(0, 4) | st.sampled_from([2**16, 2**31 - 1, 2**31, TOP - 1, TOP])


def cells(ndim: int, *, is_unique: bool = True, max_size: int = 12) -> st.SearchStrategy[Any]:
    one = st.tuples(*[COORDINATE] * ndim)
    return st.lists(one, max_size=max_size, unique=is_unique)


def matrix(rows: list[Cell], ndim: int) -> Index:
    return np.array(rows, np.uint32).reshape(len(rows), ndim)


dimensions = st.integers(0, 4)
tables = dimensions.flatmap(lambda ndim: st.tuples(st.just(ndim), cells(ndim)))


# --- keys ------------------------------------------------------------------------------------


@given(tables)
def test_keys_sort_like_the_rows_and_are_equal_only_for_equal_rows(
    table: tuple[int, list[Cell]],
) -> None:
    ndim, rows = table
    index = matrix(rows, ndim)
    keys = KeySpace(index).keys(index)
    assert len(set(keys.tolist())) == len(rows)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    assert np.argsort(keys, kind="stable").tolist() == order


def test_boxes_up_to_2_to_the_63_have_integer_keys_and_larger_ones_have_bytes() -> None:
    fits = matrix([(0, 0), (2**31 - 1, TOP - 1)], 2)
    too_large = matrix([(0, 0), (2**31 - 1, TOP)], 2)
    assert KeySpace(fits).keys(fits).dtype == np.int64
    assert KeySpace(fits).keys(fits)[1] == (2**31 - 1) * TOP + TOP - 1
    assert KeySpace(too_large).keys(too_large).dtype.kind == "S"


def test_a_small_box_far_from_the_origin_still_has_integer_keys() -> None:
    index = matrix([(TOP - 1,) * 4, (TOP,) * 4], 4)
    assert KeySpace(index).keys(index).tolist() == [0, 15]


@given(tables, st.data())
def test_a_box_holds_the_rows_between_its_corners(
    table: tuple[int, list[Cell]], data: st.DataObject
) -> None:
    ndim, rows = table
    space = KeySpace(matrix(rows, ndim))
    others = data.draw(cells(ndim))
    low = [min(row[axis] for row in rows) if rows else 0 for axis in range(ndim)]
    high = [max(row[axis] for row in rows) if rows else -1 for axis in range(ndim)]
    expected = [
        all(first <= at <= last for at, first, last in zip(row, low, high, strict=True))
        for row in others
    ]
    assert space.holds(matrix(others, ndim)).tolist() == expected


# --- lookup ----------------------------------------------------------------------------------


@given(tables, st.data())
def test_lookup_finds_what_a_dictionary_finds(
    table: tuple[int, list[Cell]], data: st.DataObject
) -> None:
    ndim, rows = table
    rows = sorted(rows)
    lookup = SortedIndex(matrix(rows, ndim))
    model = {row: number for number, row in enumerate(rows)}
    wanted = rows + data.draw(cells(ndim))
    expected = [model.get(cell, -1) for cell in wanted]
    assert [lookup.find(cell) for cell in wanted] == expected
    assert lookup.find_many(matrix(wanted, ndim)).tolist() == expected
    assert lookup.is_strictly_ascending()
    assert lookup.count == len(rows)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 2), (1, 1, 5)])
def test_lookup_in_a_dense_array_finds_every_chunk(shape: tuple[int, ...]) -> None:
    rows = list(np.ndindex(shape))
    lookup = SortedIndex(matrix(rows, len(shape)))
    assert [lookup.find(row) for row in rows] == list(range(len(rows)))
    assert lookup.find(shape) == -1


@pytest.mark.parametrize(
    "rows",
    [[(0,), (5,)], [(0, 0), (1, 1)], [(0, 0, 0), (TOP, TOP, TOP)]],
    ids=["1-d", "2-d", "wide"],
)
@pytest.mark.parametrize("outside", [-1, -(2**40), 2**32, 2**70])
def test_coordinates_that_no_chunk_can_have_are_not_found(rows: list[Cell], outside: int) -> None:
    lookup = SortedIndex(matrix(rows, len(rows[0])))
    assert lookup.find((outside,) * len(rows[0])) == -1
    assert lookup.find((0,) * (len(rows[0]) - 1) + (outside,)) == -1


def test_the_one_chunk_of_a_scalar_array_is_found() -> None:
    lookup = SortedIndex(np.empty((1, 0), np.uint32))
    assert lookup.find(()) == 0
    assert lookup.find_many(np.empty((2, 0), np.uint32)).tolist() == [0, 0]
    assert SortedIndex(np.empty((0, 0), np.uint32)).find(()) == -1


@pytest.mark.parametrize("ndim", [0, 1, 3])
def test_nothing_is_found_in_an_empty_table(ndim: int) -> None:
    lookup = SortedIndex(np.empty((0, ndim), np.uint32))
    assert lookup.find((0,) * ndim) == -1
    assert lookup.find_many(np.zeros((2, ndim), np.uint32)).tolist() == [-1, -1]
    assert lookup.is_strictly_ascending()


@given(dimensions.flatmap(lambda ndim: st.tuples(st.just(ndim), cells(ndim, is_unique=False))))
def test_ascending_means_sorted_and_without_repetition(table: tuple[int, list[Cell]]) -> None:
    ndim, rows = table
    is_ascending = rows == sorted(set(rows))
    assert SortedIndex(matrix(rows, ndim)).is_strictly_ascending() == is_ascending


# --- boxes -----------------------------------------------------------------------------------


@given(tables, st.data())
def test_a_box_selects_the_rows_inside_it(
    table: tuple[int, list[Cell]], data: st.DataObject
) -> None:
    ndim, rows = table
    rows = sorted(rows)
    bound = st.tuples(*[COORDINATE | st.just(TOP + 1)] * ndim)
    start, stop = data.draw(bound), data.draw(bound)
    expected = [
        number
        for number, row in enumerate(rows)
        if all(low <= at < high for at, low, high in zip(row, start, stop, strict=True))
    ]
    found = box_rows(matrix(rows, ndim), start, stop)
    assert np.arange(len(rows))[found].tolist() == expected


def test_a_box_may_reach_beyond_every_index() -> None:
    index = matrix(list(itertools.product(range(3), repeat=2)), 2)
    assert len(index[box_rows(index, (0, 0), (2**40, 2**40))]) == 9
    assert len(index[box_rows(index, (-5, -5), (2, 2))]) == 4
    assert len(index[box_rows(index, (2, 2), (1, 1))]) == 0


def test_neighbouring_rows_of_a_box_are_a_slice() -> None:
    index = matrix(list(itertools.product(range(4), repeat=2)), 2)
    assert box_rows(index, (1, 0), (3, 4)) == slice(4, 12)


# --- sorting and merging ---------------------------------------------------------------------


@given(dimensions.flatmap(lambda ndim: st.tuples(st.just(ndim), cells(ndim, is_unique=False))))
def test_of_equal_indices_the_last_one_given_wins(table: tuple[int, list[Cell]]) -> None:
    ndim, rows = table
    model = {row: number for number, row in enumerate(rows)}
    expected = [model[row] for row in sorted(model)]
    assert sort_rows(matrix(rows, ndim)).tolist() == expected


@given(tables)
def test_ascending_is_what_sorting_leaves_alone(table: tuple[int, list[Cell]]) -> None:
    ndim, rows = table
    assert is_strictly_ascending(matrix(rows, ndim)) == (rows == sorted(set(rows)))
    assert is_strictly_ascending(matrix(sorted(set(rows)), ndim))


def test_disorder_is_found_where_slices_meet() -> None:
    index = np.arange(1 << 17, dtype=np.uint32)[:, None]
    assert is_strictly_ascending(index)
    index[1 << 16] = index[(1 << 16) - 1]
    assert not is_strictly_ascending(index)


def test_matrices_follow_each_other_or_not() -> None:
    first, second = matrix([(0, 5), (1, 0)], 2), matrix([(1, 1), (7, 0)], 2)
    assert follow_each_other([first, second])
    assert not follow_each_other([second, first])
    assert not follow_each_other([first, first[1:]])
