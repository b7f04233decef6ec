"""Parquet files of older generations, read into memory with our own errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from icefloe.legacy.checked import Checked
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa, pq = on_demand("pyarrow"), on_demand("pyarrow.parquet")

_MAX_BYTES = 2**31
"""The limit of decompressed bytes, so that a damaged size cannot exhaust memory."""


def read_parquet(data: bytes | memoryview, columns: Sequence[str], check: Checked) -> pa.Table:
    """Some columns of a file, with the types that it has, and its notes.

    Raises:
        FormatError: it is not a Parquet file, or it lacks these columns.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)), page_checksum_verification=True)
        there = file.schema_arrow.names
        _check_size(file.metadata, check)
        missing = [column for column in columns if column not in there]
        table = None if missing else file.read(columns=list(columns), use_threads=False)
        if table is not None:
            table.validate(full=True)
    except _read_errors() as error:
        raise check.fail(f"it cannot be read as Parquet ({error})") from None
    if table is None:
        raise check.fail(f"it has no column {missing[0]!r}; its columns are {there}")
    return table.select(list(columns)).combine_chunks()


def _read_errors() -> tuple[type[Exception], ...]:
    """The errors that Arrow raises for damaged files."""
    python = (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError)
    return (pa.ArrowException, *python)


def _check_size(metadata: Any, check: Checked) -> None:
    total = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    if not 0 <= total <= _MAX_BYTES:
        raise check.fail(f"it says that it holds {total} bytes, expected at most {_MAX_BYTES}")


def column(
    table: pa.Table, name: str, kind: pa.DataType, check: Checked, *, nulls: bool
) -> pa.Array:
    """A column in the requested type, whatever width it has in the file."""
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
