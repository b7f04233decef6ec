"""Cutting arrays into regions that share no chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import InvalidInputError
from icefloe.geometry import Region, region_of
from icefloe.spark.dataset_writer import Grid, check_given, cut, default_region_shape


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Grid, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A grid, a box in it, and a shape for regions made of whole chunks."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 40)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    start = tuple(draw(st.integers(0, length - 1)) for length in shape)
    stop = tuple(draw(st.integers(low + 1, high)) for low, high in zip(start, shape, strict=True))
    step = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
    dims = tuple("xyz"[:ndim])
    return Grid(dims, shape, chunks, 4), start, stop, step


@given(boxes())
def test_regions_cover_the_box_once_and_no_two_share_a_chunk(
    case: tuple[Grid, tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    grid, start, stop, step = case
    times = np.zeros(grid.shape, int)
    owners: dict[tuple[int, ...], int] = {}
    regions = list(cut(grid, step, start, stop))
    for number, region in enumerate(regions):
        times[region.slices] += 1
        ranges = [
            range(low // chunk, -(-high // chunk))
            for low, high, chunk in zip(region.start, region.stop, grid.chunks, strict=True)
        ]
        for chunk in np.ndindex(*map(len, ranges)):
            at = tuple(r[i] for r, i in zip(ranges, chunk, strict=True))
            assert owners.setdefault(at, number) == number
    inside = np.zeros(grid.shape, int)
    inside[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = 1
    np.testing.assert_array_equal(times, inside)
    check_given(grid, regions)


def test_a_region_is_about_as_large_as_asked_for_and_made_of_whole_chunks() -> None:
    grid = Grid(("t", "y", "x"), (1000, 720, 1440), (1, 180, 360), 4)
    shape = default_region_shape(grid, target_bytes=64 << 20)
    assert shape[1:] == (720, 1440)
    assert 8 << 20 < np.prod(shape) * 4 <= 64 << 20


def test_a_single_chunk_larger_than_the_target_is_a_region() -> None:
    grid = Grid(("x",), (10_000,), (5_000,), 8)
    assert default_region_shape(grid, target_bytes=100) == (5_000,)


def test_a_shape_that_would_cut_through_chunks_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"multiple of 10.*would share a chunk"):
        list(cut(Grid(("x",), (100,), (10,), 4), (15,)))


def test_regions_that_share_a_chunk_are_refused_by_name() -> None:
    grid = Grid(("x", "y"), (100, 100), (10, 10), 4)
    a = region_of(grid.dims, grid.shape, {"x": slice(0, 15)})
    b = region_of(grid.dims, grid.shape, (slice(15, 30), slice(0, 100)))
    with pytest.raises(InvalidInputError, match="share a chunk"):
        check_given(grid, [a, b])
    check_given(grid, [a, Region(grid.dims, (20, 0), (30, 100))])


@pytest.mark.parametrize(
    ("given_region", "message"),
    [
        ({"z": slice(0, 1)}, "names \\['z'\\]"),
        ((slice(0, 1),), "not understood"),
        ((slice(0, 1), 3), "expected slice"),
        ((slice(0, 10, 2), slice(0, 1)), "expected slice"),
    ],
)
def test_a_region_that_makes_no_sense_is_refused(given_region: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        region_of(("x", "y"), (100, 100), given_region)


def test_a_region_outside_the_array_is_refused() -> None:
    grid = Grid(("x",), (100,), (10,), 4)
    with pytest.raises(InvalidInputError, match="not inside the shape"):
        check_given(grid, [Region(("x",), (90,), (110,))])
