"""Parquet tables of chunk references and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import BlobColumn
from icefloe.legacy.checked import column, read_parquet
from icefloe.legacy.state_file.state import checked

# 16-bit numbers are too small for most arrays. The `strict` profile uses them, because the
# document does. The `wide` profile has the same columns with wider numbers. Readers accept any
# width.


class Profile(Enum):
    """The width of the numbers in new files."""

    strict = "strict"
    wide = "wide"


def structure_schema(profile: Profile) -> pa.Schema:
    """One row per node."""
    is_wide = profile is Profile.wide
    size = pa.uint64() if is_wide else pa.uint16()
    row = pa.uint32() if is_wide else pa.uint16()
    text, sizes = pa.string(), pa.list_(size)
    grid = {"name": text, "configuration": pa.struct(_fields({"chunk_shape": sizes}))}
    encoding = {"name": text, "configuration": pa.struct(_fields({"separator": text}))}
    codec = {"name": text, "configuration?": pa.binary()}
    array_metadata = {
        "shape": sizes,
        "data_type": text,
        "fill_value?": pa.binary(),
        "dimension_names?": pa.list_(text),
        "chunk_grid?": pa.struct(_fields(grid)),
        "chunk_key_encoding?": pa.struct(_fields(encoding)),
        "codecs?": pa.list_(pa.struct(_fields(codec))),
    }
    attrs_reference = {"attrs_file": text, "row": row, "flags?": pa.uint16()}
    inventory = {
        "inventory_file": text,
        "row": row,
        "extent": pa.list_(pa.list_(row, 2)),
        "flags?": pa.uint16(),
    }
    kinds = {
        "id": row,
        "type": text,
        "path": text,
        "array_metadata?": pa.struct(_fields(array_metadata)),
        "inline_attrs?": pa.binary(),
        "attrs_reference?": pa.struct(_fields(attrs_reference)),
        "inventories?": pa.list_(pa.struct(_fields(inventory))),
    }
    return pa.schema([_described(found) for found in _fields(kinds)])


def manifest_schema(profile: Profile) -> pa.Schema:
    """One row per chunk."""
    wide = pa.uint64() if profile is Profile.wide else pa.uint32()
    kinds = {
        "id": wide,
        "array_id": pa.uint32(),
        "coord": pa.binary(),
        "inline_data?": pa.binary(),
        "chunk_file?": pa.string(),
        "offset?": pa.uint64(),
        "length": wide,
    }
    return pa.schema(_fields(kinds))


def attributes_schema() -> pa.Schema:
    """One row per node with attributes in this file. The document only defines a row number."""
    return pa.schema(_fields({"attrs": pa.binary()}))


def _fields(kinds: Mapping[str, pa.DataType]) -> list[pa.Field]:
    """Columns of these types; `?` marks those that may be without a value."""
    return [
        pa.field(name.rstrip("?"), kind, nullable=name.endswith("?"))
        for name, kind in kinds.items()
    ]


_DESCRIPTIONS = {
    "id": "unique identifier for the node",
    "type": "array or group",
    "path": "path to the node within the store",
    "array_metadata": "All the Zarr array metadata",
    "inline_attrs": "user-defined attributes, stored inline with this entry",
    "attrs_reference": "user-defined attributes, stored in a separate attributes file",
}


def _described(found: pa.Field) -> pa.Field:
    text = _DESCRIPTIONS.get(found.name)
    return found if text is None else found.with_metadata({"description": text})


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


# -- Attributes files: user attributes that are too large for the structure file.
#
# The document only defines how a node refers to one: by file and row. So a file has one column,
# with the attributes of a node as JSON.


_COLUMN = "attrs"


def encode_attributes(values: Sequence[bytes]) -> bytes:
    """The file with these attributes, one row each."""
    rows = BlobColumn.from_values(values).to_arrow().cast(pa.binary())
    return write_parquet(pa.Table.from_arrays([rows], schema=attributes_schema()))


def decode_attributes(data: bytes | memoryview, name: str) -> list[bytes]:
    """The attributes of each row, as JSON that is not parsed yet."""
    check = checked(name)
    table = read_parquet(data, [_COLUMN], check)
    found = column(table, _COLUMN, pa.binary(), check, nulls=False)
    values: list[bytes] = BlobColumn.from_arrow(found).to_list()
    return values
