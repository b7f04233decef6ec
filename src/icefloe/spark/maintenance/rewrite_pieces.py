"""`rewrite_manifests` on Spark: pieces of arrays are read, cut anew and written by tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.prepared import manifest_ids
from icefloe.changes.split_grid import Splits
from icefloe.changes.split_sizes import split_sizes
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.ids import NodeId
from icefloe.repo.rewrite import splitting_metadata
from icefloe.scans.pinned import as_repository
from icefloe.spark.reads.reading import check_session
from icefloe.spark.writes import ref_blocks
from icefloe.spark.writes.reducers import Reduction
from icefloe.spark.writes.ref_blocks import RefBlock
from icefloe.spark.writes.shared_write import SharedWrite, TaskSide


def rewrite_manifests(
    spark: SparkSession,
    repository: Repository | str,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """`Repository.rewrite_manifests` by many tasks; returns the id of the new snapshot.

    A task reads the manifests that share chunks with its piece of an array and writes those of the
    piece. The driver hears of manifests, not of references.

    Raises:
        ConflictError: someone else committed to the branch meanwhile; nothing has changed.
    """
    check_session(spark)
    session = as_repository(repository).writable_session(branch)
    base, fork = session.snapshot_id, session.fork()
    plan = _plan(session)
    blocks = []
    for node_id, reduction in plan.items():
        nothing = ChunkRefs.empty(len(reduction.sizes))
        blocks += [RefBlock(node_id, nothing, nothing.index, number) for number in reduction.cut]
    if blocks:
        rows = spark.createDataFrame(pa.Table.from_batches([ref_blocks.to_batch(blocks)]))
        SharedWrite(session, base, TaskSide(fork, plan)).run(rows)
    described = splitting_metadata(session.handle)
    return session.commit(message, {**(metadata or {}), **described}, allow_empty=True)


def _plan(session: Session) -> dict[NodeId, Reduction]:
    """All pieces that an array has chunks in."""
    state = session.workspace.state
    sizes_of = split_sizes(session.handle.settings.manifest)
    found = {}
    for node in state.snapshot.nodes:
        array = node.array
        if array is None or not array.manifests:
            continue
        grid = [dimension.num_chunks for dimension in array.shape]
        if not grid or 0 in grid:
            continue  # there is nothing to cut
        num_refs = state.manifest_files.refs_in(manifest_ids(array))
        sizes, limit = sizes_of(node.path, array, num_refs)
        pieces = Splits(grid, sizes)
        hull = tuple((0, count) for count in grid)
        first, last, _ = pieces.places_of(array.manifests, hull)
        numbers = {
            number
            for low, high in zip(first.tolist(), last.tolist(), strict=True)
            for number in pieces.between(low, high)
        }
        found[node.id] = Reduction(
            node.path,
            tuple(sizes),
            limit,
            tuple(sizes),
            hull,
            len(numbers),
            num_refs,
            tuple(sorted(numbers)),
            (),
            manifest_ids(array),
            rewrites_all=True,
        )
    return found
