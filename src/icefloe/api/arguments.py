"""Type checks of the arguments of public methods.

Arguments are checked against the annotations. Only plain classes, unions and None are checked; the
items of containers are checked where they are used.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar, Union

from icefloe.errors import check_text

Class = TypeVar("Class", bound=type[Any])
Function = TypeVar("Function", bound=Callable[..., Any])

_HOMES = {
    "AnyCredential": "storage.identity.containers",
    "Attribution": "storage.identity.attribution",
    "CommitMethod": "repo.rewrite",
    "ConflictSolver": "changes.solvers",
    "GarbagePlan": "maintenance.garbage",
    "Keep": "maintenance.retention",
    "NewGeneration": "api.generations",
    "RepairPlan": "maintenance.repair",
    "RepoStatus": "api.values",
    "Report": "maintenance.progress",
    "RescuePlan": "maintenance.rescue",
    "SpecVersion": "api.named_numbers",
}
"""The modules of names in annotations that are imported on demand."""

_SHORTCUT = "_shortcut_"

_HINTS = {
    "Storage": "make one with storage_from_url, local_filesystem_storage, s3_storage, ...",
}


def check_arguments(owner: Class) -> Class:
    """Make every public method of a class check its arguments against its annotations."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(owner, name, type(member)(_checked(member.__func__)))
        elif inspect.isfunction(member):
            setattr(owner, name, _checked(member))
    return owner


def shortcut(answer: Callable[..., Any]) -> Callable[[Function], Function]:
    """Make a method ask `answer` first, which looks at its arguments itself.

    It is called with positional arguments, whatever they are, and returns None if the method has to
    be called after all. For queries that many programs make in a loop: a check of the arguments
    would take longer than the answer.
    """

    def mark(function: Function) -> Function:
        function.__dict__[_SHORTCUT] = answer
        return function

    return mark


def _checked(function: Function) -> Function:
    rules = _Rules(function)
    flags = function.__code__.co_flags
    checked: Any
    if flags & inspect.CO_ASYNC_GENERATOR:
        checked = _generated(function, rules)
    elif flags & inspect.CO_COROUTINE:
        checked = _awaited(function, rules)
    else:
        checked = _blocking(function, rules)
        answer = function.__dict__.get(_SHORTCUT)
        checked = checked if answer is None else _shortened(checked, answer)
    return typing.cast(Function, functools.update_wrapper(checked, function))


