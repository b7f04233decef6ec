"""Which small reads share a request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icefloe.storage.calls import (
    MAX_GAP_BYTES,
    MAX_REQUEST_BYTES,
    MAX_SHARED_BYTES,
    can_share,
    share_requests,
)
from icefloe.storage.driver import Span

SPANS = st.builds(Span, st.integers(1, 40 << 20), st.integers(1, MAX_SHARED_BYTES))


@given(spans=st.lists(SPANS, max_size=60))
def test_every_span_lies_in_one_request(spans: list[Span]) -> None:
    requests = share_requests(spans)
    found = [number for request in requests for number in request.members]
    assert sorted(found) == list(range(len(spans)))
    for span, members in requests:
        assert span.length <= MAX_REQUEST_BYTES
        inside = sorted(spans[number] for number in members)
        assert span.start == inside[0].start
        assert span.start + span.length == max(one.start + one.length for one in inside)
        reached = span.start
        for one in inside:
            assert one.start <= reached + MAX_GAP_BYTES
            reached = max(reached, one.start + one.length)


def test_neighbours_share_up_to_a_gap_and_a_size() -> None:
    gap, size = MAX_GAP_BYTES, MAX_SHARED_BYTES
    assert len(share_requests([Span(1, 10), Span(11 + gap, 5)])) == 1
    assert len(share_requests([Span(1, 10), Span(12 + gap, 5)])) == 2
    in_a_row = [Span(1 + number * size, size) for number in range(9)]
    assert [len(request.members) for request in share_requests(in_a_row)] == [8, 1]
    assert share_requests([Span(5, 3), Span(5, 3)]) == [(Span(5, 3), [0, 1])]


def test_whole_objects_and_large_reads_do_not_wait_for_others() -> None:
    assert can_share(Span(1, 1))
    assert not can_share(None)
    assert not can_share(Span(0, 100))
    assert not can_share(Span(1, 0))
    assert not can_share(Span(1, MAX_SHARED_BYTES + 1))
