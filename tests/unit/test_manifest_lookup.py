"""Looking one chunk up in a large manifest, without decoding the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config.manifest import ResolvedLocationCompression
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest
from icefloe.format.manifest_lookup import StoredRefs
from icefloe.ids import ManifestId, NodeId

NODE, OTHER = NodeId(b"the node"), NodeId(b"nodeless")
GRID = (40, 50, 20)


def refs_of(kind: ChunkKind) -> ChunkRefs:
    every = np.stack(np.unravel_index(np.arange(np.prod(GRID)), GRID), axis=1).astype(np.uint32)
    index = every[every.sum(axis=1) % 3 != 0]  # holes
    count = len(index)
    numbers = np.arange(count, dtype=np.uint64)
    kinds = np.full(count, kind, np.uint8)
    if kind == ChunkKind.NATIVE:
        ids = np.zeros((count, 12), np.uint8)
        ids[:, :4] = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(-1, 4)
        return ChunkRefs(index, kinds, numbers * 8, numbers + 1, ids)
    texts = pa.array([f"s3://bucket/file-{number % 7}" for number in range(count)])
    table = pa.table(
        {
            "index": pa.FixedSizeListArray.from_arrays(pa.array(index.reshape(-1)), 3),
            "kind": pa.array(kinds),
            "offset": pa.array(numbers * 8),
            "length": pa.array(numbers + 1),
            "location": texts,
            "last_modified": pa.array(np.full(count, 7, np.uint32)),
        }
    )
    return ChunkRefs.from_arrow(table)


@pytest.fixture(scope="module", params=[ChunkKind.NATIVE, ChunkKind.VIRTUAL])
def file(request: pytest.FixtureRequest) -> bytes:
    manifest = Manifest(ManifestId(b"a manifest  "), (ArrayManifest(NODE, refs_of(request.param)),))
    return encode_manifest(manifest)


def test_a_search_finds_what_the_columns_have(file: bytes) -> None:
    columns = decode_manifest(file, lazy_from=1 << 30)
    lazy = decode_manifest(file, lazy_from=0)
    rng = np.random.default_rng(1)
    wanted = [(0, 0, 0), (0, 0, 1), (39, 49, 19), (39, 49, 18), (40, 0, 0), (0, 0, 2**32 - 1)]
    wanted += [tuple(row) for row in rng.integers(0, GRID, (200, 3)).tolist()]
    found = [lazy.get(NODE, at) for at in wanted]
    assert found == [columns.get(NODE, at) for at in wanted]
    kinds = [0 if ref is None else int(ref.kind) for ref in found]
    assert [lazy.kind_at(NODE, at) for at in wanted] == kinds
    assert [columns.kind_at(NODE, at) for at in wanted] == kinds
    assert any(found)
    assert not all(found)
    assert lazy.equals(columns)


def test_the_file_is_kept_until_many_are_asked_for(file: bytes) -> None:
    manifest = decode_manifest(file, lazy_from=0)
    [array] = manifest.arrays
    before = array.nbytes
    assert manifest.num_chunk_refs == len(array) == len(array.refs)
    assert array.nbytes == array.refs.nbytes != before
    searched = decode_manifest(file, lazy_from=0)
    for _ in range(8):
        assert searched.get(NODE, (0, 0, 1)) is not None
        assert searched.nbytes == before
    for _ in range(1000):
        assert searched.get(NODE, (0, 0, 1)) is not None
    assert searched.nbytes == array.nbytes


def test_another_node_or_number_of_dimensions(file: bytes) -> None:
    manifest = decode_manifest(file, lazy_from=0)
    assert manifest.get(OTHER, (0, 0, 1)) is None
    assert manifest.kind_at(OTHER, (0, 0, 1)) == 0
    with pytest.raises(InvalidInputError, match=r"\(0, 1\) has 2 dimensions, the array has 3"):
        manifest.get(NODE, (0, 1))


# -- which row a chunk is in


def native(index: Sequence[tuple[int, ...]], *, ndim: int) -> ChunkRefs:
    """References whose offset is their row, in the order given."""
    count = len(index)
    numbers = np.arange(count, dtype=np.uint64)
    ids = np.zeros((count, 12), np.uint8)
    matrix = np.array(index, np.uint32).reshape(count, ndim)
    return ChunkRefs(matrix, np.full(count, ChunkKind.NATIVE, np.uint8), numbers, numbers, ids)


def stored(refs: ChunkRefs, spec_version: int = 2) -> ArrayManifest:
    """The references as a file has them, not decoded."""
    manifest = Manifest(ManifestId(b"a manifest  "), (ArrayManifest(NODE, refs),))
    file = encode_manifest(manifest, spec_version=spec_version)
    [array] = decode_manifest(file, lazy_from=0).arrays
    return array


@st.composite
def indices(draw: st.DrawFn) -> tuple[int, list[tuple[int, ...]]]:
    """A box of chunks at any place, often with holes and with some chunks besides."""
    ndim = draw(st.integers(0, 4))
    low = draw(st.tuples(*[st.integers(0, 3)] * ndim))
    size = draw(st.tuples(*[st.integers(1, 4)] * ndim))
    box = set(product(*(range(at, at + n) for at, n in zip(low, size, strict=True))))
    places = st.tuples(*[st.integers(0, 8)] * ndim)
    box -= draw(st.sets(st.sampled_from(sorted(box)), max_size=3))
    box |= draw(st.sets(places, max_size=3))
    return ndim, sorted(box or {low})


@given(indices(), st.sampled_from([1, 2]), st.data())
def test_the_row_of_a_chunk_is_found_in_boxes_with_and_without_holes(
    case: tuple[int, list[tuple[int, ...]]], spec_version: int, data: st.DataObject
) -> None:
    ndim, index = case
    array = stored(native(index, ndim=ndim), spec_version)
    rows = {at: row for row, at in enumerate(index)}
    others = data.draw(st.lists(st.tuples(*[st.integers(0, 9)] * ndim), max_size=20))
    for at in [*index, *others]:
        ref = array.get(at)
        assert (None if ref is None else ref.offset) == rows.get(at)
        assert array.kind_at(at) == (ChunkKind.NATIVE if at in rows else 0)


def test_few_holes_cost_few_probes() -> None:
    every = list(product(*map(range, GRID)))
    missing = set(every[3::5003])
    index = [at for at in every if at not in missing]
    buffer = stored(native(index, ndim=3))._refs
    assert isinstance(buffer, StoredRefs)
    assert len(missing) == 8
    for row in range(0, len(index), 97):
        before = buffer.probes_left
        ref = buffer.get(index[row])
        assert ref is not None
        assert ref.offset == row
        assert before - buffer.probes_left <= 16 + 4  # the reference itself, and half of 9 rows
    assert all(buffer.get(at) is None for at in missing)


@pytest.mark.parametrize(
    "index",
    [
        # As many chunks as the box from the first to the last has, but not those of the box.
        [(0, 0), (0, 1), (0, 7), (1, 1)],
        [(0, 0), (0, 5), (0, 6), (1, 1)],
        [(2, 2), (2, 4), (3, 0), (3, 3)],
    ],
)
def test_chunks_that_only_seem_to_fill_a_box(index: list[tuple[int, int]]) -> None:
    array = stored(native(index, ndim=2))
    for at in product(range(5), range(9)):
        ref = array.get(at)
        assert (None if ref is None else index[ref.offset]) == (at if at in index else None)


@pytest.mark.parametrize(
    "index",
    [
        [(0, 0), (1, 0), (0, 1), (1, 1)],  # not ascending, and a box
        [(0, 0), (0, 1), (0, 1), (1, 1)],  # one of them twice
        [(1, 1), (1, 0), (0, 1), (0, 0)],
    ],
)
def test_rows_out_of_order_are_never_taken_for_another_chunk(index: list[tuple[int, int]]) -> None:
    array = stored(native(index, ndim=2))
    for at in product(range(3), range(3)):
        ref = array.get(at)
        assert ref is None or index[ref.offset] == at
    with pytest.raises(FormatError, match="do not ascend"):
        _ = array.refs


def test_every_kind_of_reference_in_one_array() -> None:
    table = pa.table(
        {
            "index": pa.array([[0], [1], [2], [3], [4]], pa.list_(pa.uint32(), 1)),
            "kind": pa.array([1, 2, 3, 2, 2], pa.uint8()),
            "chunk_id": pa.array([b"twelve bytes", *[None] * 4], pa.binary(12)),
            "offset": pa.array([1, 2, 0, 4, 0], pa.uint64()),
            "length": pa.array([10, 20, 3, 40, 7], pa.uint64()),
            "location": pa.array([None, "s3://b/é", None, "s3://b/g", "file:///x"]),
            "etag": pa.array([None, "tag", None, None, None]),
            "last_modified": pa.array([None, None, None, 7, None], pa.uint32()),
            "inline": pa.array([None, None, b"abc", None, None], pa.binary()),
        }
    )
    refs = ChunkRefs.from_arrow(table)
    array = stored(refs)
    found = [array.get([at]) for at in range(6)]
    assert found == [*map(refs.row, range(5)), None]
    assert [array.kind_at((at,)) for at in range(6)] == [1, 2, 3, 2, 2, 0]


def test_compressed_locations_are_inflated_one_by_one() -> None:
    locations = [f"s3://bucket/some/long/prefix/of/files/{number:06d}.nc" for number in range(2000)]
    refs = ChunkRefs.virtual(np.arange(2000).reshape(-1, 1), locations, 0, 8)
    manifest = Manifest(ManifestId(b"a manifest  "), (ArrayManifest(NODE, refs),))
    file = encode_manifest(manifest, locations=ResolvedLocationCompression())
    column = decode_manifest(file).arrays[0].refs.location
    assert column is not None
    assert column.values.is_waiting
    lazy = decode_manifest(file, lazy_from=0)
    for row in range(0, 2000, 37):
        ref = lazy.get(NODE, (row,))
        assert ref is not None
        assert ref.location == locations[row]
