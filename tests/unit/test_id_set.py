"""Sets of ids as sorted columns do what sets of bytes do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.chunk_index import IdSet
from icefloe.maintenance.live import GrowingIdSet

# Few values, many zeros: trailing zeros are what fixed-width strings of numpy get wrong.
ids = st.lists(st.lists(st.sampled_from([0, 1, 255]), min_size=12, max_size=12).map(bytes))


starts = st.sampled_from([b"\0" * 8, b"\0" * 7 + b"\1", b"\xff" * 8])
ends = st.lists(st.sampled_from([0, 1, 255]), min_size=4, max_size=4).map(bytes)
alike = st.lists(st.builds(bytes.__add__, starts, ends))  # the first eight bytes are no key


def members(some: IdSet) -> set[bytes]:
    return {row.tobytes() for row in some.rows}


@given(ids | alike, ids | alike)
def test_an_id_set_is_a_set(first: list[bytes], second: list[bytes]) -> None:
    one, two = IdSet.of_ids(first), IdSet.of_ids(second)
    assert members(one) == set(first)
    assert one.size == len(set(first))
    rows = np.frombuffer(b"".join(second), np.uint8).reshape(-1, 12)
    assert one.contains(rows).tolist() == [each in first for each in second]
    assert members(one.minus(two)) == set(first) - set(second)
    assert members(IdSet.union([one, two])) == set(first) | set(second)


@given(st.lists(ids, max_size=6), ids)
def test_a_set_that_grows_in_parts(parts: list[list[bytes]], wanted: list[bytes]) -> None:
    growing = GrowingIdSet()
    known: set[bytes] = set()
    rows = np.frombuffer(b"".join(wanted), np.uint8).reshape(-1, 12)
    for part in parts:
        growing.add(np.frombuffer(b"".join(part), np.uint8).reshape(-1, 12))
        known |= set(part)
        assert growing.contains(rows).tolist() == [each in known for each in wanted]
    assert members(growing.finish()) == known
    assert growing.contains(rows).tolist() == [each in known for each in wanted]
