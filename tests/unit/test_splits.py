"""Which manifests a commit rewrites, against references kept in a dictionary."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.changes.splits import merge_split, plan_array
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef
from icefloe.ids import ManifestId

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
) -> tuple[dict[ManifestRef, Cells], set[ManifestRef]]:
    """What a commit does with a plan; returns the manifests after it, and those it kept."""
    ndim = len(grid)
    shape = tuple(Dimension(count, count) for count in grid)
    gone = np.array(sorted(deleted), np.uint32).reshape(len(deleted), ndim)
    array = ArrayData(shape, None, tuple(manifests))
    plan = plan_array(array, [(table(edits, ndim), gone)], sizes)
    after = {ref: manifests[ref] for ref in plan.kept}
    for rewrite in plan.rewrites:
        refs = merge_split(rewrite, [table(manifests[ref], ndim) for ref in rewrite.sources])
        if len(refs):
            ref = ManifestRef(ManifestId(len(after).to_bytes(12, "big")), tuple(refs.extents()))
            assert ref not in after
            after[ref] = contents(refs)
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


@given(histories())
def test_no_chunk_is_lost_or_kept_by_mistake_whatever_the_splits(steps: list[Step]) -> None:
    manifests: dict[ManifestRef, Cells] = {}
    model: Cells = {}
    for grid, sizes, edits, deleted in steps:
        before = manifests
        manifests, kept = commit(grid, manifests, edits, deleted, sizes)
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


def test_only_the_touched_split_is_written_again() -> None:
    cells: Cells = {(at,): b"x" for at in range(100)}
    manifests, _ = commit([100], {}, cells, set(), [10])
    assert len(manifests) == 10
    after, kept = commit([100], manifests, {(42,): b"new"}, set(), [10])
    assert len(kept) == 9
    assert len(after) == 10
