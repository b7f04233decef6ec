"""A repository at one snapshot, in the form that travels to Spark's workers.

The driver resolves a ref once and pins the snapshot, so every task of a job, its retries and
later actions see the same data. A worker opens the repository when it first needs it and keeps it
for the tasks that follow, with the decoded manifests in its caches.

Credentials travel inside pickled functions, never in options of a data source, which Spark prints
in plans. Storages that take theirs from the environment do so again on each worker.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.places.locations import MemoryLocation
from icefloe.storage.process_forks import RenewedLock
from icefloe.storage.spec import Storage

_KEPT = 8  # repositories a worker keeps open


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """What a task needs to read: the pickled repository and the id of a snapshot."""

    url: str
    snapshot_id: str
    repository: bytes = field(repr=False)

    def open(self) -> Session:
        """A session at the snapshot, shared by all tasks of this process."""
        return _opened(self)[1]

    def open_repository(self) -> Repository:
        """The repository, shared by all tasks of this process."""
        return _opened(self)[0]


_open: OrderedDict[tuple[int, PinnedSnapshot], tuple[Repository, Session]] = OrderedDict()
_open_lock = RenewedLock()


def _opened(source: PinnedSnapshot) -> tuple[Repository, Session]:
    # By process: connections do not survive the fork by which Spark makes workers.
    key = (os.getpid(), source)
    with _open_lock:
        found = _open.get(key)
        if found is None:
            repository: Repository = pickle.loads(source.repository)
            found = repository, repository.readonly_session(snapshot_id=source.snapshot_id)
            _open[key] = found
            while len(_open) > _KEPT:
                _open.popitem(last=False)
        else:
            _open.move_to_end(key)
        return found


def as_repository(repository: Repository | str) -> Repository:
    """A repository that workers can open: given as it is, or by its URL.

    Raises:
        InvalidInputError: it is kept in the memory of this process.
        RepositoryNotFoundError: nothing is stored at the URL.
    """
    if isinstance(repository, str):
        storage = storage_from_url(repository)
    elif isinstance(repository, Repository):
        storage = repository.storage
    else:
        raise InvalidInputError(
            f"repository is {repository!r:.80}, expected an icefloe.Repository or a URL such as "
            "'s3://bucket/prefix'"
        )
    require_shared(storage)
    return Repository.open(storage) if isinstance(repository, str) else repository


def require_shared(storage: Storage) -> None:
    """Refuse a storage that workers cannot reach.

    Raises:
        InvalidInputError: it is the memory of this process.
    """
    if isinstance(storage.location, MemoryLocation):
        raise InvalidInputError(
            f"{storage.describe()} is the memory of this process, which Spark's workers cannot "
            "read; keep the repository in a directory or a bucket",
            ErrorKind.STORAGE_CONFIG,
        )


def pin(
    repository: Repository,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> PinnedSnapshot:
    """The snapshot that a ref stands for now; branch `main` when nothing is given."""
    if branch is None and tag is None and snapshot_id is None:
        branch = "main"
    session = repository.readonly_session(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    return PinnedSnapshot(repository.storage.url, session.snapshot_id, pickle.dumps(repository))


REF_OPTIONS = ("branch", "tag", "snapshot", "as-of")


def pin_options(options: Mapping[str, str]) -> PinnedSnapshot:
    """The same from the options of a data source, which are text."""
    url = options.get("path")
    if not url:
        raise InvalidInputError(
            "the icefloe data source got no repository; give its URL to load(), such as "
            '.load("s3://bucket/prefix"). In SQL: CREATE TABLE t USING icefloe LOCATION '
            "'s3://bucket/prefix', without a list of columns"
        )
    return pin(as_repository(url), **ref_arguments(options))


def ref_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `pin` that options stand for."""
    instant = options.get("as-of")
    return {
        "branch": options.get("branch"),
        "tag": options.get("tag"),
        "snapshot_id": options.get("snapshot"),
        "as_of": None if instant is None else parse_instant(instant),
    }


def parse_instant(text: str) -> datetime:
    """A time in ISO form; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise InvalidInputError(
            f"as-of is {text!r}, expected a time such as '2026-05-31T12:00:00Z'"
        ) from None
