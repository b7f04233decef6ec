"""Conditions on coordinates, which decide what chunks are read at all.

As SQL text: comparisons joined by AND, such as
`time >= '2020-01-01' AND lat BETWEEN 40 AND 60 AND station IN ('a', 'b')`. As a dictionary: a value
(equal), a list (one of), or a pair (low, high) with both ends included and None for an open end.

A condition keeps the rows that the same text in `DataFrame.where` would keep: floats are compared
as doubles, integers with decimal numbers exactly, NaN is equal to itself and above all numbers.
Times have no zone. What Spark would do with a time that has one depends on how it is written, so
it is refused, except for UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.scans.variables import Coding, Values

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in")
_SPELLINGS = {"==": "=", "<>": "!="}


@dataclass(frozen=True, slots=True)
class Condition:
    """`column operator value`; for `in` the value is a tuple."""

    column: str
    operator: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.value!r}"


Where = str | Mapping[str, Any] | None


def parse_where(where: Where) -> tuple[Condition, ...]:
    """The conditions of either form.

    Raises:
        InvalidInputError: it cannot be understood; says which part.
    """
    if where is None:
        return ()
    if isinstance(where, str):
        return tuple(_parse_text(where))
    if isinstance(where, Mapping):
        return tuple(
            condition for name, given in where.items() for condition in _from_item(name, given)
        )
    raise InvalidInputError(
        f"where is {where!r:.80}, expected SQL text such as \"time >= '2020-01-01'\" or a "
        "dictionary such as {'lat': (40, 60)}; conditions on values go into DataFrame.where"
    )


def _from_item(name: str, given: Any) -> Iterable[Condition]:
    if isinstance(given, tuple):
        if len(given) != 2:
            raise InvalidInputError(
                f"where[{name!r}] has {len(given)} parts, expected (low, high); give a list for "
                "'one of these'"
            )
        for operator, bound in zip((">=", "<="), given, strict=True):
            if bound is not None:
                yield Condition(name, operator, bound)
    elif isinstance(given, list | set | frozenset | np.ndarray):
        yield Condition(name, "in", tuple(given))
    elif given is None or isinstance(given, Mapping | slice):
        raise InvalidInputError(
            f"where[{name!r}] is {given!r:.80}, expected a value, a list or a pair (low, high)"
        )
    else:
        yield Condition(name, "=", given)


_TOKEN = re.compile(
    r"\s*(?:(?P<name>`(?:[^`]|``)+`|[A-Za-z_][\w.]*)"
    r"|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:(?i:BD|[LSYDF])\b)?)"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<mark><=|>=|<>|!=|==|=|<|>|\(|\)|,))"
)


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def next(self, *, is_wanted: bool = True) -> tuple[str, str]:
        """Kind and text of the next token; ('end', '') after the last."""
        if not self.text[self.at :].strip():
            if is_wanted:
                raise self.problem("something is missing at the end")
            return "end", ""
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.problem(f"cannot read {self.text[self.at :].strip()[:20]!r}")
        self.at = found.end()
        kind = str(found.lastgroup)
        return kind, found[kind]

    def expect(self, wanted: str) -> None:
        before = self.at
        _, text = self.next()
        if text.upper() != wanted:
            self.at = before
            raise self.problem(f"expected {wanted} instead of {text!r}")

    def problem(self, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"where {self.text!r}: {what}; conditions are comparisons (=, <>, <, <=, >, >=, "
            "BETWEEN, IN) of a coordinate with a value, joined by AND"
        )


def _parse_text(text: str) -> Iterable[Condition]:
    tokens = _Tokens(text)
    while True:
        kind, name = tokens.next()
        if kind != "name":
            raise tokens.problem(f"expected the name of a coordinate instead of {name!r}")
        column = name[1:-1].replace("``", "`") if name.startswith("`") else name
        _, operator = tokens.next()
        if operator.upper() == "BETWEEN":
            low = _literal(tokens)
            tokens.expect("AND")
            yield Condition(column, ">=", low)
            yield Condition(column, "<=", _literal(tokens))
        elif operator.upper() == "IN":
            yield Condition(column, "in", tuple(_literals(tokens)))
        elif operator in (*OPERATORS, *_SPELLINGS):
            yield Condition(column, _SPELLINGS.get(operator, operator), _literal(tokens))
        else:
            raise tokens.problem(f"{operator!r} is not one of the comparisons")
        kind, word = tokens.next(is_wanted=False)
        if kind == "end":
            return
        if word.upper() != "AND":
            raise tokens.problem(f"expected AND instead of {word!r}")


def _literals(tokens: _Tokens) -> Iterable[Any]:
    tokens.expect("(")
    while True:
        yield _literal(tokens)
        _, mark = tokens.next()
        if mark == ")":
            return
        if mark != ",":
            raise tokens.problem(f"expected , or ) instead of {mark!r}")


def _literal(tokens: _Tokens) -> Any:
    kind, text = tokens.next()
    if kind == "name" and text.upper() in ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE"):
        return _time_literal(tokens, text.upper())
    if kind == "text":
        return text[1:-1].replace("''", "'")
    if kind == "number":
        return _number(text)
    if kind == "name" and text.upper() in ("TRUE", "FALSE"):
        return text.upper() == "TRUE"
    raise tokens.problem(f"{text!r} is not a value; text and times go in single quotes")


def _number(text: str) -> float | Decimal:
    """A number as Spark reads it: only an exponent makes a double, and a letter names the type."""
    digits = text.rstrip("lLsSyYdDfFbB")
    suffix = text[len(digits) :].upper()
    if suffix == "F":
        return float(np.float32(digits))
    if suffix == "D" or (not suffix and set(digits) & set("eE")):
        return float(digits)
    return Decimal(digits) if suffix == "BD" or "." in digits else int(digits)


def _time_literal(tokens: _Tokens, word: str) -> np.datetime64:
    kind, text = tokens.next()
    found = _TIME_TEXT.match(text[1:-1].strip()) if kind == "text" else None
    if found is not None and found["zone"]:
        raise tokens.problem(f"{word} {text} has a zone; give it in UTC, without one")
    if found is not None and word == "DATE" and found["hours"]:
        raise tokens.problem(f"DATE {text} has hours, expected a day")
    value = None if found is None else as_datetime64(found[0])
    if value is None:
        raise tokens.problem(f"expected a quoted time instead of {text!r}")
    return value


def check_condition(condition: Condition, coding: Coding) -> Condition:
    """The condition with its values in the type of the column.

    Raises:
        InvalidInputError: values of that type cannot be compared with the column.
    """
    column, operator = condition.column, condition.operator
    if operator == "in":
        values = tuple(_typed(condition, value, coding) for value in condition.value)
        return Condition(column, "in", tuple(v for v in values if not isinstance(v, Decimal)))
    value = _typed(condition, condition.value, coding)
    if not isinstance(value, Decimal):
        return Condition(column, operator, value)
    if operator in ("=", "!="):  # a number with a fraction: no integer is equal to it
        return Condition(column, *(("in", ()) if operator == "=" else ("!=", None)))
    below = math.floor(value)
    return Condition(column, *(("<=", below) if "<" in operator else (">", below)))


def holds(condition: Condition, values: Values) -> NDArray[np.bool_]:
    """For which values a checked condition holds. Null never does; NaN is above all numbers."""
    data = values.data
    if data.dtype == np.float32:
        data = data.astype(np.float64)
    if condition.operator == "in":
        found = np.zeros(data.shape, np.bool_)
        for value in condition.value:
            found |= _compared(data, "=", value)
    elif condition.operator == "!=":
        found = ~_compared(data, "=", condition.value)
    else:
        found = _compared(data, condition.operator, condition.value)
    return found if values.mask is None else found & ~values.mask


def _compared(data: NDArray[Any], operator: str, wanted: Any) -> NDArray[np.bool_]:
    if isinstance(wanted, float) and math.isnan(wanted):
        is_nan = np.isnan(data) if data.dtype.kind == "f" else np.zeros(data.shape, np.bool_)
        everything = np.ones(data.shape, np.bool_)
        return {"=": is_nan, ">=": is_nan, "<": ~is_nan, "<=": everything, ">": ~everything}[
            operator
        ]
    if operator == "=":
        return np.asarray(data == wanted, np.bool_)
    # NaN in the data is above all numbers, so it is in what is not below.
    found = np.asarray(data < wanted if operator in ("<", ">=") else data <= wanted, np.bool_)
    return found if operator in ("<", "<=") else ~found


def _typed(condition: Condition, value: Any, coding: Coding) -> Any:
    kind = coding.arrow_type
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        value = value.item()
    if pa.types.is_timestamp(kind):
        instant = as_datetime64(value)
        if instant is not None:
            return instant
        if isinstance(value, str) and _TIME_TEXT.match(value.strip()):
            raise InvalidInputError(
                f"where: {condition.column!r} is compared with {value!r}, which has a zone (Spark "
                "would leave it out); give the time in UTC"
            )
        expected = "a time such as '2020-01-01T12:00:00'"
    elif pa.types.is_duration(kind):
        if isinstance(value, timedelta | np.timedelta64):
            return np.timedelta64(value, "us")
        expected = "a duration such as timedelta(hours=6)"
    elif pa.types.is_string(kind) or pa.types.is_boolean(kind):
        if isinstance(value, str if pa.types.is_string(kind) else bool):
            return value
        expected = "text" if pa.types.is_string(kind) else "true or false"
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return float(value) if pa.types.is_floating(kind) else _whole(value)
        expected = "a number"
    else:
        expected = f"nothing: a column of type {kind} cannot be compared"
    raise InvalidInputError(
        f"where: {condition.column!r} is compared with {value!r:.60}, expected {expected}"
    )


def _whole(value: float | Decimal) -> float | Decimal:
    """A decimal number without a fraction as an integer, which numpy compares exactly."""
    return int(value) if isinstance(value, Decimal) and value == value.to_integral() else value


_TIME_TEXT = re.compile(
    r"\d{4}-\d\d-\d\d(?P<hours>[T ]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\Z"
)


def as_datetime64(value: Any) -> np.datetime64 | None:
    """A time in any of its forms; None if it is none, or text with a zone other than UTC.

    A `datetime` with a zone is converted to UTC, as CF times are.
    """
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value.astype("M8[us]")
    if isinstance(value, str):
        found = _TIME_TEXT.match(value.strip())
        if found is None or (found["zone"] or "Z").strip("+-0:") not in ("Z", ""):
            return None
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if isinstance(value, datetime):
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return np.datetime64(plain, "us")
    return np.datetime64(value, "us") if isinstance(value, date) else None
