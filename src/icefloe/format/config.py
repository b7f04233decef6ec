"""`RepositoryConfig` as bytes: YAML in `config.yaml` (spec 1), FlexBuffers in `repo` (spec 2).

Both hold the same document, with the keys of the options. Which options there are, and the order
of their keys, is declared in `icefloe.config`. Null and absent are the same, and keys nobody knows
are skipped. Virtual chunk containers that cannot be used are read and written like any other:
dropping them here would delete them with the next saved config.

Of YAML there is only what serialised settings need: mappings with text keys, sequences, scalars,
and local tags such as `!Axis 0`. No other tag makes an object, aliases are refused, and unquoted
scalars stay text until a field gives them a type: `region: 123` is text to YAML 1.2 readers of
a text field, and `no` is not a boolean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING
from enum import Enum
from reprlib import repr as shortened
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

from icefloe.config import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    SplitRule,
    VirtualChunkContainer,
)
from icefloe.config.manifest import Condition, ConditionKind, DimensionKind
from icefloe.config.section import U32, U64, Integer, Option, Section, options, options_in_files
from icefloe.config.stores import (
    S3,
    AnyObjectStoreConfig,
    Http,
    InMemory,
    LocalFileSystem,
    S3Compatible,
    S3Options,
    Tigris,
)
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import flexbuffers

Document: TypeAlias = (
    "bool | int | str | list[Document] | dict[str, Document] | Variant | None"  # Plain is a str
)


class Variant(NamedTuple):
    """One form of an enum, with its data: `!name value` in YAML."""

    name: str
    value: Document


class Plain(str):
    """A scalar that was not quoted: text, unless the reader wants a number or a boolean."""

    __slots__ = ()


def encode_config_yaml(config: RepositoryConfig) -> bytes:
    """The contents of `config.yaml`; the same config always gives the same bytes.

    Raises:
        InvalidInputError: text that is not Unicode, or conditions nested too deep.
    """
    return encode_yaml(_section_document(config))


def encode_config_flexbuffer(config: RepositoryConfig) -> bytes:
    """The config field of a `repo` object; the same config always gives the same bytes.

    Raises:
        InvalidInputError: text that is not Unicode, or conditions nested too deep.
    """
    return flexbuffers.encode(_without_tags(_section_document(config)))


def decode_config_yaml(data: bytes) -> RepositoryConfig:
    """The config in `config.yaml`.

    Raises:
        FormatError: of kind config-deserialization, naming the key.
    """
    return _read_section(RepositoryConfig, decode_yaml(data), "")


def decode_config_flexbuffer(data: bytes) -> RepositoryConfig:
    """The config in the config field of a `repo` object.

    Raises:
        FormatError: of kind config-deserialization, naming the key.
    """
    try:
        document = flexbuffers.decode(data)
    except FormatError as error:
        raise FormatError(f"config: {error}", ErrorKind.CONFIG_DESERIALIZATION) from None
    return _read_section(RepositoryConfig, document, "")


def splitting_document(rules: tuple[SplitRule, ...]) -> Any:
    """Splitting rules as JSON-shaped values, the way a `repo` object holds them."""
    config = RepositoryConfig(manifest=ManifestConfig(splitting=ManifestSplittingConfig(rules)))
    return _without_tags(_section_document(config)["manifest"])["splitting"]


def _without_tags(document: Any) -> Any:
    """FlexBuffers have no tags: an enum form with data is a map with one key."""
    match document:
        case Variant(name, value):
            return {name: _without_tags(value)}
        case dict():
            return {key: _without_tags(value) for key, value in document.items()}
        case list():
            return [_without_tags(item) for item in document]
        case _:
            return document


# --- writing ---------------------------------------------------------------------------------

MAX_CONDITION_DEPTH = 90
"""Conditions inside each other that both encodings, and Icechunk, can read back."""


def _section_document(section: Section) -> dict[str, Document]:
    values = {option: getattr(section, option.name) for option in options_in_files(type(section))}
    return {
        option.name: _value_document(value)
        for option, value in values.items()
        if not option.is_own or value is not None
    }


def _value_document(value: Any) -> Document:
    match value:
        case Enum():
            return _snake_case(value.name)
        case None | bool() | int():
            return value
        case str():
            return _checked_text(value)
        case Section():
            return _section_document(value)
        case ObjectStoreConfig():
            return _store_document(value)
        case Condition():
            return _condition_document(value, 0)
        case dict():
            return {_checked_text(key): _value_document(value[key]) for key in sorted(value)}
        case _:
            return [_rule_document(rule) for rule in value]


def _store_document(store: ObjectStoreConfig) -> Document:
    name = _snake_case(type(store).__name__)
    values: list[Any] = [_value_document(value) for value in vars(store).values()]
    if not values:
        return name
    if isinstance(store, Http) and store.headers:  # they share the map of the client options
        values[0]["headers"] = values[1]
    return Variant(name, values[0])


def _rule_document(rule: SplitRule) -> Document:
    arrays, sizes = rule
    return [
        _condition_document(arrays, 0),
        [{"condition": _axis_document(axis), "num_chunks": size} for axis, size in sizes],
    ]


def _condition_document(condition: Condition, depth: int) -> Document:
    if depth >= MAX_CONDITION_DEPTH:
        raise InvalidInputError(
            f"config: more than {MAX_CONDITION_DEPTH} conditions inside each other; "
            "give or_conditions or and_conditions one flat list",
            ErrorKind.SERIALIZATION,
        )
    match condition.kind:
        case ConditionKind.OR | ConditionKind.AND:
            parts = [_condition_document(part, depth + 1) for part in condition.conditions]
            return Variant(condition.kind.value, parts)
        case ConditionKind.NUM_REFS if isinstance(condition, ManifestPreloadCondition):
            start, end = condition.from_refs, condition.to_refs
            bounds: dict[str, Document] = {
                "from": "Unbounded" if start is None else Variant("Included", start),
                "to": "Unbounded" if end is None else Variant("Excluded", end),
            }
            return Variant(condition.kind.value, bounds)
        case ConditionKind.ANY_ARRAY | ConditionKind.TRUE | ConditionKind.FALSE:
            return condition.kind.value
        case _:
            return Variant(condition.kind.value, {"regex": _checked_text(condition.regex)})


def _axis_document(axis: ManifestSplitDimCondition) -> Document:
    match axis.kind:
        case DimensionKind.AXIS:
            return Variant(axis.kind.value, axis.axis)
        case DimensionKind.DIMENSION_NAME:
            return Variant(axis.kind.value, _checked_text(axis.regex))
        case DimensionKind.ANY:
            return axis.kind.value


def _checked_text(text: str) -> str:
    # FlexBuffers end keys with a zero byte, and none of the settings has a use for one.
    if re.search("[\0\ud800-\udfff]", text):
        raise InvalidInputError(
            f"config: text {text!r} has a zero byte or half a surrogate pair",
            ErrorKind.SERIALIZATION,
        )
    return text


def _snake_case(name: str) -> str:
    """How files spell the forms of enums: `Crc64Nvme` is `crc64_nvme`."""
    return re.sub("(?<=.)(?=[A-Z])", "_", name).lower()


# --- reading ---------------------------------------------------------------------------------

# What YAML 1.2 takes for a number or a boolean when it is not quoted.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,19})|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,22}")
_BOOLEANS = {"true": True, "True": True, "TRUE": True}
_BOOLEANS |= {"false": False, "False": False, "FALSE": False}

ConditionType = TypeVar("ConditionType", bound=Condition)
SectionType = TypeVar("SectionType", bound=Section)
Value = TypeVar("Value")


def _read_section(section: type[SectionType], found: Any, path: str) -> SectionType:
    entries = _mapping(found, path)
    values = {}
    for name, option in options(section).items():
        entry = entries.get(name)
        if entry is not None:
            values[name] = _read_option(option, entry, _join(path, name))
        elif option.initial is MISSING:
            raise _refused(_join(path, name), "it is missing")
    return section(**values)


def _read_option(option: Option[Any, Any], found: Any, path: str) -> Any:
    reader = _READERS.get(option.type)
    if reader is not None:
        return reader(found, path)
    if issubclass(option.type, Section):
        return _read_section(option.type, found, path)
    if issubclass(option.type, Enum):
        forms = {_snake_case(form.name): form for form in option.type}
        return forms[_variant(found, path, forms)[0]]
    try:
        return option.check("it", _from_plain(found, option.type))
    except (TypeError, InvalidInputError) as error:
        raise _refused(path, str(error)) from None


def _from_plain(found: Any, wanted: type) -> Any:
    """An unquoted scalar as the type that is wanted, anything else as it is."""
    if not isinstance(found, Plain):
        return found
    if wanted is bool:
        return _BOOLEANS.get(found, str(found))
    if wanted is int and _INTEGER.fullmatch(found):
        return int(found, 0)
    return str(found)


def _integer(found: Any, path: str, integer: Integer) -> int:
    number: int = _read_option(Option(integer, initial=MISSING), found, path)
    return number


def _text(found: Any, path: str) -> str:
    text: str = _read_option(Option(str, initial=MISSING), found, path)
    return text


def _mapping(found: Any, path: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _refused(path, f"found {shortened(found)}, expected a mapping")
    return found


def _each(read: Callable[[Any, str], Value], found: Any, path: str) -> list[Value]:
    if not isinstance(found, list):
        raise _refused(path, f"found {shortened(found)}, expected a list")
    return [read(item, f"{path}[{index}]") for index, item in enumerate(found)]


def _variant(found: Any, path: str, expected: Iterable[str]) -> tuple[str, Any]:
    """The name and data of an enum form; the data is None when it has none."""
    match found:
        case Variant(name, data):
            pass
        case str():
            name, data = str(found), None
        case dict() if len(found) == 1:
            ((name, data),) = found.items()
        case _:
            raise _refused(path, f"found {shortened(found)}, expected {_one_of(expected)}")
    if name not in expected:
        raise _refused(path, f"found {name!r}, expected {_one_of(expected)}")
    return name, data


def _read_containers(found: Any, path: str) -> dict[str, VirtualChunkContainer]:
    return {
        prefix: _read_section(VirtualChunkContainer, entry, f"{path}[{prefix!r}]")
        for prefix, entry in _mapping(found, path).items()
    }


def _read_store(found: Any, path: str) -> ObjectStoreConfig:
    name, data = _variant(found, path, _STORES)
    store = _STORES[name]
    if store is InMemory:
        return InMemory()
    if store is LocalFileSystem:
        return LocalFileSystem(_text(data, path))
    if store in (S3, S3Compatible, Tigris):
        return store(_read_section(S3Options, data, path))
    entries = dict(_mapping({} if data is None else data, path))
    if store is not Http:
        return store(_texts(entries, path))
    below = _join(path, "headers")
    headers = entries.pop("headers", None)
    return Http(_texts(entries, path), _texts(_mapping(headers or {}, below), below))


def _texts(entries: dict[str, Any], path: str) -> dict[str, str]:
    return {key: _text(entry, _join(path, key)) for key, entry in entries.items()}


def _read_rules(found: Any, path: str) -> tuple[SplitRule, ...]:
    return tuple(_each(_read_rule, found, path))


def _read_rule(found: Any, path: str) -> SplitRule:
    if not isinstance(found, list) or len(found) != 2:
        raise _refused(
            path, f"found {shortened(found)}, expected an array condition and split sizes"
        )
    return _read_split_condition(found[0], f"{path}[0]"), tuple(
        _each(_read_size, found[1], f"{path}[1]")
    )


def _read_size(found: Any, path: str) -> tuple[ManifestSplitDimCondition, int]:
    entries = _mapping(found, path)
    axis = _read_axis(entries.get("condition"), _join(path, "condition"))
    size = _integer(entries.get("num_chunks"), _join(path, "num_chunks"), U32)
    return axis, size or U32.highest  # official saves 0, which is no size to split at


def _read_axis(found: Any, path: str) -> ManifestSplitDimCondition:
    name, data = _variant(found, path, list(DimensionKind))
    match DimensionKind(name):
        case DimensionKind.AXIS:
            return ManifestSplitDimCondition.Axis(_integer(data, path, U64))
        case DimensionKind.DIMENSION_NAME:
            return ManifestSplitDimCondition.DimensionName(_text(data, path))
        case DimensionKind.ANY:
            return ManifestSplitDimCondition.Any()


def _read_split_condition(found: Any, path: str) -> ManifestSplitCondition:
    return _read_condition(ManifestSplitCondition, found, path)


def _read_preload_condition(found: Any, path: str) -> ManifestPreloadCondition:
    name, data = _variant(found, path, ManifestPreloadCondition.kinds)
    if name != ConditionKind.NUM_REFS:
        return _read_condition(ManifestPreloadCondition, found, path)
    below = _join(path, name)
    return _read_num_refs(_mapping(data, below), below)


def _read_condition(condition: type[ConditionType], found: Any, path: str) -> ConditionType:
    name, data = _variant(found, path, condition.kinds)
    below = _join(path, name)
    match ConditionKind(name):
        case ConditionKind.OR:
            return condition.or_conditions(_each(_READERS[condition], data, below))
        case ConditionKind.AND:
            return condition.and_conditions(_each(_READERS[condition], data, below))
        case ConditionKind.PATH_MATCHES:
            return condition.path_matches(_regex(data, below))
        case ConditionKind.NAME_MATCHES:
            return condition.name_matches(_regex(data, below))
        case kind:
            return condition(kind)


def _read_num_refs(bounds: dict[str, Any], path: str) -> ManifestPreloadCondition:
    start = _read_bound(bounds.get("from"), _join(path, "from"), one_more_if="Excluded")
    end = _read_bound(bounds.get("to"), _join(path, "to"), one_more_if="Included")
    if start is not None and start > U32.highest:
        return ManifestPreloadCondition.false()  # more than a manifest can hold
    return ManifestPreloadCondition.num_refs(start, end if end != U32.highest + 1 else None)


def _read_bound(found: Any, path: str, *, one_more_if: str) -> int | None:
    name, data = _variant(found, path, ["Included", "Excluded", "Unbounded"])
    if name == "Unbounded":
        return None
    return _integer(data, path, U32) + (name == one_more_if)


def _regex(found: Any, path: str) -> str:
    return _text(_mapping(found, path).get("regex"), _join(path, "regex"))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _one_of(names: Iterable[str]) -> str:
    return " or ".join(map(str, names))


def _refused(path: str, problem: str) -> FormatError:
    return FormatError(
        f"config at {path or 'its root'}: {problem}", ErrorKind.CONFIG_DESERIALIZATION
    )


_STORES: dict[str, Callable[..., ObjectStoreConfig]] = {
    _snake_case(store.__name__): store for store in get_args(AnyObjectStoreConfig)
}

_READERS: dict[type, Callable[[Any, str], Any]] = {
    ManifestPreloadCondition: _read_preload_condition,
    ManifestSplitCondition: _read_split_condition,
    ObjectStoreConfig: _read_store,
    dict: _read_containers,
    tuple: _read_rules,
}


# --- YAML ------------------------------------------------------------------------------------

MAX_YAML_BYTES = 2 * 1024 * 1024
"""A config of a thousand virtual chunk containers has a fifth of this."""

MAX_YAML_DEPTH = 128
"""Sequences and mappings inside each other; the limit of Icechunk's reader."""

