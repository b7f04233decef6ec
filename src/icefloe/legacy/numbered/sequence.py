"""Sequence numbers of branch files, encoded as names so that the newest sorts first.

A name is the distance of the number from the largest one, in Crockford's base32: of 40 bits in 8
characters (document 000), or of 64 bits in 13 characters (before and in Icechunk 0.1.0-alpha.1).
"""

from __future__ import annotations

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import decode_base32, encode_base32

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
