"""Items of work reach tasks in order, however many bytes they have."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe.spark import tasks as module
from icefloe.spark.tasks import map_items


def numbers_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for a task: the numbers of its items, as text."""
    found = [pickle.loads(item.as_py())[0] for batch in batches for item in batch.column("item")]
    yield pa.record_batch([pa.array([",".join(map(str, found))])], ["numbers"])


@pytest.mark.parametrize("item_bytes", [10, 400_000], ids=["carried", "as rows"])
@pytest.mark.parametrize(("count", "tasks"), [(1, 4), (7, 3), (8, 8)])
def test_every_item_is_done_once_next_to_its_neighbours(
    spark: SparkSession, count: int, tasks: int, item_bytes: int
) -> None:
    items = [(number, os.urandom(item_bytes)) for number in range(count)]
    rows = map_items(spark, items, numbers_of, "numbers string", tasks).collect()
    parts = [[int(text) for text in row.numbers.split(",")] for row in rows if row.numbers]
    assert sorted(chain.from_iterable(parts)) == list(range(count))
    assert all(part == list(range(part[0], part[-1] + 1)) for part in parts)
    assert len(parts) == min(count, tasks)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert (item_bytes * count > module._MAX_CARRIED_BYTES) == (item_bytes > 10 and count > 2)


def test_reports_of_writes_show_themselves() -> None:
    table = icefloe.spark.TableReport("1CECHNKREP0F1RSTCMT0", 1, 1_250_000, 0.25)
    assert str(table) == repr(table)
    assert repr(table) == (
        "<icefloe.spark.TableReport>\ncommit: 1CECHNKREP0F1RSTCMT0\n"
        "written: 1 chunk (1.2 MB)\nseconds: 0.2\n"
    )
    dataset = icefloe.spark.DatasetReport(None, 2000, 0, 1)
    assert "commit: none, the changes wait in the session\n" in repr(dataset)
    assert "written: 2,000 chunks (0 B)\n" in repr(dataset)
    for report in (table, dataset, icefloe.spark.WriteReport(0, 0, 0)):
        html = report._repr_html_()
        assert type(report).__name__ in html
        assert "seconds" in html


def test_the_names_of_the_package_are_public_ones() -> None:
    package = icefloe.spark
    assert set(dir(package)) == {*package.__all__, "maintenance"}
    assert all(getattr(package, name) is not None for name in dir(package))
