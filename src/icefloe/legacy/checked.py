"""Checked access to values of an untrusted file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from icefloe.errors import FormatError
from icefloe.ids import decode_base32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LARGEST = 2**64 - 1


class Checked(NamedTuple):
    """Checks for one file. `name` is its name in errors."""

    name: str

    def fail(self, problem: str) -> FormatError:
        """The error to raise."""
        return FormatError(f"{self.name}: {problem}")

    def unexpected(self, what: str, value: Any, expected: str) -> FormatError:
        """The error for an unexpected value."""
        return self.fail(f"{what} is {value!r:.80}, expected {expected}")

    def items(self, value: Any, what: str, *counts: int) -> Sequence[Any]:
        """A list; with `counts`, of one of these lengths."""
        if not isinstance(value, list | tuple) or hasattr(value, "keys"):
            raise self.unexpected(what, value, "a list")
        if counts and len(value) not in counts:
            numbers = " or ".join(map(str, counts))
            raise self.fail(f"{what} has {len(value)} items, expected {numbers}")
        return value

    def text(self, value: Any, what: str) -> str:
        if not isinstance(value, str):
            raise self.unexpected(what, value, "text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.unexpected(what, value, "text without half surrogate pairs") from None
        return value

    def whole(self, value: Any, what: str, most: int = _LARGEST) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.unexpected(what, value, f"a whole number from 0 to {most}")
        return value

    def mapping(self, value: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.unexpected(what, value, "an object")
        for key in value:
            self.text(key, f"a key of {what}")
        return value

    def member(self, value: Mapping[str, Any], key: str, what: str) -> Any:
        if key not in value:
            raise self.fail(f"{what} has no member {key!r}; it has {sorted(value)[:10]}")
        return value[key]

    def instant(self, value: Any, what: str) -> int:
        """Microseconds since the epoch of a time in the form of RFC 3339."""
        text = self.text(value, what)
        try:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                raise ValueError("no zone")
            return (found - _EPOCH) // _MICROSECOND
        except (ValueError, OverflowError):
            raise self.unexpected(what, value, "a time such as 2024-10-07T12:00:00Z") from None

    def id_text(self, value: Any, what: str, *sizes: int) -> bytes:
        """The bytes of an id in Crockford's text; its length says how many there are."""
        text = self.text(value, what)
        for size in sizes:
            if len(text) == (size * 8 + 4) // 5:
                try:
                    return decode_base32(text, size)
                except ValueError as error:
                    raise self.fail(f"{what} {text!r}: {error}") from None
        lengths = " or ".join(str((size * 8 + 4) // 5) for size in sizes)
        raise self.unexpected(what, value, f"{lengths} characters of base32")

    def octets(self, value: Any, what: str) -> bytes:
        """Bytes, given as such or as a list of small numbers."""
        if isinstance(value, bytes):
            return value
        numbers = self.items(value, what)
        try:
            return bytes(numbers)
        except (ValueError, TypeError):
            raise self.unexpected(what, value, "whole numbers from 0 to 255") from None


def instant_text(microseconds: int) -> str:
    """A time in the form of RFC 3339, in UTC."""
    found = _EPOCH + microseconds * _MICROSECOND
    return found.isoformat().removesuffix("+00:00") + "Z"
