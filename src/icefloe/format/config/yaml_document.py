"""The YAML of `config.yaml` (spec version 1) as plain nested values, and back.

Only the YAML that serialised settings need: mappings with text keys, sequences, scalars, and
local tags such as `!Axis 0`. No other tag makes an object, aliases are refused, and unquoted
scalars stay text until somebody knows what to expect: `region: 123` is text to YAML 1.2
readers of a text field, and `no` is not a boolean. What the settings mean is in `config/file.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.config.document import Document, Plain, Variant

MAX_YAML_BYTES = 2 * 1024 * 1024
"""A config of a thousand virtual chunk containers has a fifth of this."""

MAX_YAML_DEPTH = 128
"""Sequences and mappings inside each other; the limit of Icechunk's reader."""

MAX_SIMPLE_KEY = 1000
"""Longer keys need YAML's `? key` form: the limit for `key:` is 1024 characters."""

_PLAIN_NULLS = {"", "~", "null", "Null", "NULL"}
_TEXT_TAG = "tag:yaml.org,2002:str"
_LIST_TAG = "tag:yaml.org,2002:seq"
_MAP_TAG = "tag:yaml.org,2002:map"

# Text that means itself to every YAML reader; anything else is quoted.
_SAFE = re.compile(r"[A-Za-z_/][\w./@+-]*(?::[\w./@+-]+)*", re.ASCII)
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def decode_yaml(data: bytes) -> Document:
    """The document in `data`; a file without one is an empty mapping, as in Icechunk.

    Raises:
        FormatError: not YAML, or YAML beyond what settings use; the message has the line.
    """
    if len(data) > MAX_YAML_BYTES:
        raise _refused(f"found {len(data)} bytes, expected at most {MAX_YAML_BYTES}")
    try:
        root = yaml.compose(data.decode(), Loader=_Loader)
    except (ValueError, yaml.YAMLError) as error:
        # ValueError: not UTF-8, or numbers (of characters, of versions) out of Python's range.
        raise _refused(" ".join(str(error).split())) from None
    return {} if root is None else _document(root)


class _Loader(yaml.BaseLoader):
    """Composes nodes only; without aliases they are a tree, and never a deep one."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        if self._depth > MAX_YAML_DEPTH:
            problem = f"there are more than {MAX_YAML_DEPTH} levels"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _document(node: yaml.Node) -> Document:
    value: Document
    if isinstance(node, yaml.ScalarNode):
        value, default_tag = _scalar(node), _TEXT_TAG
    elif isinstance(node, yaml.SequenceNode):
        value, default_tag = [_document(item) for item in node.value], _LIST_TAG
    else:
        value, default_tag = _mapping(node), _MAP_TAG
    if node.tag in (default_tag, "!"):
        return value
    if node.tag.startswith("!"):
        return Variant(node.tag[1:], value)
    raise _refused(f"{_line(node)}: tag {node.tag!r} has no meaning in settings")


def _scalar(node: yaml.ScalarNode) -> str | None:
    text = _text(node)
    if node.style is not None:
        return text
    return None if text in _PLAIN_NULLS else Plain(text)


def _text(node: yaml.ScalarNode) -> str:
    text: str = node.value
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _refused(f"{_line(node)}: {text!r} holds half a character")
    return text


def _mapping(node: Any) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _refused(f"{_line(key)}: a key must be text")
        name = _text(key)
        if name in found:
            raise _refused(f"{_line(key)}: key {name!r} occurs twice")
        found[name] = _document(value)
    return found


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _refused(problem: str) -> FormatError:
    return FormatError(f"config YAML: {problem}", ErrorKind.CONFIG_DESERIALIZATION)


# --- writing ---------------------------------------------------------------------------------


def encode_yaml(document: dict[str, Document]) -> bytes:
    """Block style, keys in the order given, one line per scalar."""
    return "".join(line + "\n" for line in _block(document, "")).encode()


def _block(value: Any, pad: str) -> Iterator[str]:
    """The lines of a non-empty mapping or list, each indented by `pad`."""
    if isinstance(value, dict):
        for key, item in value.items():
            # A list below a key is not indented further.
            yield from _entry(_key(key, pad), item, pad if _is_list(item) else pad + "  ")
        return
    for item in value:
        if isinstance(item, Variant) or _inline(item) is not None:
            yield from _entry(pad + "-", item, pad + "  ")
        else:
            first, *rest = _block(item, pad + "  ")
            yield f"{pad}- {first.lstrip()}"
            yield from rest


def _entry(head: str, item: Any, pad: str) -> Iterator[str]:
    if isinstance(item, Variant):
        head, item = f"{head} !{item.name}", item.value
    text = _inline(item)
    if text is not None:
        yield f"{head} {text}"
    else:
        yield head
        yield from _block(item, pad)


def _key(key: str, pad: str) -> str:
    text = _quoted(key)
    return f"{pad}{text}:" if len(text) <= MAX_SIMPLE_KEY else f"{pad}? {text}\n{pad}:"


def _is_list(item: Any) -> bool:
    return isinstance(item.value if isinstance(item, Variant) else item, list)


def _inline(value: Any) -> str | None:
    """The form of a scalar or an empty container, None for anything with lines of its own."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _quoted(value)
        case []:
            return "[]"
        case dict() if not value:
            return "{}"
        case _:
            return None


def _quoted(text: str) -> str:
    if _SAFE.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(letter: str) -> str:
    if letter.isprintable() and letter not in '"\\':
        return letter
    number = ord(letter)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
