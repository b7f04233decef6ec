"""Changes as a stream: `spark.readStream.format("icefloe").option("table", "changes")`.

An offset is a snapshot of the branch; a micro-batch has the commits between two of them, each
exactly once. `start-snapshot` is where a new query begins: after that snapshot, `latest` for what
is committed from now on, or (unless given) the whole history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.scans.metadata.changes import Commit, find_commits, read_commits
from icefloe.scans.pinned import PinnedSnapshot, as_repository, pin
from icefloe.spark.runtime.tasks import prepare_worker

_KEY = "snapshot"
_BEFORE_ALL = ""
_COMMITS_PER_PARTITION = 16


class ChangeStreamReader(DataSourceStreamReader):
    """Follows one branch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in ("tag", "snapshot", "as-of"):
            if name in options:
                raise InvalidInputError(f"a stream follows a branch; {name} cannot be given")
        self._url = options.get("path", "")
        self._branch = options.get("branch", "main")
        self._start = options.get("start-snapshot", _BEFORE_ALL)
        self._limit = _commit_limit(options)
        # Tells at once if there is no such repository or branch, and carries what tasks need.
        self._source: PinnedSnapshot = pin(as_repository(self._url), branch=self._branch)
        if self._start not in (_BEFORE_ALL, "latest"):
            find_commits(self._repository(), self._start, self._source.snapshot_id)

    def _repository(self) -> Repository:
        return self._source.open_repository()

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        if self._start == "latest":
            return {_KEY: self._repository().lookup_branch(self._branch)}
        return {_KEY: self._start}

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, str] | None = None, limit: Any = None
    ) -> dict[str, str]:
        """The tip of the branch, or a commit on the way to it; Spark before 4.2 has no `start`."""
        tip = self._repository().lookup_branch(self._branch)
        if start is None or self._limit is None or type(limit).__name__ == "ReadAllAvailable":
            return {_KEY: tip}
        commits = find_commits(self._repository(), start[_KEY] or None, tip)
        return {_KEY: commits[: self._limit][-1].id.text} if commits else start

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Asks Spark (4.2 and newer) to respect `max-commits-per-trigger`."""
        if self._limit is None:
            return super().getDefaultReadLimit()
        from pyspark.sql.streaming.datasource import ReadMaxFiles  # noqa: PLC0415 - since 4.2

        return ReadMaxFiles(self._limit)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """The commits between two offsets, in groups."""
        if start[_KEY] == end[_KEY]:
            return []
        commits = find_commits(self._repository(), start[_KEY] or None, end[_KEY])
        return [
            InputPartition(tuple(commits[first : first + _COMMITS_PER_PARTITION]))
            for first in range(0, len(commits), _COMMITS_PER_PARTITION)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        commits: Sequence[Commit] = partition.value or ()
        yield from read_commits(self._source, commits)


def _commit_limit(options: Mapping[str, str]) -> int | None:
    text = options.get("max-commits-per-trigger")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInputError(f"max-commits-per-trigger is {text!r}, expected a number from 1 on")
    return int(text)
