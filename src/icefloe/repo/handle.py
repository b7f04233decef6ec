"""What an operation needs to know about a repository: its files, version, settings and clock."""

from __future__ import annotations

import os
import time
from dataclasses import field
from typing import Any, TypeVar

from icefloe.assets.assets import Assets
from icefloe.config import RepositoryConfig
from icefloe.config.resolved import ResolvedConfig
from icefloe.errors import ErrorKind, FormatError, ReadOnlyError
from icefloe.ids import ObjectId
from icefloe.records import record
from icefloe.repo.contention import Contention
from icefloe.storage.driver import Driver, Version
from icefloe.storage.spec import Storage

Id = TypeVar("Id", bound=ObjectId)


class Clock:
    """Time and randomness, in one place so that tests can supply their own."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)


@record()
class Shared:
    """What all flavours of a repository's handle have in common and may change."""

    default_commit_metadata: dict[str, Any] = field(default_factory=dict)
    config_version: Version | None = None
    """Of config.yaml, in a version-1 repository."""
    clock_checked_at: int | None = None
    """When this machine's clock was last compared with the storage's, in microseconds."""
    contention: Contention = field(default_factory=Contention)


@record(frozen=True)
class RepoHandle:
    """One repository through one driver."""

    storage: Storage
    assets: Assets
    spec_version: int
    config: RepositoryConfig
    shared: Shared
    clock: Clock

    @property
    def driver(self) -> Driver:
        return self.assets.driver

    @property
    def settings(self) -> ResolvedConfig:
        return self.assets.settings

    def new_id(self, kind: type[Id]) -> Id:
        return kind(self.clock.random_bytes(kind.size))

    def require_version_2(self, what: str) -> None:
        """Refuse an operation that version-1 repositories have no place for."""
        if self.spec_version < 2:
            raise FormatError(
                f"{what} needs a repository of spec version 2, this one has version "
                f"{self.spec_version}; migrate it first",
                ErrorKind.UNSUPPORTED_SPEC_VERSION,
            )

    def require_writable(self) -> None:
        if not self.driver.can_write:
            raise ReadOnlyError(f"{self.storage!r} can only be read", ErrorKind.READ_ONLY_STORAGE)
