"""Metadata items: names with JSON-shaped values, encoded after the version of their file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, check_text
from icefloe.format.flatbuffer.read import Rows
from icefloe.format.flatbuffer.schema import METADATA_ITEM
from icefloe.format.metadata.values import (
    decode_flexbuffer,
    decode_msgpack,
    encode_flexbuffer,
    encode_msgpack,
)

if TYPE_CHECKING:
    from icefloe.format.flatbuffer.write import Blobs, FlatWriter, Positions

Metadata = Mapping[str, Any]


def decode_metadata(items: Mapping[str, bytes], spec_version: int, name: str) -> dict[str, Any]:
    """Values of a file of this version: MessagePack in version 1, flexbuffers since."""
    decode: Callable[[bytes], Any] = decode_msgpack if spec_version == 1 else decode_flexbuffer
    values = {}
    for key, data in items.items():
        try:
            values[key] = decode(data)
        except FormatError as error:
            raise FormatError(f"{name}: metadata {key!r}: {error.message}", error.kind) from None
    return values


def encode_metadata(values: Metadata, spec_version: int) -> dict[str, bytes]:
    """Encoded values, sorted by name as files hold them."""
    encode = encode_msgpack if spec_version == 1 else encode_flexbuffer
    for key in values:
        if not isinstance(key, str):
            raise TypeError(f"metadata key {key!r} is not text")
        check_text(key, "metadata key", ErrorKind.BAD_METADATA)
    encoded = {}
    for key in sorted(values):
        try:
            encoded[key] = encode(values[key])
        except InvalidInputError as error:
            raise type(error)(f"metadata key {key!r}: {error.message}", error.kind) from None
    return encoded


def read_items(items: Rows) -> dict[str, bytes]:
    """Names and still encoded values of a vector of metadata items."""
    names = items.strings("name").to_list()
    found = dict(zip(names, items.blobs("value").to_list(), strict=True))
    if len(found) != len(names):
        items.buffer.fail("a metadata name appears twice")
    return found


def write_items(writer: FlatWriter, names: Blobs, values: Blobs) -> Positions:
    """Place metadata items; returns their positions."""
    tables = writer.tables(METADATA_ITEM, len(names), {"name": None, "value": None})
    tables.point("name", writer.blobs(names))
    tables.point("value", writer.blobs(values, terminator=0))
    return tables.position


def write_item_vector(writer: FlatWriter, items: Mapping[str, bytes]) -> int:
    """Place one vector of metadata items; returns its position."""
    vector = writer.offsets(len(items))
    if items:
        vector.point(write_items(writer, list(items), list(items.values())))
    return vector.position
