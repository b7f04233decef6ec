"""Dataclasses whose methods are not compiled for each class.

`dataclasses.dataclass` writes source code for a class and compiles it, which takes about half a
millisecond. A program that reads one chunk needs dozens of classes, and would wait longer for them
than for its data. The methods here exist once and look at the fields. An object takes a few
microseconds to make, so a class of which many objects are made gets compiled methods then.

`typing.NamedTuple` compiles every annotation and a constructor. `NamedTuple` here leaves the
annotations as text. It compiles a constructor when an object is made with names or defaults, or
after many objects.

Type checkers see the originals, and `fields`, `replace` and `asdict` work. Annotations have to be
text (`from __future__ import annotations`). A subclass of a record adds no fields.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections import namedtuple
from dataclasses import MISSING
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["NamedTuple", "changed", "filled", "record"]

Made = TypeVar("Made")
_MANY = 100
"""After so many objects of a class its methods are compiled."""


def _property(at: int, doc: str | None) -> property:
    return property(itemgetter(at), doc=doc)


_getter: Any = getattr(collections, "_tuplegetter", _property)
"""The getter of `namedtuple`, which not every Python has."""

if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from typing import NamedTuple
else:

    class _Named(tuple):
        """What all named tuples have. The constructor of a class is compiled when it is needed, or
        when many objects have been made."""

        __slots__ = ()
        _fields = ()
        _field_defaults = MappingProxyType({})
        _made = 0

        def __new__(cls, *values, **named):
            if not named and len(values) == len(cls._fields) and cls._made < _MANY:
                cls._made += 1
                return tuple.__new__(cls, values)
            original = namedtuple(cls.__name__, cls._fields, defaults=cls._field_defaults.values())
            cls.__new__ = staticmethod(original.__new__)
            return cls(*values, **named)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **values):
            return type(self)(**self._asdict() | values)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            values = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self):
            return tuple(self)

    class _NamedTuple(type):
        """Makes a class body a subclass of `_Named`."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            getters = {field: _getter(at, None) for at, field in enumerate(fields)}
            own = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            return type(name, (_Named,), {"__slots__": (), **body, **getters, **own})

    class NamedTuple(metaclass=_NamedTuple):
        """Base of classes that are tuples with names."""

    def record(*, frozen=False, eq=True, repr=True):  # noqa: A002 - dataclasses' word
        """Make a dataclass. The options mean what they mean for `dataclasses.dataclass`."""

        def decorate(cls):
            methods = {"__init__": _init, "__signature__": _Signature()}
            methods |= {"__repr__": _repr} if repr and cls.__repr__ is object.__repr__ else {}
            methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None} if eq else {}
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}
            for name in methods.keys() - vars(cls).keys():
                setattr(cls, name, methods[name])
            cls.__record_fields__ = fields = _fields(cls)
            cls.__match_args__ = tuple(f.name for f in fields if f.init and not f.kw_only)
            cls.__record_plan__ = _Plan(cls)
            cls.__dataclass_fields__ = _DataclassFields(cls)
            return cls

        return decorate


def filled(cls: type[Made], values: dict[str, Any]) -> Made:
    """A frozen record with exactly these values, not checked: a tenth of the time of a call."""
    made = cls.__new__(cls)
    made.__dict__.update(values)
    return made


def changed(original: Made, **values: Any) -> Made:
    """`dataclasses.replace` for frozen records. The names are not checked: a tenth of the time."""
    return filled(type(original), original.__dict__ | values)


def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    fields = []
    is_named_only = False
    for name, annotation in cls.__annotations__.items():
        if annotation == "KW_ONLY":
            is_named_only = True
        elif not annotation.startswith("ClassVar"):
            default = vars(cls).get(name, MISSING)
            is_field = isinstance(default, dataclasses.Field)
            field: Any = default if is_field else dataclasses.field(default=default)
            field.name, field.type = name, annotation
            field.kw_only = is_named_only or field.kw_only is True
            if is_field and field.default is MISSING:
                delattr(cls, name)
            elif is_field:
                setattr(cls, name, field.default)
            fields.append(field)
    return tuple(fields)


