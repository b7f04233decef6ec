"""The parameters of a request, checked; and what an answer is made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from icefloe.errors import InvalidInputError

Row = TypeVar("Row")

_PAGE = 200
_MOST_ROWS = 1000
_LONGEST = 4096
"""Characters of a parameter; a node path is at most that long in practice."""


class Query:
    """The parameters of one request by name, each given at most once."""

    def __init__(self, given: Mapping[str, list[str]]) -> None:
        for name, found in given.items():
            if len(found) > 1:
                raise InvalidInputError(f"parameter {name!r} is given {len(found)} times")
            if len(found[0]) > _LONGEST:
                raise InvalidInputError(f"parameter {name!r} is longer than {_LONGEST} characters")
        self._given = {name: found[0] for name, found in given.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str, default: str | None = None) -> str:
        """A text; required without a default."""
        found = self._given.get(name, default)
        if found is None:
            raise InvalidInputError(f"parameter {name!r} is missing")
        return found

    def number(self, name: str, default: int, low: int = 0, high: int = 2**62) -> int:
        """A whole number within bounds."""
        text = self._given.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise InvalidInputError(f"parameter {name!r} is {text!r}, expected a whole number")
        found = int(text)
        if not low <= found <= high:
            raise InvalidInputError(
                f"parameter {name!r} is {found}, expected a number from {low} to {high}"
            )
        return found

    def real(self, name: str) -> float | None:
        """A finite number, or None if there is none."""
        text = self._given.get(name)
        if text is None:
            return None
        try:
            found = float(text)
        except ValueError:
            found = float("nan")
        if not abs(found) < float("inf"):
            raise InvalidInputError(f"parameter {name!r} is {text!r}, expected a finite number")
        return found

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Whole numbers with commas between, or None."""
        text = self._given.get(name)
        if text is None:
            return None
        parts = text.split(",") if text else []
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            raise InvalidInputError(f"parameter {name!r} is {text!r}, expected numbers such as 0,3")
        return tuple(map(int, parts))

    @property
    def limit(self) -> int:
        """How many rows a page may have."""
        return self.number("limit", _PAGE, 1, _MOST_ROWS)

    @property
    def has_internal(self) -> bool:
        """Whether icefloe's own tables are shown, too."""
        return "all" in self

    def page(self, rows: Sequence[Row], show: Callable[[Row], Any]) -> dict[str, Any]:
        """The rows from `offset` on, up to `limit` of them, and how many there are."""
        offset = self.number("offset", 0)
        shown = [show(row) for row in rows[offset : offset + self.limit]]
        return {"total": len(rows), "offset": offset, "rows": shown}

    def choice(self, name: str, default: str, *others: str) -> str:
        """One of some words."""
        found = self._given.get(name, default)
        if found not in (default, *others):
            expected = ", ".join((default, *others))
            raise InvalidInputError(f"parameter {name!r} is {found!r}, expected one of {expected}")
        return found


class Answer(NamedTuple):
    """What is sent back."""

    body: bytes
    content_type: str
    is_constant: bool = False
    """Whether the same request always has this answer, because it names a snapshot by its id."""
    about: Mapping[str, Any] | None = None
    """Facts about a picture, sent in a header."""


def as_json(value: Any, *, is_constant: bool = False) -> Answer:
    """A value of the API as an answer."""
    return Answer(json_text(value).encode(), "application/json", is_constant)


def json_text(value: Any) -> str:
    """A value as JSON. NaN and infinite numbers, which JSON lacks, become texts such as "NaN"."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"))
    except ValueError:
        python = json.dumps(value, default=_plain)
        plain = json.loads(python, parse_constant=str)
        return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
