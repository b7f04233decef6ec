"""Ids in MessagePack: text up to alpha.10, bytes and an empty array from alpha.11 on."""

from __future__ import annotations

from typing import Any

from icefloe.ids import NodeId, encode_base32
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.model import node_id


def read_object_id(value: Any, checked: Checked, what: str) -> bytes:
    """The 12 or 16 bytes of an id."""
    if isinstance(value, str):
        return checked.id_text(value, what, 12, 16)
    return _binary(value, checked, what, 12)


def read_node_id(value: Any, checked: Checked) -> NodeId:
    """The id of a node: a 32-bit number up to alpha.4, then eight bytes."""
    if isinstance(value, int):
        return node_id(checked.whole(value, "node id", 2**32 - 1))
    if isinstance(value, str):
        return NodeId(checked.id_text(value, "node id", 8))
    return NodeId(_binary(value, checked, "node id", 8))


def _binary(value: Any, checked: Checked, what: str, size: int) -> bytes:
    items = checked.items(value, what, 2)
    data = items[0]
    if not isinstance(data, bytes) or len(data) != size or items[1] != ():
        raise checked.unexpected(what, value, f"{size} bytes and an empty array")
    return data


def text_id(wide: bytes) -> str:
    """An id as in files up to alpha.10."""
    return encode_base32(wide)
