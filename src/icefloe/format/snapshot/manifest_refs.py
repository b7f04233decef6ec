"""The manifests that an array refers to, and which of them may hold a chunk.

An array may have many thousands of manifests, and a reader of one chunk needs one of them. A few
are values, many are columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes, Ints
from icefloe.format.columns.chunk_index import is_strictly_ascending
from icefloe.ids import ManifestId
from icefloe.records import NamedTuple

Extents = NDArray[np.uint32]
"""(from, to) of each manifest along each dimension."""

_FEW = 64  # manifests: below this, values beat columns


class ManifestRef(NamedTuple):
    """A manifest that holds chunks of an array, and the box of chunk indices it covers."""

    id: ManifestId
    extents: tuple[tuple[int, int], ...]


class ManifestRefs(Sequence[ManifestRef]):
    """Many of them as columns. A value is made when it is first asked for, then kept."""

    __slots__ = ("_values", "extents", "id")

    def __init__(self, ids: Bytes, extents: Extents) -> None:
        self.id = ids
        self.extents = extents
        self._values: list[ManifestRef | None] = [None] * len(ids)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return tuple(self)[row]
        value = self._values[row]
        if value is None:
            box = tuple(map(tuple, self.extents[row].tolist()))
            value = self._values[row] = ManifestRef(ManifestId(self.id[row].tobytes()), box)
        return value

    def __iter__(self) -> Iterator[ManifestRef]:
        if None in self._values:
            self._values = list(_values(self.id, self.extents))
        return iter(self._values)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ManifestRefs):
            return np.array_equal(self.id, other.id) and np.array_equal(self.extents, other.extents)
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return ManifestRefs, (self.id, self.extents)

    @property
    def ndim(self) -> int:
        return int(self.extents.shape[1])

    def take(self, rows: Any) -> ManifestRefs:
        """Some rows, in the order given."""
        return ManifestRefs(self.id[rows], self.extents[rows])


def manifest_refs(ids: Bytes, extents: Extents) -> Sequence[ManifestRef]:
    """The manifests of one array, in the form that suits their number."""
    many = len(ids) > _FEW and extents.shape[1] > 0
    return ManifestRefs(ids, extents) if many else tuple(_values(ids, extents))


def ordered(refs: Sequence[ManifestRef]) -> Sequence[ManifestRef]:
    """All of the manifests, ascending by their boxes."""
    if not isinstance(refs, ManifestRefs):
        return tuple(sorted(refs, key=lambda ref: ref.extents))
    start, flat = refs.extents[:, 0, 0], refs.extents.reshape(len(refs), 2 * refs.ndim)
    if bool((start[1:] > start[:-1]).all()) or is_strictly_ascending(flat):
        return refs
    return refs.take(np.lexsort(flat.T[::-1]))


def joined(refs: Sequence[ManifestRef], more: Sequence[ManifestRef]) -> Sequence[ManifestRef]:
    """Manifests of one array and some more."""
    if not isinstance(refs, ManifestRefs):
        return [*refs, *more]
    ids = np.concatenate([refs.id, ids_of(more)])
    return ManifestRefs(ids, np.concatenate([refs.extents, extents_of(more, refs.ndim)]))


def picked(refs: Sequence[ManifestRef], rows: Ints) -> Sequence[ManifestRef]:
    """Some of the manifests."""
    if isinstance(refs, ManifestRefs):
        return refs if len(rows) == len(refs) else refs.take(rows)
    return [refs[row] for row in rows.tolist()]


def ids_of(refs: Sequence[ManifestRef]) -> Bytes:
    """The ids, one row each."""
    if isinstance(refs, ManifestRefs):
        return refs.id
    return np.frombuffer(b"".join(ref.id for ref in refs), np.uint8).reshape(-1, ManifestId.size)


def extents_of(refs: Sequence[ManifestRef], ndim: int) -> Extents:
    """The boxes, one row each; `ndim` tells the rank if there are none."""
    if isinstance(refs, ManifestRefs):
        return refs.extents
    boxes = np.array([ref.extents for ref in refs], np.uint32)
    return boxes.reshape(len(refs), -1 if refs else ndim, 2)


def _values(ids: Bytes, extents: Extents) -> Iterator[ManifestRef]:
    boxes: list[Any] = [tuple(map(tuple, box)) for box in extents.tolist()]
    return map(ManifestRef, ManifestId.of_rows(ids), boxes)


# -- finding


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
        """Manifests whose box has the chunk in it: one, unless boxes overlap.

        The one that is listed first wins, as in Icechunk of every version.
        """
        leading = coordinates[0] if coordinates else 0
        at = bisect_right(self._start, leading) - 1
        found = []
        while at >= 0 and self._reach[at] > leading:
            if _is_inside(coordinates, self._ordered[at].extents):
                found.append(self._ordered[at])
            at -= 1
        if len(found) > 1:
            found.sort(key=self.manifests.index)
        return found


def _is_inside(coordinates: Sequence[int], extents: Sequence[tuple[int, int]]) -> bool:
    """Whether a chunk is in a box of as many dimensions."""
    if len(coordinates) != len(extents):
        return False
    for axis, place in enumerate(coordinates):  # `zip` would take twice as long
        start, stop = extents[axis]
        if not start <= place < stop:
            return False
    return True
