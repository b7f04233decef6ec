"""Records behave as dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any, ClassVar

import pytest

from icefloe.records import record


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
