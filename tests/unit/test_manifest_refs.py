"""The manifests of an array as columns, against the same ones as values."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.nodes import (
    ManifestRef,
    ManifestRefs,
    extents_of,
    ids_of,
    joined,
    manifest_refs,
    ordered,
    picked,
)
from icefloe.ids import ManifestId

SIDE = st.tuples(st.integers(0, 4), st.integers(1, 3)).map(lambda side: (side[0], sum(side)))


@st.composite
def some_refs(draw: st.DrawFn, ndim: int) -> tuple[ManifestRef, ...]:
    boxes = draw(st.lists(st.tuples(*[SIDE] * ndim), max_size=8))
    ids = draw(
        st.lists(st.binary(min_size=12, max_size=12), min_size=len(boxes), max_size=len(boxes))
    )
    return tuple(map(ManifestRef, map(ManifestId, ids), boxes))


def as_columns(refs: tuple[ManifestRef, ...], ndim: int) -> ManifestRefs:
    return ManifestRefs(ids_of(refs), extents_of(refs, ndim))


@given(st.data(), st.integers(1, 3))
def test_columns_are_the_same_as_values(data: st.DataObject, ndim: int) -> None:
    values, more = data.draw(some_refs(ndim)), data.draw(some_refs(ndim))
    columns = as_columns(values, ndim)
    order = data.draw(st.permutations(range(len(values))))
    assert [columns[row] for row in order] == [values[row] for row in order]
    assert columns[1:] == values[1:]
    assert tuple(columns) == values
    assert (columns == values, values == columns) == (True, True)
    assert hash(columns) == hash(values)
    assert pickle.loads(pickle.dumps(columns)) == columns
    assert tuple(joined(columns, more)) == tuple(joined(values, more)) == values + more
    rows = np.array(sorted(order[: len(order) // 2]), np.int64)
    assert list(picked(columns, rows)) == list(picked(values, rows))
    assert tuple(ordered(columns)) == ordered(values)


@given(st.data(), st.integers(1, 3))
def test_other_manifests_are_not_equal(data: st.DataObject, ndim: int) -> None:
    values, others = data.draw(some_refs(ndim)), data.draw(some_refs(ndim))
    columns = as_columns(values, ndim)
    assert (columns == as_columns(others, ndim)) == (values == others)
    assert (columns == others) == (values == others)


def test_manifests_are_columns_but_for_those_of_a_scalar() -> None:
    ids = np.arange(12 * 100, dtype=np.uint32).astype(np.uint8).reshape(100, 12)
    extents = np.arange(200, dtype=np.uint32).reshape(100, 1, 2)
    assert isinstance(manifest_refs(ids, extents), ManifestRefs)
    few = manifest_refs(ids[:10], extents[:10])
    assert few == manifest_refs(ids, extents)[:10]
    assert isinstance(manifest_refs(ids, extents[:, :0]), tuple), "a scalar has no first axis"
