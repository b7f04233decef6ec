"""Type checks of the arguments of public methods.

Arguments are checked against the annotations: classes, unions and None. The items of containers are
checked where they are used. A class that a module imports for type checkers only is compared by its
name: loading it for the check would make every program wait for it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

from icefloe.errors import check_text

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

Class = TypeVar("Class", bound=type[Any])
Function = TypeVar("Function", bound=Callable[..., Any])
Accepted = tuple[type | str, ...]
"""Classes or the names of classes; empty if everything is accepted."""

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
    """Make a method try `answer` first, which gets unchecked arguments and returns None if unsure.

    For queries that programs make in a loop: a check of the arguments takes longer than the answer.
    """

    def mark(function: Function) -> Function:
        setattr(function, _SHORTCUT, answer)
        return function

    return mark


def _checked(function: Function) -> Function:
    answer: Any = vars(function).get(_SHORTCUT)

    def blocking(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, args, kwargs)
        return function(*args, **kwargs)

    def shortened(*args: Any, **kwargs: Any) -> Any:
        known = None if kwargs else answer(*args)
        return blocking(*args, **kwargs) if known is None else known

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, args, kwargs)
        return await function(*args, **kwargs)

    async def generated(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, args, kwargs)
        async for item in function(*args, **kwargs):
            yield item

    checked: Any = blocking if answer is None else shortened
    if inspect.isasyncgenfunction(function):
        checked = generated
    elif inspect.iscoroutinefunction(function):
        checked = awaited
    return typing.cast(Function, functools.update_wrapper(checked, function))


def _check_call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
    signature, rules = _rules(function)
    where = function.__qualname__
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise _misfit(where, signature, kwargs, error) from None
    for name, given in bound.items():
        is_variadic = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for value in given if is_variadic else (given,):
            if rules[name] and not _fits(value, rules[name]):
                raise TypeError(_problem(where, name, value, rules[name]))
            if isinstance(value, str):
                check_text(value, f"{where}(): {name}")


@functools.cache
def _rules(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Accepted]]:
    """The signature, and what each argument accepts; read on the first call."""
    signature = inspect.signature(function)
    names = {**vars(builtins), **inspect.unwrap(function).__globals__}
    nodes = {n: ast.parse(text, mode="eval") for n, text in function.__annotations__.items()}
    accepted = {name: _accepted(node.body, names) for name, node in nodes.items()}
    return signature, {name: accepted.get(name, ()) for name in signature.parameters}


def _accepted(annotation: ast.expr, names: Mapping[str, Any]) -> Accepted:
    if isinstance(annotation, ast.BinOp):
        left, right = _accepted(annotation.left, names), _accepted(annotation.right, names)
        return left + right if left and right else ()
    if isinstance(annotation, ast.Subscript):
        return _accepted(annotation.value, names)
    if isinstance(annotation, ast.Constant):
        return (type(annotation.value),)
    if not isinstance(annotation, ast.Name):
        return ()
    if annotation.id not in names:
        return (annotation.id,)
    hint = names[annotation.id]
    kind = typing.get_origin(hint) or hint
    is_class = isinstance(kind, type) and kind not in (Any, Union, types.UnionType)
    return (kind,) if is_class else ()


def _fits(value: object, accepted: Accepted) -> bool:
    if isinstance(value, bool) and int in accepted and bool not in accepted:
        return False
    return any(
        _has_class_named(value, kind) if isinstance(kind, str) else isinstance(value, kind)
        for kind in accepted
    )


def _has_class_named(value: object, name: str) -> bool:
    classes = type(value).__mro__
    return any(c.__name__ == name and c.__module__.startswith("icefloe.") for c in classes)


def _misfit(
    function: str, signature: inspect.Signature, given: dict[str, Any], error: TypeError
) -> TypeError:
    """The error of a call that does not fit the signature, with the arguments that there are."""
    function = _public(function)
    known = [name for name in signature.parameters if name not in ("self", "cls")]
    unknown = [name for name in given if name not in known]
    if not unknown:
        return TypeError(f"{function}(): {error}; its arguments are {', '.join(known)}")
    import difflib

    close = difflib.get_close_matches(unknown[0], known, 1)
    advice = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"
    return TypeError(f"{function}() has no argument {unknown[0]!r}; {advice}")


def _problem(where: str, name: str, value: Any, accepted: Accepted) -> str:
    names = [kind if isinstance(kind, str) else kind.__name__ for kind in accepted]
    wanted = " or ".join("None" if each == "NoneType" else each for each in names)
    hint = "".join(f"; {_HINTS[each]}" for each in names if each in _HINTS)
    found = " ".join(repr(value).split())
    return f"{_public(where)}(): {name} is {found:.80}, expected {wanted}{hint}"


def _public(where: str) -> str:
    """The name of a method as users know it: base classes of `Repository` are internal."""
    owner, dot, method = where.rpartition(".")
    owner = owner.removesuffix("Async")
    return f"{'Repository' if owner.startswith('Repository') else owner}{dot}{method}"


def virtual_credentials(
    given: Mapping[str, AnyCredential | None] | None,
) -> dict[str, AnyCredential | None]:
    """The argument `authorize_virtual_chunk_access`: credentials by prefix.

    Plain credentials are wrapped. None gives a warning.
    """
    if not given:
        return {}
    for prefix in given:
        if not isinstance(prefix, str):
            raise TypeError(
                f"authorize_virtual_chunk_access: {prefix!r} is no URL prefix, expected str"
            )
    for prefix in (prefix for prefix, credential in given.items() if credential is None):
        warnings.warn(
            f"Passing `None` in `authorize_virtual_chunk_access` for {prefix!r} is deprecated: say "
            "how to sign in, with a credential or with credentials.HttpAccess or "
            "credentials.LocalFileSystemAccess",
            DeprecationWarning,
            stacklevel=4,
        )
    from icefloe import credentials as container_credentials

    return container_credentials.containers_credentials({**given})
