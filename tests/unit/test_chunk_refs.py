"""Chunk references as columns, against a dictionary of single references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format import small
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.columns import BlobColumn
from icefloe.format.locations import Coded, Locations
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest
from icefloe.ids import ChunkId, ManifestId, NodeId

Cell = tuple[int, ...]
Model = dict[Cell, ChunkRef]

U64 = st.integers(0, 2**64 - 1)
TEXT = st.sampled_from(["s3://bucket/a", "s3://bucket/größe", "", "file:///x"]) | st.text(
    max_size=5
)

NATIVE = st.builds(
    lambda chunk_id, offset, length: ChunkRef(ChunkKind.NATIVE, offset, length, chunk_id),
    st.binary(min_size=12, max_size=12).map(ChunkId),
    U64,
    U64,
)
VIRTUAL = st.builds(
    lambda location, offset, length, etag, modified: ChunkRef(
        ChunkKind.VIRTUAL, offset, length, None, location, etag, modified
    ),
    TEXT,
    U64,
    U64,
    st.none() | TEXT,
    st.none() | st.integers(1, 2**32 - 1),
)
INLINE = st.binary(max_size=5).map(
    lambda data: ChunkRef(ChunkKind.INLINE, 0, len(data), inline=data)
)
COORDINATE = st.integers(0, 3) | st.sampled_from([2**31, 2**32 - 1])


def models(ndim: int, refs: st.SearchStrategy[ChunkRef]) -> st.SearchStrategy[Model]:
    return st.dictionaries(st.tuples(*[COORDINATE] * ndim), refs, max_size=8)


def table(model: Model, ndim: int) -> ChunkRefs:
    """Columns of the references in a model, made kind by kind and merged."""
    refs = ChunkRefs.empty(ndim)
    for kind in ChunkKind:
        rows = {cell: ref for cell, ref in model.items() if ref.kind == kind}
        index = np.array(list(rows), np.uint32).reshape(len(rows), ndim)
        if rows:
            refs = refs.merge(single_kind(index, list(rows.values()), kind))
    return refs


def single_kind(index: Any, refs: list[ChunkRef], kind: ChunkKind) -> ChunkRefs:
    offset = np.array([ref.offset for ref in refs], np.uint64)
    length = np.array([ref.length for ref in refs], np.uint64)
    if kind == ChunkKind.NATIVE:
        ids = np.frombuffer(b"".join(ref.chunk_id or b"" for ref in refs), np.uint8)
        return ChunkRefs.native(index, ids, offset, length)
    if kind == ChunkKind.INLINE:
        return ChunkRefs.inline_chunks(index, [ref.inline for ref in refs])
    return ChunkRefs.virtual(
        index,
        [ref.location for ref in refs],
        offset,
        length,
        [ref.etag for ref in refs],
        [ref.last_modified or 0 for ref in refs],
    )


def as_model(refs: ChunkRefs) -> Model:
    cells = [tuple(cell) for cell in refs.index.tolist()]
    assert cells == sorted(set(cells))
    return {cell: refs.row(row) for row, cell in enumerate(cells)}


any_model = st.integers(0, 3).flatmap(
    lambda ndim: st.tuples(st.just(ndim), models(ndim, NATIVE | VIRTUAL | INLINE))
)


# --- looking ---------------------------------------------------------------------------------


@given(any_model)
def test_columns_hold_what_was_put_into_them(given_model: tuple[int, Model]) -> None:
    ndim, model = given_model
    refs = table(model, ndim)
    assert len(refs) == len(model)
    assert refs.ndim == ndim
    assert as_model(refs) == model
    for cell, ref in model.items():
        assert refs.get(cell) == ref
    assert refs.get((9,) * ndim) == model.get((9,) * ndim)


@given(any_model, st.data())
def test_a_box_selects_what_lies_inside_it(
    given_model: tuple[int, Model], data: st.DataObject
) -> None:
    ndim, model = given_model
    bound = st.tuples(*[COORDINATE] * ndim)
    start, stop = data.draw(bound), data.draw(bound)
    expected = {
        cell: ref
        for cell, ref in model.items()
        if all(low <= at < high for at, low, high in zip(cell, start, stop, strict=True))
    }
    assert as_model(table(model, ndim).select(start, stop)) == expected


@given(any_model)
def test_extents_are_the_smallest_box_around_all_indices(given_model: tuple[int, Model]) -> None:
    ndim, model = given_model
    expected = [
        (min(cell[axis] for cell in model), max(cell[axis] for cell in model) + 1)
        if model
        else (0, 0)
        for axis in range(ndim)
    ]
    assert table(model, ndim).extents() == expected


def test_the_order_in_which_refs_are_given_does_not_matter_and_the_last_one_wins() -> None:
    refs = ChunkRefs.inline_chunks([[2], [0], [2], [1]], [b"old", b"zero", b"new", b"one"])
    assert [refs.row(row).inline for row in range(3)] == [b"zero", b"one", b"new"]


def test_one_number_stands_for_all_offsets_or_lengths() -> None:
    refs = ChunkRefs.native([[0], [1]], np.zeros((2, 12), np.uint8), offset=7, length=100)
    assert [ref[1:3] for ref in as_model(refs).values()] == [(7, 100)] * 2


# --- merging ---------------------------------------------------------------------------------


@given(st.integers(0, 3), st.data())
def test_merging_is_deleting_and_then_overwriting(ndim: int, data: st.DataObject) -> None:
    base, edits = (data.draw(models(ndim, NATIVE | VIRTUAL | INLINE)) for _ in range(2))
    gone = data.draw(st.lists(st.tuples(*[COORDINATE] * ndim), max_size=6))
    deleted = np.array(gone, np.uint32).reshape(len(gone), ndim)
    layers = [(table(base, ndim), None), (table(edits, ndim), deleted)]
    expected = {cell: ref for cell, ref in base.items() if cell not in gone} | edits
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans(), "as if the edits were few"):
            patch.setattr(small, "EDITS_SHARE", 1e9)
        merged, left = ChunkRefs.overlay(layers, ndim)
    assert as_model(merged) == expected
    assert [tuple(cell) for cell in left.tolist()] == sorted({*gone} - edits.keys())


@given(any_model, st.data())
def test_merging_the_parts_of_a_table_gives_the_table(
    given_model: tuple[int, Model], data: st.DataObject
) -> None:
    ndim, model = given_model
    refs = table(model, ndim)
    part = data.draw(st.lists(st.integers(0, 2), min_size=len(refs), max_size=len(refs)))
    pieces = [refs.take(np.flatnonzero(np.array(part, int) == number)) for number in range(3)]
    joined = pieces[0].merge(pieces[2]).merge(pieces[1])
    assert joined.equals(refs)


def test_edits_survive_the_deletion_of_their_own_index() -> None:
    base = ChunkRefs.inline_chunks([[0], [1]], [b"a", b"b"])
    edits = ChunkRefs.inline_chunks([[1]], [b"new"])
    merged = base.merge(edits, np.array([[0], [1]], np.uint32))
    assert as_model(merged) == {(1,): edits.row(0)}


def test_the_parents_of_a_merge_stay_as_they_were() -> None:
    base = ChunkRefs.inline_chunks([[0], [1]], [b"a", b"b"])
    before = as_model(base)
    base.merge(ChunkRefs.native([[1]], bytes_row(1), 0, 1), np.array([[0]], np.uint32))
    assert as_model(base) == before


def bytes_row(fill: int) -> Any:
    return np.full((1, 12), fill, np.uint8)


def test_an_array_without_refs_merges_whatever_its_rank() -> None:
    """A manifest does not say of how many dimensions an array without references is."""
    node_id = NodeId(bytes(8))
    some = ChunkRefs.inline_chunks([[0, 1]], [b"x"])
    arrays = (ArrayManifest(node_id, ChunkRefs.empty(2)), ArrayManifest(NodeId(b"other id"), some))
    data = encode_manifest(Manifest(ManifestId(bytes(12)), arrays))
    empty = decode_manifest(data).find(node_id)
    assert empty is not None
    assert empty.merge(some).equals(some)
    assert some.merge(empty).equals(some)


# --- exchanging ------------------------------------------------------------------------------


@given(any_model)
def test_arrow_tables_carry_every_column_there_and_back(given_model: tuple[int, Model]) -> None:
    ndim, model = given_model
    refs = table(model, ndim)
    for plain in (False, True):
        arrow = refs.to_arrow(plain=plain)
        assert arrow.num_rows == len(refs)
        again = ChunkRefs.from_arrow(arrow)
        assert again.equals(refs)
        assert again.ndim == ndim
        assert as_model(again) == model


@given(any_model, st.randoms(use_true_random=False))
def test_rows_of_an_arrow_table_may_come_in_any_order_and_in_pieces(
    given_model: tuple[int, Model], random: Any
) -> None:
    ndim, model = given_model
    arrow = table(model, ndim).to_arrow()
    order = list(range(arrow.num_rows))
    random.shuffle(order)
    shuffled = arrow.take(pa.array(order, pa.int64()))
    cut = len(order) // 2
    pieces = pa.concat_tables([shuffled.slice(cut), shuffled.slice(0, cut)])
    assert as_model(ChunkRefs.from_arrow(pieces)) == model


@given(any_model)
def test_columns_survive_a_parquet_like_schema_without_dictionaries(
    given_model: tuple[int, Model],
) -> None:
    """Spark and Parquet readers give large strings and drop columns that are all null."""
    ndim, model = given_model
    refs = table(model, ndim)
    arrow = refs.to_arrow(plain=True)
    for name in ("location", "etag"):
        column = arrow[name].cast(pa.large_string())
        arrow = arrow.set_column(arrow.column_names.index(name), name, column)
    empty = [name for name in arrow.column_names[2:] if arrow[name].null_count == len(refs)]
    lean = arrow.drop_columns([name for name in empty if name not in ("offset", "length")])
    assert as_model(ChunkRefs.from_arrow(lean)) == model


@pytest.mark.parametrize("codes", [pa.int8(), pa.int64(), pa.uint8(), pa.uint32()])
def test_dictionaries_with_any_type_of_codes_are_taken(codes: pa.DataType) -> None:
    column = pa.array(["a", None, "b", "a"]).dictionary_encode()
    column = column.cast(pa.dictionary(codes, pa.string()))
    coded = Coded.from_arrow(column)
    assert coded is not None
    assert coded.codes.tolist() == [0, -1, 1, 0]
    assert coded.to_arrow().to_pylist() == ["a", None, "b", "a"]


def test_the_arrow_schema_is_the_one_documented_for_exchange() -> None:
    schema = ChunkRefs.virtual([[0, 0]], ["s3://b/f"], [0], [1]).to_arrow().schema
    assert schema == pa.schema(
        {
            "index": pa.list_(pa.uint32(), 2),
            "kind": pa.uint8(),
            "chunk_id": pa.binary(12),
            "offset": pa.uint64(),
            "length": pa.uint64(),
            "location": pa.dictionary(pa.int32(), pa.string()),
            "etag": pa.dictionary(pa.int32(), pa.string()),
            "last_modified": pa.uint32(),
            "inline": pa.binary(),
            "extra": pa.binary(),
        }
    )


# --- comparing -------------------------------------------------------------------------------


@given(any_model, any_model)
def test_tables_are_equal_when_their_references_are(
    first: tuple[int, Model], second: tuple[int, Model]
) -> None:
    equal = table(*first[::-1]).equals(table(*second[::-1]))
    assert equal == (first == second)


def test_the_numbering_of_locations_does_not_matter() -> None:
    codes = np.array([0, 1], np.int32)
    one = ChunkRefs.virtual([[0], [1]], ["a", "b"], [0, 0], [1, 1])
    other = ChunkRefs.virtual(
        [[0], [1]],
        Coded(1 - codes, Locations(BlobColumn.from_values(["b", "a", "unused"], is_text=True))),
        [0, 0],
        [1, 1],
    )
    assert one.equals(other)
