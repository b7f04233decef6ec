"""`materialize` by many tasks; the steps are those of `icefloe.exports.virtual_to_native`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import zarr
from pyspark.sql import SparkSession

from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession
from icefloe.changes.split_grid import ChunkSpan
from icefloe.exports.virtual_to_native import (
    CHUNKS_A_COMMIT,
    MESSAGE,
    ManifestOfArray,
    MaterializeReport,
    VirtualChunks,
    Wishes,
    begin_anew,
    commit_copies,
    copy_virtual,
    count_virtual,
    manifests_of,
    plan_items,
)
from icefloe.format.snapshot.file import Snapshot
from icefloe.scans.pinned import PinnedSnapshot, as_repository, pin
from icefloe.spark.maintenance.stages import Batches, WorkerRepository, run_task
from icefloe.spark.reads.reading import check_session
from icefloe.spark.writes.task_errors import as_raised
from icefloe.spark.writes.write_items import write_items
from icefloe.spark.writes.write_regions import write_regions
from icefloe.storage.run import run_blocking

_MAX_COUNTING_TASKS = 64
_COUNTS = pa.schema([("path", pa.string()), ("number", pa.int64()), ("virtual", pa.int64())])


def materialize(
    spark: SparkSession,
    repository: Repository | str,
    *,
    branch: str = "main",
    arrays: Sequence[str] | None = None,
    chunks: Mapping[str, Sequence[int]] | None = None,
    compressors: Any = None,
    message: str = MESSAGE,
    chunks_a_commit: int = CHUNKS_A_COMMIT,
) -> MaterializeReport:
    """`icefloe.materialize` by many tasks.

    Copies virtual chunks of a branch into the repository, byte for byte. Arrays named in `chunks`
    (path: shape of chunks), and with `compressors` all chosen arrays, are decoded and stored anew
    instead, in one commit each. After an interruption, repeat the call: only what is left is done.

    Args:
        arrays: paths of arrays; all that have virtual chunks when not given.
        chunks_a_commit: how many chunks go into one commit.
    """
    check_session(spark)
    opened = as_repository(repository)
    wishes = Wishes.of(arrays, chunks, compressors)
    done: list[str] = []
    total = size = 0
    tip = opened.readonly_session(branch).workspace.state.snapshot
    for path, shape in wishes.stored_anew(tip).items():
        session = opened.writable_session(branch)
        source = pin(opened, snapshot_id=session.snapshot_id)
        old = opened.readonly_session(snapshot_id=session.snapshot_id)
        if begin_anew(session, old, path, shape, compressors) is None:
            continue
        name = path.strip("/")
        report = write_regions(spark, session, name, partial(_read_source, source, name))
        total, size = total + report.chunks_written, size + report.bytes_written
        done.append(commit_copies(session, f"{message}: {path}"))
    while True:
        session = opened.writable_session(branch)
        left = _left(spark, opened, session.workspace.state.snapshot, wishes)
        items = plan_items(left, chunks_a_commit)
        if not items:
            return MaterializeReport(total, size, tuple(done))
        report = write_items(spark, session, items, _copy, chunks=_spans(items))
        total, size = total + report.chunks_written, size + report.bytes_written
        done.append(commit_copies(session, message))


def _left(
    spark: SparkSession, repository: Repository, snapshot: Snapshot, wishes: Wishes
) -> dict[ManifestOfArray, int]:
    """The virtual chunks of each manifest, counted by tasks."""
    manifests = manifests_of(snapshot, wishes)
    if not manifests:
        return {}
    rows = spark.createDataFrame(
        pa.table(
            {
                "path": pa.array([one.path for one in manifests], pa.string()),
                "number": pa.array([one.number for one in manifests], pa.int64()),
                "manifest_id": pa.array([one.manifest_id for one in manifests], pa.binary()),
                "node_id": pa.array([one.node_id for one in manifests], pa.binary()),
                "size_bytes": pa.array([one.size_bytes for one in manifests], pa.int64()),
                "grid": pa.array([list(one.grid) for one in manifests], pa.list_(pa.int64())),
            }
        )
    )
    rows = rows.repartition(min(len(manifests), _MAX_COUNTING_TASKS), "manifest_id")
    with as_raised():
        found = run_task(rows, WorkerRepository.of(repository), _count_task, _COUNTS).toArrow()
    counted = {(row["path"], row["number"]): row["virtual"] for row in found.to_pylist()}
    return {one: counted[one.path, one.number] for one in manifests}


def _count_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            one = ManifestOfArray(**{**row, "grid": tuple(row["grid"]), "extents": ()})
            number = run_blocking(count_virtual(source.handle, one))
            told = {"path": one.path, "number": one.number, "virtual": number}
            yield pa.RecordBatch.from_pylist([told], schema=_COUNTS)


def _spans(items: Sequence[VirtualChunks]) -> dict[str, ChunkSpan]:
    """The chunks that the items may set, by array."""
    spans = {}
    for path in {item.manifest.path for item in items}:
        mine = [item for item in items if item.manifest.path == path]
        sides = zip(*(item.manifest.extents for item in mine), strict=True)
        box = tuple((min(a for a, _ in side), max(b for _, b in side)) for side in sides)
        spans[path] = ChunkSpan(sum(item.num_chunks for item in mine), box)
    return spans


def _copy(fork: ForkSession, item: VirtualChunks) -> None:
    run_blocking(copy_virtual(fork.workspace, item))


def _read_source(source: PinnedSnapshot, name: str, region: Any) -> Any:
    return zarr.open_array(source.open().store, path=name, mode="r")[region.slices]
