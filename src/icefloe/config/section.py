"""What every config section is made of: named options, checked whenever one is set.

A section is a dataclass whose fields are its options; None means "not set here". The
annotation of a field is also its check, so a section cannot hold a value that its file
form could not. Which options exist is written in the other modules of this package.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Mapping
from functools import cache
from reprlib import repr as shortened
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Self,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from icefloe.display.shown import Picture, ShownAsCode
from icefloe.errors import InvalidInputError
from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    from icefloe.config import shown
else:
    shown = on_demand("icefloe.config.shown")


class OutOfRangeError(InvalidInputError, OverflowError):
    """A number that does not fit its option. Icechunk raises OverflowError or ValueError here."""


@record(frozen=True)
class Integer:
    """The whole numbers an option can hold; `form` is how the format documents call them."""

    form: str
    lowest: int
    highest: int

    def check(self, name: str, value: object) -> int:
        """Return `value` as a plain int, whatever integer type it came as."""
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            found = shortened(value)
            raise TypeError(f"{name} must be an integer ({self.form}), found {found}") from None
        if not self.lowest <= number <= self.highest:
            raise OutOfRangeError(
                f"{name} is {number}, expected {self.lowest} to {self.highest} ({self.form})"
            )
        return number


U8 = Integer("u8", 0, 2**8 - 1)
U16 = Integer("u16", 0, 2**16 - 1)
U32 = Integer("u32", 0, 2**32 - 1)
U64 = Integer("u64", 0, 2**64 - 1)
I32 = Integer("i32", -(2**31), 2**31 - 1)
NONZERO_U16 = Integer("nonzero u16", 1, 2**16 - 1)
NONZERO_U32 = Integer("nonzero u32", 1, 2**32 - 1)
NONZERO_U64 = Integer("nonzero u64", 1, 2**64 - 1)

OptionalU8: TypeAlias = Annotated[int | None, U8]
OptionalU16: TypeAlias = Annotated[int | None, U16]
OptionalU32: TypeAlias = Annotated[int | None, U32]
OptionalU64: TypeAlias = Annotated[int | None, U64]
OptionalI32: TypeAlias = Annotated[int | None, I32]
OptionalNonzeroU16: TypeAlias = Annotated[int | None, NONZERO_U16]
OptionalNonzeroU64: TypeAlias = Annotated[int | None, NONZERO_U64]


@record(frozen=True)
class Option:
    """One field of a section: the type of its values, and whether it can be left unset."""

    type: type
    is_optional: bool
    integer: Integer | None = None

    def check(self, name: str, value: object) -> Any:
        """Return `value` in the form it is kept in; TypeError or OutOfRangeError otherwise."""
        if value is None and self.is_optional:
            return None
        if self.integer is not None:
            return self.integer.check(name, value)
        if not isinstance(value, self.type):
            raise TypeError(
                f"{name} must be {self.type.__name__}{' or None' if self.is_optional else ''}, "
                f"found {shortened(value)}"
            )
        return value


def options(section: type[Any]) -> Mapping[str, Option]:
    """The options of a section class by name, in the order of its constructor."""
    return _options(section)  # type: ignore[arg-type]  # mypy thinks classes have no hash


@cache
def _options(section: type[Any]) -> Mapping[str, Option]:
    hints = get_type_hints(section, include_extras=True)
    return {field.name: _option(hints[field.name]) for field in dataclasses.fields(section)}


@cache
def _unset(section: type[Any]) -> set[str]:
    """The options that are not set unless they are given."""
    return {field.name for field in section.__record_fields__ if field.default is None}


def _option(hint: Any) -> Option:
    integer = None
    if get_origin(hint) is Annotated:
        hint, integer = get_args(hint)
    alternatives = get_args(hint)
    if NoneType not in alternatives:
        return Option(get_origin(hint) or hint, False, integer)
    (value_type,) = (kind for kind in alternatives if kind is not NoneType)
    return Option(get_origin(value_type) or value_type, True, integer)


class Section(ShownAsCode):
    """Base of the config dataclasses: checks on assignment, and merging."""

    __slots__ = ()

    shown_in = "config"

    def _arguments_(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in shown.shown_options(self)]

    def _picture_(self) -> Picture:
        return shown.picture(self)

    def __setattr__(self, name: str, value: object) -> None:
        if value is None and name in _unset(type(self)):  # type: ignore[arg-type]
            object.__setattr__(self, name, None)  # without a look at annotations, which takes long
            return
        option = options(type(self)).get(name)
        if option is None:
            raise AttributeError(
                f"{type(self).__name__} has no option {name!r}; "
                f"options are {', '.join(options(type(self)))}"
            )
        object.__setattr__(self, name, option.check(f"{type(self).__name__}.{name}", value))

    def merge(self, other: Self) -> Self:
        """A new section with what `other` sets, and what this one sets everywhere else.

        Sections inside are merged the same way, other values are taken whole. Nothing is
        shared between the result and its parents.
        """
        merged = copy.deepcopy(self)
        for name in options(type(self)):
            ours, theirs = getattr(self, name), getattr(other, name)
            if theirs is None:
                continue
            is_nested = isinstance(ours, Section) and isinstance(theirs, Section)
            setattr(merged, name, ours.merge(theirs) if is_nested else copy.deepcopy(theirs))
        return merged
