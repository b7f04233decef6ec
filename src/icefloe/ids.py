"""Object ids: random bytes inside files, Crockford base32 text in names and messages.

An id is a `bytes` subclass, so ids sort, hash and compare as the format orders them.
"""

from __future__ import annotations

from typing import ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
# Crockford reads the letters people confuse as the digits they resemble.
_VALUES |= {"I": 1, "L": 1, "O": 0}
_VALUES |= {letter.lower(): value for letter, value in _VALUES.items()}

_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(_ALPHABET.encode(), np.uint8)] = np.arange(32)


def encode_base32(data: bytes) -> str:
    """Crockford text of `data`: upper case, no padding, zero bits appended on the right."""
    length = (len(data) * 8 + 4) // 5
    pairs = (length + 1) // 2
    number = int.from_bytes(data, "big") << (pairs * 10 - len(data) * 8)
    text = "".join([_PAIRS[number >> shift & 1023] for shift in range(10 * pairs - 10, -1, -10)])
    return text[:length]


def encode_base32_rows(rows: NDArray[np.uint8]) -> list[str]:
    """Crockford text of many ids, given as rows of bytes."""
    letters = base32_letters(rows)
    texts = letters.astype(np.uint32).view(f"U{letters.shape[1]}")
    return cast(list[str], texts[:, 0].tolist())


def decode_base32_rows(
    texts: NDArray[np.bytes_], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The ids that many texts stand for, as rows of bytes, and which texts are ids at all.

    Only the canonical spelling counts: it is the one that names an object.
    """
    length = (size * 8 + 4) // 5
    is_id = np.char.str_len(texts) == length
    letters = texts[is_id].astype(f"S{length}").view(np.uint8).reshape(-1, length)
    found, are_known = decode_base32_letters(letters, size)
    is_id[is_id] = are_known
    return found[are_known], is_id


def base32_letters(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Crockford text of many ids as rows of letters. Five bytes are eight letters."""
    count, size = rows.shape
    alphabet = np.frombuffer(_ALPHABET.encode(), np.uint8)
    length = (size * 8 + 4) // 5
    num_groups = -(-size // 5)
    words = np.zeros((count, num_groups, 8), np.uint8)
    padded = np.zeros((count, num_groups * 5), np.uint8)
    padded[:, :size] = rows
    words[:, :, 3:] = padded.reshape(count, num_groups, 5)
    numbers = words.view(">u8").astype(np.uint64)
    digits = (numbers >> np.arange(35, -1, -5, dtype=np.uint64)).astype(np.uint8) & 31
    letters: NDArray[np.uint8] = alphabet[digits.reshape(count, num_groups * 8)[:, :length]]
    return letters


def decode_base32(text: str, size: int) -> bytes:
    """The `size` bytes that `text` stands for; non-zero trailing pad bits are dropped.

    Raises:
        ValueError: a character outside the alphabet, or a length that is not `size` bytes.
    """
    length = (size * 8 + 4) // 5
    if len(text) != length:
        raise ValueError(f"found {len(text)} characters, expected {length}")
    number = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            raise ValueError(f"character {letter!r} is not in Crockford's base32 alphabet")
        number = number << 5 | value
    return (number >> (length * 5 - size * 8)).to_bytes(size, "big")


def decode_base32_letters(
    letters: NDArray[np.uint8], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Ids of `size` bytes from rows of letters, and which rows are the canonical text of one."""
    count, length = letters.shape
    groups = -(-length // 8)
    found = np.empty((count, 5 * groups), np.uint8)
    is_text = np.ones(count, np.bool_)
    for group in range(groups):
        number = np.zeros(count, np.uint64)
        for at in range(group * 8, group * 8 + 8):
            number <<= np.uint64(5)
            if at < length:
                digit = _DIGITS[letters[:, at]]
                is_text &= digit < 32
                number |= digit & np.uint8(31)
        word = number.astype(">u8").view(np.uint8).reshape(count, 8)
        found[:, group * 5 : group * 5 + 5] = word[:, 3:]
    is_text &= ~found[:, size:].any(axis=1)
    return found[:, :size], is_text


class ObjectId(bytes):
    """An id of fixed size; make one from raw bytes, or `parse` its text.

    >>> SnapshotId.parse("1cechnkrepof1rstcmt0")
    SnapshotId('1CECHNKREP0F1RSTCMT0')
    >>> SnapshotId(bytes(range(12))).text
    '000G40R40M30E209185G'
    """

    size: ClassVar[int] = 12
    noun: ClassVar[str] = "object id"
    kind: ClassVar[ErrorKind] = ErrorKind.INVALID_KEY

    def __new__(cls, data: bytes) -> Self:
        if len(data) != cls.size:
            raise InvalidInputError(
                f"{cls.noun} {bytes(data)!r} has {len(data)} bytes, expected {cls.size}", cls.kind
            )
        return super().__new__(cls, data)

    @classmethod
    def of_rows(cls, rows: NDArray[np.uint8]) -> list[Self]:
        """Every row of a matrix of bytes as an id, in a third of the time that one by one takes.

        Args:
            rows: as many columns as an id has bytes.
        """
        raw, size = rows.tobytes(), cls.size
        return [bytes.__new__(cls, raw[at : at + size]) for at in range(0, len(raw), size)]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form leniently: any case, I and L as 1, O as 0.

        Args:
            text: an id as `str` shows it.
        """
        try:
            return cls(decode_base32(text, cls.size))
        except ValueError as error:
            raise InvalidInputError(f"{cls.noun} {text!r}: {error}", cls.kind) from None

    @property
    def text(self) -> str:
        """The canonical text: upper case, as object names use it."""
        return encode_base32(self)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class SnapshotId(ObjectId):
    """Names `snapshots/ID` and the transaction log of the same commit."""

    noun = "snapshot id"
    kind = ErrorKind.INVALID_SNAPSHOT_ID


class ManifestId(ObjectId):
    """Names `manifests/ID`."""

    noun = "manifest id"


class ChunkId(ObjectId):
    """Names `chunks/ID`."""

    noun = "chunk id"


class NodeId(ObjectId):
    """Identifies a group or array for its whole life, through renames and moves."""

    size = 8
    noun = "node id"


FIRST_SNAPSHOT_ID = SnapshotId.parse("1CECHNKREP0F1RSTCMT0")
"""The first snapshot of every repository made by Icechunk 0.2.17 or later."""
