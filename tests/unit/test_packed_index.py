"""Chunk indices in compressed pieces, and logs that are written from them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format import chunk_index
from icefloe.format.chunk_index import Index, PackedIndex, sort_rows
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.ids import NodeId, SnapshotId

ID, NODE = SnapshotId(b"snapshot 123"), NodeId(b"node 123")


def full(*grid: int) -> Index:
    return np.indices(grid, np.uint32).reshape(len(grid), -1).T


@given(st.integers(0, 3), st.data())
def test_what_is_packed_comes_back(ndim: int, data: st.DataObject) -> None:
    row = st.tuples(*[st.integers(0, 2**32 - 1)] * ndim)
    rows = data.draw(st.lists(row, unique=True, max_size=1 if ndim == 0 else 40))
    index = np.array(sorted(rows), np.uint32).reshape(len(rows), ndim)
    packed = PackedIndex.pack(index)
    assert packed.shape == index.shape
    assert np.array_equal(packed.unpack(), index)
    assert packed.unpack().shape == index.shape


def test_packing_leaves_its_input_alone() -> None:
    index = full(5, 4)
    before = index.copy()
    PackedIndex.pack(index)
    assert np.array_equal(index, before)


def test_neighbours_take_next_to_no_room() -> None:
    packed = PackedIndex.pack(full(500, 1000))
    assert sum(len(piece.data) for piece in packed.pieces) < 10_000


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_slices_have_the_size_asked_for(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(chunk_index, "_PIECE_ROWS", 10)
    index = full(11, 9)
    slices = list(PackedIndex.pack(index).slices(size))
    assert [len(rows) for rows in slices[:-1]] == [size] * (len(slices) - 1)
    assert np.array_equal(np.concatenate(slices), index)


def test_indices_behind_each_other_are_joined_as_they_are() -> None:
    index = full(6, 5)
    first, second, third = (PackedIndex.pack(part) for part in np.split(index, 3))
    joined = PackedIndex.union([third, first, PackedIndex(2), second], 2)
    assert np.array_equal(joined.unpack(), index)
    assert joined.pieces == (*first.pieces, *second.pieces, *third.pieces)


def test_indices_among_each_other_are_sorted_and_distinct() -> None:
    index = full(6, 5)
    left, right = index[index[:, 1] < 3], index[index[:, 1] > 1]
    joined = PackedIndex.union([PackedIndex.pack(right), PackedIndex.pack(left)], 2)
    assert np.array_equal(joined.unpack(), index)


@pytest.mark.parametrize("grid", [(), (1,), (65,), (3, 64), (260, 1000), (70_001,)])
@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_log_is_the_same_from_pieces(grid: tuple[int, ...], spec_version: int) -> None:
    index = full(*grid) if grid else np.empty((1, 0), np.uint32)
    plain = TransactionLog(ID, updated_chunks={NODE: index})
    packed = TransactionLog(ID, packed_chunks={NODE: PackedIndex.pack(index)})
    assert packed.num_changes == plain.num_changes
    data = encode_transaction_log(packed, spec_version=spec_version)
    assert data == encode_transaction_log(plain, spec_version=spec_version)
    assert decode_transaction_log(data).equals(plain)


def test_a_log_holds_indices_with_gaps() -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 2**32, (100_000, 2), np.uint32)
    index = index[sort_rows(index)]
    log = TransactionLog(ID, packed_chunks={NODE: PackedIndex.pack(index)})
    found = decode_transaction_log(encode_transaction_log(log))
    assert np.array_equal(found.updated_chunks[NODE], index)


def test_a_log_from_pieces_needs_little_more_memory_than_the_file() -> None:
    packed = PackedIndex.pack(full(1000, 1000))
    log = TransactionLog(ID, packed_chunks={NODE: packed})
    tracemalloc.start()
    try:
        data = encode_transaction_log(log)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) < 5_000_000
    assert peak < 16_000_000  # the coordinates alone are 8 MB, their tables 24 MB