def _blocking(function: Callable[..., Any], rules: _Rules) -> Callable[..., Any]:
    def blocking(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not rules.are_usual(args):
            rules.check(args, kwargs)
        return function(*args, **kwargs)

    return blocking


def _awaited(function: Callable[..., Any], rules: _Rules) -> Callable[..., Any]:
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        rules.check(args, kwargs)
        return await function(*args, **kwargs)

    return awaited


def _generated(function: Callable[..., Any], rules: _Rules) -> Callable[..., Any]:
    async def generated(*args: Any, **kwargs: Any) -> Any:
        rules.check(args, kwargs)
        async for item in function(*args, **kwargs):
            yield item

    return generated


def _shortened(blocking: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    def shortened(*args: Any, **kwargs: Any) -> Any:
        found = None if kwargs else answer(*args)
        return blocking(*args, **kwargs) if found is None else found

    return shortened


class _Rules:
    """The classes that a function accepts, computed on its first call.

    A program calls few of the many functions, and annotations may use names that are defined or
    imported later.
    """

    _signature: inspect.Signature | None = None
    _ordered: list[str]
    _required: set[str]
    _rules: dict[str, tuple[type, ...]]
    _least = 1
    _usual: Sequence[set[type]] = ()

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def are_usual(self, args: tuple[Any, ...]) -> bool:
        """Whether `check` would accept these, as far as that is known from earlier calls."""
        usual = self._usual
        if not self._least <= len(args) <= len(usual):
            return False
        for place, value in enumerate(args):
            kind = type(value)
            if kind not in usual[place] or (kind is str and not value.isascii()):
                return False
        return True

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = self._signature or self._read()
        bound: dict[str, Any] = dict(zip(self._ordered, args, strict=False)) | kwargs
        # A call that seems to fit needs no binding, which takes ten times as long.
        is_whole = len(bound) == len(args) + len(kwargs) and self._required <= bound.keys()
        if not (is_whole and bound.keys() <= signature.parameters.keys()):
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise _misfit(self._function.__qualname__, signature, kwargs, error) from None
        for name, given in bound.items():
            classes = self._rule(name)
            kind = signature.parameters[name].kind
            for value in given if kind is inspect.Parameter.VAR_POSITIONAL else (given,):
                _check(self._function.__qualname__, name, value, classes)
        if not kwargs:
            for value, accepted in zip(args, self._usual, strict=False):
                # Whether a value is accepted depends on its class, and on the letters of a text.
                if type(value) is str or not isinstance(value, str):
                    accepted.add(type(value))

    def _read(self) -> inspect.Signature:
        """Look at the signature. Threads that do so at once find the same."""
        signature = inspect.signature(self._function)
        kinds, parameters = inspect.Parameter, signature.parameters.items()
        ordered = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        self._ordered = [name for name, one in parameters if one.kind in ordered]
        # `*args` is among them: calls of such functions are always bound.
        self._required = {name for name, one in parameters if one.default is kinds.empty}
        # A function with `*args` or required keywords has no usual calls.
        are_positional = self._required <= set(self._ordered)
        self._rules = {}
        self._least = len(self._required)
        self._usual = [set() for _ in self._ordered] if are_positional else []
        self._signature = signature
        return signature

    def _rule(self, name: str) -> tuple[type, ...]:
        rule = self._rules.get(name)
        if rule is None:
            has_annotation = name in self._function.__annotations__
            rule = _classes(_resolved(self._function, name)) if has_annotation else ()
            self._rules[name] = rule
        return rule


def _misfit(
    function: str, signature: inspect.Signature, given: dict[str, Any], error: TypeError
) -> TypeError:
    """The error of a call that does not fit the signature, with the arguments that there are."""
    function = _public(function)
    known = [name for name in signature.parameters if name not in ("self", "cls")]
    unknown = [name for name in given if name not in known]
    if not unknown:
        return TypeError(f"{function}(): {error}; its arguments are {', '.join(known)}")
    close = import_module("difflib").get_close_matches(unknown[0], known, 1)
    advice = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"
    return TypeError(f"{function}() has no argument {unknown[0]!r}; {advice}")


class _Later(dict[str, Any]):
    """Names that are imported only for annotations."""

    def __missing__(self, name: str) -> Any:
        return getattr(import_module(f"icefloe.{_HOMES[name]}"), name)


def _resolved(function: Callable[..., Any], name: str) -> Any:
    """The value of an argument's annotation."""
    names = inspect.unwrap(function).__globals__
    return eval(function.__annotations__[name], names, _Later())


def _classes(hint: Any) -> tuple[type, ...]:
    """The classes that an annotation accepts; empty if a class check is not sufficient."""
    if hint is Any:
        return ()
    if hint is None or hint is type(None):
        return (type(None),)
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = [_classes(part) for part in typing.get_args(hint)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    kind = typing.get_origin(hint) or hint
    return (kind,) if isinstance(kind, type) else ()


def _check(where: str, name: str, value: Any, classes: tuple[type, ...]) -> None:
    if classes and not _fits(value, classes):
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
    found = " ".join(repr(value).split())
    return f"{_public(where)}(): {name} is {found:.80}, expected {wanted}{hint}"


def _public(where: str) -> str:
    """The name of a method as users know it: base classes of `Repository` are internal."""
    owner, dot, method = where.rpartition(".")
    owner = owner.removesuffix("Async")
    return f"{'Repository' if owner.startswith('Repository') else owner}{dot}{method}"
