"""Templates and generators of reference sets, as version 1 of their specification has them.

A text may hold `{{name}}`, which stands for a template of the set, `{{name(arg='text')}}` for a
template that has placeholders itself, and, in generators, whole numbers computed from the position:
`{{(i + 1) * 1000}}`. The specification allows all of Jinja; sets come from elsewhere, so that what
is more than this is refused rather than run.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

MAX_GENERATED = 10_000_000
_MAX_LETTERS = 200  # of an expression
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

Names = Mapping[str, str | int]


class TemplateError(ValueError):
    """A text that cannot be rendered; says which part of it."""


def render(text: str, names: Names) -> str:
    """The text with its placeholders replaced.

    >>> render("s3://{{b}}/{{(i + 1) * 10}}", {"b": "bucket", "i": 2})
    's3://bucket/30'
    """
    if "{{" not in text:
        return text
    parts = _PLACEHOLDER.split(text)
    if any("{{" in part or "}}" in part for part in parts[::2]):
        raise TemplateError(f"template {_short(text)} has braces that are not closed")
    parts[1::2] = [_shown(part.strip(), names) for part in parts[1::2]]
    return "".join(parts)


def generate(gen: Any, templates: Mapping[str, str]) -> Iterator[tuple[str, list[Any]]]:
    """The keys and references that one generator stands for."""
    if not isinstance(gen, dict) or not {"key", "url", "dimensions"} <= gen.keys():
        raise TemplateError("a generator needs 'key', 'url' and 'dimensions'")
    if ("offset" in gen) != ("length" in gen):
        raise TemplateError("a generator has 'offset' and 'length', or none of them")
    spans = {name: _span(name, given) for name, given in dict(gen["dimensions"]).items()}
    if common := spans.keys() & templates.keys():
        raise TemplateError(f"{min(common)!r} is a dimension of a generator and a template")
    count = prod(len(span) for span in spans.values())
    if count > MAX_GENERATED:
        raise TemplateError(f"a generator makes {count:,} references, over {MAX_GENERATED:,}")
    fields = [str(gen[name]) for name in ("key", "url", "offset", "length") if name in gen]
    for values in product(*spans.values()):
        names = {**templates, **dict(zip(spans, values, strict=True))}
        key, url, *numbers = (render(field, names) for field in fields)
        yield key, [url, *map(_number, numbers)]


def _span(name: str, given: Any) -> range | list[Any]:
    if isinstance(given, list) and all(isinstance(item, int | str) for item in given):
        return given
    if isinstance(given, dict) and "stop" in given:
        numbers = [given.get("start", 0), given["stop"], given.get("step", 1)]
        if all(type(number) is int for number in numbers) and numbers[2]:
            return range(*numbers)
    raise TemplateError(
        f"dimension {name!r} of a generator is {given!r}, expected a list, or whole numbers "
        "'stop' and perhaps 'start' and 'step'"
    )


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()):
        raise TemplateError(f"a generator makes {text!r}, expected a whole number from 0 on")
    return int(text)


def _shown(expression: str, names: Names) -> str:
    # Looked up first: a template may be called `in` or `2t`.
    value = names[expression] if expression in names else _value(_parsed(expression), names)
    if isinstance(value, str) and "{{" in value:
        raise TemplateError(f"template {_short(expression)} needs arguments")
    return str(value)


@lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.expr:
    try:
        if len(expression) > _MAX_LETTERS:
            raise ValueError
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError):
        reason = f"template {_short(expression)} cannot be understood"
        raise TemplateError(reason) from None


def _short(text: str) -> str:
    return repr(text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}...")


def _value(node: ast.expr, names: Names) -> str | int:
    match node:
        case ast.Constant(value=value) if type(value) in (int, str):
            return value  # type: ignore[return-value]
        case ast.Name(id=name):
            if name not in names:
                raise TemplateError(f"there is no template {name!r}")
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_whole(operand, names)
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _OPERATORS:
            try:
                return _OPERATORS[type(symbol)](_whole(left, names), _whole(right, names))
            except ZeroDivisionError:
                raise TemplateError(f"{ast.unparse(node)!r} divides by zero") from None
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            template = names.get(name)
            if not isinstance(template, str):
                raise TemplateError(f"there is no template {name!r}")
            given = {word.arg: _value(word.value, names) for word in keywords if word.arg}
            return render(template, given)
    raise TemplateError(
        f"{ast.unparse(node)!r} in a template is not supported; expected a name, a call such as "
        "name(arg='text'), or whole numbers with + - * // %"
    )


def _whole(node: ast.expr, names: Names) -> int:
    value = _value(node, names)
    if not isinstance(value, int):
        raise TemplateError(f"{ast.unparse(node)!r} in a template is {value!r}, no whole number")
    return value
