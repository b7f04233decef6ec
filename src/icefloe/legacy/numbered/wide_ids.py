"""Conversion between the 16-byte ids of files and the 12-byte ids of sessions.

Sessions, columns and caches use 12-byte ids. Document 000 requires 16 bytes. A new id has 12 random
bytes, whose lowest bit is 0, and four bytes that are derived from them, so its long form needs no
memory. The short form of any other id is a hash whose lowest bit is 1, and the pair is kept in
`IdMap`. A short id that is not in the map is an error, never a wrong name.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, InternalError, InvalidInputError
from icefloe.format.columns.blobs import Bytes
from icefloe.ids import ObjectId, SnapshotId, decode_base32, encode_base32

SHORT = 12
WIDE = 16
_MAX_BLOCKS = 16
_A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


class WideSnapshotId(SnapshotId):
    """A snapshot id that is shown as the text of its 16 bytes."""

    wide: bytes

    @property
    def text(self) -> str:
        return encode_base32(self.wide)


def _tails(short: Bytes) -> Bytes:
    """The derived last four bytes of new ids."""
    rows = np.ascontiguousarray(short)
    high = np.ascontiguousarray(rows[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    low = np.ascontiguousarray(rows[:, 8:]).view(">u4").reshape(-1).astype(np.uint64)
    mixed = (high ^ (high >> np.uint64(32))) * _A + low * _B
    return (mixed >> np.uint64(32)).astype(">u4").view(np.uint8).reshape(-1, 4)


def _rows(data: bytes, size: int) -> Bytes:
    return np.frombuffer(data, np.uint8).reshape(-1, size)


def own_id(random: bytes) -> bytes:
    """A new short id from 12 random bytes. Its long form can be derived."""
    return random[:-1] + bytes((random[-1] & 0xFE,))


class IdMap:
    """Maps ids of files to ids of sessions. They are equal if files have 12-byte ids."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Blocks of short ids, ascending, and the long ones in the same order. Blocks are only
        # ever added, and the list is replaced as a whole, so readers need no lock.
        self._blocks: list[tuple[NDArray[Any], Bytes]] = []

    def shorten(self, wide: Bytes) -> Bytes:
        """Rows of long ids as rows of short ids. Ids that cannot be derived are kept in the map."""
        if wide.shape[1] != self.size:
            raise FormatError(
                f"found ids of {wide.shape[1]} bytes, those of this repository have {self.size}"
            )
        if self.size == SHORT:
            return wide
        short = wide[:, :SHORT].copy()
        is_own = (_tails(short) == wide[:, SHORT:]).all(axis=1) & (short[:, -1] & 1 == 0)
        if is_own.all():
            return short
        strange = wide[~is_own]
        _, first, place = np.unique(_ordered(strange), return_index=True, return_inverse=True)
        hashed = _rows(b"".join(_hashed(strange[row].tobytes()) for row in first), SHORT)
        short[~is_own] = hashed[place]
        self._remember(hashed, strange[first])
        return short

    def _remember(self, short: Bytes, wide: Bytes) -> None:
        order = np.argsort(_ordered(short), kind="stable")
        block = _ordered(short[order]), wide[order]
        blocks = [*self._blocks, block]
        if len(blocks) > _MAX_BLOCKS:
            keys = np.concatenate([keys for keys, _ in blocks])
            _, first = np.unique(keys, return_index=True)
            blocks = [(keys[first], np.concatenate([rows for _, rows in blocks])[first])]
        self._blocks = blocks

    def widen(self, short: Bytes) -> Bytes:
        """Rows of short ids as rows of long ones."""
        if self.size == SHORT:
            return short
        wide = np.concatenate([short, _tails(short)], axis=1)
        for row in np.flatnonzero(short[:, -1] & 1).tolist():
            wide[row] = np.frombuffer(self._recall(short[row].tobytes()), np.uint8)
        return wide

    def wide(self, short: bytes) -> bytes:
        """One short id as a long one."""
        if self.size == SHORT:
            return bytes(short)
        if isinstance(short, WideSnapshotId):
            return short.wide
        return self._recall(short) if short[-1] & 1 else self.widen(_rows(short, SHORT)).tobytes()

    def short(self, wide: bytes) -> bytes:
        """One long id as a short one."""
        return self.shorten(_rows(wide, len(wide))).tobytes()

    def _recall(self, short: bytes) -> bytes:
        key = _ordered(_rows(short, SHORT))
        for keys, rows in reversed(self._blocks):
            at = int(np.searchsorted(keys, key)[0])
            if at < len(keys) and keys[at] == key[0]:
                return bytes(rows[at].tobytes())
        raise InternalError(
            f"the id of 16 bytes behind {encode_base32(short)} is not known here: its manifest "
            "was read by another process"
        )

    def snapshot_id(self, wide: bytes) -> SnapshotId:
        """The id of a snapshot as the API returns it."""
        if len(wide) == SHORT:
            return SnapshotId(wide)
        found = WideSnapshotId(self.short(wide))
        found.wide = wide
        return found

    def parse_snapshot_id(self, text: str) -> SnapshotId:
        """The id that a text stands for."""
        try:
            return self.snapshot_id(decode_base32(text, self.size))
        except ValueError as error:
            raise InvalidInputError(
                f"snapshot id {text!r}: {error}", ErrorKind.INVALID_SNAPSHOT_ID
            ) from None


def _hashed(wide: bytes) -> bytes:
    digest = hashlib.blake2b(wide, digest_size=SHORT).digest()
    return digest[:-1] + bytes((digest[-1] | 1,))


def _ordered(rows: Bytes) -> NDArray[Any]:
    """Rows of bytes as values that can be sorted and compared."""
    size = rows.shape[1]
    # numpy strips trailing zeros of byte strings, so a nonzero byte is appended.
    padded = np.ones((len(rows), size + 1), np.uint8)
    padded[:, :size] = rows
    return padded.view(f"S{size + 1}").reshape(-1)


def new_id(kind: type[ObjectId], random: bytes, ids: IdMap) -> ObjectId:
    """A new id of a repository with ids of 16 bytes."""
    short = own_id(random)
    if kind is SnapshotId:
        return ids.snapshot_id(ids.wide(short))
    return kind(short)
