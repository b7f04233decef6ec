"""What identifies a computation: digests of its arguments and functions."""

from __future__ import annotations

import functools
import hashlib
import pickle
import types
from typing import Any


def fingerprint(value: Any) -> str:
    """A digest of values and of functions: code, constants, defaults, and what they close over."""
    return hashlib.sha256(repr(_essence(value, 0)).encode()).hexdigest()


def _essence(value: Any, depth: int) -> Any:
    if depth > 12:
        return type(value).__qualname__
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *sorted(value.keywords.items())]
        return ["partial", *(_essence(part, depth + 1) for part in parts)]
    if isinstance(value, types.MethodType):
        return ["method", _essence(value.__func__, depth + 1), _essence(value.__self__, depth + 1)]
    if isinstance(value, types.FunctionType):
        return _of_function(value, depth)
    if isinstance(value, types.CodeType):
        constants = [_essence(part, depth + 1) for part in value.co_consts]
        return ["code", value.co_code.hex(), constants, value.co_names, value.co_varnames]
    if isinstance(value, dict):
        return ["dict", sorted((str(k), repr(_essence(v, depth + 1))) for k, v in value.items())]
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_essence(part, depth + 1) for part in value]
        # The order of a set is another one in every process.
        return parts if isinstance(value, list | tuple) else ["set", *sorted(map(repr, parts))]
    if isinstance(value, str | bytes | int | float | complex | bool | type(None)):
        return repr(value)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return [str(getattr(value, "__module__", "")), value.__qualname__]
    if callable(value) and hasattr(value, "__dict__"):
        return [
            "object",
            _essence(type(value).__call__, depth + 1),
            _essence(vars(value), depth + 1),
        ]
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()
    except Exception:  # noqa: BLE001 - what cannot be pickled cannot travel to tasks either
        return type(value).__qualname__


def _of_function(value: types.FunctionType, depth: int) -> Any:
    """Code, defaults, what it closes over, and the globals it uses."""
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    used = {
        name: value.__globals__[name]
        for name in _names_in(value.__code__)
        if name in value.__globals__ and not isinstance(value.__globals__[name], types.ModuleType)
    }
    rest = [value.__defaults__, value.__kwdefaults__, cells, used]
    return ["function", _essence(value.__code__, depth + 1), _essence(rest, depth + 1)]


def _names_in(code: types.CodeType) -> set[str]:
    """Names that a function and the functions in it look up."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))
