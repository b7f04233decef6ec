"""Chunk manifest files as document 003 describes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import ChunkId, NodeId
from icefloe.legacy.state_file.manifest import decode_manifest, encode_manifest
from icefloe.legacy.state_file.structure import Inventory
from icefloe.legacy.state_file.tables import Profile

# Section "Chunk Manifest Files", as it is printed there.
DOCUMENT_SCHEMA = """id: uint32 not null
array_id: uint32 not null
coord: binary not null
inline_data: binary
chunk_file: string
offset: uint64
length: uint32 not null"""

ARRAY = NodeId((7).to_bytes(8, "big"))
BOX = ((0, 4), (0, 40))
CHUNK = ChunkId(bytes(range(12)))


def refs() -> ChunkRefs:
    tables = [
        ChunkRefs.native([[0, 1], [0, 2]], np.frombuffer(CHUNK * 2, np.uint8), [0, 5], [5, 8]),
        ChunkRefs.inline_chunks([[1, 1]], [b"abc"]),
        ChunkRefs.virtual([[1, 2]], ["s3://bucket/f.nc"], [100], [2]),
        ChunkRefs.keyed([[3, 30]], ["c/sub/f.nc"], [1], [2]),
    ]
    return ChunkRefs.overlay([(table, None) for table in tables], 2)[0]


def read_back(data: bytes, box: Any = BOX, row: int = 0, array: NodeId = ARRAY) -> ChunkRefs:
    return decode_manifest(data, "i/x.parquet", [Inventory("x.parquet", row, array, box)])[0]


def test_columns_and_types_are_those_of_the_document() -> None:
    data = encode_manifest(ARRAY, refs(), Profile.strict, "/a")
    assert str(pq.read_schema(pa.BufferReader(data))) == DOCUMENT_SCHEMA


def test_golden_rows() -> None:
    data = encode_manifest(ARRAY, refs(), Profile.strict, "/a")
    rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    names = ("id", "array_id", "coord", "inline_data", "chunk_file", "offset", "length")
    first = "000G40R40M30E209185G"

    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, 7, bytes([0, 1]), None, first, 0, 5),
        (1, 7, bytes([0, 2]), None, first, 5, 8),
        (2, 7, bytes([1, 1]), b"abc", None, None, 3),
        (3, 7, bytes([1, 2]), None, "s3://bucket/f.nc", 100, 2),
        (4, 7, bytes([3, 30]), None, "sub/f.nc", 1, 2),
    ]


@pytest.mark.parametrize("profile", Profile)
def test_references_come_back(profile: Profile) -> None:
    found = read_back(encode_manifest(ARRAY, refs(), profile, "/a"))
    assert found.equals(refs())
    assert found.get((0, 2)) == ChunkRef(ChunkKind.NATIVE, 5, 8, CHUNK)
    assert found.get((3, 30)) == ChunkRef(ChunkKind.NATIVE, 1, 2, location="c/sub/f.nc")


def written_coords(data: bytes) -> list[bytes]:
    found: list[bytes] = pq.read_table(pa.BufferReader(data))["coord"].to_pylist()
    return found


def test_coords_sort_like_indices_and_can_be_searched() -> None:
    """Section "Chunk Coord Encoding": sortable, and usable as a predicate in Arrow."""
    index = [[0, 247], [0, 255], [0, 256], [1, 0], [255, 1], [256, 0], [65536, 3]]
    table = ChunkRefs.inline_chunks(index, [b"x"] * len(index))
    data = encode_manifest(ARRAY, table, Profile.strict, "/a")
    coords = written_coords(data)
    assert coords == sorted(coords)
    low, high = bytes([0, 249, 1, 0]), bytes([248, 255, 2])  # (0, 256) and (255, 2)
    found = pq.read_table(
        pa.BufferReader(data), filters=[("coord", ">=", low), ("coord", "<", high)]
    )
    assert found["coord"].to_pylist() == coords[2:5]


@given(
    st.integers(0, 4).flatmap(
        lambda ndim: st.lists(
            st.tuples(*[st.integers(0, 2**32 - 1) | st.integers(0, 300)] * ndim),
            min_size=1,
            max_size=30,
            unique=True,
        )
    )
)
def test_coords_are_minimal_sort_like_indices_and_come_back(index: list[tuple[int, ...]]) -> None:
    index = sorted(index)
    ndim = len(index[0])
    table = ChunkRefs.inline_chunks(np.array(index).reshape(len(index), ndim), [b"x"] * len(index))
    data = encode_manifest(ARRAY, table, Profile.wide, "/a")
    coords = written_coords(data)
    assert coords == sorted(coords)
    bytes_of = [0 if at < 248 else -(-at.bit_length() // 8) for row in index for at in row]
    assert sum(map(len, coords)) == sum(bytes_of) + ndim * len(index)
    assert read_back(data, ((0, 2**32),) * ndim).equals(table)


def test_coords_of_eight_bytes_per_axis_are_read_too() -> None:
    """Earlier versions wrote them, and other programs may."""
    rows = [_row(7, 0, coord=np.array([1, 30], ">u8").tobytes())]
    rows.append(_row(7, 1, coord=np.array([3, 2], ">u8").tobytes()))
    assert read_back(_file(rows)).index.tolist() == [[1, 30], [3, 2]]
    mixed = [_row(7, 0, coord=np.array([0, 30], ">u8").tobytes()), _row(7, 1, coord=bytes([3, 2]))]
    with pytest.raises(FormatError, match="is not the index of a chunk"):
        read_back(_file(mixed))


@pytest.mark.parametrize(
    "coord",
    [b"", b"\1", b"\1\2\3", b"\1\xf8", b"\1\xf8\xf7", b"\1\xf9\0\xff", b"\xfc\1\1\1\1\1\2"],
    ids=["empty", "short", "long", "cut", "small", "zeros", "huge"],
)
def test_coords_that_are_no_index_are_refused(coord: bytes) -> None:
    with pytest.raises(FormatError, match="is not the index of a chunk"):
        read_back(_file([_row(7, 0, coord=bytes([0, 1])), _row(7, 1, coord=coord)]))


def test_an_array_without_dimensions_has_an_empty_coord() -> None:
    table = ChunkRefs.inline_chunks(np.empty((1, 0), np.uint32), [b"x"])
    data = encode_manifest(ARRAY, table, Profile.strict, "/a")
    assert pq.read_table(pa.BufferReader(data))["coord"].to_pylist() == [b""]
    assert read_back(data, ()).equals(table)


def _file(rows: list[tuple[Any, ...]], **types: pa.DataType) -> bytes:
    columns = ("id", "array_id", "coord", "inline_data", "chunk_file", "offset", "length")
    kinds = {
        "id": pa.uint32(),
        "array_id": pa.uint32(),
        "coord": pa.binary(),
        "inline_data": pa.binary(),
        "chunk_file": pa.string(),
        "offset": pa.uint64(),
        "length": pa.uint32(),
    } | types
    table = pa.table(
        {name: pa.array([row[at] for row in rows], kinds[name]) for at, name in enumerate(columns)}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _row(array: int, at: int, **changes: Any) -> tuple[Any, ...]:
    row = {
        "id": at,
        "array_id": array,
        "coord": at.to_bytes(8, "big"),
        "inline_data": None,
        "chunk_file": "f",
        "offset": None,
        "length": 3,
    } | changes
    return tuple(row.values())


def test_references_of_several_arrays_in_one_file() -> None:
    """ "Chunk references from multiple arrays can be stored in the same chunk manifest."""
    rows = [_row(3, at) for at in range(4)] + [_row(7, at) for at in range(2)] + [_row(9, 0)]
    boxes = [(3, 0, 4), (3, 2, 4), (7, 4, 9), (9, 6, 1)]
    inventories = [
        Inventory("x", row, NodeId(array.to_bytes(8, "big")), ((0, stop),))
        for array, row, stop in boxes
    ]
    found = decode_manifest(_file(rows), "i/x", inventories)
    assert [table.index[:, 0].tolist() for table in found] == [[0, 1, 2, 3], [2, 3], [0, 1], [0]]


