"""Parquet files in memory: written with checksums, read with our own errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy.state_file.names import checked
from icefloe.legacy.state_file.schema import Profile
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa, pq = on_demand("pyarrow"), on_demand("pyarrow.parquet")

_MAX_BYTES = 2**31
"""The limit of decompressed bytes, so that a damaged size cannot exhaust memory."""


def write_parquet(table: pa.Table, notes: Mapping[str, str] | None = None) -> bytes:
    """The file of a table. `notes` are the key-value metadata of the file."""
    if notes:
        table = table.replace_schema_metadata(dict(notes))
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_compliant_nested_type=False,  # list items are named `item`, as in the document
        write_page_checksum=True,
        row_group_size=max(1, table.num_rows),
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_parquet(data: bytes | memoryview, columns: Sequence[str], name: str) -> pa.Table:
    """Some columns of a file, with the types that it has, and its notes.

    Raises:
        FormatError: it is not a Parquet file, or it lacks these columns.
    """
    check = checked(name)
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)), page_checksum_verification=True)
        there = file.schema_arrow.names
        _check_size(file.metadata, name)
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


def _check_size(metadata: Any, name: str) -> None:
    total = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    if not 0 <= total <= _MAX_BYTES:
        raise checked(name).fail(
            f"it says that it holds {total} bytes, expected at most {_MAX_BYTES}"
        )


def column(table: pa.Table, name: str, kind: pa.DataType, where: str, *, nulls: bool) -> pa.Array:
    """A column in the requested type, whatever width it has in the file."""
    check = checked(where)
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


def notes_of(table: pa.Table) -> dict[str, str]:
    """The key-value metadata of a file."""
    found = table.schema.metadata or {}
    return {
        key.decode(errors="replace"): value.decode(errors="replace") for key, value in found.items()
    }


def check_fits(what: str, value: int, bits: int, profile: Profile) -> int:
    """Refuse a number that is too large for its column."""
    if 0 <= value < 2**bits:
        return value
    hint = "; use the wide profile" if profile is Profile.strict else ""
    raise InvalidInputError(
        f"{what} is {value:,}, and its column has room for numbers up to {2**bits - 1:,}{hint}",
        ErrorKind.SERIALIZATION,
    )
