"""The columns of Parquet files, as in document 003, and with wider numbers.

16-bit numbers are too small for most arrays. The `strict` profile uses them, because the document
does. The `wide` profile has the same columns with wider numbers. Readers accept any width.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")


class Profile(Enum):
    """The width of the numbers in new files."""

    strict = "strict"
    wide = "wide"


def structure_schema(profile: Profile) -> pa.Schema:
    """One row per node."""
    is_wide = profile is Profile.wide
    size = pa.uint64() if is_wide else pa.uint16()
    row = pa.uint32() if is_wide else pa.uint16()
    sizes = pa.list_(size)
    grid = pa.struct(
        [
            _required("name"),
            _required("configuration", pa.struct([_required("chunk_shape", sizes)])),
        ]
    )
    encoding = pa.struct(
        [
            _required("name"),
            _required("configuration", pa.struct([_required("separator")])),
        ]
    )
    codec = pa.struct([_required("name"), pa.field("configuration", pa.binary())])
    array_metadata = pa.struct(
        [
            _required("shape", sizes),
            _required("data_type"),
            pa.field("fill_value", pa.binary()),
            pa.field("dimension_names", pa.list_(pa.string())),
            pa.field("chunk_grid", grid),
            pa.field("chunk_key_encoding", encoding),
            pa.field("codecs", pa.list_(codec)),
        ]
    )
    attrs_reference = pa.struct(
        [_required("attrs_file"), _required("row", row), pa.field("flags", pa.uint16())]
    )
    inventory = pa.struct(
        [
            _required("inventory_file"),
            _required("row", row),
            _required("extent", pa.list_(pa.list_(row, 2))),
            pa.field("flags", pa.uint16()),
        ]
    )
    return pa.schema(
        [
            _described(_required("id", row), "unique identifier for the node"),
            _described(_required("type"), "array or group"),
            _described(_required("path"), "path to the node within the store"),
            _described(pa.field("array_metadata", array_metadata), "All the Zarr array metadata"),
            _described(
                pa.field("inline_attrs", pa.binary()),
                "user-defined attributes, stored inline with this entry",
            ),
            _described(
                pa.field("attrs_reference", attrs_reference),
                "user-defined attributes, stored in a separate attributes file",
            ),
            pa.field("inventories", pa.list_(inventory)),
        ]
    )


def manifest_schema(profile: Profile) -> pa.Schema:
    """One row per chunk."""
    wide = pa.uint64() if profile is Profile.wide else pa.uint32()
    return pa.schema(
        [
            _required("id", wide),
            _required("array_id", pa.uint32()),
            _required("coord", pa.binary()),
            pa.field("inline_data", pa.binary()),
            pa.field("chunk_file", pa.string()),
            pa.field("offset", pa.uint64()),
            _required("length", wide),
        ]
    )


def attributes_schema() -> pa.Schema:
    """One row per node with attributes in this file. The document only defines a row number."""
    return pa.schema([_required("attrs", pa.binary())])


def _required(name: str, kind: pa.DataType | None = None) -> pa.Field:
    return pa.field(name, kind or pa.string(), nullable=False)


def _described(found: pa.Field, text: str) -> pa.Field:
    return found.with_metadata({"description": text})
