"""What every config section is made of: named options, each declared once.

A section is a dataclass whose fields are `Option`s. Everything else follows from the declaration:
the check whenever an option is set, the value in force where it is not, merging, display, its
documentation, and the file form (`icefloe.format.config`). Which options exist is in the other
modules of this package.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, FrozenInstanceError, dataclass
from reprlib import repr as shortened
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from icefloe.display import Picture, ShownAsCode, as_field
from icefloe.errors import InvalidInputError


class OutOfRangeError(InvalidInputError, OverflowError):
    """A number that does not fit its option. Icechunk raises OverflowError or ValueError here."""


class Integer(NamedTuple):
    """The whole numbers an option can hold; `form` is how the format documents call them."""

    form: str
    lowest: int
    highest: int

    def check(self, name: str, value: object) -> int:
        """Convert any integer type to a plain int."""
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

Kept = TypeVar("Kept")
InForce = TypeVar("InForce")


@dataclass(eq=False)
class Option(Generic[Kept, InForce]):
    """One option of a section: sections keep a `Kept`, resolved sections an `InForce`.

    None means "not set here", unless the option has another `initial` value or none at all.
    """

    kind: type | Integer
    """The type of its values, or the numbers it can hold."""
    default: object = None
    """In force when it is not set."""
    doc: str = ""
    """What it means, for `help` and docs/reference/configuration.md."""
    _: KW_ONLY
    default_in_words: str = ""
    """How the documentation calls a default that is no plain value."""
    initial: object = None
    """What a section has when nothing was given for it; MISSING requires a value."""
    default_from: str | None = None
    """An earlier option of the section whose value is the default."""
    at_least: int | None = None
    """In force instead of smaller numbers; for limits that at 0 let nothing through."""
    convert: Callable[[Any], Any] | None = None
    """Makes the form that is kept of what a caller may give."""
    written_after: str | None = None
    """The option it follows in files, if it does not follow the one before."""
    is_shown_unset: bool = True
    """Whether it is shown when it is not set."""
    is_own: bool = False
    """Whether Icechunk lacks it: then files have it, and it is shown, only when it is set."""

    def __post_init__(self) -> None:
        self.type = int if isinstance(self.kind, Integer) else self.kind
        if self.doc:  # `help` shows it
            self.__doc__ = f"{self.doc} (default: {self.default_in_words or self.default})"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, section: None, owner: type) -> Any: ...
    @overload
    def __get__(self, section: Resolved, owner: type) -> InForce: ...
    @overload
    def __get__(self, section: Section, owner: type) -> Kept: ...
    def __get__(self, section: object, owner: type) -> Any:
        if section is not None:
            return section.__dict__[self.name]
        if self.initial is MISSING:  # dataclasses ask the class for the default of a field
            raise AttributeError(f"{self.name} has no default")
        return self.initial

    def __set__(self, section: Section, value: Kept) -> None:
        kept = self.check(f"{type(section).__name__}.{self.name}", value)
        is_resolved = isinstance(section, Resolved)
        section.__dict__[self.name] = self.in_force(section, kept) if is_resolved else kept

    def check(self, name: str, value: object) -> Any:
        """Return `value` in the form it is kept in; TypeError or OutOfRangeError otherwise."""
        if value is None and self.initial is None:
            return None
        if isinstance(self.kind, Integer):
            return self.kind.check(name, value)
        if self.convert is not None:
            return self.convert(value)
        if not isinstance(value, self.type):
            raise TypeError(
                f"{name} must be {self.type.__name__}{' or None' if self.initial is None else ''}, "
                f"found {shortened(value)}"
            )
        return value

    def in_force(self, section: Section, value: Any) -> Any:
        """What holds when `section` has this `value`."""
        if value is None:
            value = getattr(section, self.default_from) if self.default_from else self.default
        return value if self.at_least is None or value is None else max(self.at_least, value)

    def shown(self, value: Any, default: Any) -> Any:
        """The value, or the default in force, as a field of a picture."""
        if value is None and isinstance(default, int | float):
            return f"{as_field(default)} (default)"
        return as_field(value)


class SectionOption(Option[Kept, InForce]):
    """A section inside a section.

    Args:
        kind: the class of the section.
        resolved: the class of the section in force.
        defaults: where they differ from those of `kind`.
        absent: in force without this section, if that is not a section with nothing set.
        shows_defaults: whether the defaults are shown when there is no section.
        further: see `Option`.
    """

    def __init__(
        self,
        kind: type[Section],
        resolved: type[Section],
        *,
        defaults: Mapping[str, Any] | None = None,
        absent: object = MISSING,
        shows_defaults: bool = True,
        **further: Any,
    ) -> None:
        self.resolved = resolved
        self.defaults = defaults or {}
        self.shows_defaults = shows_defaults
        in_force = resolved(**self.defaults) if absent is MISSING else absent
        super().__init__(kind, in_force, **further)

    def in_force(self, section: Section, value: Any) -> Any:
        """The section with defaults for what it does not set."""
        if value is None or isinstance(value, Resolved):
            return self.default if value is None else value
        given = {name: each for name, each in vars(value).items() if each is not None}
        return self.resolved(**{**self.defaults, **given})

    def shown(self, value: Any, default: Any) -> Any:
        """The picture of the section."""
        if self.shows_defaults:
            return picture(self.type() if value is None else value, self.defaults)
        return as_field(value)


Number: TypeAlias = Option[int | None, int]
NumberOrNone: TypeAlias = Option[int | None, int | None]
Text: TypeAlias = Option[str | None, str | None]
Switch: TypeAlias = Option[bool | None, bool]
Flag: TypeAlias = Option[bool, bool]


class Section(ShownAsCode):
    """Base of the config dataclasses: checks on assignment, and merging."""

    __slots__ = ()

    shown_in = "config"

    shows_defaults: ClassVar[bool] = True
    """Whether an option that is not set is shown with its default."""

    _options: ClassVar[dict[str, Option[Any, Any]]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: each for name, each in vars(cls).items() if isinstance(each, Option)}
        cls._options = {**cls._options, **own}

    def _arguments_(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in _shown_options(self)]

    def _picture_(self) -> Picture:
        return picture(self, {})

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._options:
            raise AttributeError(
                f"{type(self).__name__} has no option {name!r}; "
                f"options are {', '.join(self._options)}"
            )
        object.__setattr__(self, name, value)

    def merge(self, other: Self) -> Self:
        """A new section with what `other` sets, and what this one sets everywhere else.

        Sections inside are merged the same way, other values are taken whole. Nothing is
        shared between the result and its parents.

        >>> caching = icefloe.CachingConfig(num_bytes_chunks=0)
        >>> caching.merge(icefloe.CachingConfig(num_chunk_refs=1_000)).num_bytes_chunks
        0
        """
        merged = copy.deepcopy(self)
        for name in self._options:
            ours, theirs = getattr(self, name), getattr(other, name)
            if theirs is None:
                continue
            is_nested = isinstance(ours, Section) and isinstance(theirs, Section)
            setattr(merged, name, ours.merge(theirs) if is_nested else copy.deepcopy(theirs))
        return merged


class Resolved:
    """With a section class: the section in force. It has a value for each option, for good.

    The rest of icefloe never asks whether an option was set. None remains where it means
    something, as the declaration of the option says.
    """

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


def options(section: type[Section]) -> Mapping[str, Option[Any, Any]]:
    """The options of a section class by name, in the order of its constructor."""
    return section._options


def options_in_files(section: type[Section]) -> list[Option[Any, Any]]:
    """The options of a section class in the order that files have."""
    known = options(section)
    names = [name for name, option in known.items() if option.written_after is None]
    for name, option in known.items():
        if option.written_after is not None:
            names.insert(names.index(option.written_after) + 1, name)
    return [known[name] for name in names]


def picture(section: Section, defaults: Mapping[str, Any]) -> Picture:
    """What is set, and the default of what is not: the one in `defaults`, else its own."""
    known = options(type(section))
    if section.shows_defaults:
        defaults = {**{name: option.default for name, option in known.items()}, **defaults}
    fields = [
        (name, known[name].shown(getattr(section, name), defaults.get(name)))
        for name in _shown_options(section)
    ]
    return Picture(section._title_(), fields)


def _shown_options(section: Section) -> list[str]:
    """The options in the order to show them: plain ones first, then sections."""
    known = options(type(section))
    names = [
        name
        for name, option in known.items()
        if (option.is_shown_unset and not option.is_own) or getattr(section, name) is not None
    ]
    return sorted(names, key=lambda name: issubclass(known[name].type, Section | dict))
