"""Writes that happen once, however often they are tried: the commit says which one it was.

An application numbers its writes. The number is in the metadata of the commit, so that it becomes
visible together with the data or not at all, and a write that is tried again finds it there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.api.repository import Repository
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.run import run_blocking

APP_KEY = "icefloe.stream.app"
BATCH_KEY = "icefloe.stream.batch"


@dataclass(frozen=True, slots=True)
class BatchId:
    """One write of an application; numbers only grow."""

    app: str
    batch: int

    @classmethod
    def of(cls, given: Any) -> BatchId | None:
        """From what a caller gave: an application and a number, or None."""
        if given is None:
            return None
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        if not is_pair or not isinstance(given[0], str) or not given[0]:
            raise InvalidInputError(
                f"transaction is {given!r:.80}, expected the name of an application and a number, "
                "such as ('nightly', 12)"
            )
        if isinstance(given[1], bool) or not isinstance(given[1], int):
            raise InvalidInputError(f"transaction has {given[1]!r:.80}, expected a whole number")
        return cls(given[0], given[1])

    @property
    def metadata(self) -> dict[str, Any]:
        """What the commit says about it."""
        return {APP_KEY: self.app, BATCH_KEY: self.batch}

    def find(self, repository: Repository, snapshot_id: str) -> str | None:
        """The commit before or at a snapshot that has this write, or a later one of the same
        application; None if it has to be written."""
        for info in repository.ancestry(snapshot_id=snapshot_id):
            if info.metadata.get(APP_KEY) == self.app:
                return info.id if int(info.metadata[BATCH_KEY]) >= self.batch else None
        return None


def app_of(options: Mapping[str, str]) -> str:
    """The name under which a query numbers its batches."""
    given = options.get("app-id")
    if given:
        return given
    location = options.get("checkpointLocation") or options.get("checkpointlocation")
    if not location:
        raise InvalidInputError(
            "option app-id is missing, expected a name for this query that stays the same when it "
            "is started again; or give option checkpointLocation"
        )
    try:
        return query_id(location)
    except (IcefloeError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"option app-id is missing, and the id of the query was not found in its checkpoint "
            f"{location}: {error}; give app-id, a name that stays the same as long as the "
            "checkpoint does"
        ) from error


def query_id(checkpoint: str) -> str:
    """What Spark calls the query of a checkpoint, from its file `metadata`.

    Raises:
        ValueError: the file is not as Spark writes it.
    """
    driver = storage_from_url(checkpoint).driver(blocking=True)
    found = json.loads(bytes(run_blocking(driver.get("metadata"))))
    name = found.get("id") if isinstance(found, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"metadata is {found!r:.80}, expected an id")
    return name
