"""`repr`, `str` and HTML of public objects, under the package name `icefloe` or `icechunk`.

A class that inherits `Shown` describes itself in `_picture_`. Programs that run under
`icefloe.as_icechunk` print and evaluate the names of the original.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, ClassVar, NamedTuple

_OURS = "icefloe"
_INDENT = "    "

MASK = "****"
"""In place of a secret."""


class _Package:
    name = _OURS


def show_as(package: str) -> None:
    """Show objects under the name of this package."""
    _Package.name = package


def package_name() -> str:
    """The name under which objects show themselves."""
    return _Package.name


def qualified(name: str, module: str = "") -> str:
    """How a program names a class: `icefloe.Name`, or `icechunk.module.Name`.

    icefloe offers every name at the top; the original has them in modules.
    """
    module = module if _Package.name != _OURS else ""
    return ".".join(filter(None, (_Package.name, module, name)))


def counted(count: int, noun: str) -> str:
    """A number of things: `1 file`, `2,000 files`, `2 branches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("the loop returns")


class NamedNumber(IntEnum):
    """Numbers with names: equal to the number, shown by the name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __str__(self) -> str:
        return repr(self)


class Picture(NamedTuple):
    """A display tree: a title and fields, which are text, trees, or trees by name."""

    title: str
    fields: Sequence[tuple[str, str | Picture | dict[str, Picture]]]


def as_text(picture: Picture) -> str:
    """One line a field; what is nested is indented."""
    return "\n".join([*_lines(picture), ""])


def _lines(picture: Picture) -> list[str]:
    lines = [f"<{picture.title}>"]
    for name, value in picture.fields:
        if isinstance(value, str):
            lines.append(f"{name}: {value}")
            continue
        lines.append(f"{name}:")
        if isinstance(value, Picture):
            lines += (_INDENT + line for line in _lines(value))
            continue
        for key, each in value.items():
            lines.append(f"{_INDENT}{key}:")
            lines += (2 * _INDENT + line for line in _lines(each))
    return lines


class Shown:
    """Objects that show themselves. `shown_in` is where the original has the class."""

    __slots__ = ()

    shown_in: ClassVar[str] = ""

    def _title_(self) -> str:
        return qualified(type(self).__qualname__, self.shown_in)

    def _picture_(self) -> Picture:
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self._picture_())

    def __repr__(self) -> str:
        return as_text(self._picture_())

    def _repr_html_(self) -> str:
        return as_html(self._picture_())


class ShownAsText:
    """Objects whose `str` is for people. `repr` and HTML show the same."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_preformatted(str(self))


class ShownAsCode(Shown):
    """Shown objects whose `repr` is the code that makes them; `str` and HTML are for people."""

    __slots__ = ()

    def _arguments_(self) -> list[tuple[str, Any]]:
        """Arguments of the constructor; those without a name go by position."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_code(self._title_(), self._arguments_())

    def _picture_(self) -> Picture:
        fields = [(name, as_field(value)) for name, value in self._arguments_()]
        return Picture(self._title_(), fields)


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
        isinstance(value, Mapping)
        and value
        and all(isinstance(each, Shown) for each in value.values())
    ):
        return {str(key): each._picture_() for key, each in value.items()}
    return json.dumps(value) if isinstance(value, str) else as_value(value)


def as_value(value: object) -> str:
    """A value as code, on one line if it can be."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Enum):
        module = getattr(type(value), "shown_in", "config")
        return f"{qualified(type(value).__qualname__, module)}.{value.name}"
    if isinstance(value, Mapping):
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
    from html import escape

    return f'<pre class="{package_name()}-repr">{escape(text)}</pre>'


def _division(picture: Picture) -> str:
    from html import escape

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
