"""Manifests written by the tasks of a big job, so that the driver never sees their references.

Tasks cut the references they made at the borders of splits. A second stage brings those of one
split together; its task lays them over the manifests the split has, with the code that a commit
uses, writes the new manifest and hands back how it is referred to. A task that is repeated leaves
a manifest that nobody refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from icefloe import paths
from icefloe.api.session import ForkSession, Session
from icefloe.changes.prepared import PreparedSplit, manifest_ids
from icefloe.changes.split_grid import Rows, Splits
from icefloe.changes.split_sizes import split_sizes
from icefloe.changes.splits import plan_array
from icefloe.format.chunk_index import Index, sort_rows
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ArrayData
from icefloe.format.packed_index import PackedIndex
from icefloe.ids import ManifestId, NodeId
from icefloe.repo.write_manifests import write_manifests
from icefloe.spark import ref_blocks
from icefloe.spark.ref_blocks import Counts, RefBlock
from icefloe.spark.runtime import parallelism
from icefloe.storage.run import run_blocking

REDUCED_FROM = 1 << 19
"""Chunks of a job, from which on its tasks write manifests: four of the size that arrays are cut
into by themselves. Less is merged by the driver in about the time a second stage takes to start."""

LEAST_A_SPLIT = 64
"""Chunks a manifest, at least, on the whole."""

_CHUNKS_A_TASK = 1 << 19  # a few megabytes of blocks
_TASKS_A_SLOT = 4
_MOST_SPLITS = 2**63  # that a column of numbers can tell apart


@dataclass(frozen=True, slots=True)
class Reduction:
    """An array whose manifests the tasks write."""

    path: str
    sizes: tuple[int, ...]
    """Of its splits."""
    num_splits: int
    num_chunks: int
    """That the job may set, at most."""
    over: tuple[ManifestId, ...]
    """The manifests that are there already."""


Reductions = Mapping[NodeId, Reduction]


def plan_reductions(
    session: Session, fork: ForkSession, num_chunks: Mapping[str, int]
) -> dict[NodeId, Reduction]:
    """Which arrays the tasks write manifests of, given how many chunks of each they may set.

    None in a small job. An array is left to the driver where the session has edits of its chunks,
    which lie below those of the job, where its manifests have to be cut anew first, and where
    its splits are so small that the driver would hear as much of manifests as of chunks.
    """
    if sum(num_chunks.values()) < REDUCED_FROM:
        return {}
    state = fork._state
    sizes_of = split_sizes(fork._handle.settings.manifest)
    found = {}
    for path, most in num_chunks.items():
        node, array = state.array(paths.validate("/" + path.strip("/")))
        over = manifest_ids(array)
        cells = prod(dimension.num_chunks for dimension in array.shape)
        num_refs = min(cells, most + state.manifest_files.refs_in(over))
        sizes = sizes_of(node.path, array, num_refs).sizes
        if not cells or over != manifest_ids(session._state.node(node.path).array):
            continue
        if plan_array(array, [], sizes).rewrites:
            continue
        count = _splits(array, sizes).count
        num_splits = min(count, most)
        if count < _MOST_SPLITS and most >= LEAST_A_SPLIT * num_splits:
            found[node.id] = Reduction(node.path, sizes, num_splits, most, over)
    return found


def cut_blocks(fork: ForkSession, plan: Reductions) -> Iterator[RefBlock]:
    """The chunk edits of a task, those of arrays in the plan cut at the borders of splits."""
    for node_id, edits in fork._state.changes.chunks.items():
        refs, deleted = edits.columns()
        reduction = plan.get(node_id)
        if reduction is None:
            yield RefBlock(node_id, refs, deleted)
            continue
        _, array = fork._state.array(reduction.path)
        splits = _splits(array, reduction.sizes)
        kept: dict[int, Rows] = dict(splits.group(refs.index))
        gone: dict[int, Rows] = dict(splits.group(deleted))
        none = slice(0, 0)
        for number in sorted(kept.keys() | gone.keys()):
            part = refs.take(kept.get(number, none)).compact()
            yield RefBlock(node_id, part, deleted[gone.get(number, none)], number)


def reduce_blocks(rows: DataFrame, fork: ForkSession, plan: Reductions) -> DataFrame:
    """Blocks of references as splits that are written; those of other arrays stay as they are."""
    total = sum(reduction.num_splits for reduction in plan.values())
    fair = parallelism(rows.sparkSession) * _TASKS_A_SLOT
    chunks = sum(reduction.num_chunks for reduction in plan.values())
    tasks = min(total, max(fair, chunks // _CHUNKS_A_TASK))
    together = rows.repartition(tasks, "node_id", "split").sortWithinPartitions("node_id", "split")
    return together.mapInArrow(partial(reduce_task, fork, plan), ref_blocks.DDL)


def reduce_task(
    fork: ForkSession, plan: Reductions, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the manifests of the blocks that come, those of a split one after the other."""
    waiting: list[RefBlock] = []
    for batch in batches:
        is_cut = pc.not_equal(batch.column("split"), ref_blocks.UNCUT)
        yield batch.filter(pc.invert(is_cut))
        for block in ref_blocks.from_batch(batch.filter(is_cut)):
            if waiting and (waiting[0].node_id, waiting[0].split) != (block.node_id, block.split):
                yield _reduced(fork, plan, waiting)
                waiting = []
            waiting.append(block)
    if waiting:
        yield _reduced(fork, plan, waiting)


def _reduced(fork: ForkSession, plan: Reductions, blocks: list[RefBlock]) -> pa.RecordBatch:
    first = blocks[0]
    refs, deleted = ref_blocks.joined(blocks)
    split = write_split(fork, plan[first.node_id], first.node_id, refs, deleted)
    counts = [Counts.of(block.refs) for block in blocks]
    return ref_blocks.made_batch(first.node_id, first.split, split, Counts.total(counts))


def write_split(
    fork: ForkSession, reduction: Reduction, node_id: NodeId, refs: ChunkRefs, deleted: Index
) -> PreparedSplit:
    """Lay the edits of one split over what is there, and write its manifest."""
    state, handle = fork._state, fork._handle
    _, array = state.array(reduction.path)
    plan = plan_array(array, [(refs, deleted)], reduction.sizes)
    (rewrite,) = plan.rewrites
    made = run_blocking(write_manifests(handle, {node_id: plan}, state.manifest_files))
    run_blocking(handle.driver.sync())
    both = np.concatenate([deleted, refs.index])
    new = made.get(node_id, [])
    return PreparedSplit(
        rewrite.box,
        tuple(ref.id for ref in rewrite.sources),
        new[0] if new else None,
        PackedIndex.pack(both[sort_rows(both)] if len(deleted) else refs.index),
    )


def _splits(array: ArrayData, sizes: tuple[int, ...]) -> Splits:
    return Splits([dimension.num_chunks for dimension in array.shape], sizes)
