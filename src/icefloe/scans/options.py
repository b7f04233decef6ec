"""What can be said about a read, checked once: from keyword arguments or from options as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.scans.where import Condition, Where, parse_where

LAYOUTS = ("cells", "chunks")
MISSING = ("fill", "skip")
DEFAULT_SPLIT_BYTES = 128 << 20
DEFAULT_MIN_PARTITIONS = 16
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A read of arrays.

    `split_bytes` is how much one task should produce; with little data there are at least
    `min_partitions` of them, as far as there are chunks.
    """

    group: str = ""
    variables: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    dims: tuple[str, ...] | None = None
    layout: str = "cells"
    where: tuple[Condition, ...] = ()
    missing: str = "fill"
    decode: bool = True
    split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int = DEFAULT_MIN_PARTITIONS


def read_options(
    *,
    group: Any = "",
    variables: Any = None,
    columns: Any = None,
    dims: Any = None,
    layout: Any = "cells",
    where: Where = None,
    missing: Any = "fill",
    decode: Any = True,
    split_size: Any = DEFAULT_SPLIT_BYTES,
    min_partitions: Any = DEFAULT_MIN_PARTITIONS,
) -> ReadOptions:
    """Options from Python values.

    Raises:
        InvalidInputError: a value is not one of those possible; says which are.
    """
    if not isinstance(group, str):
        raise InvalidInputError(f"group is {group!r:.80}, expected the path of a group")
    if not isinstance(decode, bool):
        raise InvalidInputError(f"decode is {decode!r:.80}, expected True or False")
    found = ReadOptions(
        group,
        _names("variables", variables),
        _names("columns", columns),
        _names("dims", dims),
        _one_of("layout", layout, LAYOUTS),
        parse_where(where),
        _one_of("missing", missing, MISSING),
        decode,
        _size("split_size", split_size),
        _count("min_partitions", min_partitions),
    )
    if found.layout == "chunks" and found.columns:
        raise InvalidInputError("columns is for layout='cells'; select those of layout='chunks'")
    if found.dims and (found.layout == "chunks" or found.variables):
        raise InvalidInputError(
            "dims chooses the arrays of layout='cells'; leave it out where variables names them, "
            "and with layout='chunks'"
        )
    return found


_OPTION_NAMES = {
    "group": "group",
    "variables": "variables",
    "columns": "columns",
    "dims": "dims",
    "layout": "layout",
    "where": "where",
    "missing": "missing",
    "decode": "decode",
    "split-size": "split_size",
    "min-partitions": "min_partitions",
}


def options_from_text(options: Mapping[str, str]) -> ReadOptions:
    """Options of a data source: names have dashes, lists are separated by commas."""
    given: dict[str, Any] = {
        name: options[key] for key, name in _OPTION_NAMES.items() if key in options
    }
    for name in ("variables", "columns", "dims"):
        if name in given:
            given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
    if "decode" in given:
        given["decode"] = truth("decode", given["decode"])
    return read_options(**given)


def truth(name: str, text: str) -> bool:
    """An option that is true or false."""
    if text.lower() not in _TRUTH:
        raise InvalidInputError(f"option {name} is {text!r}, expected true or false")
    return _TRUTH[text.lower()]


KNOWN_OPTIONS = frozenset(_OPTION_NAMES)


def _names(what: str, given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"{what} is {given!r:.80}, expected a list of names")
    if not names:
        raise InvalidInputError(f"{what} is empty; leave it out to have all")
    return tuple(names)


def _one_of(what: str, given: Any, possible: Sequence[str]) -> str:
    if given not in possible:
        raise InvalidInputError(f"{what} is {given!r:.80}, expected {' or '.join(possible)}")
    return str(given)


def _size(what: str, given: Any) -> int:
    if isinstance(given, str):
        text = given.strip().lower().removesuffix("b")
        unit = _UNITS.get(text[-1:], 1)
        digits = text[:-1] if text[-1:] in _UNITS else text
        if digits.isdecimal() and int(digits) > 0:
            return int(digits) * unit
    elif isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    raise InvalidInputError(f"{what} is {given!r:.80}, expected bytes such as 134217728 or '128m'")


def _count(what: str, given: Any) -> int:
    number = int(given) if isinstance(given, str) and given.isdecimal() else given
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidInputError(f"{what} is {given!r:.80}, expected a number from 1 on")
    return number
