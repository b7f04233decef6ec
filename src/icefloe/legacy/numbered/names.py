"""Where files of numbered repositories are; ids of 16 bytes in sessions made for 12."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, InternalError, InvalidInputError
from icefloe.format.columns import Bytes
from icefloe.format.layout import ref_name
from icefloe.ids import ObjectId, SnapshotId, decode_base32, encode_base32

# -- Sequence numbers of branch files, encoded as names so that the newest sorts first.
#
# A name is the distance of the number from the largest one, in Crockford's base32: of 40 bits in
# 8 characters (document 000), or of 64 bits in 13 characters (before and in Icechunk
# 0.1.0-alpha.1).


SHORT = 8
LONG = 13
_BYTES = {SHORT: 5, LONG: 8}
LAST = 2**40 - 1
"""The largest number that eight characters can represent: 1099511627775."""


def sequence_name(number: int, characters: int = SHORT) -> str:
    """The name of sequence number `number`, without `.json`.

    >>> sequence_name(0), sequence_name(100), sequence_name(1099511627775)
    ('ZZZZZZZZ', 'ZZZZZZWV', '00000000')
    """
    size = _BYTES[characters]
    largest = 2 ** (8 * size) - 1
    if not 0 <= number <= largest:
        raise InvalidInputError(f"sequence number {number}: branches count from 0 to {largest:,}")
    return encode_base32((largest - number).to_bytes(size, "big"))


def sequence_number(name: str) -> int | None:
    """The number of a canonical name, or None, because the directory may have other files."""
    size = _BYTES.get(len(name))
    if size is None:
        return None
    try:
        data = decode_base32(name, size)
    except ValueError:
        return None
    if encode_base32(data) != name:
        return None
    return int(2 ** (8 * size) - 1 - int.from_bytes(data, "big"))


def next_number(number: int, branch: str, characters: int = SHORT) -> int:
    """The number of the next commit."""
    if number >= 2 ** (8 * _BYTES[characters]) - 1:
        raise FormatError(f"branch {branch!r} has its last sequence number, {number:,}")
    return number + 1


JSON = ".json"


class Names(NamedTuple):
    """The names of one generation."""

    refs: str
    branch: str
    """The prefix of a branch's name."""
    tag: str
    tag_end: str
    """The suffix of a tag's name."""
    characters: int
    """The number of characters of a sequence number in a file name."""
    snapshots: str
    manifests: str
    chunks: str
    attributes: str
    transactions: str
    id_size: int

    def branch_directory(self, name: str) -> str:
        return f"{self.branch}{ref_name(name)}/"

    def branch_key(self, name: str, number: int) -> str:
        """The file of a branch at a sequence number."""
        return self.branch_directory(name) + sequence_name(number, self.characters) + JSON

    def tag_key(self, name: str) -> str:
        return f"{self.tag}{ref_name(name)}{self.tag_end}"

    def tag_tombstone_key(self, name: str) -> str:
        """The tombstone of a tag in Icechunk 0.1.0 to 0.1.3."""
        return self.tag_key(name) + ".deleted"

    def number_of(self, key: str, branch: str) -> int | None:
        """The sequence number of a file in the directory of a branch."""
        name = key.removeprefix(self.branch_directory(branch))
        if not name.endswith(JSON) or len(name) != self.characters + len(JSON):
            return None
        return sequence_number(name.removesuffix(JSON))

    def branch_of(self, key: str) -> str | None:
        """The branch that a file below `refs` belongs to, or None."""
        if not key.startswith(self.branch):
            return None
        name, slash, _ = key.removeprefix(self.branch).partition("/")
        return name if slash and self.number_of(key, name) is not None else None

    def tag_of(self, key: str) -> str | None:
        """The tag that a file below `refs` belongs to, or None."""
        if not key.startswith(self.tag) or not key.endswith(self.tag_end):
            return None
        name = key.removeprefix(self.tag).removesuffix(self.tag_end)
        return None if "/" in name or not name else name

    def key(self, folder: str, wide_id: bytes) -> str:
        """The file of an object in one of the folders."""
        return folder + encode_base32(wide_id)


_SHORT_FOLDERS = ("s/", "m/", "c/", "a/", "t/", 16)
_LONG_FOLDERS = ("snapshots/", "manifests/", "chunks/", "attributes/", "transactions/", 12)

DOCUMENT = Names("r/", "r/", "r/", JSON, SHORT, *_SHORT_FOLDERS)
"""The names of document 000. It has no directory for transaction logs; `t/` is our choice."""
PROTOTYPE = Names("r/", "r/branch:", "r/tag:", "/ref.json", LONG, *_SHORT_FOLDERS)
"""The names that the program used at the time of document 000."""
FIRST_ALPHA = Names("refs/", "refs/branch:", "refs/tag:", "/ref.json", LONG, *_LONG_FOLDERS)
RELEASED = Names("refs/", "refs/branch.", "refs/tag.", "/ref.json", SHORT, *_LONG_FOLDERS)
"""From alpha.2 to 0.1.3."""

ALL_NAMES = (DOCUMENT, PROTOTYPE, FIRST_ALPHA, RELEASED)


# -- Conversion between the 16-byte ids of files and the 12-byte ids of sessions.
#
# Sessions, columns and caches use 12-byte ids. Document 000 requires 16 bytes. A new id has 12
# random bytes, whose lowest bit is 0, and four bytes that are derived from them, so its long form
# needs no memory. The short form of any other id is a hash whose lowest bit is 1, and the pair is
# kept in `IdMap`. A short id that is not in the map is an error, never a wrong name.


SHORT_ID_SIZE = 12
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
        if self.size == SHORT_ID_SIZE:
            return wide
        short = wide[:, :SHORT_ID_SIZE].copy()
        is_own = (_tails(short) == wide[:, SHORT_ID_SIZE:]).all(axis=1) & (short[:, -1] & 1 == 0)
        if is_own.all():
            return short
        strange = wide[~is_own]
        _, first, place = np.unique(_ordered(strange), return_index=True, return_inverse=True)
        hashed = _rows(b"".join(_hashed(strange[row].tobytes()) for row in first), SHORT_ID_SIZE)
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
        if self.size == SHORT_ID_SIZE:
            return short
        wide = np.concatenate([short, _tails(short)], axis=1)
        for row in np.flatnonzero(short[:, -1] & 1).tolist():
            wide[row] = np.frombuffer(self._recall(short[row].tobytes()), np.uint8)
        return wide

    def wide(self, short: bytes) -> bytes:
        """One short id as a long one."""
        if self.size == SHORT_ID_SIZE:
            return bytes(short)
        if isinstance(short, WideSnapshotId):
            return short.wide
        return (
            self._recall(short)
            if short[-1] & 1
            else self.widen(_rows(short, SHORT_ID_SIZE)).tobytes()
        )

    def short(self, wide: bytes) -> bytes:
        """One long id as a short one."""
        return self.shorten(_rows(wide, len(wide))).tobytes()

    def _recall(self, short: bytes) -> bytes:
        key = _ordered(_rows(short, SHORT_ID_SIZE))
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
        if len(wide) == SHORT_ID_SIZE:
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
    digest = hashlib.blake2b(wide, digest_size=SHORT_ID_SIZE).digest()
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