MAX_SIMPLE_KEY = 1000
"""Longer keys need YAML's `? key` form: the limit for `key:` is 1024 characters."""

_PLAIN_NULLS = {"", "~", "null", "Null", "NULL"}

# Text that means itself to every YAML reader; anything else is quoted.
_SAFE = re.compile(r"[A-Za-z_/][\w./@+-]*(?::[\w./@+-]+)*", re.ASCII)
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def decode_yaml(data: bytes) -> Document:
    """The document in `data`; a file without one is an empty mapping, as in Icechunk.

    Raises:
        FormatError: not YAML, or YAML beyond what settings use; the message has the line.
    """
    import yaml

    if len(data) > MAX_YAML_BYTES:
        raise _no_settings(f"found {len(data)} bytes, expected at most {MAX_YAML_BYTES}")
    try:
        events = yaml.parse(data.decode(), Loader=yaml.BaseLoader)
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return {}
        first = next(events)
        document = _read_yaml(first, events, {}, 0)
        next(events)  # the end of the document
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            problem = "expected a single document in the stream", first.start_mark
            found = "but found another document", after.start_mark
            raise yaml.composer.ComposerError(*problem, *found)
    except (ValueError, yaml.YAMLError) as error:
        # ValueError: not UTF-8, or numbers (of characters, of versions) out of Python's range.
        raise _no_settings(" ".join(str(error).split())) from None
    return document


