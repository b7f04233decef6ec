"""Small reads that lie close together in one object become one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from icefloe.storage.driver import Span

MAX_SHARED_BYTES = 1 << 20
"""Reads above this size are worth a request of their own."""
MAX_REQUEST_BYTES = 8 << 20
MAX_GAP_BYTES = 256 << 10
"""Bytes nobody asked for that are cheaper to fetch than another request."""


class SharedRequest(NamedTuple):
    """One request, and the numbers of the spans that lie in it."""

    span: Span
    members: list[int]


def can_share(span: Span | None) -> bool:
    """Whether a read may wait for others; one from the start is most likely of a whole object."""
    return span is not None and span.start > 0 and 0 < span.length <= MAX_SHARED_BYTES


def share_requests(spans: Sequence[Span]) -> list[SharedRequest]:
    """The requests to fetch all spans with, in the order of their positions."""
    requests: list[SharedRequest] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, length = spans[number]
        if requests:
            first, covered = requests[-1].span
            end = max(first + covered, start + length)
            if start <= first + covered + MAX_GAP_BYTES and end <= first + MAX_REQUEST_BYTES:
                requests[-1].members.append(number)
                requests[-1] = requests[-1]._replace(span=Span(first, end - first))
                continue
        requests.append(SharedRequest(spans[number], [number]))
    return requests
