"""Pictures of objects, drawn: see `shown.py`."""

from __future__ import annotations

import json.encoder
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from html import escape
from typing import Any

from icefloe.display.shown import Picture, Shown, package_name, qualified

_INDENT = "    "
_quoted: Callable[[str], str] = json.encoder.encode_basestring
"""What `json.dumps` makes of a text, without an encoder for each."""
_PLAIN: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((int, float, bool, type(None)), repr),
    str: _quoted,
}
"""How values of exactly these classes are written."""


def as_field(value: object) -> str | Picture | dict[str, Picture]:
    """A value of an object, as part of its picture."""
    if isinstance(value, Shown):
        picture = value._picture_()
        return picture if picture.fields or picture.title else str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.name
    if (
        isinstance(value, dict | Mapping)
        and value
        and all(isinstance(each, Shown) for each in value.values())
    ):
        return {str(key): each._picture_() for key, each in value.items()}
    return json.dumps(value) if isinstance(value, str) else as_value(value)


def as_value(value: object) -> str:
    """A value as code, on one line if it can be."""
    as_plain = _PLAIN.get(type(value))
    if as_plain is not None:
        return as_plain(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Enum):
        module = getattr(type(value), "shown_in", "config")
        return f"{qualified(type(value).__qualname__, module)}.{value.name}"
    if isinstance(value, dict | Mapping):  # the first is found sooner
        entries = [f"{as_value(key)}: {as_value(each)}" for key, each in value.items()]
        line = ", ".join(entries)
        if "\n" not in line:
            return f"{{{line}}}"
        return "{\n" + "".join(f"{_indented(entry)},\n" for entry in entries) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_item, value))}]"
    return repr(value)


def _item(value: object) -> str:
    # A tuple inside a list stays one: rules are pairs.
    if isinstance(value, tuple):
        return f"({', '.join(map(as_value, value))}{',' if len(value) == 1 else ''})"
    return as_value(value)


def as_code(title: str, arguments: list[tuple[str, Any]]) -> str:
    """A call of the constructor: one line for arguments by position, else one for each."""
    if all(not name for name, _ in arguments):
        return f"{title}({', '.join(as_value(value) for _, value in arguments)})"
    lines = "".join(f"{_indented(f'{name}={as_value(value)}')},\n" for name, value in arguments)
    return f"{title}(\n{lines})"


def _indented(text: str) -> str:
    return _INDENT + text.replace("\n", f"\n{_INDENT}")


def as_html(picture: Picture) -> str:
    """For notebooks: what is nested can be opened and closed."""
    return f"<style>{_STYLE.replace('PREFIX', package_name())}</style>\n{_division(picture)}"


def as_preformatted(text: str) -> str:
    """For notebooks: text as it is."""
    return f'<pre class="{package_name()}-repr">{escape(text)}</pre>'


def _division(picture: Picture) -> str:
    prefix = package_name()
    parts = [f'<div class="{prefix}-header">{escape(picture.title)}</div>']
    for name, value in picture.fields:
        label = f'class="{prefix}-field-name">{escape(name)}'
        if isinstance(value, str):
            parts.append(
                f'<div class="{prefix}-field"><span {label}:</span> '
                f'<span class="{prefix}-field-value">{escape(value)}</span></div>'
            )
        else:
            inner = value if isinstance(value, Picture) else Picture(name, list(value.items()))
            parts.append(f"<details><summary {label}</summary>{_division(inner)}</details>")
    body = "\n  ".join(parts)
    return f'<div class="{prefix}-repr">\n  {body}\n</div>'


_STYLE = """
.PREFIX-repr { color: var(--jp-content-font-color0, inherit); line-height: 1.5; max-width: 50em; }
.PREFIX-repr .PREFIX-header { border-bottom: 1px solid var(--jp-border-color2, #bbb); }
.PREFIX-repr .PREFIX-field-name { color: var(--jp-content-font-color2, #777); }
.PREFIX-repr details > .PREFIX-repr { margin-left: 1em; }
"""