def _read_yaml(event: Any, events: Iterator[Any], anchors: dict[str, Any], depth: int) -> Document:
    """The value that begins with `event`, and takes what it needs of the `events` behind it."""
    import yaml

    _check_yaml(event, anchors, depth)
    value: Document
    if isinstance(event, yaml.ScalarEvent):
        own_tag, text = "tag:yaml.org,2002:str", _scalar_text(event)
        is_null = event.style is None and text in _PLAIN_NULLS
        value = None if is_null else text if event.style is not None else Plain(text)
    elif isinstance(event, yaml.SequenceStartEvent):
        own_tag, value = "tag:yaml.org,2002:seq", []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            value.append(_read_yaml(item, events, anchors, depth + 1))
    else:
        own_tag, value = "tag:yaml.org,2002:map", {}
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            _check_yaml(key, anchors, depth + 1)
            if not isinstance(key, yaml.ScalarEvent):
                raise _no_settings(f"{_line(key)}: a key must be text")
            name = _scalar_text(key)
            if name in value:
                raise _no_settings(f"{_line(key)}: key {name!r} occurs twice")
            value[name] = _read_yaml(next(events), events, anchors, depth + 1)
    if event.tag in (None, "!", own_tag):
        return value
    if event.tag.startswith("!"):
        return Variant(event.tag[1:], value)
    raise _no_settings(f"{_line(event)}: tag {event.tag!r} has no meaning in settings")


def _check_yaml(event: Any, anchors: dict[str, Any], depth: int) -> None:
    """Refuse what would make a graph of the tree, or a deep one."""
    from yaml import AliasEvent
    from yaml.composer import ComposerError

    mark: Any = event.start_mark
    if isinstance(event, AliasEvent):
        raise ComposerError(None, None, "aliases are not supported", mark)
    if depth > MAX_YAML_DEPTH:
        raise ComposerError(None, None, f"there are more than {MAX_YAML_DEPTH} levels", mark)
    if event.anchor in anchors:
        problem = f"found duplicate anchor {event.anchor!r}; first occurrence"
        raise ComposerError(problem, anchors[event.anchor], "second occurrence", mark)
    if event.anchor is not None:
        anchors[event.anchor] = mark


def _scalar_text(event: Any) -> str:
    text: str = event.value
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _no_settings(f"{_line(event)}: {text!r} holds half a character")
    return text


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _no_settings(problem: str) -> FormatError:
    return FormatError(f"config YAML: {problem}", ErrorKind.CONFIG_DESERIALIZATION)


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
