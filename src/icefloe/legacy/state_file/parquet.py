"""Parquet files in memory: written with checksums, read with our own errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy import parquet
from icefloe.legacy.state_file.names import checked
from icefloe.legacy.state_file.schema import Profile
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa, pq = on_demand("pyarrow"), on_demand("pyarrow.parquet")


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
    """Some columns of a file, with the types that it has, and its notes."""
    return parquet.read_parquet(data, columns, checked(name))


def column(table: pa.Table, name: str, kind: pa.DataType, where: str, *, nulls: bool) -> pa.Array:
    """A column in the requested type, whatever width it has in the file."""
    return parquet.column(table, name, kind, checked(where), nulls=nulls)


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
