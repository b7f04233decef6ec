"""Validated values and Parquet columns from untrusted files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

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


def dump(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def instant_text(microseconds: int) -> str:
    """A time in the form of RFC 3339, in UTC."""
    found = _EPOCH + microseconds * _MICROSECOND
    return found.isoformat().removesuffix("+00:00") + "Z"


# -- Parquet files of older generations, read into memory with our own errors.


_MAX_BYTES = 2**31
"""The limit of decompressed bytes, so that a damaged size cannot exhaust memory."""


_READ_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    MemoryError,
)
"""What Arrow raises for damaged files."""


def read_parquet(data: bytes | memoryview, columns: Sequence[str], check: Checked) -> pa.Table:
    """Some columns of a file, with the types that it has, and its notes.

    Raises:
        FormatError: it is not a Parquet file, or it lacks these columns.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)), page_checksum_verification=True)
        there = file.schema_arrow.names
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        total = sum(group.total_byte_size for group in groups)
        if not 0 <= total <= _MAX_BYTES:
            raise check.fail(f"it says that it holds {total} bytes, expected at most {_MAX_BYTES}")
        missing = [column for column in columns if column not in there]
        table = None if missing else file.read(columns=list(columns), use_threads=False)
        if table is not None:
            table.validate(full=True)
    except _READ_ERRORS as error:
        raise check.fail(f"it cannot be read as Parquet ({error})") from None
    if table is None:
        raise check.fail(f"it has no column {missing[0]!r}; its columns are {there}")
    return table.select(list(columns)).combine_chunks()


def column(
    table: pa.Table, name: str, kind: pa.DataType, check: Checked, *, nulls: bool
) -> pa.Array:
    """A column converted to the requested type."""
    found = table[name].combine_chunks()
    if isinstance(found, pa.ChunkedArray):  # without any row
        found = pa.array([], found.type)
    try:
        cast = found.cast(kind)
    except pa.ArrowException as error:
        raise check.fail(f"column {name!r} is {found.type}, expected {kind} ({error})") from None
    if not nulls and cast.null_count:
        raise check.fail(f"column {name!r} has rows without a value")
    return cast
