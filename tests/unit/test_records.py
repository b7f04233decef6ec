"""Records behave as dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any, ClassVar

import pytest

from icefloe.records import _MANY, NamedTuple, record


@record(frozen=True)
class Light:
    """A record."""

    kind: ClassVar[str] = "light"

    first: int
    second: list[int] = field(default_factory=list, compare=False)
    third: str = field(default="x", repr=False)
    last: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "third", self.third.upper())


@dataclass(frozen=True)
class Original:
    """The same as a dataclass."""

    kind: ClassVar[str] = "light"

    first: int
    second: list[int] = field(default_factory=list, compare=False)
    third: str = field(default="x", repr=False)
    last: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "third", self.third.upper())


@record()
class Open:
    """A record that can be changed."""

    value: int = 0


@record(frozen=True)
class Cached:
    """A record with something to be remembered."""

    value: int
    _cache: list[int] = field(default_factory=list, init=False, repr=False)


BOTH: tuple[Any, ...] = (Light, Original)


@record(frozen=True)
class Called:
    """A record with a field that cannot be hashed."""

    name: str
    given: Any = field(hash=False)


class Kind(Called):
    """A kind of it, without fields of its own."""


def test_a_subclass_is_of_its_own_kind_and_not_every_field_is_hashed() -> None:
    assert hash(Called("a", [1])) == hash(Called("a", [2]))
    assert Called("a", [1]) != Called("a", [2])
    assert repr(Kind("a", 1)) == "Kind(name='a', given=1)"
    assert Kind("a", 1) == Kind("a", 1)
    assert Kind("a", 1) != Called("a", 1)
    assert pickle.loads(pickle.dumps(Kind("a", 1))) == Kind("a", 1)
    assert replace(Kind("a", 1), name="b") == Kind("b", 1)


def test_a_record_is_made_printed_and_compared_like_a_dataclass() -> None:
    for cls in BOTH:
        made = cls(1, [2], "c", last=4)
        assert (made.first, made.second, made.third, made.last) == (1, [2], "C", 4)
        assert repr(made) == f"{cls.__name__}(first=1, second=[2], last=4)"
        assert made == cls(1, [3], "c", last=4)
        assert made != cls(1, [2], "c", last=5)
        assert hash(made) == hash(cls(1, third="c", last=4))
        assert replace(made, first=5) == cls(5, [2], "c", last=4)
        assert dataclasses.asdict(cls(1)) == {"first": 1, "second": [], "third": "X", "last": 1}
        assert cls(1).second is not cls(1).second
        assert [*inspect.signature(cls).parameters] == ["first", "second", "third", "last"]
        assert inspect.signature(cls).parameters["last"].default == 1
        assert cls.__match_args__ == ("first", "second", "third")
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert BOTH[0](1) != BOTH[1](1)


@pytest.mark.parametrize(
    ("values", "named", "problem"),
    [
        ((), {}, "missing a required argument: 'first'"),
        ((1, [], "c", 4), {}, "too many positional arguments"),
        ((1,), {"first": 2}, "multiple values for argument 'first'"),
        ((1,), {"fourth": 2}, "got an unexpected keyword argument 'fourth'"),
    ],
)
def test_wrong_arguments_are_refused(
    values: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=rf"^Light\(\): {problem}"):
        Light(*values, **named)
    with pytest.raises(TypeError):
        Original(*values, **named)


@record(frozen=True)
class Counted:
    """A record of which many are made."""

    first: int
    second: list[int] = field(default_factory=list, compare=False)
    third: str = "x"
    last: int = field(default=1, kw_only=True)
    _cache: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "third", self.third.upper())


def test_a_record_of_which_many_are_made_stays_the_same() -> None:
    first: Any = Counted(1, [2], "c", last=4)
    before = Counted.__init__
    for number in range(_MANY):
        made: Any = Counted(number, third="d")
        assert (made.first, made.second, made.third, made.last) == (number, [], "D", 1)
        assert made._cache is None
    assert Counted.__init__ is not before
    assert not hasattr(Counted, "second")
    assert Counted(1, [2], "c", last=4) == first == Counted(1, [3], "c", last=4)
    assert Counted(1, [2], "c", last=5) != first
    assert hash(Counted(1, [2], "c", last=4)) == hash(first) == hash((1, "C", 4))
    assert Counted(1).second is not Counted(1).second
    with pytest.raises(TypeError, match=r"^Counted.__init__\(\) missing 1 required"):
        Counted()  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError, match="'first' of a Counted"):
        made.first = 2


def test_only_frozen_records_refuse_changes_and_have_a_hash() -> None:
    frozen: Any = Light(1)
    with pytest.raises(FrozenInstanceError, match="'first' of a Light"):
        frozen.first = 2
    with pytest.raises(FrozenInstanceError, match="'first' of a Light"):
        del frozen.first
    changed = Open(1)
    changed.value = 2
    assert changed == Open(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changed)


def test_a_cache_is_neither_passed_nor_handed_on() -> None:
    first = Cached(1)
    first._cache.append(1)
    assert replace(first, value=2)._cache == []
    with pytest.raises(TypeError, match="Cached"):
        Cached(1, [])  # type: ignore[call-arg]


class Pair(NamedTuple):
    """Two numbers."""

    first: int
    second: int | None = None

    @property
    def total(self) -> int:
        """Of both."""
        return self.first + (self.second or 0)


def test_a_named_tuple_is_like_that_of_typing() -> None:
    pair = Pair(1, second=2)
    assert (pair, pair.total, Pair(3)) == ((1, 2), 3, (3, None))
    assert (Pair(1, 2), Pair._make([1, 2]), hash(pair)) == (pair, pair, hash((1, 2)))
    assert repr(pair) == "Pair(first=1, second=2)"
    assert pair._replace(first=5) == Pair(5, 2)
    assert pair._asdict() == {"first": 1, "second": 2}
    assert Pair._fields == ("first", "second")
    assert (Pair.__doc__, Pair.__module__, Pair.__qualname__) == ("Two numbers.", __name__, "Pair")
    assert typing.get_type_hints(Pair) == {"first": int, "second": int | None}
    copied = pickle.loads(pickle.dumps(pair))
    assert (type(copied), copied) == (Pair, pair)
    match pair:
        case Pair(first, second):
            assert (first, second) == (1, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        Pair()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
        Pair(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        pair.first = 3  # type: ignore[misc]
