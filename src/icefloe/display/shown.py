"""What objects show of themselves, and under which name of the package.

A class that inherits `Shown` says what there is to see, in `_picture_`. `rendering.py` draws it.
The name of the package that is shown is decided here: programs that run under
`icefloe.as_icechunk` print and evaluate the names of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    from icefloe.display import rendering
else:
    rendering = on_demand("icefloe.display.rendering")

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
    """What there is to see of an object; values are text, pictures, or pictures by name."""

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
        inner = value
        lines.append(f"{name}:")
        if isinstance(inner, Picture):
            lines += (_INDENT + line for line in _lines(inner))
            continue
        for key, each in inner.items():
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
        return rendering.as_html(self._picture_())


class ShownAsText:
    """Objects whose `str` is for people. `repr` and HTML show the same."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return rendering.as_preformatted(str(self))


class ShownAsCode(Shown):
    """Shown objects whose `repr` is the code that makes them; `str` and HTML are for people."""

    __slots__ = ()

    def _arguments_(self) -> list[tuple[str, Any]]:
        """Arguments of the constructor; those without a name go by position."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return rendering.as_code(self._title_(), self._arguments_())

    def _picture_(self) -> Picture:
        fields = [(name, rendering.as_field(value)) for name, value in self._arguments_()]
        return Picture(self._title_(), fields)
