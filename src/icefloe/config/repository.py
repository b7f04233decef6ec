"""`RepositoryConfig`, the root of the configuration, and its sections.

Storages have other defaults for some options of `storage`: merge those below the config before
resolving it. A program may have others, too (`set_program_defaults`). Rules of manifests are in
`manifest.py`, virtual chunk containers in `containers.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from enum import EnumType
from typing import Any, Self

from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.manifest import ManifestConfig, ResolvedManifest
from icefloe.config.section import (
    NONZERO_U16,
    NONZERO_U64,
    U8,
    U16,
    U32,
    U64,
    Number,
    NumberOrNone,
    Option,
    Resolved,
    Section,
    SectionOption,
    Switch,
    Text,
)
from icefloe.display import NamedNumber


class _SectionWithDefault(Section):
    @classmethod
    def default(cls) -> Self:
        """A section with nothing set, so that every default applies.

        >>> icefloe.RepositoryConfig.default() == icefloe.RepositoryConfig()
        True
        """
        return cls()


@dataclass(repr=False)
class StorageConcurrencySettings(Section):
    """How one large object is split into concurrent requests.

    >>> slices = icefloe.StorageConcurrencySettings(ideal_concurrent_request_size=2**24)
    >>> settings = icefloe.StorageSettings(concurrency=slices)
    """

    shown_in = "storage"

    max_concurrent_requests_for_object: Number = Option(
        NONZERO_U16, 18, "parts of one large object fetched or sent at once"
    )
    ideal_concurrent_request_size: Number = Option(
        NONZERO_U64, 12 * 1024 * 1024, "bytes of such a part"
    )


class ResolvedConcurrency(Resolved, StorageConcurrencySettings):
    """The concurrency in force."""


@dataclass(repr=False)
class StorageRetriesSettings(Section):
    """How often a failed request is sent again.

    >>> settings = icefloe.StorageSettings(retries=icefloe.StorageRetriesSettings(max_tries=3))
    """

    shown_in = "storage"

    max_tries: Number = Option(
        NONZERO_U16,
        10,
        "how often a request is sent, or an update tried, the first time included",
    )
    initial_backoff_ms: Number = Option(U32, 100, "the first wait before another try; it doubles")
    max_backoff_ms: Number = Option(U32, 180_000, "the longest wait")


class ResolvedRetries(Resolved, StorageRetriesSettings):
    """The retries in force."""


@dataclass(repr=False)
class StorageTimeoutSettings(Section):
    """How long a request may take; unset leaves the choice to the storage client.

    >>> patient = icefloe.StorageTimeoutSettings(read_timeout_ms=120_000)
    >>> settings = icefloe.StorageSettings(timeouts=patient)
    """

    shown_in = "storage"

    connect_timeout_ms: NumberOrNone = Option(U32, doc="for a connection")
    read_timeout_ms: NumberOrNone = Option(U32, doc="between two pieces of an answer")
    operation_timeout_ms: NumberOrNone = Option(
        U32, doc="for a request with all its tries; 180 s if not set"
    )
    operation_attempt_timeout_ms: NumberOrNone = Option(
        U32, doc="for one try; 10 minutes if not set"
    )


class ResolvedTimeouts(Resolved, StorageTimeoutSettings):
    """The timeouts in force."""


@dataclass(repr=False)
class StorageSettings(Section):
    """Everything about the storage that is kept with the repository.

    The three `unsafe_use_*` options are for storages that lack a feature. A storage class that is
    not set is the storage's own default.

    >>> settings = icefloe.StorageSettings(chunks_storage_class="STANDARD_IA")
    >>> repo = repo.reopen(icefloe.RepositoryConfig(storage=settings))
    """

    shown_in = "storage"

    concurrency: Option[StorageConcurrencySettings | None, ResolvedConcurrency] = SectionOption(
        StorageConcurrencySettings, ResolvedConcurrency
    )
    retries: Option[StorageRetriesSettings | None, ResolvedRetries] = SectionOption(
        StorageRetriesSettings, ResolvedRetries
    )
    unsafe_use_conditional_create: Switch = Option(
        bool,
        True,
        written_after="unsafe_use_conditional_update",
        doc="False gives up that no commit is lost",
    )
    unsafe_use_conditional_update: Switch = Option(
        bool, True, "False gives up that no commit is lost"
    )
    unsafe_use_metadata: Switch = Option(
        bool,
        True,
        "write ids into the user metadata of objects, to recognise a write whose answer got lost",
    )
    storage_class: Text = Option(str, doc="of all objects")
    metadata_storage_class: Text = Option(
        str,
        default_from="storage_class",
        doc="of snapshots, manifests and logs; as `storage_class` if not set",
    )
    chunks_storage_class: Text = Option(
        str, default_from="storage_class", doc="of chunks; as `storage_class` if not set"
    )
    minimum_size_for_multipart_upload: Number = Option(
        U64, 100 * 1024 * 1024, "bytes from which an object is sent in parts"
    )
    timeouts: Option[StorageTimeoutSettings | None, ResolvedTimeouts] = SectionOption(
        StorageTimeoutSettings, ResolvedTimeouts, written_after="retries", shows_defaults=False
    )

    def resolved(self) -> ResolvedStorage:
        """The values in force, with a default for each option that is not set.

        >>> icefloe.StorageSettings().resolved().retries.max_tries
        10
        """
        return ResolvedStorage(**vars(self))


class ResolvedStorage(Resolved, StorageSettings):
    """The settings of the storage in force."""


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


@dataclass(repr=False)
class CompressionConfig(_SectionWithDefault):
    """How metadata files are compressed, and how hard.

    >>> config = icefloe.RepositoryConfig(compression=icefloe.CompressionConfig(level=9))
    """

    algorithm: Option[CompressionAlgorithm | None, CompressionAlgorithm] = Option(
        CompressionAlgorithm,
        CompressionAlgorithm.Zstd,
        "of metadata files; there is only this one",
        default_in_words="`Zstd`",
    )
    level: Number = Option(U8, 3, "of metadata files")


class ResolvedCompression(Resolved, CompressionConfig):
    """The compression in force."""


@dataclass(repr=False)
class CachingConfig(_SectionWithDefault):
    """How much of each kind of object is kept in memory; 0 switches a cache off.

    Chunks are kept as they were read: whole ones and ranges.

    >>> config = icefloe.RepositoryConfig(caching=icefloe.CachingConfig(num_bytes_chunks=2**28))
    """

    num_snapshot_nodes: Number = Option(U64, 500_000, "nodes of snapshots in memory")
    num_chunk_refs: Number = Option(U64, 15_000_000, "chunk references of manifests in memory")
    num_transaction_changes: Number = Option(U64, 0, "changes of transaction logs in memory")
    num_bytes_attributes: Number = Option(
        U64, 0, "of Icechunk; icefloe has attributes in the snapshot"
    )
    num_bytes_chunks: Number = Option(
        U64, 0, "bytes of chunks in memory; virtual chunks are never kept"
    )


class ResolvedCaching(Resolved, CachingConfig):
    """The caching in force."""


@dataclass(repr=False)
class RepoUpdateRetryConfig(Section):
    """How often an update of the `repo` object is tried when other writers get in first.

    >>> often = icefloe.RepoUpdateRetryConfig(icefloe.StorageRetriesSettings(max_tries=200))
    >>> config = icefloe.RepositoryConfig(repo_update_retries=often)
    """

    default: Option[StorageRetriesSettings | None, ResolvedRetries] = SectionOption(
        StorageRetriesSettings,
        ResolvedRetries,
        defaults={"max_tries": 100, "initial_backoff_ms": 50, "max_backoff_ms": 30_000},
    )


class ResolvedRepoUpdateRetries(Resolved, RepoUpdateRetryConfig):
    """The retries of updates in force."""


@dataclass(repr=False)
class PackingConfig(Section):
    """Small chunks stored together, many to an object; a repository without this stores each alone.

    For chunks that are too large to be kept inline. They wait in memory until there are enough of
    them, or the session is committed; one session keeps at most about ten objects' worth, of each
    array with `is_one_array_each`. Official Icechunk reads packed chunks, but drops this section
    when it saves a configuration.

    >>> packing = icefloe.PackingConfig(target_size_bytes=16 * 2**20)
    >>> config = icefloe.RepositoryConfig(packing=packing)
    """

    shows_defaults = False

    target_size_bytes: Number = Option(U64, 8 * 1024 * 1024, "bytes of such an object")
    max_chunk_size_bytes: Number = Option(
        U64, 256 * 1024, "larger chunks stay alone; 0 switches packing off"
    )
    is_one_array_each: Switch = Option(bool, False, "chunks of one array only in each object")


class ResolvedPacking(Resolved, PackingConfig):
    """The packing in force."""


NO_PACKING = ResolvedPacking(max_chunk_size_bytes=0)
"""In force unless the configuration has a section about packing."""


def _containers(value: object) -> dict[str, VirtualChunkContainer]:
    if not isinstance(value, Mapping):
        raise TypeError(f"virtual_chunk_containers must be a dict or None, found {value!r}")
    for prefix, container in value.items():
        if not isinstance(prefix, str) or not isinstance(container, VirtualChunkContainer):
            raise TypeError(
                "virtual_chunk_containers must map str to VirtualChunkContainer, "
                f"found {prefix!r}: {container!r}"
            )
    return dict(value)


@dataclass(repr=False)
class RepositoryConfig(_SectionWithDefault):
    """The settings of a repository; an option left at None takes its default.

    What is in force is found by merging: what the repository persists, then what the caller
    passes. `resolved` fills in the defaults.

    >>> persisted = RepositoryConfig(inline_chunk_threshold_bytes=0)
    >>> config = persisted.merge(RepositoryConfig(max_concurrent_requests=8)).resolved()
    >>> config.inline_chunk_threshold_bytes, config.max_concurrent_requests
    (0, 8)
    """

    inline_chunk_threshold_bytes: Number = Option(
        U16,
        512,
        "chunks up to this size are kept in the manifest instead of an object of their own",
    )
    get_partial_values_concurrency: Number = Option(
        U16, 10, at_least=1, doc="ranges of chunks that Zarr asks for at once"
    )
    compression: Option[CompressionConfig | None, ResolvedCompression] = SectionOption(
        CompressionConfig, ResolvedCompression
    )
    max_concurrent_requests: Number = Option(
        U16, 256, at_least=1, doc="requests in flight to the storage"
    )
    caching: Option[CachingConfig | None, ResolvedCaching] = SectionOption(
        CachingConfig, ResolvedCaching
    )
    storage: Option[StorageSettings | None, ResolvedStorage] = SectionOption(
        StorageSettings,
        ResolvedStorage,
        shows_defaults=False,  # they depend on the storage
    )
    virtual_chunk_containers: Option[
        dict[str, VirtualChunkContainer] | None, Mapping[str, VirtualChunkContainer]
    ] = Option(dict, {}, convert=_containers, doc="where virtual chunks may be, by URL prefix")
    manifest: Option[ManifestConfig | None, ResolvedManifest] = SectionOption(
        ManifestConfig, ResolvedManifest
    )
    repo_update_retries: Option[RepoUpdateRetryConfig | None, ResolvedRepoUpdateRetries] = (
        SectionOption(RepoUpdateRetryConfig, ResolvedRepoUpdateRetries)
    )
    num_updates_per_repo_info_file: Number = Option(
        U16, 1000, at_least=1, doc="entries of the operations log in the `repo` object"
    )
    max_concurrent_decodes: NumberOrNone = Option(
        U16,
        at_least=1,
        written_after="max_concurrent_requests",
        doc="of Icechunk; icefloe decodes where it reads",
    )
    _: KW_ONLY
    previous_file: Text = Option(
        str,
        written_after="manifest",
        is_shown_unset=False,
        doc="part of the format, without a meaning",
    )
    packing: Option[PackingConfig | None, ResolvedPacking] = SectionOption(
        PackingConfig,
        ResolvedPacking,
        absent=NO_PACKING,
        default_in_words="off",
        is_own=True,
        doc="`PackingConfig()` stores small chunks together",
    )

    def resolved(self) -> ResolvedConfig:
        """The values in force, with a default for each option that is not set.

        >>> icefloe.RepositoryConfig().resolved().inline_chunk_threshold_bytes
        512
        """
        defaults = _Program.defaults
        return ResolvedConfig(**vars(self if defaults is None else defaults.merge(self)))

    def validate(self) -> None:
        """Raise InvalidInputError if a container could not be used.

        For a config that a caller passes in. A persisted one is only reported on, see
        `icefloe.config.usable_containers`.

        >>> icefloe.RepositoryConfig(max_concurrent_requests=8).validate()
        """
        for container in (self.virtual_chunk_containers or {}).values():
            container.validate()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """A copy of the container whose url prefix or, failing that, whose name is `name`.

        >>> repo.config.get_virtual_chunk_container("s3://archive/") is None
        True
        """
        known = self.virtual_chunk_containers or {}
        found = known.get(name)
        if found is None:
            found = next((each for each in known.values() if each.name == name), None)
        return copy.deepcopy(found)

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add the container `cont`, in place of the one with the same name or url prefix.

        Raises:
            InvalidInputError: nothing could be read through it.

        >>> store = icefloe.s3_store(region="eu-west-1")
        >>> repo.config.set_virtual_chunk_container(
        ...     icefloe.VirtualChunkContainer("s3://archive/", store)
        ... )
        """
        if not isinstance(cont, VirtualChunkContainer):
            raise TypeError(f"expected a VirtualChunkContainer, found {cont!r}")
        cont.validate()
        others = {
            prefix: each
            for prefix, each in (self.virtual_chunk_containers or {}).items()
            if cont.name is None or each.name != cont.name
        }
        self.virtual_chunk_containers = {**others, cont.url_prefix: copy.deepcopy(cont)}

    def clear_virtual_chunk_containers(self) -> None:
        """Have no containers, also when merged over a config that has some.

        >>> repo.config.clear_virtual_chunk_containers()
        """
        self.virtual_chunk_containers = {}


class ResolvedConfig(Resolved, RepositoryConfig):
    """The settings in force: what the rest of icefloe works with."""


class _Program:
    defaults: RepositoryConfig | None = None


def set_program_defaults(defaults: RepositoryConfig | None) -> None:
    """Let this hold in this process where neither a repository nor who opens it says anything.

    The declared defaults stay what they are, and hold for what `defaults` does not set.
    """
    _Program.defaults = defaults
