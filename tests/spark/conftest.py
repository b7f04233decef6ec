"""One Spark session for all tests of a process, and only when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is an optional dependency")

from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import Repository, local_filesystem_storage
from tests.spark.versions import SPARK_VERSION

SPARK_SECONDS = 900
"""For tests that may be the one that starts Java, on a machine with other work to do."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SPARK_VERSION < (4, 0):
        config.addinivalue_line("filterwarnings", "ignore:distutils Version classes are deprecated")
    if SPARK_VERSION < (4, 2):
        # It leaves the socket of `collect` to the garbage collector, which may come much later.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = icefloe.spark.session(
        "local[2,4]",
        "icefloe tests",
        {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2},
    )
    yield session
    session.stop()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(tmp_path / "repository", durable=False))
