"""Writes that happen once, however often they are tried: the commit says which one it was.

An application numbers its writes. The number is in the metadata of the commit, so that it becomes
visible together with the data or not at all, and a write that is tried again finds it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError

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
