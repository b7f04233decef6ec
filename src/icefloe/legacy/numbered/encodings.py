"""JSON and MessagePack, read and written by the same description of a file.

| | JSON (document 000) | MessagePack (as rmp-serde writes it) |
|---|---|---|
| record | an object | an array of its members in their order |
| enum variant | an object of one member | a map of one entry |
| id of an object | 16 numbers | text up to alpha.10, then bytes and an empty array |
| chunk of a manifest | under the key `node/index/index` | under [node, [index, index]], or nested |

The document does not say how the key of a chunk is written in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from icefloe.ids import NodeId, encode_base32
from icefloe.legacy.checked import Checked, dump
from icefloe.legacy.numbered.model import DataType, FillValue, node_id
from icefloe.legacy.numbered.zarr_documents import raw_fill_value

U32 = 2**32 - 1
_MAX_LEVELS = 200
_OPTIONAL = frozenset(
    {
        "checksum",
        "configuration",
        "dimension_names",
        "flags",
        "short_term_parents",
        "storage_transformers",
        "user_attributes",
    }
)
"""Members that a JSON object may lack."""


class JsonReader(Checked):
    """Reads one file as JSON."""

    one_entry = "an object of one member"

    def load(self, data: bytes | memoryview) -> Any:
        """The value in a file."""
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise self.fail(f"not JSON ({error!s:.200})") from None

    def record(self, value: Any, what: str, members: Sequence[str], *counts: int) -> Sequence[Any]:
        """The values of these members. In MessagePack, their number is one of `counts`."""
        found = self.mapping(value, what)
        return [
            found.get(name) if name in _OPTIONAL else self.member(found, name, what)
            for name in members
        ]

    def entries(self, value: Any, what: str) -> Sequence[tuple[Any, Any]]:
        """The keys and values of a map."""
        return list(self.mapping(value, what).items())

    def plain(self, value: Any, what: str) -> Any:
        """A JSON-shaped value: maps as dicts with text for keys."""
        return value

    def table(self, value: Any, what: str) -> Mapping[str, Any]:
        """A JSON-shaped map."""
        self.entries(value, what)
        found: Mapping[str, Any] = self.plain(value, what)
        return found

    def variant(self, value: Any, what: str) -> tuple[str, Any]:
        """The name and content of an enum variant; content is None if it is only a name."""
        if isinstance(value, str):
            return value, None
        found = self.entries(value, what)
        if len(found) != 1 or not isinstance(found[0][0], str):
            raise self.unexpected(what, value, self.one_entry)
        return found[0]

    def object_id(self, value: Any, what: str) -> bytes:
        """An id as a list of 16 numbers or, as an early program wrote it, as text."""
        if isinstance(value, str):
            return self.id_text(value, what, 16, 12)
        return self.octets(self.items(value, what, 16), what)

    def node_id(self, value: Any) -> NodeId:
        """The id of a node, which is a 32-bit number."""
        return node_id(self.whole(value, "node id", U32))

    def chunks(self, value: Any) -> Iterator[tuple[NodeId, Sequence[int], Any]]:
        """Node, chunk index and payload of every chunk of a manifest."""
        for key, payload in self.entries(value, "chunks"):
            parts = key.split("/")
            if not all(part.isascii() and part.isdecimal() and len(part) <= 20 for part in parts):
                raise self.unexpected(
                    "the key of a chunk", key, "numbers joined by '/', the node's first"
                )
            number, *index = map(int, parts)
            yield self.node_id(number), index, payload


class Pairs(tuple[tuple[Any, Any], ...]):
    """A map as stored in a MessagePack file. Its keys may be lists, and may repeat."""

    __slots__ = ()

    def keys(self) -> list[Any]:
        return [key for key, _ in self]


class MsgpackReader(JsonReader):
    """Reads one file as MessagePack. Lists are tuples and maps are `Pairs`."""

    one_entry = "a map of one entry"

    def load(self, data: bytes | memoryview) -> Any:
        """The one value in `data`; refuses more or less than one."""
        import msgpack

        size = len(data)
        limits = {f"max_{kind}_len": size for kind in ("str", "bin", "array", "map", "ext")}
        try:
            # The first pass creates no values. It finds lengths beyond the end of the data before
            # memory is allocated for them.
            walker = msgpack.Unpacker(max_buffer_size=max(size, 1), strict_map_key=False, **limits)
            walker.feed(data)
            walker.skip()
            if walker.tell() != size:
                raise ValueError(f"it ends at byte {walker.tell()} of {size}")
            return msgpack.unpackb(
                data,
                raw=False,
                use_list=False,
                strict_map_key=False,
                object_pairs_hook=Pairs,
                **limits,
            )
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            raise self.fail(f"not MessagePack ({str(error) or type(error).__name__})") from None

    def record(self, value: Any, what: str, members: Sequence[str], *counts: int) -> Sequence[Any]:
        return self.items(value, what, *(counts or (len(members),)))

    def entries(self, value: Any, what: str) -> Pairs:
        if not isinstance(value, Pairs):
            raise self.unexpected(what, value, "a map")
        return value

    def plain(self, value: Any, what: str, depth: int = 0) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if depth >= _MAX_LEVELS:
            raise self.fail(f"{what} has more than {_MAX_LEVELS} levels")
        if isinstance(value, Pairs):
            return {
                self.text(key, f"a key in {what}"): self.plain(item, what, depth + 1)
                for key, item in value
            }
        if isinstance(value, tuple):
            return [self.plain(item, what, depth + 1) for item in value]
        raise self.unexpected(what, value, "what JSON can say")

    def object_id(self, value: Any, what: str) -> bytes:
        """The 12 or 16 bytes of an id."""
        if isinstance(value, str):
            return self.id_text(value, what, 12, 16)
        return self._binary(value, what, 12)

    def node_id(self, value: Any) -> NodeId:
        """The id of a node: a 32-bit number up to alpha.4, then eight bytes."""
        if isinstance(value, int):
            return super().node_id(value)
        if isinstance(value, str):
            return NodeId(self.id_text(value, "node id", 8))
        return NodeId(self._binary(value, "node id", 8))

    def _binary(self, value: Any, what: str, size: int) -> bytes:
        data, rest = self.items(value, what, 2)
        if not isinstance(data, bytes) or len(data) != size or rest != ():
            raise self.unexpected(what, value, f"{size} bytes and an empty array")
        return data

    def chunks(self, value: Any) -> Iterator[tuple[NodeId, Sequence[int], Any]]:
        """Node, chunk index and payload of every chunk, from a flat or a nested map."""
        chunks = self.entries(value, "the chunks of the manifest")
        nodes: dict[Any, NodeId] = {}
        is_nested = bool(chunks) and isinstance(chunks[0][1], Pairs) and _is_nested(chunks[0])
        for key, content in chunks:
            if is_nested:
                node = self.node_id(key)
                for index, payload in self.entries(content, "the chunks of an array"):
                    yield node, self.items(index, "a chunk index"), payload
                continue
            raw, index = self.items(key, "the key of a chunk", 2)
            found = nodes.get(raw)
            if found is None:
                found = nodes[raw] = self.node_id(raw)
            yield found, self.items(index, "a chunk index"), content


def _is_nested(entry: tuple[Any, Any]) -> bool:
    """Whether the value belongs to an array rather than to a chunk: its keys are indices."""
    key, value = entry
    if isinstance(key, tuple) and len(key) == 2 and not isinstance(key[0], bytes):
        return False  # (node, coordinates)
    return not value or isinstance(value[0][0], tuple)


class JsonWriter:
    """Writes values as JSON. What its methods return are the parts of larger values."""

    def value(self, value: Any) -> Any:
        """A JSON-shaped value."""
        return value

    def record(self, **members: Any) -> Any:
        return members

    def variant(self, kind: str, content: Any) -> Any:
        return {kind: content}

    def items(self, items: Iterable[Any]) -> Any:
        return list(items)

    def table(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        return dict(entries)

    def object_id(self, raw: bytes) -> Any:
        return list(raw)

    def inline(self, data: bytes) -> Any:
        """The bytes of an inline chunk."""
        return list(data)

    def chunk_key(self, number: int, index: Sequence[int]) -> Any:
        return "/".join(map(str, (number, *index)))

    def fill_value(self, fill: FillValue, data_type: DataType) -> Any:
        fill = raw_fill_value(fill, data_type)
        is_list = isinstance(fill.value, bytes | tuple)
        return self.variant(fill.kind, list(fill.value) if is_list else fill.value)

    def file(self, value: Any) -> bytes:
        """The bytes of a file with this value."""
        return dump(value)


class MsgpackWriter(JsonWriter):
    """Writes values as MessagePack, each in its smallest encoding. Parts are packed already."""

    def __init__(self) -> None:
        import msgpack

        self._packer = msgpack.Packer(use_bin_type=True)
        self._single = msgpack.Packer(use_single_float=True)

    def value(self, value: Any) -> bytes:
        return bytes(self._packer.pack(value))

    def record(self, **members: bytes) -> bytes:
        return self.items(members.values())

    def variant(self, kind: str, content: bytes) -> bytes:
        return self.table([(self.value(kind), content)])

    def items(self, items: Iterable[bytes]) -> bytes:
        listed = list(items)
        return bytes(self._packer.pack_array_header(len(listed))) + b"".join(listed)

    def table(self, entries: Iterable[tuple[bytes, bytes]]) -> bytes:
        listed = list(entries)
        head = bytes(self._packer.pack_map_header(len(listed)))
        return head + b"".join(part for entry in listed for part in entry)

    def object_id(self, raw: bytes) -> bytes:
        return self.value(encode_base32(raw))

    def inline(self, data: bytes) -> bytes:
        return self.value(data)

    def chunk_key(self, number: int, index: Sequence[int]) -> bytes:
        return self.value([number, index])

    def fill_value(self, fill: FillValue, data_type: DataType) -> bytes:
        if fill.kind in ("Float16", "Float32"):
            packed = self._float32(fill.value)
        elif fill.kind == "Complex64":
            packed = self.items(map(self._float32, fill.value))
        else:
            is_raw = fill.kind in ("RawBits", "Bytes")
            packed = self.value(list(fill.value) if is_raw else fill.value)
        return self.variant(fill.kind, packed)

    def _float32(self, value: float) -> bytes:
        """A 32-bit float, because Python's floats have 64 bits."""
        return bytes(self._single.pack(float(value)))

    def file(self, value: bytes) -> bytes:
        return value
