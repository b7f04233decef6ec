"""Saved configurations of official writers hold the settings that official reports."""

from __future__ import annotations

import json
from dataclasses import fields
from enum import IntEnum
from typing import Any

import pytest

from icefloe.config import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    RepositoryConfig,
)
from icefloe.config.manifest import ConditionKind, DimensionKind
from icefloe.config.section import Section
from icefloe.config.stores import S3Options
from icefloe.format.config import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from tests.golden import object_paths, repository_path
from tests.golden.decoded import Json, expectation, repo_infos, repo_states, with_spec

# --- our config in the notation of the official library --------------------------------------


def notation(value: Any) -> str:
    """A condition or store as official code prints it."""
    match value:
        case None | bool() | int():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(map(notation, value))}]"
        case dict():
            entries = (f"{notation(key)}: {notation(item)}" for key, item in value.items())
            return f"{{{', '.join(entries)}}}"
        case ManifestPreloadCondition() | ManifestSplitCondition():
            return f"icechunk.config.{type(value).__name__}.{condition(value)}"
        case ManifestSplitDimCondition():
            arguments = {
                DimensionKind.AXIS: f"axis({value.axis})",
                DimensionKind.DIMENSION_NAME: f"dimension_name({notation(value.regex)})",
                DimensionKind.ANY: "any()",
            }
            return f"icechunk.config.ManifestSplitDimCondition.{arguments[value.kind]}"
        case ObjectStoreConfig():
            return f"icechunk.config.ObjectStoreConfig.{type(value).__name__}({store(value)})"
        case _:
            raise TypeError(f"no notation for {value!r}")


def condition(value: ManifestPreloadCondition | ManifestSplitCondition) -> str:
    if value.kind in (ConditionKind.OR, ConditionKind.AND):
        return f"{value.kind}_conditions({notation(value.conditions)})"
    if isinstance(value, ManifestPreloadCondition) and value.kind == ConditionKind.NUM_REFS:
        return f"num_refs({value.from_refs}, {value.to_refs})"
    has_regex = value.kind.endswith("_matches")
    return f"{value.kind}({notation(value.regex) if has_regex else ''})"


def store(value: ObjectStoreConfig) -> str:
    arguments = []
    for field in fields(value):  # type: ignore[arg-type]  # every store is a dataclass
        argument = getattr(value, field.name)
        if isinstance(argument, S3Options):
            arguments.append(s3_options(argument))
        elif isinstance(argument, dict):
            arguments.append(f"Some({notation(argument)})")
        else:
            arguments.append(notation(argument))
    return ", ".join(arguments)


def s3_options(value: S3Options) -> str:
    lines = []
    for field in fields(value):
        option = getattr(value, field.name)
        is_enum = isinstance(option, IntEnum)
        shown = f"icechunk.{tree(option)}" if is_enum else notation(option)
        lines.append(f"    {field.name}={shown},\n")
    return f"icechunk.storage.S3Options(\n{''.join(lines)})"


def splitting_rules(value: ManifestSplittingConfig) -> str | None:
    if value.split_sizes is None:
        return None
    rules = []
    for arrays, sizes in value.split_sizes:
        dimensions = (f"({notation(dimension)}, {size})" for dimension, size in sizes)
        rules.append(f"({notation(arrays)}, [{', '.join(dimensions)}])")
    return f"[{', '.join(rules)}]"


OWN_OPTIONS = {
    "packing",
    "max_refs_per_manifest",
    "max_shared_refs_per_array",
    "max_refs_per_shared_manifest",
    "max_bytes_per_shared_manifest",
}
"""Options that official does not have, and therefore never wrote."""


def tree(value: Any) -> Any:
    """A config in the form of the expectation files."""
    match value:
        case ManifestSplittingConfig():
            return {"split_sizes": splitting_rules(value)}
        case Section():
            names = [field.name for field in fields(value)]  # type: ignore[arg-type]
            assert [getattr(value, name) for name in names if name in OWN_OPTIONS] == [None] * len(
                OWN_OPTIONS.intersection(names)
            )
            return {name: tree(getattr(value, name)) for name in names if name not in OWN_OPTIONS}
        case IntEnum():
            return f"{type(value).__name__}.{value.name}"
        case None | bool() | int() | str():
            return value
        case dict():
            return {key: tree(item) for key, item in value.items()}
        case _:
            return notation(value)


# --- tests -----------------------------------------------------------------------------------


def yaml_files(name: str) -> dict[str, bytes]:
    """`config.yaml` and its backups, by file name."""
    current = repository_path(name) / "config.yaml"
    backups = object_paths(name, "overwritten")
    return {path.name: path.read_bytes() for path in [current, *backups] if path.exists()}


def yaml_states(name: str) -> dict[str, Json]:
    expected = expectation(name)
    return {"config.yaml": expected["repo_state"], **expected["overwritten"]}


@pytest.mark.parametrize("name", with_spec(1))
def test_config_yaml_holds_the_settings_official_reports(name: str) -> None:
    for key, data in yaml_files(name).items():
        assert tree(decode_config_yaml(data)) == yaml_states(name)[key]["config"], key


@pytest.mark.parametrize("name", with_spec(1))
def test_config_yaml_survives_being_written_again(name: str) -> None:
    for key, data in yaml_files(name).items():
        config = decode_config_yaml(data)
        assert decode_config_yaml(encode_config_yaml(config)) == config, key


@pytest.mark.parametrize("name", with_spec(2))
def test_the_config_of_each_repo_object_holds_the_settings_official_reports(name: str) -> None:
    for key, state in repo_states(name).items():
        data = repo_infos(name)[key].config
        found = None if data is None else tree(decode_config_flexbuffer(data))
        assert found == state["config"], key


@pytest.mark.parametrize("name", with_spec(2))
def test_the_config_of_each_repo_object_survives_being_written_again(name: str) -> None:
    for key, info in repo_infos(name).items():
        if info.config is not None:
            config = decode_config_flexbuffer(info.config)
            again = encode_config_flexbuffer(config)
            assert decode_config_flexbuffer(again) == config, key


def test_both_encodings_of_one_configuration_give_the_same_settings() -> None:
    [yaml] = [
        data for key, data in yaml_files("2.3.0-settings-spec1").items() if key[-4:] == "yaml"
    ]
    flexbuffer = repo_infos("2.3.0-settings-spec2")["repo"].config
    assert flexbuffer is not None
    assert decode_config_yaml(yaml) == decode_config_flexbuffer(flexbuffer) != RepositoryConfig()
