"""How a repository talks to its storage: concurrency, retries, timeouts, storage classes.

Only the options are here. Backends have defaults of their own, which the storage layer
merges below these; `resolved.py` has the defaults that apply to every backend.
"""

from __future__ import annotations

from icefloe.config.resolved import ResolvedStorage, resolve
from icefloe.config.section import (
    OptionalNonzeroU16,
    OptionalNonzeroU64,
    OptionalU32,
    OptionalU64,
    Section,
)
from icefloe.records import record


@record()
class StorageConcurrencySettings(Section):
    """How one large object is split into concurrent requests."""

    shown_in = "storage"

    max_concurrent_requests_for_object: OptionalNonzeroU16 = None
    ideal_concurrent_request_size: OptionalNonzeroU64 = None


@record()
class StorageRetriesSettings(Section):
    """How often a failed request is sent again; `max_tries` counts the first one."""

    shown_in = "storage"

    max_tries: OptionalNonzeroU16 = None
    initial_backoff_ms: OptionalU32 = None
    max_backoff_ms: OptionalU32 = None


@record()
class StorageTimeoutSettings(Section):
    """How long a request may take; unset leaves the choice to the storage client."""

    shown_in = "storage"

    connect_timeout_ms: OptionalU32 = None
    read_timeout_ms: OptionalU32 = None
    operation_timeout_ms: OptionalU32 = None
    operation_attempt_timeout_ms: OptionalU32 = None


@record()
class StorageSettings(Section):
    """Everything about the storage that is kept with the repository.

    The three `unsafe_use_*` options are for storages that lack a feature. Switching off the
    conditional ones gives up the guarantee that no commit is lost.
    """

    shown_in = "storage"

    concurrency: StorageConcurrencySettings | None = None
    retries: StorageRetriesSettings | None = None
    unsafe_use_conditional_create: bool | None = None
    unsafe_use_conditional_update: bool | None = None
    unsafe_use_metadata: bool | None = None
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: OptionalU64 = None
    timeouts: StorageTimeoutSettings | None = None

    def resolved(self) -> ResolvedStorage:
        """The values in force, with a default for each option that is not set."""
        return resolve(ResolvedStorage(), self)
