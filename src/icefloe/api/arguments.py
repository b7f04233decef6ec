"""Arguments of the public methods: wrong types, and text that is none, are refused at the door.

The annotations are the rule. Only plain classes are looked at (and unions and None); what is
inside containers is checked where it is used.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, Union

from icefloe.errors import check_text

Class = TypeVar("Class", bound=type[Any])
Function = TypeVar("Function", bound=Callable[..., Any])

_HINTS = {
    "Storage": "make one with storage_from_url, local_filesystem_storage, s3_storage, ...",
}


def check_arguments(owner: Class) -> Class:
    """Let every public method of a class check its arguments against its annotations."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(owner, name, type(member)(_checked(member.__func__)))
        elif inspect.isfunction(member):
            setattr(owner, name, _checked(member))
    return owner


def _checked(function: Function) -> Function:
    signature = inspect.signature(function)

    @functools.cache
    def rules() -> dict[str, tuple[type, ...]]:
        # Resolved on the first call: annotations may name what is defined later.
        hints = typing.get_type_hints(function)
        found = {name: _classes(hints[name]) for name in signature.parameters if name in hints}
        return {name: classes for name, classes in found.items() if classes}

    def check(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        for name, classes in rules().items():
            if name not in bound.arguments:
                continue
            given = bound.arguments[name]
            is_variadic = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for value in given if is_variadic else (given,):
                _check(function.__qualname__, name, value, classes)

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return await function(*args, **kwargs)

    @functools.wraps(function)
    async def generated(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        async for item in function(*args, **kwargs):
            yield item

    if inspect.isasyncgenfunction(function):
        return typing.cast(Function, generated)
    wrapper = awaited if inspect.iscoroutinefunction(function) else blocking
    return typing.cast(Function, wrapper)


def _classes(hint: Any) -> tuple[type, ...]:
    """The classes an annotation admits; none when it cannot be told by looking at a class."""
    if hint is None or hint is type(None):
        return (type(None),)
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = [_classes(part) for part in typing.get_args(hint)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    kind = typing.get_origin(hint) or hint
    return (kind,) if isinstance(kind, type) else ()


def _check(where: str, name: str, value: Any, classes: tuple[type, ...]) -> None:
    if not _fits(value, classes):
        raise TypeError(_problem(where, name, value, classes))
    if isinstance(value, str):
        check_text(value, f"{where}(): {name}")


def _fits(value: Any, classes: tuple[type, ...]) -> bool:
    if isinstance(value, bool) and bool not in classes and object not in classes:
        return int not in classes and isinstance(value, classes)
    return isinstance(value, classes)


def _problem(where: str, name: str, value: Any, classes: tuple[type, ...]) -> str:
    wanted = " or ".join("None" if c is type(None) else c.__name__ for c in classes)
    hint = "".join(f"; {_HINTS[c.__name__]}" for c in classes if c.__name__ in _HINTS)
    where = where.replace("Async.", ".")  # twins live in a base class nobody needs to know
    return f"{where}(): {name} is {value!r:.80}, expected {wanted}{hint}"
