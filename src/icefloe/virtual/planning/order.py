"""The order of files along a dimension, where coordinates do not tell it.

Some archives number their files and leave the coordinate at zero. Such files follow each other as
they are listed, or by a part of their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from icefloe.errors import InvalidInputError

BY_COORDINATES, AS_LISTED = "coordinates", "listed"
_FIELD = re.compile(r"\{(\w+)\}")
_DIGITS = re.compile(r"(\d+)")

Rank = Any
"""Something that sorts as people read: 10 comes after 9."""


def named_dims(order: str) -> tuple[str, ...]:
    """The dimensions that a pattern of file names has a field for.

    Raises:
        InvalidInputError: it is no order at all.
    """
    if order in (BY_COORDINATES, AS_LISTED):
        return ()
    names = _FIELD.findall(order)
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(
            f"order is {order!r}, expected 'coordinates', 'listed', or a pattern of file names "
            "with each dimension once in braces, such as 'sst_{time}.nc'"
        )
    return tuple(names)


def ranks_in(location: str, order: str) -> dict[str, Rank] | None:
    """What the name of a file says, by dimension; None if it does not follow the pattern."""
    found = _compiled(order).fullmatch(unquote(location))
    return (
        None if found is None else {name: _rank(text) for name, text in found.groupdict().items()}
    )


def rank_all(
    order: str, dims: Sequence[str], locations: Sequence[str | None]
) -> tuple[dict[str, dict[int, Rank]], dict[int, str]]:
    """The ranks of files by dimension and number, and files whose names tell nothing."""
    if order == AS_LISTED:
        listed = {number: number for number, name in enumerate(locations) if name is not None}
        return dict.fromkeys(dims, listed), {}
    ranks: dict[str, dict[int, Rank]] = {name: {} for name in named_dims(order)}
    problems: dict[int, str] = {}
    for number, location in enumerate(locations):
        if location is None or not ranks:
            continue
        found = ranks_in(location, order)
        if found is None:
            problems[number] = f"its name does not follow the pattern {order!r}"
            continue
        for name, rank in found.items():
            ranks[name][number] = rank
    return ranks, problems


def _compiled(order: str) -> re.Pattern[str]:
    parts = []
    for at, text in enumerate(_FIELD.split(order)):
        plain = re.escape(text).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append(f"(?P<{text}>[^/]+?)" if at % 2 else plain)
    return re.compile("(?:.*/)?" + "".join(parts))


def _rank(text: str) -> Rank:
    parts = _DIGITS.split(text)
    return tuple((1, int(part)) if at % 2 else (0, part) for at, part in enumerate(parts))
