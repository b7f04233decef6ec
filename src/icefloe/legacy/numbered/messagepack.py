"""MessagePack as rmp-serde writes it: structs are arrays, enum variants are maps of one entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from icefloe.errors import FormatError
from icefloe.legacy.checked import Checked
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import msgpack
else:
    msgpack = on_demand("msgpack")

_MAX_LEVELS = 200


class Pairs(tuple[tuple[Any, Any], ...]):
    """A map as stored in the file. Its keys may be lists, and may repeat."""

    __slots__ = ()

    def keys(self) -> list[Any]:
        return [key for key, _ in self]


def unpack(data: bytes | memoryview, name: str) -> Any:
    """The one value in `data`. Lists are tuples and maps are `Pairs`.

    Raises:
        FormatError: there is not exactly one whole value. `name` is the name of the file in errors.
    """
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
        reason = str(error) or type(error).__name__
        raise FormatError(f"{name}: not MessagePack ({reason})") from None


def plain(value: Any, checked: Checked, what: str, depth: int = 0) -> Any:
    """A JSON-shaped value: maps as dicts with text for keys."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth >= _MAX_LEVELS:
        raise checked.fail(f"{what} has more than {_MAX_LEVELS} levels")
    if isinstance(value, Pairs):
        return {
            checked.text(key, f"a key in {what}"): plain(item, checked, what, depth + 1)
            for key, item in value
        }
    if isinstance(value, tuple):
        return [plain(item, checked, what, depth + 1) for item in value]
    raise checked.unexpected(what, value, "what JSON can say")


def variant(value: Any, checked: Checked, what: str) -> tuple[str, Any]:
    """The name and content of an enum variant; content is None if it is only a name."""
    if isinstance(value, str):
        return value, None
    if not isinstance(value, Pairs) or len(value) != 1 or not isinstance(value[0][0], str):
        raise checked.unexpected(what, value, "a map of one entry")
    return value[0]


def pairs(value: Any, checked: Checked, what: str) -> Pairs:
    """A map."""
    if not isinstance(value, Pairs):
        raise checked.unexpected(what, value, "a map")
    return value


def pack(value: Any) -> bytes:
    """The smallest encoding of a value; use `Entries` for maps whose keys are lists."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def pack_map(entries: Iterable[tuple[bytes, bytes]], count: int) -> bytes:
    """A map of keys and values that are already packed."""
    head = bytes(msgpack.Packer().pack_map_header(count))
    return head + b"".join(part for entry in entries for part in entry)


def pack_array(items: Iterable[bytes], count: int) -> bytes:
    """An array of items that are already packed."""
    return bytes(msgpack.Packer().pack_array_header(count)) + b"".join(items)


def pack_float32(value: float) -> bytes:
    """A 32-bit float, because Python's floats have 64 bits."""
    packed: bytes = msgpack.Packer(use_single_float=True).pack(float(value))
    return packed
