"""Many ids as a sorted column: a set whose members take twelve bytes each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes
from icefloe.ids import ObjectId
from icefloe.records import NamedTuple


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
        return cls(_sorted_once(id_keys(rows)))

    @classmethod
    def of_ids(cls, ids: Iterable[bytes]) -> IdSet:
        """From single ids."""
        return cls.of(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ObjectId.size))

    @classmethod
    def union(cls, sets: Iterable[IdSet]) -> IdSet:
        """What is in any of the sets."""
        listed = [each.keys for each in sets]
        return cls(_sorted_once(np.concatenate(listed))) if listed else cls.of_ids(())

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
        starts = _first_words(self.keys)
        if (starts[1:] == starts[:-1]).any():  # not random: the first words are no keys
            at = np.searchsorted(self.keys, wanted)
        else:
            at = np.searchsorted(starts, _first_words(wanted))
        return np.asarray(self.keys[np.minimum(at, self.size - 1)] == wanted)

    def minus(self, other: IdSet) -> IdSet:
        """What is not in the other set."""
        return IdSet(self.keys[~other.contains(self.rows)])


def id_keys(rows: Bytes) -> NDArray[np.bytes_]:
    """Rows of bytes as one comparable value each."""
    # Values of equal width compare as their bytes do, trailing zeros included.
    return np.ascontiguousarray(rows).view(f"S{ObjectId.size}").reshape(-1)


def _first_words(keys: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """The first eight bytes of each id as a number: numbers are compared much faster."""
    words = np.ndarray(len(keys), ">u8", keys, strides=keys.strides)
    return words.astype(np.uint64)


def _sorted_once(keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """The distinct keys, ascending."""
    words = _first_words(keys)
    order = np.argsort(words)
    keys, words = keys[order], words[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (words[1:] != words[:-1]) | (keys[1:] != keys[:-1])
    keys, words = keys[is_new], words[is_new]
    # Keys with the same first word are in no order yet.
    return np.unique(keys) if (words[1:] == words[:-1]).any() else keys
