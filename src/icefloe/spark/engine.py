"""Writing from many tasks into one session.

The driver forks the session, so that every task starts from the same snapshot, whatever happens
to the branch meanwhile. Tasks write chunk objects with ids of their own and hand back blocks of
references; what a retried, speculative or lost task wrote besides is never referred to. The blocks
of the attempts that count become changes of the session, and its commit is the only moment at
which anything becomes visible.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.api.session import ForkSession, Session
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError, SessionStateError
from icefloe.format.chunk_index import sort_rows
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.ids import NodeId
from icefloe.repo.packing import store_packs
from icefloe.spark import ref_blocks
from icefloe.spark.ref_blocks import RefBlock
from icefloe.spark.runtime import parallelism
from icefloe.storage.run import run_blocking

ITEMS = "task bigint, item binary"
_TASKS_A_SLOT = 4  # so that a slow task does not leave the others idle at the end

Work = Callable[[ForkSession, Any], None]
"""What is done for one item: writes through the fork's store."""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a distributed write did. Nothing of it is visible before the session is committed."""

    chunks_written: int
    bytes_written: int
    seconds: float


def write_items(
    spark: SparkSession,
    session: Session,
    items: Sequence[Any],
    work: Work,
    *,
    num_tasks: int | None = None,
) -> WriteReport:
    """Do `work` for every item on the executors, and put the outcome into the session."""
    require_writable(session)
    started = time.monotonic()
    if not items:
        return WriteReport(0, 0, 0.0)
    base = session.snapshot_id
    run = partial(_write_task, session.fork(), work)
    rows = items_frame(spark, items, num_tasks).mapInArrow(run, ref_blocks.DDL).toArrow()
    chunks, size = take_blocks(session, base, rows)
    return WriteReport(chunks, size, time.monotonic() - started)


def items_frame(spark: SparkSession, items: Sequence[Any], num_tasks: int | None) -> DataFrame:
    """Work items as rows, spread over tasks in order: neighbours go to the same task."""
    tasks = min(len(items), num_tasks or parallelism(spark) * _TASKS_A_SLOT)
    table = pa.table(
        {
            "task": pa.array([at * tasks // len(items) for at in range(len(items))], pa.int64()),
            "item": pa.array([pickle.dumps(item) for item in items], pa.binary()),
        }
    )
    return spark.createDataFrame(table, ITEMS).repartitionByRange(tasks, "task")


def _write_task(
    fork: ForkSession, work: Work, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for item in batch.column("item"):
            work(fork, pickle.loads(item.as_py()))
            yield drain(fork)


def drain(fork: ForkSession) -> pa.RecordBatch:
    """Take the chunk edits out of a fork, once their objects are safe."""
    state, handle = fork._state, fork._handle
    run_blocking(store_packs(handle, state))
    run_blocking(handle.driver.sync())
    batch = ref_blocks.to_batch(ref_blocks.blocks_of(state.changes))
    state.discard()
    return batch


def take_blocks(session: Session, base: str, rows: pa.Table) -> tuple[int, int]:
    """Lay the blocks of all tasks over a session that is still at `base`; chunks and bytes."""
    state = session._state
    blocks: dict[NodeId, list[RefBlock]] = {}
    for block in ref_blocks.from_table(rows):
        blocks.setdefault(block.node_id, []).append(block)
    with state.lock:
        if session.snapshot_id != base or session.read_only:
            raise SessionStateError(
                f"the session moved from snapshot {base} to {session.snapshot_id} while Spark was "
                "writing; nothing was taken over, write again",
                ErrorKind.MERGE_NOT_ALLOWED,
            )
        nodes = {node.id: node for path in state.all_paths() if (node := state.node(path)).array}
        for node_id, made in blocks.items():
            refs = ChunkRefs.concat([block.refs for block in made])
            refs = refs.take(sort_rows(refs.index))
            deleted = np.concatenate([block.deleted for block in made])
            state.changes.edits(nodes[node_id]).set_table(refs, deleted[sort_rows(deleted)])
    return sum(rows["chunks"].to_pylist()), sum(rows["bytes"].to_pylist())


def require_writable(session: Session) -> None:
    """Refuse a session that could not take the changes, before any work is done."""
    if not isinstance(session, Session):
        raise InvalidInputError(
            f"session is a {type(session).__name__}, expected a writable Session "
            "(repository.writable_session(branch))"
        )
    if session.read_only:
        raise ReadOnlyError("the session only reads; open a writable_session to write with Spark")
