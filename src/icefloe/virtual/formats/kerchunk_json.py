"""Kerchunk references in JSON, templates and generators included."""

from __future__ import annotations

import ast
import gzip
import io
import json
import operator
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from icefloe.virtual.formats.kerchunk import (
    METADATA_NAMES,
    ChunkColumns,
    Entry,
    inline_bytes,
    texts_to_arrow,
)
from icefloe.virtual.formats.zarr_source import ChunkKeys, grid_of
from icefloe.virtual.model.description import Json, SourceError, VariableDescription
from icefloe.virtual.sources import SourceFile

# A text may hold `{{name}}`, which stands for a template of the set, `{{name(arg='text')}}` for a
# template that has placeholders itself, and, in generators, whole numbers computed from the
# position: `{{(i + 1) * 1000}}`. The specification allows all of Jinja; sets come from elsewhere,
# so that what is more than this is refused rather than run.

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


# Version 0 is an object from keys to references. Version 1 has that object in `refs`, and may
# have `templates` for parts of URLs and `gen` for references that follow a rule.

MAX_JSON_BYTES = 4 << 30
_CONSOLIDATED = ".zmetadata"
_GZIP, _ZSTD, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"


def may_be_json(start: bytes) -> bool:
    """Whether a file that starts like this may be JSON, or compressed JSON."""
    is_packed = start.startswith((_GZIP, _ZSTD))
    return is_packed or start.removeprefix(_BOM).lstrip()[:1] == b"{"


class JsonReferences:
    """A set from a JSON file, all of it in memory."""

    def __init__(self, file: SourceFile) -> None:
        """Read a set.

        Raises:
            SourceError: it is none, or says what cannot be.
        """
        self.location, self.version = file.location, file.version
        self.documents: dict[str, Entry] = {}
        self._chunks: dict[str, Entry] = {}
        self._by_array: dict[str, list[str]] | None = None
        for key, value in self._references(_load(file)):
            entry = self._entry(key, value)
            name = key.rpartition("/")[2]
            into = self.documents if name in METADATA_NAMES else self._chunks
            into[key] = entry
        consolidated = self._chunks.pop(_CONSOLIDATED, None)
        if not self.documents and isinstance(consolidated, bytes):
            whole = json.loads(consolidated)
            inside = whole.get("metadata", {}) if isinstance(whole, dict) else {}
            self.documents = {key: json.dumps(item).encode() for key, item in inside.items()}

    def find(self, key: str) -> Entry | None:
        return self._chunks.get(key)

    def check_owners(self, paths: frozenset[str]) -> None:
        grouped: dict[str, list[str]] = {path: [] for path in paths}
        for key in self._chunks:
            path = key.rpartition("/")[0]
            while path and path not in paths:
                path = path.rpartition("/")[0]
            if path not in paths:
                raise self._wrong(f"key {key!r} belongs to no array: there is no .zarray for it")
            grouped[path].append(key)
        self._by_array = grouped

    def columns(self, variable: VariableDescription, keys: ChunkKeys) -> ChunkColumns:
        assert self._by_array is not None
        names = self._by_array[variable.path]
        rest = pa.array([name[len(variable.path) + 1 :] for name in names], pa.string())
        rows, index = keys.parse(rest, len(variable.shape))
        if len(rows) < len(names):
            first = int(np.argmax(~np.isin(np.arange(len(names)), rows)))
            raise self._wrong(
                f"key {names[first]!r} is no chunk of an array with {len(variable.shape)} "
                f"dimensions, whose keys have {keys.separator!r} between numbers"
            )
        grid = grid_of(variable.shape, variable.chunks)
        outside = (index >= np.array(grid, np.int64)).any(axis=1)
        if outside.any():
            raise self._wrong(
                f"key {names[int(np.argmax(outside))]!r} is outside of the grid of {grid} chunks"
            )
        entries = [self._chunks[name] for name in names]
        pairs = [(None, 0, 0, e) if isinstance(e, bytes) else (*e, None) for e in entries]
        url, offset, length, inline = zip(*pairs, strict=True) if pairs else ((), (), (), ())
        return ChunkColumns(
            index,
            texts_to_arrow(url),
            np.array(offset, np.int64),
            np.array(length, np.int64),
            pa.array(inline, pa.binary()),
        )

    def _references(self, document: dict[str, Json]) -> Iterator[tuple[str, Json]]:
        """Keys and references, with templates rendered."""
        if "refs" not in document:
            if "version" in document or "gen" in document:
                raise self._wrong("it has no 'refs'")
            yield from document.items()
            return
        version = document.get("version", 1)
        if version != 1 or isinstance(version, bool):
            raise self._wrong(f"version {version!r} of reference sets is unknown, expected 1")
        refs, templates = document["refs"], document.get("templates") or {}
        if not isinstance(refs, dict):
            raise self._wrong("'refs' is no JSON object")
        is_good = isinstance(templates, dict) and all(
            isinstance(text, str) for text in templates.values()
        )
        if not is_good:
            raise self._wrong("'templates' are not texts by name")
        try:
            rendered: dict[str, str] = {}  # few files have many chunks
            for key, value in refs.items():
                if isinstance(value, list) and value and isinstance(value[0], str):
                    url = value[0]
                    if url not in rendered:
                        rendered[url] = render(url, templates)
                    value[0] = rendered[url]
                yield key, value
            for gen in document.get("gen") or []:
                yield from generate(gen, templates)
        except (TemplateError, TypeError, ValueError) as error:
            raise self._wrong(str(error)) from error

    def _entry(self, key: str, value: Json) -> Entry:
        match value:
            case [str(url), int(offset), int(length)] if url and offset >= 0 and length > 0:
                if offset + length < 1 << 63:
                    return url, offset, length
            case [str(url)] if url:
                return url, 0, 0
            case dict():
                return json.dumps(value).encode()
            case str():
                try:
                    return inline_bytes(value.encode())
                except ValueError as error:
                    raise self._wrong(f"the value of key {key!r}: {error}") from None
        shown = repr(value) if len(repr(value)) < 200 else f"{repr(value)[:200]}..."
        raise self._wrong(
            f"key {key!r} has {shown}, expected text, [url], or [url, offset, length] with whole "
            "numbers and a length of at least 1"
        )

    def _wrong(self, reason: str) -> SourceError:
        return SourceError(f"{self.location}: {reason}")


def _load(file: SourceFile) -> dict[str, Json]:
    size = file.version.size_bytes
    with file.open() as stream:
        # One request for a remote file, however large.
        data = stream.read(size) if file.reader is None else file.reader.read_at(0, size)
    try:
        document = json.loads(_unpacked(data))
    except (zlib.error, EOFError, OSError, zstandard.ZstdError) as error:
        raise SourceError(f"{file.location}: it cannot be decompressed ({error})") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file.location}: it is not JSON ({error})") from None
    is_set = isinstance(document, dict) and (
        "refs" in document
        or "version" in document
        or any(key.rpartition("/")[2] in (*METADATA_NAMES, _CONSOLIDATED) for key in document)
    )
    if not is_set:
        raise SourceError(
            f"{file.location}: JSON that is no set of references: it has neither 'refs' nor keys "
            "such as '.zgroup'"
        )
    found: dict[str, Json] = document
    return found


def _unpacked(data: bytes) -> bytes:
    stream: Any
    if data.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    elif data.startswith(_ZSTD):
        stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data))
    else:
        return data
    found: bytes = stream.read(MAX_JSON_BYTES)
    if stream.read(1):
        raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
    return found
