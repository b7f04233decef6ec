"""Attributes files: user attributes that are too large for the structure file.

The document only defines how a node refers to one: by file and row. So a file has one column, with
the attributes of a node as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.legacy.state_file.parquet import column, read_parquet, write_parquet
from icefloe.legacy.state_file.schema import attributes_schema
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

_COLUMN = "attrs"


def encode_attributes(values: Sequence[bytes]) -> bytes:
    """The file with these attributes, one row each."""
    rows = BlobColumn.from_values(values).to_arrow().cast(pa.binary())
    return write_parquet(pa.Table.from_arrays([rows], schema=attributes_schema()))


def decode_attributes(data: bytes | memoryview, name: str) -> list[bytes]:
    """The attributes of each row, as JSON that is not parsed yet."""
    table = read_parquet(data, [_COLUMN], name)
    found = column(table, _COLUMN, pa.binary(), name, nulls=False)
    values: list[bytes] = BlobColumn.from_arrow(found).to_list()
    return values
