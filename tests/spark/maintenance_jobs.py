"""Maintenance as jobs that executors die in; one process that does the same says what is right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import zarr
from pyspark.sql import SparkSession
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icefloe import Repository
from icefloe.spark.maintenance import garbage_collect, materialize, rewrite_manifests
from tests.spark.fault_jobs import JOBS, MANIFEST, Job, Place

DELETION = ("delete", "chunks/")


def _begin_virtual(place: Place, repository: Repository) -> None:
    job = JOBS["virtual"]
    job.begin(place, repository)
    job.alone(place, repository)


def _materialize(spark: SparkSession, place: Place, repository: Repository) -> None:
    materialize(spark, repository)


def _materialize_alone(place: Place, repository: Repository) -> None:
    """Read the bytes of every virtual chunk and write them again."""
    session = repository.writable_session("main")
    store: Any = session.store
    prototype = default_buffer_prototype()
    virtual = set(session.all_virtual_chunk_locations())
    assert virtual
    root = zarr.open_group(store, mode="r")
    for path, node in root.members(max_depth=None):
        if isinstance(node, zarr.Array):
            for key in sync(_keys(store, path)):
                sync(store.set(key, sync(store.get(key, prototype))))
    session.commit("all chunks are native")


async def _keys(store: Any, prefix: str) -> list[str]:
    """The keys of the chunks of an array."""
    keys = [key async for key in store.list_prefix(prefix)]
    return [key for key in keys if key.startswith(f"{prefix}/c/")]


def _begin_garbage(place: Place, repository: Repository) -> None:
    JOBS["regions"].begin(place, repository)
    tip = repository.lookup_branch("main")
    JOBS["regions"].alone(place, repository)
    repository.reset_branch("main", tip)


def _later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def _collect(spark: SparkSession, place: Place, repository: Repository) -> None:
    garbage_collect(spark, repository, _later())


def _collect_alone(place: Place, repository: Repository) -> None:
    repository.garbage_collect(_later())


def _rewrite(spark: SparkSession, place: Place, repository: Repository) -> None:
    rewrite_manifests(spark, repository, "again", branch="main")


def _rewrite_alone(place: Place, repository: Repository) -> None:
    repository.rewrite_manifests("again", branch="main")


MAINTENANCE_JOBS = {
    "materialize": Job(_begin_virtual, _materialize, _materialize_alone),
    "collect": Job(_begin_garbage, _collect, _collect_alone, DELETION),
    "rewrite": Job(_begin_virtual, _rewrite, _rewrite_alone, MANIFEST),
}
