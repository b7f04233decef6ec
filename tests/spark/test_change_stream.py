"""Offsets of the change stream over a branch. No Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="Spark 4.0 brought data sources in Python")


from icefloe import InvalidInputError, Repository
from icefloe.spark.data_source import ChangeStreamReader
from tests.spark.test_tables import history
from tests.spark.versions import SPARK_VERSION


@pytest.fixture
def past(tmp_path: Path) -> Repository:
    return history(tmp_path, 2)


def reader(repository: Repository, **options: Any) -> ChangeStreamReader:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return ChangeStreamReader({"path": repository.storage.url, **named})


def read(stream: ChangeStreamReader, start: dict[str, str], end: dict[str, str]) -> list[str]:
    return [
        row["snapshot_id"]
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def test_offsets_are_snapshots_of_the_branch(past: Repository) -> None:
    chain = [info.id for info in past.ancestry(branch="main")]
    stream = reader(past)
    start, end = stream.initialOffset(), stream.latestOffset()
    assert (start, end) == ({"snapshot": ""}, {"snapshot": chain[0]})
    assert set(read(stream, start, end)) == set(chain[:3])
    assert read(stream, end, end) == []
    later = reader(past, start_snapshot=chain[1])
    assert set(read(later, later.initialOffset(), end)) == {chain[0]}
    latest = reader(past, start_snapshot="latest")
    assert latest.initialOffset() == end
    other = reader(past, branch="other")
    assert other.latestOffset() == {"snapshot": chain[1]}


@pytest.mark.skipif(SPARK_VERSION < (4, 2), reason="Spark limits triggers since 4.2")
def test_a_trigger_can_be_limited_to_some_commits(past: Repository) -> None:
    chain = [info.id for info in past.ancestry(branch="main")]
    stream = reader(past, max_commits_per_trigger="1")
    at, seen = stream.initialOffset(), []
    for _ in range(10):
        following = stream.latestOffset(at, stream.getDefaultReadLimit())
        if following == at:
            break
        seen.append(following["snapshot"])
        at = following
    assert seen == chain[::-1]


def test_a_branch_that_was_reset_is_told(past: Repository) -> None:
    chain = [info.id for info in past.ancestry(branch="main")]
    stream = reader(past)
    end = stream.latestOffset()
    past.reset_branch("main", chain[2])
    with pytest.raises(InvalidInputError, match="was reset, amended or expired"):
        stream.partitions(end, stream.latestOffset())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tag": "filled"}, "tag cannot be given"),
        ({"as_of": "2020-01-01"}, "as-of cannot be given"),
        ({"branch": "nowhere"}, "nowhere"),
        ({"start_snapshot": "0" * 20}, "not an ancestor"),
        ({"start_snapshot": "first"}, "snapshot id 'first'"),
        ({"max_commits_per_trigger": "0"}, "number from 1 on"),
    ],
)
def test_bad_options_are_refused(past: Repository, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        reader(past, **options)
