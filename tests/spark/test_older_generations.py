"""Older generations on Spark: the same calls read them, and executors migrate them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("icechunk", reason="official icechunk 2 needs Python 3.12")

import zarr
from pyspark.sql import SparkSession

import icefloe
import icefloe.spark
from icefloe import NumberedRefs
from tests.legacy.migration.test_migration import access, check_migrated, config_of
from tests.legacy.migration.test_written_generations import values, write_history
from tests.legacy.numbered.releases import RELEASES
from tests.legacy.numbered.test_old_releases import built


@pytest.mark.parametrize("release", ["2024-09", "alpha.8", "0.1.0"])
def test_executors_migrate_what_one_process_would(
    spark: SparkSession, tmp_path: Path, release: str
) -> None:
    world, old = built(RELEASES[release], tmp_path, 5)
    config = config_of(tmp_path)
    alone = icefloe.local_filesystem_storage(str(tmp_path / "alone"))
    together = icefloe.local_filesystem_storage(str(tmp_path / "together"))
    expected = icefloe.migrate_repository(old, alone, config=config)
    report = icefloe.spark.migrate_repository(spark, old, together, config=config)
    assert report.snapshots == expected.snapshots
    assert (report.manifests, report.chunk_references) == (
        expected.manifests,
        expected.chunk_references,
    )
    assert report.chunks_compared >= expected.chunks_compared
    kinds = ("snapshots/", "manifests/", "transactions/", "chunks/")
    one, other = (
        {key: size for key, size in place.list_objects() if key.startswith(kinds)}
        for place in (alone, together)
    )
    assert one == other
    repo = icefloe.Repository.open(together, authorize_virtual_chunk_access=access(tmp_path))
    check_migrated(world, repo, report)


def test_numbered_refs_are_read_and_written_by_the_same_calls(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "repo")), generation=NumberedRefs()
    )
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    data = root.create_array("t2m", shape=(4, 6), chunks=(2, 3), dtype="f4", dimension_names="tx")
    data[:] = np.arange(24).reshape(4, 6)
    session.commit("first")
    cells = icefloe.spark.read(spark, repo)
    assert cells.count() == 24
    assert cells.agg({"t2m": "sum"}).collect()[0][0] == pytest.approx(276.0)
    snapshots = icefloe.spark.table(spark, repo, "snapshots")
    assert {row["message"] for row in snapshots.collect()} >= {"first"}
    chunks: Any = icefloe.spark.table(spark, repo, "chunks")
    assert chunks.count() == 4


def test_histories_written_today(spark: SparkSession, tmp_path: Path) -> None:
    old = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "old")), generation=NumberedRefs("msgpack")
    )
    expected = write_history(old, seed=3)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    icefloe.spark.migrate_repository(spark, old, target)
    assert values(icefloe.Repository.open(target)) == expected


def test_a_target_that_was_removed_is_written_again(spark: SparkSession, tmp_path: Path) -> None:
    """Workers are used again; what they have copied before is not there any more."""
    world, old = built(RELEASES["0.1.0"], tmp_path, 2)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    config = config_of(tmp_path)
    icefloe.spark.migrate_repository(spark, old, target, config=config)
    shutil.rmtree(tmp_path / "new")
    report = icefloe.spark.migrate_repository(spark, old, target, config=config)
    repo = icefloe.Repository.open(target, authorize_virtual_chunk_access=access(tmp_path))
    check_migrated(world, repo, report)
