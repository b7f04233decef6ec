"""Many branches or tags as columns: what a dictionary of them is."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import BlobColumn, find_rows
from icefloe.format.repo_info import RefTable, read_refs, with_ref
from icefloe.ids import SnapshotId

NAMES = [f"branch-{number:03}" for number in range(100)]


def refs_of(names: list[str]) -> Mapping[str, SnapshotId]:
    column = BlobColumn.from_values(names, is_text=True)
    return read_refs(column, np.arange(12 * len(names)).reshape(-1, 12).astype(np.uint8))


def as_dict(names: list[str]) -> dict[str, SnapshotId]:
    ids = np.arange(12 * len(names)).reshape(-1, 12).astype(np.uint8)
    return {name: SnapshotId(row.tobytes()) for name, row in zip(names, ids, strict=True)}


@given(st.sets(st.text(min_size=1, max_size=20), min_size=64, max_size=90))
def test_many_refs_are_what_a_dictionary_is(texts: set[str]) -> None:
    names = sorted(text.replace("\0", "0") for text in texts)
    names = sorted(set(names))
    refs, expected = refs_of(names), as_dict(names)
    for name in [*names, "", "no such ref", "\udc80"]:
        assert refs.get(name) == expected.get(name)
        assert (name in refs) == (name in expected)
    assert len(refs) == len(expected)
    assert list(refs) == list(expected)
    assert refs == expected
    assert dict(refs) == {**refs} == expected
    assert list(refs.values()) == list(expected.values())
    assert pickle.loads(pickle.dumps(refs)) == expected


@pytest.mark.parametrize(
    "names",
    [
        NAMES[::-1],
        [*NAMES, NAMES[-1]],
        [*NAMES, "branch-1\0"],
        ["", *NAMES],
        [*NAMES, "z" * 300],
    ],
    ids=["not in order", "twice", "a zero", "empty", "long"],
)
def test_refs_in_any_other_order_are_a_dictionary(names: list[str]) -> None:
    assert refs_of(names) == as_dict(names)
    if names != ["", *NAMES]:
        assert isinstance(refs_of(names), dict)


def test_a_ref_is_moved_or_added_and_the_others_stay() -> None:
    refs, tip = refs_of(NAMES), SnapshotId(b"n" * 12)
    assert isinstance(refs, RefTable)
    moved = with_ref(refs, NAMES[7], tip)
    assert isinstance(moved, RefTable)
    assert moved == as_dict(NAMES) | {NAMES[7]: tip}
    assert with_ref(refs, "another", tip) == as_dict(NAMES) | {"another": tip}
    assert with_ref({"a": tip}, "b", tip) == {"a": tip, "b": tip}
    assert refs == as_dict(NAMES)
    with pytest.raises(KeyError, match="no such ref"):
        moved["no such ref"]


def test_ids_that_end_in_zeros_are_told_apart() -> None:
    ids = np.zeros((3, 12), np.uint8)
    ids[1, 0], ids[2, :2] = 1, 1
    sought = np.zeros((4, 12), np.uint8)
    sought[0, :2], sought[1, 0], sought[3, 11] = 1, 1, 1
    assert find_rows(ids, sought).tolist() == [2, 1, 0, -1]


def test_ids_that_begin_with_the_same_eight_bytes_are_told_apart() -> None:
    ids = np.zeros((3, 12), np.uint8)
    ids[:, 11] = 1, 2, 3
    assert find_rows(ids, ids[[2, 0, 1, 1]]).tolist() == [2, 0, 1, 1]
    assert find_rows(ids, ids[[2]] + np.uint8(1)).tolist() == [-1]
