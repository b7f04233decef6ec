"""The virtual half of an ingest: references meet their placements on the executors."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.api.session import Session
from icefloe.format.columns.arrow_columns import unpack_table
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.writes import ref_blocks
from icefloe.spark.writes.shared_write import TaskSide, share
from icefloe.virtual.ingest.run_ingest import FillCounts
from icefloe.virtual.ingest.transfer import place_references, placement_of
from icefloe.virtual.planning.plan import IngestPlan


def refer(
    spark: SparkSession, session: Session, plan: IngestPlan, scanned: DataFrame
) -> tuple[FillCounts, dict[str, str]]:
    """Put the references of all virtual arrays into a session.

    Chunks and bytes are of those that had to be stored, because no reference can say what they
    are. Also tells which files cannot be referred to, and why.
    """
    placements = _placements(plan)
    if not placements.num_rows:
        return FillCounts(), {}
    virtual = [array for array in plan.arrays if array.storage == "virtual"]
    shared = share(session, {array.target: array.new_chunks for array in virtual})
    # Small beside the references, and joined by name: where files are scanned does not matter.
    wanted = spark.createDataFrame(placements)
    found = scanned.where("path IS NOT NULL").select("location", "path", "data")
    work = partial(_place_task, shared.tasks)
    joined = found.join(wanted, ["location", "path"]).select("data", "placement")
    counts, told = shared.run_told(map_batches(joined, work, ref_blocks.DDL))
    damaged: dict[str, str] = {}
    for found in told:
        damaged |= found
    return FillCounts(counts.chunks - counts.virtual, counts.bytes, counts.virtual), damaged


def _placements(plan: IngestPlan) -> pa.Table:
    """One row for each variable of each file that is referred to."""
    locations, paths, placements = [], [], []
    for array in plan.arrays:
        if array.storage != "virtual":
            continue
        for row, number in enumerate(array.sources.tolist()):
            locations.append(plan.sources[number].location)
            paths.append(array.path)
            placements.append(pickle.dumps(placement_of(plan, array, row)))
    columns = [
        pa.array(locations, pa.string()),
        pa.array(paths, pa.string()),
        pa.array(placements, pa.binary()),
    ]
    return pa.Table.from_arrays(columns, ["location", "path", "placement"])


def _place_task(tasks: TaskSide, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        damaged: dict[str, str] = {}
        rows = zip(batch.column("data"), batch.column("placement"), strict=True)
        found = (
            (pickle.loads(placement.as_py()), unpack_table(data.as_py()))
            for data, placement in rows
        )
        place_references(tasks.fork.store, found, damaged)
        yield tasks.drain()
        if damaged:
            yield ref_blocks.told_batch(damaged)
