"""Which manifests a commit rewrites, against references kept in a dictionary."""

from itertools import combinations, count, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.changes.splits import UNSPLIT, merge_split, plan_array
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, ManifestRefs, extents_of, ids_of
from icefloe.ids import ManifestId

NUMBERS = count(1)

Cell = tuple[int, ...]
Cells = dict[Cell, bytes]
Step = tuple[list[int], list[int], Cells, set[Cell]]


def table(cells: Cells, ndim: int) -> ChunkRefs:
    if not cells:
        return ChunkRefs.empty(ndim)
    return ChunkRefs.inline_chunks(np.array([*cells]).reshape(len(cells), ndim), [*cells.values()])


def contents(refs: ChunkRefs) -> Cells:
    rows = enumerate(refs.index.tolist())
    return {tuple(row): refs.row(at).inline or b"" for at, row in rows}


def commit(
    grid: list[int],
    manifests: dict[ManifestRef, Cells],
    edits: Cells,
    deleted: set[Cell],
    sizes: list[int],
    *,
    limit: int = 0,
    as_columns: bool = False,
) -> tuple[dict[ManifestRef, Cells], set[ManifestRef]]:
    """What a commit does with a plan; returns the manifests after it, and those it kept."""
    ndim = len(grid)
    shape = tuple(Dimension(count, count) for count in grid)
    gone = np.array(sorted(deleted), np.uint32).reshape(len(deleted), ndim)
    refs = tuple(manifests)
    old = ManifestRefs(ids_of(refs), extents_of(refs, ndim)) if as_columns and ndim else refs
    array = ArrayData(shape, None, old)
    num_refs = [len(cells) for cells in manifests.values()]
    layers = [(table(edits, ndim), gone)]
    plan = plan_array(array, layers, sizes, limit=limit, num_refs=num_refs)
    after = {ref: manifests[ref] for ref in plan.kept}
    for rewrite in plan.rewrites:
        sources = [table(manifests[ref], ndim) for ref in rewrite.sources]
        for made in merge_split(rewrite, sources):
            if len(made):
                new_id = ManifestId(next(NUMBERS).to_bytes(12, "big"))
                after[ManifestRef(new_id, tuple(made.extents()))] = contents(made)
    return after, set(plan.kept)


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Commits to one array: its grid and split sizes then, chunks set and deleted."""
    ndim = draw(st.integers(0, 2))
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 4))):
        grid = [draw(st.integers(0, 5)) for _ in range(ndim)]
        sizes = [draw(st.integers(1, 6)) for _ in range(ndim)]
        cells: list[Cell] = list(product(*(range(count) for count in grid)))
        chosen = draw(st.lists(st.sampled_from(cells), max_size=6)) if cells else []
        gone: set[Cell] = draw(st.sets(st.sampled_from(cells), max_size=3)) if cells else set()
        edits = {cell: draw(st.binary(min_size=1, max_size=2)) for cell in chosen}
        steps.append((grid, sizes, edits, gone - edits.keys()))
    return steps


def apart(first: ManifestRef, second: ManifestRef) -> bool:
    sides = zip(first.extents, second.extents, strict=True)
    return any(stop <= start or end <= begin for (begin, stop), (start, end) in sides)


@given(histories(), st.integers(0, 12), st.booleans())
def test_no_chunk_is_lost_or_kept_by_mistake_whatever_the_splits(
    steps: list[Step], limit: int, as_columns: bool
) -> None:
    manifests: dict[ManifestRef, Cells] = {}
    model: Cells = {}
    for grid, sizes, edits, deleted in steps:
        before = manifests
        manifests, kept = commit(
            grid, manifests, edits, deleted, sizes, limit=limit, as_columns=as_columns
        )
        model = {cell: data for cell, data in {**model, **edits}.items() if cell not in deleted}
        model = {
            cell: data
            for cell, data in model.items()
            if all(at < count for at, count in zip(cell, grid, strict=True))
        }
        stored = [cell for cells in manifests.values() for cell in cells]
        assert len(stored) == len(set(stored)), "a chunk is in two manifests"
        joined = {cell: data for cells in manifests.values() for cell, data in cells.items()}
        assert joined == model
        assert all(manifests[ref] == before[ref] for ref in kept)
        assert all(apart(*pair) for pair in combinations(manifests, 2)), "boxes overlap"


def test_only_the_touched_split_is_written_again() -> None:
    cells: Cells = {(at,): b"x" for at in range(100)}
    manifests, _ = commit([100], {}, cells, set(), [10])
    assert len(manifests) == 10
    after, kept = commit([100], manifests, {(42,): b"new"}, set(), [10])
    assert len(kept) == 9
    assert len(after) == 10


# -- sparse grids

SPARSE: list[tuple[list[int], list[int]]] = [
    ([4096], [16]),
    ([256, 16], [1, 16]),
    ([64, 64], [1, 16]),
    ([16, 16, 16], [1, 1, 16]),
    ([64, 4, 16], [1, 1, 16]),
    ([2, 2048], [1, 16]),
]


def scattered(grid: list[int], number: int, seed: int) -> Cells:
    random = np.random.default_rng(seed)
    flat = random.choice(int(np.prod(grid)), number, replace=False)
    index = np.stack(np.unravel_index(np.sort(flat), grid), axis=1)
    return {tuple(row): b"x" for row in index.tolist()}


@pytest.mark.parametrize(("grid", "sizes"), SPARSE)
@pytest.mark.parametrize("number", [1, 15, 40, 400, 4000])
@pytest.mark.parametrize("limit", [16, 23, 31])
def test_few_references_make_few_manifests_whatever_the_grid(
    grid: list[int], sizes: list[int], number: int, limit: int
) -> None:
    """The limit counts, also where splits, which are powers of two, have little more than half."""
    cells = scattered(grid, number, number)
    manifests, _ = commit(grid, {}, cells, set(), sizes, limit=limit)
    assert max(map(len, manifests.values())) <= limit
    assert len(manifests) <= max(1, 2 * number / limit)


@given(st.lists(st.integers(0, 16), min_size=1, max_size=60), st.integers(16, 31))
def test_along_one_axis_no_pattern_makes_more_manifests(counts: list[int], limit: int) -> None:
    """Splits of 16 chunks, of which some are there."""
    cells: Cells = {
        (16 * split + at,): b"x" for split, number in enumerate(counts) for at in range(number)
    }
    manifests, _ = commit([16 * len(counts)], {}, cells, set(), [16], limit=limit)
    assert len(manifests) <= 2 * len(cells) / limit + 1
    assert all(len(stored) <= limit for stored in manifests.values())


@pytest.mark.parametrize(("grid", "sizes"), SPARSE)
@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("limit", [16, 31])
def test_references_that_come_one_by_one_make_few_manifests(
    grid: list[int], sizes: list[int], is_ordered: bool, limit: int
) -> None:
    cells = list(scattered(grid, 150, 5))
    if not is_ordered:
        np.random.default_rng(7).shuffle(cells)
    manifests: dict[ManifestRef, Cells] = {}
    for number, cell in enumerate(cells, 1):
        before = manifests
        edits: Cells = {tuple(cell): b"x"}
        manifests, kept = commit(grid, manifests, edits, set(), sizes, limit=limit)
        assert len(manifests) <= 2 * number / limit + 1
        assert len(before) - len(kept) <= 2, "far more than what was touched is written again"
    assert sum(map(len, manifests.values())) == 150


@pytest.mark.parametrize("limit", [12, 15, 23])
def test_dense_appends_move_no_cut_and_join_nothing(limit: int) -> None:
    manifests: dict[ManifestRef, Cells] = {}
    for at in range(200):
        grid = [at + 1, 3]
        row: Cells = {(at, column): b"x" for column in range(3)}
        before = manifests
        manifests, kept = commit(grid, manifests, row, set(), [4, UNSPLIT], limit=limit)
        assert len(before) - len(kept) == (1 if at % 4 else 0)
        assert len(manifests) == at // 4 + 1


def test_a_full_manifest_is_cut_at_the_borders_of_splits() -> None:
    """It was shared by many splits and gets one reference too many."""
    cells = scattered([4096], 16, 3)
    manifests, _ = commit([4096], {}, cells, set(), [16], limit=16)
    assert len(manifests) == 1
    free = min(cells)[0] + 1
    assert (free,) not in cells
    manifests, _ = commit([4096], manifests, {(free,): b"x"}, set(), [16], limit=16)
    assert sorted(map(len, manifests.values())) == [8, 9]
