"""Metadata items of a snapshot: JSON-shaped values in MessagePack or flexbuffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, check_text
from icefloe.format import flexbuffers
from icefloe.format.flatbuffer.read import Rows
from icefloe.format.flatbuffer.schema import METADATA_ITEM

if TYPE_CHECKING:
    from icefloe.format.flatbuffer.write import Blobs, FlatWriter, Positions


# -- Metadata values: anything JSON can say, as MessagePack (spec 1) or FlexBuffers (spec 2).
#
# The same value always gives the same bytes. What JSON cannot say is refused when it is written,
# with the path to it; NaN and the infinities are read as None, as Icechunk does.


LOWEST_INTEGER = -(2**63)
HIGHEST_INTEGER = 2**64 - 1


def encode_msgpack(value: object) -> bytes:
    """The MessagePack form: smallest integers, 64-bit floats, keys sorted.

    Raises:
        InvalidInputError: the value is not JSON-shaped; the message has the path.
    """
    import msgpack

    packed: bytes = msgpack.packb(_json_value(value, "$", 0))
    return packed


def decode_msgpack(data: bytes) -> Any:
    """The value in a MessagePack buffer, as None, bool, int, float, str, list and dict.

    Raises:
        FormatError: the bytes are not MessagePack, or hold something JSON cannot.
    """
    limit = len(data)  # nothing in a buffer has more elements than the buffer has bytes
    import msgpack

    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=limit,
            max_bin_len=limit,
            max_array_len=limit,
            max_map_len=limit,
            max_ext_len=limit,
        )
    except (ValueError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise FormatError(f"metadata value is not MessagePack: {reason}") from None
    return _read_value(value, "$", 0)


def encode_flexbuffer(value: object) -> bytes:
    """The FlexBuffers form, byte for byte as Icechunk writes it.

    Raises:
        InvalidInputError: the value is not JSON-shaped; the message has the path.
    """
    return flexbuffers.encode(_json_value(value, "$", 0))


def _json_value(value: Any, path: str, depth: int) -> Any:
    """`value` made of plain types, keys sorted; `path` is where it lies in the whole."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return _scalar(value, path)
    if depth >= flexbuffers.MAX_DEPTH:
        raise _refused(path, f"there are more than {flexbuffers.MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        for key in value:
            _check_key(key, path)
        return {
            str(key): _json_value(value[key], _member(path, key), depth + 1)
            for key in sorted(value)
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [
            _json_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)
        ]
    raise NoJsonError(
        f"metadata value at {path}: found {_named(value)}, expected None, bool, int, float, str, "
        "list or dict",
        ErrorKind.BAD_METADATA,
    )


def _scalar(value: bool | int | float | str | None, path: str) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _checked_text(value, path)
    if isinstance(value, int):
        if not LOWEST_INTEGER <= value <= HIGHEST_INTEGER:
            raise _refused(path, "the integer does not fit into 64 bits")
        return int(value)
    if not math.isfinite(value):
        raise _refused(path, f"JSON has no {value!r}; use None or text")
    return float(value)


def _check_key(key: object, path: str) -> None:
    if not isinstance(key, str):
        raise _refused(path, f"key {key!r} is {_named(key)}, expected str")
    _checked_text(key, path)
    # FlexBuffers end a key with a zero byte. Refused in MessagePack too, so that every
    # repository of spec version 1 can move to version 2.
    if "\0" in key:
        raise _refused(path, f"key {key!r} contains a zero byte")


def _checked_text(text: str, path: str) -> str:
    try:
        return text.encode().decode()
    except UnicodeEncodeError:
        raise _refused(path, f"text {text!r} has half a surrogate pair") from None


def _read_value(value: Any, path: str, depth: int) -> Any:
    """`value` as MessagePack gave it, if it is JSON-shaped."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth >= flexbuffers.MAX_DEPTH:
        raise FormatError(
            f"metadata value: more than {flexbuffers.MAX_DEPTH} levels of lists and maps"
        )
    if isinstance(value, list):
        return [
            _read_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)
        ]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise FormatError(f"metadata value: key {key!r} at {path}, expected text")
        return {
            key: _read_value(item, _member(path, key), depth + 1) for key, item in value.items()
        }
    raise FormatError(f"metadata value: {_named(value)} at {path} has no JSON form")


def _member(path: str, key: str) -> str:
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"


def _named(value: object) -> str:
    return type(value).__name__


class NoJsonError(InvalidInputError, TypeError):
    """A value of a type that JSON does not have. Icechunk raises TypeError here."""


def _refused(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"metadata value at {path}: {problem}", ErrorKind.BAD_METADATA)


# -- Metadata items: names with JSON-shaped values, encoded after the version of their file.


Metadata = Mapping[str, Any]


def decode_metadata(items: Mapping[str, bytes], spec_version: int, name: str) -> dict[str, Any]:
    """Values of a file of this version: MessagePack in version 1, flexbuffers since."""
    decode: Callable[[bytes], Any] = decode_msgpack if spec_version == 1 else flexbuffers.decode
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
