"""Many ids as a sorted column: a set whose members take twelve bytes each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes
from icefloe.ids import ObjectId


class IdSet(NamedTuple):
    """Ids of twelve bytes, each once, ascending.

    >>> some = IdSet.of_ids([ObjectId(b"b" * 12), ObjectId(b"a" * 12)])
    >>> some.contains(IdSet.of_ids([ObjectId(b"a" * 12), ObjectId(b"c" * 12)]).rows)
    array([ True, False])
    """

    keys: NDArray[np.bytes_]

    @classmethod
    def of(cls, rows: Bytes) -> IdSet:
        """From rows of bytes, in any order, with any repetition."""
        return cls(np.unique(id_keys(rows)))

    @classmethod
    def of_ids(cls, ids: Iterable[bytes]) -> IdSet:
        """From single ids."""
        return cls.of(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ObjectId.size))

    @classmethod
    def union(cls, sets: Iterable[IdSet]) -> IdSet:
        """What is in any of the sets."""
        listed = [each.keys for each in sets]
        return cls(np.unique(np.concatenate(listed))) if listed else cls.of_ids(())

    @property
    def rows(self) -> Bytes:
        """The ids as rows of bytes."""
        return self.keys.view(np.uint8).reshape(-1, ObjectId.size)

    @property
    def size(self) -> int:
        return len(self.keys)

    def contains(self, rows: Bytes) -> NDArray[np.bool_]:
        """Which of these rows are in the set."""
        wanted = id_keys(rows)
        if not self.size:
            return np.zeros(len(wanted), np.bool_)
        at = np.minimum(np.searchsorted(self.keys, wanted), self.size - 1)
        return np.asarray(self.keys[at] == wanted)

    def minus(self, other: IdSet) -> IdSet:
        """What is not in the other set."""
        return IdSet(self.keys[~other.contains(self.rows)])


def id_keys(rows: Bytes) -> NDArray[np.bytes_]:
    """Rows of bytes as one comparable value each."""
    # Values of equal width compare as their bytes do, trailing zeros included.
    return np.ascontiguousarray(rows).view(f"S{ObjectId.size}").reshape(-1)
