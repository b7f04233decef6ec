"""JSON of document 000: ids are lists of 16 numbers, enum variants are objects of one member."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from icefloe.errors import FormatError
from icefloe.legacy.checked import Checked


def load(data: bytes | memoryview, name: str) -> Mapping[str, Any]:
    """The object in a file."""
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: not JSON ({error!s:.200})") from None
    return Checked(name).mapping(document, "the file")


def dump(document: Mapping[str, Any]) -> bytes:
    """A file as compact JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def read_id(value: Any, checked: Checked, what: str) -> bytes:
    """An id as a list of 16 numbers or, as an early program wrote it, as text."""
    if isinstance(value, str):
        return checked.id_text(value, what, 16, 12)
    return checked.octets(checked.items(value, what, 16), what)


def variant(value: Any, checked: Checked, what: str) -> tuple[str, Any]:
    """The name and content of an enum variant; content is None if it is only a name."""
    if isinstance(value, str):
        return value, None
    found = checked.mapping(value, what)
    if len(found) != 1:
        raise checked.unexpected(what, value, "an object of one member")
    return next(iter(found.items()))
