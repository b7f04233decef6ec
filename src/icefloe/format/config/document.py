"""Settings as plain nested values, for YAML and FlexBuffers alike."""

from __future__ import annotations

from typing import TypeAlias

from icefloe.records import record

Document: TypeAlias = (
    "bool | int | str | list[Document] | dict[str, Document] | Variant | None"  # Plain is a str
)


@record(frozen=True)
class Variant:
    """One form of an enum, with its data: `!name value` in YAML."""

    name: str
    value: Document


class Plain(str):
    """A scalar that was not quoted: text, unless the reader wants a number or a boolean."""

    __slots__ = ()
