"""Branch and tag files, which are JSON in every generation, and attributes files as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icefloe.legacy.checked import Checked, instant_text
from icefloe.legacy.numbered.json_values import dump, load, read_id


def decode_ref(data: bytes | memoryview, name: str) -> bytes:
    """The id of the snapshot that a branch or tag file points at."""
    checked = Checked(name)
    return read_id(checked.member(load(data, name), "snapshot", "the ref"), checked, "snapshot")


def encode_ref(snapshot_id: bytes, timestamp: int, properties: Mapping[str, Any] | None) -> bytes:
    """A branch or tag file of document 000."""
    return dump(
        {
            "snapshot": list(snapshot_id),
            "timestamp": instant_text(timestamp),
            "properties": dict(properties or {}),
        }
    )


def decode_attributes(data: bytes | memoryview, name: str) -> list[Mapping[str, Any]]:
    """The attribute sets of a file, by location."""
    checked = Checked(name)
    listed = checked.member(load(data, name), "attributes", "the attributes file")
    return [
        checked.mapping(each, "a set of attributes") for each in checked.items(listed, "attributes")
    ]


def encode_attributes(sets: Sequence[Mapping[str, Any]]) -> bytes:
    """A file with these sets of attributes. The location of a set is its position."""
    return dump({"attributes": [dict(each) for each in sets]})
