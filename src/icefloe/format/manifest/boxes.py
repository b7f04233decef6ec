"""Which of an array's manifests may hold a chunk, found without looking at all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from icefloe.format.snapshot.manifest_refs import ManifestRef, ManifestRefs, ordered


class ManifestBoxes:
    """The boxes of an array's manifests, ordered along the first axis, where arrays are split."""

    __slots__ = ("_ordered", "_reach", "_start", "manifests")

    def __init__(self, manifests: Sequence[ManifestRef]) -> None:
        self.manifests = manifests
        self._ordered = ordered(manifests)
        # The reach is the farthest that this manifest or any one before it extends.
        if isinstance(self._ordered, ManifestRefs):
            start, stop = self._ordered.extents[:, 0].T
            self._start: list[int] = start.tolist()
            self._reach: list[int] = np.maximum.accumulate(stop).tolist()
        else:
            first = [ref.extents[0] if ref.extents else (0, 1) for ref in self._ordered]
            self._start = [low for low, _ in first]
            self._reach = list(accumulate((high for _, high in first), max))

    def around(self, coordinates: Sequence[int]) -> list[ManifestRef]:
        """Manifests whose box has the chunk in it: one, unless boxes overlap."""
        leading = coordinates[0] if coordinates else 0
        at = bisect_right(self._start, leading) - 1
        found = []
        while at >= 0 and self._reach[at] > leading:
            if _is_inside(coordinates, self._ordered[at].extents):
                found.append(self._ordered[at])
            at -= 1
        return found

    def descending(self) -> Iterator[ManifestRef]:
        """All manifests, in the order in which `around` yields them."""
        return reversed(self._ordered)


def _is_inside(coordinates: Sequence[int], extents: Sequence[tuple[int, int]]) -> bool:
    """Whether a chunk is in a box of as many dimensions."""
    if len(coordinates) != len(extents):
        return False
    for axis, place in enumerate(coordinates):  # `zip` would take twice as long
        start, stop = extents[axis]
        if not start <= place < stop:
            return False
    return True
