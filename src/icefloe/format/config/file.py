"""`RepositoryConfig` as bytes: YAML in `config.yaml` (spec 1), FlexBuffers in `repo` (spec 2).

Both hold the same document, with the keys of the options. Virtual chunk containers that cannot
be used are read and written like any other: dropping them here would delete them with the next
saved config. `icefloe.config.usable_containers` tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config import (
    ManifestConfig,
    ManifestSplittingConfig,
    RepositoryConfig,
    SplitRule,
)
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.config.document import Variant
from icefloe.format.config.read import read_config
from icefloe.format.config.write import config_document
from icefloe.format.metadata import flexbuffers
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    from icefloe.format.config import yaml_document
else:
    yaml_document = on_demand("icefloe.format.config.yaml_document")


def encode_config_yaml(config: RepositoryConfig) -> bytes:
    """The contents of `config.yaml`; the same config always gives the same bytes.

    Raises:
        InvalidInputError: text that is not Unicode, or conditions nested too deep.
    """
    return yaml_document.encode_yaml(config_document(config))


def encode_config_flexbuffer(config: RepositoryConfig) -> bytes:
    """The config field of a `repo` object; the same config always gives the same bytes.

    Raises:
        InvalidInputError: text that is not Unicode, or conditions nested too deep.
    """
    return flexbuffers.encode(_without_tags(config_document(config)))


def decode_config_yaml(data: bytes) -> RepositoryConfig:
    """The config in `config.yaml`.

    Raises:
        FormatError: of kind config-deserialization, naming the key.
    """
    return read_config(yaml_document.decode_yaml(data))


def decode_config_flexbuffer(data: bytes) -> RepositoryConfig:
    """The config in the config field of a `repo` object.

    Raises:
        FormatError: of kind config-deserialization, naming the key.
    """
    try:
        document = flexbuffers.decode(data)
    except FormatError as error:
        raise FormatError(f"config: {error}", ErrorKind.CONFIG_DESERIALIZATION) from None
    return read_config(document)


def splitting_document(rules: tuple[SplitRule, ...]) -> Any:
    """Splitting rules as JSON-shaped values, the way a `repo` object holds them."""
    config = RepositoryConfig(manifest=ManifestConfig(splitting=ManifestSplittingConfig(rules)))
    return _without_tags(config_document(config)["manifest"])["splitting"]


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
