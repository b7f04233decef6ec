"""Finding the manifest of a chunk, against looking at every one."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.snapshot.manifest_refs import (
    ManifestBoxes,
    ManifestRef,
    ManifestRefs,
    extents_of,
    ids_of,
)
from icefloe.ids import ManifestId

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
        expected = {
            ref
            for ref in refs
            if all(low <= at < high for at, (low, high) in zip(place, ref.extents, strict=True))
        }
        found = list(finder.around(place))
        assert len(found) == len(expected)
        assert set(found) == expected
        assert columns.around(place) == found
    assert list(columns.descending()) == list(finder.descending())
