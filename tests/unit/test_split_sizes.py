"""How large splits are: by rules, or by the size of the array."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from icefloe.changes.splits import (
    UNSPLIT,
    Splits,
    automatic_split_sizes,
    coarser_sizes,
    split_sizes,
)
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.format.nodes import ArrayData, Dimension

MOST = 1000


def sizes_of(grid: list[int], num_refs: int | None = None, most: int = MOST) -> tuple[int, ...]:
    return automatic_split_sizes(grid, prod(grid) if num_refs is None else num_refs, most)


def cells(sizes: tuple[int, ...], grid: list[int]) -> int:
    return prod(min(size, count) for size, count in zip(sizes, grid, strict=True))


def test_an_array_that_fits_one_manifest_is_not_split() -> None:
    assert sizes_of([8, 100]) == (UNSPLIT, UNSPLIT)
    assert sizes_of([]) == ()
    assert sizes_of([0, 5]) == (UNSPLIT, UNSPLIT)


def test_a_larger_one_is_cut_along_its_first_axis() -> None:
    assert sizes_of([9, 100]) == (8, UNSPLIT)
    assert sizes_of([10**6]) == (512,)


def test_where_one_row_is_too_much_the_next_axis_is_cut_too() -> None:
    assert sizes_of([3, 50, 30]) == (1, 32, UNSPLIT)
    assert sizes_of([3, 5, 2000]) == (1, 1, 512)


def test_few_references_in_a_large_grid_stay_together() -> None:
    assert sizes_of([10**4, 10**4], num_refs=512) == (UNSPLIT, UNSPLIT)
    assert sizes_of([10**4, 10**4], num_refs=513) == (1, 512)


def test_zero_is_no_limit() -> None:
    assert sizes_of([10**9], most=0) == (UNSPLIT,)


grids = st.lists(st.integers(1, 3000), min_size=1, max_size=4)


@given(grids, st.integers(1, 5000))
def test_no_split_is_larger_than_the_limit_nor_much_smaller(grid: list[int], most: int) -> None:
    sizes = sizes_of(grid, most=most)
    assert cells(sizes, grid) <= most
    if sizes[0] != UNSPLIT:
        assert 2 * cells(sizes, grid) > most or 2 * cells(sizes, grid) > prod(grid[1:])


@given(grids, st.integers(1, 5000), st.integers(0, 5000))
def test_growing_along_the_first_axis_never_moves_a_cut(
    grid: list[int], most: int, more: int
) -> None:
    before, after = sizes_of(grid, most=most), sizes_of([grid[0] + more, *grid[1:]], most=most)
    if before[0] == UNSPLIT and after[0] != UNSPLIT:
        assert cells(after, grid) >= prod(grid), "what was one manifest fits the first split"
    else:
        assert before == after or after[0] == UNSPLIT


@given(grids, st.integers(1, 5000), st.integers(1, 3))
def test_growing_along_another_axis_only_halves_splits(
    grid: list[int], most: int, axis: int
) -> None:
    if axis >= len(grid):
        return
    grown = [*grid]
    grown[axis] *= 2
    before, after = sizes_of(grid, most=most), sizes_of(grown, most=most)
    if UNSPLIT not in (before[0], after[0]):
        assert after[0] in (before[0], before[0] // 2, 1)


@given(grids, st.integers(1, 5000), st.integers(0, 50), st.data())
def test_pieces_are_whole_splits_and_few_in_a_box(
    grid: list[int], most: int, pieces: int, data: st.DataObject
) -> None:
    sizes = sizes_of(grid, most=most)
    low = [data.draw(st.integers(0, side - 1)) for side in grid]
    high = [data.draw(st.integers(at + 1, side)) for at, side in zip(low, grid, strict=True)]
    box = tuple(zip(low, high, strict=True))
    found = coarser_sizes(grid, sizes, box, pieces)
    splits = Splits(grid, found)
    assert splits.count_in(box) <= max(1, pieces)
    for size, split, side in zip(found, sizes, grid, strict=True):
        assert size >= side or size % split == 0
    hull = splits.hull(box)
    rest = list(splits.beyond(hull))
    volumes = [prod(stop - start for start, stop in each) for each in (hull, *rest)]
    assert sum(volumes) == prod(grid)


def sizes_under(rules: ManifestSplittingConfig | None, most: int | None) -> tuple[int, ...]:
    config = RepositoryConfig(
        manifest=ManifestConfig(splitting=rules, max_refs_per_manifest=most)
    ).resolved()
    array = ArrayData((Dimension(300, 300), Dimension(10, 10)), ("time", "x"))
    return split_sizes(config.manifest)("/group/array", array, 3000).sizes


def test_a_rule_about_any_axis_of_an_array_decides_alone() -> None:
    def about(name: str) -> ManifestSplittingConfig:
        return ManifestSplittingConfig.from_dict(
            {
                ManifestSplitCondition.name_matches(name): {
                    ManifestSplitDimCondition.DimensionName("x"): 4
                }
            }
        )

    assert sizes_under(about("array"), 100) == (UNSPLIT, 4)
    assert sizes_under(about("other"), 100) == (8, UNSPLIT)
    assert sizes_under(None, 100) == (8, UNSPLIT)
    assert sizes_under(None, 0) == (UNSPLIT, UNSPLIT)
    whole = {ManifestSplitCondition.any_array(): {ManifestSplitDimCondition.Any(): UNSPLIT}}
    assert sizes_under(ManifestSplittingConfig.from_dict(whole), 100) == (UNSPLIT, UNSPLIT)