def test_rows_outside_the_extent_do_not_count_and_order_does_not_matter() -> None:
    data = _file([_row(7, at) for at in (5, 0, 3, 2)])
    assert read_back(data, ((1, 5),)).index.tolist() == [[2], [3]]


def test_other_widths_are_read() -> None:
    data = _file([_row(7, 0)], length=pa.int64(), array_id=pa.uint16(), offset=pa.int32())
    assert read_back(data, ((0, 1),)).get((0,)) == ChunkRef(ChunkKind.NATIVE, 0, 3, location="c/f")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([_row(8, 0)], "row 0 is not one of array 7"),
        ([], "row 0 is not one of array 7"),
        ([_row(7, 0, coord=b"123")], "not the index of a chunk"),
        ([_row(7, 0, chunk_file=None)], "neither inline_data nor a chunk_file"),
        ([_row(7, 0, chunk_file="../x")], "not the name of a file"),
        ([_row(7, 0, length=None)], "'length' has rows without a value"),
        ([_row(7, 0), _row(7, 0)], "there twice"),
        ([_row(7, 0, offset=2**64 - 1)], "beyond"),
    ],
)
def test_damaged_rows_are_refused_by_file_and_generation(rows: Any, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        read_back(_file(rows), ((0, 9),))
    assert "i/x.parquet of a dataset with a state file" in str(caught.value)


def test_a_chunk_that_is_too_long_is_refused() -> None:
    table = ChunkRefs.virtual([[0]], ["s3://b/f"], [0], [2**32])
    with pytest.raises(InvalidInputError, match="4,294,967,296") as caught:
        encode_manifest(ARRAY, table, Profile.strict, "/a")
    assert "wide profile" in str(caught.value)
    wide = encode_manifest(ARRAY, table, Profile.wide, "/a")
    assert read_back(wide, ((0, 1),)).equals(table)


def test_versions_of_foreign_files_have_no_place() -> None:
    table = ChunkRefs.virtual([[0]], ["s3://b/f"], [0], [1], etag=["e"])
    with pytest.raises(InvalidInputError, match="which version"):
        encode_manifest(ARRAY, table, Profile.strict, "/a")


def test_many_references_are_columns_all_the_way() -> None:
    count = 200_000
    index = np.stack([np.arange(count) // 1000, np.arange(count) % 1000], axis=1)
    ids = np.random.default_rng(1).integers(0, 256, (count, 12), np.uint8)
    table = ChunkRefs.native(index, ids, np.zeros(count, np.uint64), np.arange(count))
    found = read_back(encode_manifest(ARRAY, table, Profile.strict, "/a"), ((0, 200), (0, 1000)))
    assert found.equals(table)
