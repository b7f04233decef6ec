"""Branches or tags as columns: names and the snapshots they point at.

A commit moves one of them and writes all. With thousands of them, values for each would take longer
than all else that a commit or an opening does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes
from icefloe.ids import SnapshotId

MANY = 64
"""Number of refs. With fewer, a value for each takes no longer than columns."""
_LONGEST_NAME = 256


def read_refs(name: BlobColumn, ids: Bytes) -> Mapping[str, SnapshotId]:
    """Refs that were read: columns if there are many, in the order that readers search.

    Whoever reads them sees fewer refs than names if a name is there twice.
    """
    if len(name) >= MANY and _ascends(name):
        return RefTable(name, ids)
    return dict(zip(name.to_list(), SnapshotId.of_rows(ids), strict=True))


def with_ref(
    refs: Mapping[str, SnapshotId], name: str, tip: SnapshotId
) -> Mapping[str, SnapshotId]:
    """The refs with this one pointing at `tip`; it is added if it is not there."""
    return refs.moved(name, tip) if isinstance(refs, RefTable) else {**refs, name: tip}


def _ascends(name: BlobColumn) -> bool:
    """Whether each name comes after the one before, by their bytes; False if it is not known."""
    length, data = name.length, name.data[int(name.offsets[0]) : int(name.offsets[-1])]
    width = int(length.max())
    if not 0 < width <= _LONGEST_NAME or not data.all():  # numpy takes zeros at the end for none
        return False
    padded = np.zeros((len(name), width), np.uint8)
    padded[np.arange(width) < length[:, None]] = data
    keys = padded.view(f"S{width}").reshape(-1)
    return bool((keys[:-1] < keys[1:]).all())


class RefTable(Mapping[str, SnapshotId]):
    """Refs, ascending by the bytes of their names. One is found without making the others."""

    __slots__ = ("_made", "id", "name")

    def __init__(self, name: BlobColumn, ids: Bytes) -> None:
        """Row i is the ref `name[i]`, which points at the snapshot `ids[i]`."""
        self.name = name
        self.id = ids
        self._made: dict[str, SnapshotId] | None = None

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, name: str) -> SnapshotId:
        if self._made is not None:
            return self._made[name]
        row = self._find(name)
        if row < 0:
            raise KeyError(name)
        return SnapshotId(self.id[row].tobytes())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) >= 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.name.to_list() if self._made is None else self._made)

    def keys(self) -> Any:
        """The names."""
        return self.as_dict().keys()

    def values(self) -> Any:
        """The snapshots that refs point at."""
        return self.as_dict().values()

    def items(self) -> Any:
        """Names with their snapshots."""
        return self.as_dict().items()

    def as_dict(self) -> dict[str, SnapshotId]:
        """All refs as values, made once."""
        if self._made is None:
            tips = SnapshotId.of_rows(self.id)
            self._made = dict(zip(self.name.to_list(), tips, strict=True))
        return self._made

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def moved(self, name: str, tip: SnapshotId) -> Mapping[str, SnapshotId]:
        """The refs with this one pointing at `tip`; it is added if it is not there."""
        row = self._find(name)
        if row < 0:
            return {**self.as_dict(), name: tip}
        ids = self.id.copy()
        ids[row] = np.frombuffer(tip, np.uint8)
        return RefTable(self.name, ids)

    def _find(self, name: str) -> int:
        """The row of a ref, -1 if there is none."""
        key = name.encode("utf-8", "surrogatepass")
        data, offsets = self.name.data, self.name.offsets
        low, high = 0, len(self.name)
        while low < high:
            middle = (low + high) // 2
            if data[offsets[middle] : offsets[middle + 1]].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        if low == len(self.name):
            return -1
        return low if data[offsets[low] : offsets[low + 1]].tobytes() == key else -1
