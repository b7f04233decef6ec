"""`RepositoryConfig`, the root of the configuration, and its small sections."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import field
from enum import EnumType
from typing import TYPE_CHECKING, Any

from icefloe.config.resolved import NO_PACKING, ResolvedConfig, ResolvedPacking, resolve
from icefloe.config.section import OptionalU8, OptionalU16, OptionalU64, Section
from icefloe.config.storage import StorageRetriesSettings, StorageSettings
from icefloe.display.shown import NamedNumber
from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    from icefloe.config import containers
    from icefloe.config import manifest as manifests
    from icefloe.config.containers import VirtualChunkContainer
else:
    containers = on_demand("icefloe.config.containers")
    manifests = on_demand("icefloe.config.manifest")


class _HasDefault(EnumType):
    """`CompressionAlgorithm()` is the default one, as in Icechunk."""

    def __call__(cls, *values: Any, **options: Any) -> Any:
        return super().__call__(*(values or (0,)), **options)


class CompressionAlgorithm(NamedNumber, metaclass=_HasDefault):
    """How metadata files are compressed."""

    Zstd = 0

    @staticmethod
    def default() -> CompressionAlgorithm:
        """Zstandard."""
        return CompressionAlgorithm.Zstd


@record()
class CompressionConfig(Section):
    """How metadata files are compressed, and how hard."""

    algorithm: CompressionAlgorithm | None = None
    level: OptionalU8 = None

    @staticmethod
    def default() -> CompressionConfig:
        """A section with nothing set."""
        return CompressionConfig()


@record()
class CachingConfig(Section):
    """How much of each kind of object is kept in memory; 0 switches a cache off.

    `num_bytes_chunks` bounds the bytes of chunks that the repository stores itself, as they were
    read: whole ones and ranges. It is 0 unless it is set. Virtual chunks are never kept.
    """

    num_snapshot_nodes: OptionalU64 = None
    num_chunk_refs: OptionalU64 = None
    num_transaction_changes: OptionalU64 = None
    num_bytes_attributes: OptionalU64 = None
    num_bytes_chunks: OptionalU64 = None

    @staticmethod
    def default() -> CachingConfig:
        """A section with nothing set."""
        return CachingConfig()


@record()
class RepoUpdateRetryConfig(Section):
    """How often an update of the `repo` object is tried when other writers get in first."""

    default: StorageRetriesSettings | None = None


@record()
class PackingConfig(Section):
    """Small chunks stored together, many to an object; a repository without this stores each alone.

    For chunks that are too large to be kept inline and not larger than `max_chunk_size_bytes`; 0
    switches packing off again. They wait in memory until there are `target_size_bytes` of them, or
    the session is committed; one session keeps at most about ten objects' worth. Official Icechunk
    reads packed chunks, but drops this section when it saves a configuration.

    An object has chunks of all arrays that are written meanwhile, or with `is_one_array_each` of
    one array only. Then what waits in memory grows with the number of arrays.
    """

    target_size_bytes: OptionalU64 = None
    max_chunk_size_bytes: OptionalU64 = None
    is_one_array_each: bool | None = None


@record()
class RepositoryConfig(Section):
    """The settings of a repository; an option left at None takes its default.

    What is in force is found by merging: what the repository persists, then what the caller
    passes. `resolved` fills in the defaults.

    >>> persisted = RepositoryConfig(inline_chunk_threshold_bytes=0)
    >>> config = persisted.merge(RepositoryConfig(max_concurrent_requests=8)).resolved()
    >>> config.inline_chunk_threshold_bytes, config.max_concurrent_requests
    (0, 8)
    """

    inline_chunk_threshold_bytes: OptionalU16 = None
    get_partial_values_concurrency: OptionalU16 = None
    compression: CompressionConfig | None = None
    max_concurrent_requests: OptionalU16 = None
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: dict[str, containers.VirtualChunkContainer] | None = None
    manifest: manifests.ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    num_updates_per_repo_info_file: OptionalU16 = None
    max_concurrent_decodes: OptionalU16 = None
    previous_file: str | None = field(default=None, kw_only=True)
    """Part of the format, carried along; no release gives it a meaning."""
    packing: PackingConfig | None = field(default=None, kw_only=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "virtual_chunk_containers" and value is not None:
            value = _containers(value)
        Section.__setattr__(self, name, value)

    @staticmethod
    def default() -> RepositoryConfig:
        """A config with nothing set, so that every default applies."""
        return RepositoryConfig()

    def resolved(self) -> ResolvedConfig:
        """The values in force, with a default for each option that is not set."""
        packing = NO_PACKING if self.packing is None else ResolvedPacking()
        return resolve(ResolvedConfig(packing=packing), self)

    def validate(self) -> None:
        """Raise InvalidInputError if a container could not be used.

        For a config that a caller passes in. A persisted one is only reported on, see
        `icefloe.config.containers.usable_containers`.
        """
        for container in (self.virtual_chunk_containers or {}).values():
            container.validate()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """A copy of the container with this url prefix or, failing that, this name.

        Args:
            name: its url prefix or its name.
        """
        known = self.virtual_chunk_containers or {}
        found = known.get(name)
        if found is None:
            found = next((each for each in known.values() if each.name == name), None)
        return copy.deepcopy(found)

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, in place of the one with the same name or the same url prefix.

        Args:
            cont: the container.

        Raises:
            InvalidInputError: nothing could be read through it.
        """
        if not isinstance(cont, containers.VirtualChunkContainer):
            raise TypeError(f"expected a VirtualChunkContainer, found {cont!r}")
        cont.validate()
        others = {
            prefix: each
            for prefix, each in (self.virtual_chunk_containers or {}).items()
            if cont.name is None or each.name != cont.name
        }
        self.virtual_chunk_containers = {**others, cont.url_prefix: copy.deepcopy(cont)}

    def clear_virtual_chunk_containers(self) -> None:
        """Have no containers, also when merged over a config that has some."""
        self.virtual_chunk_containers = {}


def _containers(value: object) -> dict[str, VirtualChunkContainer]:
    if not isinstance(value, Mapping):
        raise TypeError(f"virtual_chunk_containers must be a dict or None, found {value!r}")
    for prefix, container in value.items():
        if not isinstance(prefix, str) or not isinstance(
            container, containers.VirtualChunkContainer
        ):
            raise TypeError(
                "virtual_chunk_containers must map str to VirtualChunkContainer, "
                f"found {prefix!r}: {container!r}"
            )
    return dict(value)