class _Plan:
    """What `_init` needs to know of a class."""

    __slots__ = (
        "cls",
        "defaults",
        "factories",
        "has_more",
        "is_frozen",
        "made",
        "names",
        "ordered",
    )

    def __init__(self, cls: Any) -> None:
        fields = cls.__record_fields__
        self.cls = cls
        self.made = 0
        self.names = {field.name for field in fields}
        self.ordered = cls.__match_args__
        self.defaults = {f.name: f.default for f in fields if f.default is not MISSING}
        self.factories = {
            f.name: f.default_factory for f in fields if f.default_factory is not MISSING
        }
        self.is_frozen = cls.__setattr__ is _refuse
        self.has_more = hasattr(cls, "__post_init__")


def _init(self: Any, *values: Any, **named: Any) -> None:
    plan: _Plan = self.__record_plan__
    plan.made += 1
    if plan.made == _MANY:
        _compile(plan.cls, is_frozen=plan.is_frozen)
    given = dict(zip(plan.ordered, values))  # noqa: B905 - `strict=False` takes a while longer
    if named:
        given |= named
    if len(given) != len(values) + len(named):
        _explain(self, values, named)
    if len(given) < len(plan.names):
        given = plan.defaults | given
        for name, factory in plan.factories.items():
            if name not in given:
                given[name] = factory()
    if len(given) != len(plan.names) or (named and given.keys() != plan.names):
        _explain(self, values, named)
    if plan.is_frozen:
        self.__dict__.update(given)
    else:
        for name, value in given.items():
            setattr(self, name, value)
    if plan.has_more:
        self.__post_init__()


def _compile(cls: Any, *, is_frozen: bool) -> None:
    """Give a class the methods of the original in place of those here."""
    twin = _twin(cls, init=True, eq=True, frozen=is_frozen)
    for name, method in {"__init__": _init, "__eq__": _eq, "__hash__": _hash}.items():
        if vars(cls).get(name) is method:
            setattr(cls, name, getattr(twin, name))


def _explain(self: Any, values: Any, named: Any) -> None:
    try:
        inspect.signature(type(self)).bind(*values, **named)
    except TypeError as error:
        raise TypeError(f"{type(self).__name__}(): {error}") from None


def _repr(self: Any) -> str:
    shown = [field.name for field in self.__record_fields__ if field.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, field.name) for field in self.__record_fields__ if field.compare)


def _eq(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    fields = self.__record_fields__
    hashed = (f.name for f in fields if (f.compare if f.hash is None else f.hash))
    return hash(tuple(getattr(self, name) for name in hashed))


def _refuse(self: Any, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r} of a {type(self).__name__}")


def _twin(cls: Any, **options: bool) -> Any:
    """The same class, made with the original.

    Two threads may do so at once; they find the same, because nothing is changed on the way.
    """
    names = [*cls.__annotations__, "__post_init__"]
    body = {name: vars(cls)[name] for name in names if name in vars(cls)}
    body |= {field.name: field for field in cls.__record_fields__}
    body |= {"__annotations__": cls.__annotations__, "__module__": cls.__module__}
    twin: Any = type(cls.__name__, (), {"__doc__": cls.__doc__, **body})
    return dataclasses.dataclass(repr=False, **options)(twin)


class _DataclassFields:
    """Where functions of `dataclasses` look for fields: made with the original, when asked for."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls

    def __get__(self, _instance: object, _owner: object) -> Any:
        cls = self._cls
        cls.__dataclass_fields__ = found = _twin(cls, init=False, eq=False).__dataclass_fields__
        return found


class _Signature:
    """Of the constructor, for `help` and for messages."""

    def __get__(self, _instance: object, owner: Any) -> inspect.Signature:
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        parameters = []
        for field in sorted(owner.__record_fields__, key=lambda field: field.kw_only):
            if not field.init:
                continue
            default = field.default if field.default is not MISSING else field.default_factory
            default = inspect.Parameter.empty if default is MISSING else default
            parameters.append(
                inspect.Parameter(
                    field.name, kinds[field.kw_only], default=default, annotation=field.type
                )
            )
        return inspect.Signature(parameters)
