"""A `RepositoryConfig` from the document that `write.py` describes.

Each value is checked against its option; whatever does not fit is refused with the path of
keys that leads to it. Null and absent are the same, keys nobody knows are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from reprlib import repr as shortened
from typing import Any, TypeVar

from icefloe.config import (
    ChecksumAlgorithm,
    CompressionAlgorithm,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    SplitRule,
    VirtualChunkContainer,
)
from icefloe.config.conditions import DimensionKind, PreloadKind, SplitKind
from icefloe.config.section import U32, U64, Integer, Option, Section, options
from icefloe.config.stores import S3, Http, InMemory, LocalFileSystem, S3Compatible, Tigris
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.config.document import Plain, Variant
from icefloe.format.config.write import ALGORITHM_NAMES, CHECKSUM_NAMES, STORE_NAMES

_ALGORITHMS = {name: each for each, name in ALGORITHM_NAMES.items()}
_CHECKSUMS = {name: each for each, name in CHECKSUM_NAMES.items()}
_STORES: dict[str, Callable[..., ObjectStoreConfig]] = {
    name: each for each, name in STORE_NAMES.items()
}

# What YAML 1.2 takes for a number or a boolean when it is not quoted.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,19})|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,22}")
_BOOLEANS = {"true": True, "True": True, "TRUE": True}
_BOOLEANS |= {"false": False, "False": False, "FALSE": False}


SectionType = TypeVar("SectionType", bound=Section)
Value = TypeVar("Value")


def read_config(document: object) -> RepositoryConfig:
    """The config that `document` describes.

    Raises:
        FormatError: of kind config-deserialization, naming the key.
    """
    return _read_section(RepositoryConfig, document, "")


def _read_section(section: type[SectionType], found: Any, path: str) -> SectionType:
    entries = _mapping(found, path)
    values = {}
    for name, option in options(section).items():
        entry = entries.get(name)
        if entry is not None:
            values[name] = _read_option(option, entry, _join(path, name))
    for field in fields(section):  # type: ignore[arg-type]  # every section is a dataclass
        if field.default is MISSING and field.name not in values:
            raise _refused(_join(path, field.name), "it is missing")
    return section(**values)


def _read_option(option: Option, found: Any, path: str) -> Any:
    reader = _READERS.get(option.type)
    if reader is not None:
        return reader(found, path)
    if issubclass(option.type, Section):
        return _read_section(option.type, found, path)
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
    number: int = _read_option(Option(int, is_optional=False, integer=integer), found, path)
    return number


def _text(found: Any, path: str) -> str:
    text: str = _read_option(Option(str, is_optional=False), found, path)
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


def _read_algorithm(found: Any, path: str) -> CompressionAlgorithm:
    return _ALGORITHMS[_variant(found, path, _ALGORITHMS)[0]]


def _read_checksum(found: Any, path: str) -> ChecksumAlgorithm:
    return _CHECKSUMS[_variant(found, path, _CHECKSUMS)[0]]


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
    name, data = _variant(found, path, list(SplitKind))
    below = _join(path, name)
    match SplitKind(name):
        case SplitKind.OR:
            return ManifestSplitCondition.or_conditions(_each(_read_split_condition, data, below))
        case SplitKind.AND:
            return ManifestSplitCondition.and_conditions(_each(_read_split_condition, data, below))
        case SplitKind.PATH_MATCHES:
            return ManifestSplitCondition.path_matches(_regex(data, below))
        case SplitKind.NAME_MATCHES:
            return ManifestSplitCondition.name_matches(_regex(data, below))
        case SplitKind.ANY_ARRAY:
            return ManifestSplitCondition.any_array()


def _read_preload_condition(found: Any, path: str) -> ManifestPreloadCondition:
    name, data = _variant(found, path, list(PreloadKind))
    below = _join(path, name)
    condition = ManifestPreloadCondition
    match PreloadKind(name):
        case PreloadKind.OR:
            return condition.or_conditions(_each(_read_preload_condition, data, below))
        case PreloadKind.AND:
            return condition.and_conditions(_each(_read_preload_condition, data, below))
        case PreloadKind.PATH_MATCHES:
            return condition.path_matches(_regex(data, below))
        case PreloadKind.NAME_MATCHES:
            return condition.name_matches(_regex(data, below))
        case PreloadKind.NUM_REFS:
            return _read_num_refs(_mapping(data, below), below)
        case PreloadKind.TRUE:
            return condition.true()
        case PreloadKind.FALSE:
            return condition.false()


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


_READERS: dict[type, Callable[[Any, str], Any]] = {
    CompressionAlgorithm: _read_algorithm,
    ChecksumAlgorithm: _read_checksum,
    ManifestPreloadCondition: _read_preload_condition,
    ObjectStoreConfig: _read_store,
    dict: _read_containers,
    tuple: _read_rules,
}
