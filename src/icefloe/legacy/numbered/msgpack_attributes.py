"""Attributes files as MessagePack: one item, a list of attribute sets.

No release ever wrote one, and documents 000 and 004 do not define their content. The location of a
reference is taken as a position in that list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.messagepack import pack, pairs, plain, unpack


def decode_attributes(data: bytes | memoryview, name: str) -> list[Mapping[str, Any]]:
    """The attribute sets of a file, by location."""
    checked = Checked(name)
    (sets,) = checked.items(unpack(data, name), "the attributes file", 1)
    what = "a set of attributes"
    return [
        plain(pairs(each, checked, what), checked, what)
        for each in checked.items(sets, "the sets of attributes")
    ]


def encode_attributes(sets: Sequence[Mapping[str, Any]]) -> bytes:
    """A file with these sets of attributes. The location of a set is its position."""
    return pack([[dict(each) for each in sets]])
