"""Finding the manifest of a chunk, against looking at every one."""

from itertools import combinations, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.nodes import ManifestBoxes, ManifestRef, ManifestRefs, extents_of, ids_of
from icefloe.ids import ManifestId
from icefloe.maintenance.checks import overlapping_boxes

Box = tuple[tuple[int, int], ...]


def boxes_of(ndim: int) -> st.SearchStrategy[list[Box]]:
    side = st.tuples(st.integers(0, 4), st.integers(1, 3)).map(lambda s: (s[0], s[0] + s[1]))
    return st.lists(st.tuples(*[side] * ndim), max_size=8)


@given(st.integers(0, 3).flatmap(lambda ndim: st.tuples(st.just(ndim), boxes_of(ndim))))
def test_every_box_around_a_chunk_is_found_and_no_other(case: tuple[int, list[Box]]) -> None:
    ndim, boxes = case
    refs = [ManifestRef(ManifestId(at.to_bytes(12, "big")), box) for at, box in enumerate(boxes)]
    finder = ManifestBoxes(refs)
    columns = ManifestBoxes(ManifestRefs(ids_of(refs), extents_of(refs, ndim)) if ndim else refs)
    for place in product(range(8), repeat=ndim):
        expected = [
            ref
            for ref in refs
            if all(low <= at < high for at, (low, high) in zip(place, ref.extents, strict=True))
        ]
        assert finder.around(place) == expected  # the one that is listed first comes first
        assert columns.around(place) == expected


@given(st.integers(0, 3).flatmap(lambda ndim: st.tuples(st.just(ndim), boxes_of(ndim))))
def test_groups_of_overlapping_boxes_are_apart_from_all_others(case: tuple[int, list[Box]]) -> None:
    ndim, boxes = case
    table = np.array(boxes, np.uint32).reshape(len(boxes), ndim, 2)
    groups = list(overlapping_boxes(table))
    rows = [row for group in groups for row in group]
    assert len(set(rows)) == len(rows)
    hulls = [
        tuple((min(low), max(high)) for low, high in (zip(*side, strict=True) for side in sides))
        for sides in (list(zip(*(boxes[row] for row in group), strict=True)) for group in groups)
    ]
    kept = [*hulls, *(box for row, box in enumerate(boxes) if row not in rows)]
    for one, other in combinations(kept, 2):
        assert any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(one, other, strict=True))
