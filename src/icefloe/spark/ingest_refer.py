"""The virtual half of an ingest: references meet their placements on the executors."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark import ref_blocks
from icefloe.spark.ingest_scan import unpack_table
from icefloe.spark.shared_write import TaskSide, share
from icefloe.store.location_columns import match_containers
from icefloe.virtual.plan import IngestPlan
from icefloe.virtual.transfer import Placement, placement_of, write_references


def refer(
    spark: SparkSession, session: Session, plan: IngestPlan, scanned: DataFrame
) -> tuple[int, int, int]:
    """Put the references of all virtual arrays into a session: references, chunks and bytes.

    The last two are of chunks that had to be stored, because no reference can say what they are.
    """
    placements = _placements(plan)
    if not placements.num_rows:
        return 0, 0, 0
    virtual = [array for array in plan.arrays if array.storage == "virtual"]
    shared = share(session, {array.target: array.new_chunks for array in virtual})
    # Small beside the references, and joined by name: where files are scanned does not matter.
    wanted = spark.createDataFrame(placements)
    found = scanned.where("path IS NOT NULL").select("location", "path", "data")
    work = partial(_place_task, shared.tasks)
    joined = found.join(wanted, ["location", "path"]).select("data", "placement")
    counts = shared.run(joined.mapInArrow(work, ref_blocks.DDL))
    return counts.virtual, counts.chunks - counts.virtual, counts.bytes


def require_containers(session: Session, plan: IngestPlan) -> None:
    """Refuse files that no container covers, before any work is done.

    Raises:
        InvalidInputError: names one of them.
    """
    virtual = [array for array in plan.arrays if array.storage == "virtual"]
    numbers = {number for array in virtual for number in array.sources.tolist()}
    sources = [plan.sources[number] for number in sorted(numbers)]
    # Chunks of a Zarr store are objects of their own below it; tasks look at those.
    locations = [source.location for source in sources if not source.format.startswith("zarr")]
    containers = session._handle.assets.virtual.access.containers
    is_covered = match_containers(pa.array(locations, pa.string()), containers).number >= 0
    if not is_covered.all():
        first = locations[int(np.argmin(is_covered))]
        raise InvalidInputError(
            f"no virtual chunk container covers {first}; add one to the configuration of the "
            "repository, with set_virtual_chunk_container, and save it",
            ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _placements(plan: IngestPlan) -> pa.Table:
    """One row for each variable of each file that is referred to."""
    locations, paths, placements = [], [], []
    for array in plan.arrays:
        if array.storage != "virtual":
            continue
        for row, number in enumerate(array.sources.tolist()):
            locations.append(plan.sources[number].location)
            paths.append(array.path)
            placements.append(pickle.dumps((array.target, placement_of(plan, array, row))))
    columns = [
        pa.array(locations, pa.string()),
        pa.array(paths, pa.string()),
        pa.array(placements, pa.binary()),
    ]
    return pa.Table.from_arrays(columns, ["location", "path", "placement"])


def _place_task(tasks: TaskSide, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        tables: dict[str, list[pa.Table]] = {}
        store = tasks.fork.store
        rows = zip(batch.column("data"), batch.column("placement"), strict=True)
        for data, pickled in rows:
            place: Placement
            target, place = pickle.loads(pickled.as_py())
            table = place.place(unpack_table(data.as_py()))
            if table is None:
                continue
            if "inline" in table.column_names:
                write_references(store, target, table)
            else:
                tables.setdefault(target, []).append(table)
        for target, parts in tables.items():
            # All at once: a session lays every table it is given over the ones before.
            whole = pa.concat_tables(parts, promote_options="default")
            write_references(store, target, whole)
        yield tasks.drain()
