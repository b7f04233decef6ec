"""Tasks of a large job write the manifests, so that the driver never holds their references.

The driver cuts each array into pieces before the job starts. A piece is one split if the job fills
its splits, and several neighbouring splits if the job is sparse. Tasks of the first stage return
references cut at the borders of pieces. The shuffle brings the references of one piece together. A
task of the second stage merges them with the existing manifests, by the code of the commit, writes
the new manifests and returns the references to them. A repeated attempt leaves manifests that
nothing refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from icefloe import paths
from icefloe.api.session import ForkSession, Session
from icefloe.changes.build import num_refs_in
from icefloe.changes.prepared import PreparedPiece, manifest_ids
from icefloe.changes.split_grid import Box, ChunkSpan, Rows, Splits
from icefloe.changes.split_sizes import Sizes, coarser_sizes, split_sizes
from icefloe.changes.splits import SplitRewrite, SplitsPlan, plan_array
from icefloe.errors import InternalError
from icefloe.format.columns.chunk_index import sort_rows
from icefloe.format.columns.packed_index import PackedIndex
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.ids import ManifestId, NodeId
from icefloe.repo.sessions import SessionState
from icefloe.repo.write_manifests import write_manifests
from icefloe.spark.runtime.spark_session import parallelism
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.writes import ref_blocks
from icefloe.spark.writes.ref_blocks import Counts, RefBlock
from icefloe.storage.run import run_blocking

MIN_REDUCED_CHUNKS = 1 << 19
"""The tasks write manifests if the job may set at least this many chunks: four full manifests. The
driver merges fewer in about the time that a second stage takes to start."""

MIN_CHUNKS_PER_PIECE = 64
"""The tasks write manifests if pieces have at least this many chunks on average."""

_CHUNKS_PER_TASK = 1 << 19  # a few megabytes of blocks
_TASKS_PER_SLOT = 4
_REST = ref_blocks.UNCUT - 1
"""Piece `_REST - n` is the part of manifest `n` that lies outside all pieces of the job."""
_MAX_PIECES = 2**63  # that a column of numbers can tell apart


@dataclass(frozen=True, slots=True)
class Reduction:
    """An array whose manifests the tasks write."""

    path: str
    sizes: tuple[int, ...]
    """Chunks per split, along each axis."""
    limit: int
    """Splits share a manifest while they have at most this many references together; 0: never."""
    pieces: tuple[int, ...]
    """Chunks per piece, along each axis."""
    hull: Box
    """The box of all pieces that the job may touch."""
    num_pieces: int
    num_chunks: int
    """The most chunks that the job may set."""
    cut: tuple[int, ...]
    """Pieces that share a manifest with another piece. Each part of it is written again."""
    rest: tuple[int, ...]
    """Numbers of the manifests that also reach beyond the hull."""
    over: tuple[ManifestId, ...]
    """The manifests that the array has already."""
    rewrites_all: bool = False
    """Whether manifests are written again that could stay as they are; then pieces are splits."""


Reductions = Mapping[NodeId, Reduction]


def plan_reductions(
    session: Session, fork: ForkSession, chunks: Mapping[str, ChunkSpan]
) -> dict[NodeId, Reduction]:
    """Choose the arrays whose manifests the tasks write; `chunks` may be set by the job.

    None in a small job. The driver merges an array if the session has edits of its chunks (they
    come before those of the job), if its manifests must be cut anew first, or if its pieces are so
    small that the driver would get as many manifests as chunks.
    """
    if sum(span.num_chunks for span in chunks.values()) < MIN_REDUCED_CHUNKS:
        return {}
    state = fork.workspace.state
    sizes_of = split_sizes(fork.handle.settings.manifest)
    found = {}
    for path, span in chunks.items():
        node, array = state.array(paths.validate("/" + path.strip("/")))
        over = manifest_ids(array)
        cells = prod(dimension.num_chunks for dimension in array.shape)
        most = min(cells, span.num_chunks + state.manifest_files.refs_in(over))
        sizes, limit = sizes_of(node.path, array, most)
        if (
            not cells
            or not span.num_chunks
            or over != manifest_ids(session.workspace.state.node(node.path).array)
        ):
            continue
        counts = num_refs_in(state.manifest_files, array)
        if plan_array(array, [], sizes, limit=limit, num_refs=counts).rewrites:
            continue
        reduction = _reduction(node.path, array, Sizes(sizes, limit), span)
        if reduction is not None:
            found[node.id] = reduction
    return found


def _reduction(path: str, array: ArrayData, split: Sizes, span: ChunkSpan) -> Reduction | None:
    """The pieces of an array; None if there are too many."""
    grid = [dimension.num_chunks for dimension in array.shape]
    box = tuple((0, count) for count in grid) if span.box is None else span.box
    is_sparse = 2 * span.num_chunks < prod(stop - start for start, stop in box)
    sizes = split.sizes
    if is_sparse and split.limit:
        sizes = coarser_sizes(grid, sizes, box, span.num_chunks // split.limit)
    pieces = Splits(grid, sizes)
    num_pieces = min(pieces.count_in(box), span.num_chunks)
    if pieces.count >= _MAX_PIECES or span.num_chunks < MIN_CHUNKS_PER_PIECE * num_pieces:
        return None
    hull = pieces.hull(box)
    first, last, is_beyond = pieces.places_of(array.manifests, hull)
    is_cut = is_beyond | (last - first > 1).any(axis=1)
    cut: set[int] = set()
    rest = []
    for row in np.flatnonzero(is_cut).tolist():
        if _common(array.manifests[row].extents, hull) is not None:
            cut.update(pieces.between(first[row].tolist(), last[row].tolist()))
            rest += [row] if is_beyond[row] else []
    return Reduction(
        path,
        split.sizes,
        split.limit,
        sizes,
        hull,
        num_pieces + len(rest),
        span.num_chunks,
        tuple(sorted(cut)),
        tuple(rest),
        manifest_ids(array),
    )


def cut_blocks(fork: ForkSession, plan: Reductions) -> Iterator[RefBlock]:
    """The chunk edits of a task. Those of arrays in the plan are cut at the borders of pieces."""
    for node_id, edits in fork.workspace.state.changes.chunks.items():
        refs, deleted = edits.columns()
        reduction = plan.get(node_id)
        if reduction is None:
            yield RefBlock(node_id, refs, deleted)
            continue
        _, array = fork.workspace.state.array(reduction.path)
        pieces = _pieces(array, reduction)
        kept: dict[int, Rows] = dict(pieces.group(refs.index))
        gone: dict[int, Rows] = dict(pieces.group(deleted))
        none = slice(0, 0)
        for number in sorted(kept.keys() | gone.keys()):
            part = refs.take(kept.get(number, none)).compact()
            yield RefBlock(node_id, part, deleted[gone.get(number, none)], number)


def pieces_to_cut(plan: Reductions) -> pa.RecordBatch:
    """Empty blocks: every part of a manifest that is cut gets a task, also without edits."""
    blocks = []
    for node_id, reduction in plan.items():
        nothing = ChunkRefs.empty(len(reduction.sizes))
        numbers = (*reduction.cut, *(_REST - row for row in reduction.rest))
        blocks += [RefBlock(node_id, nothing, nothing.index, number) for number in numbers]
    return ref_blocks.to_batch(blocks)


def reduce_blocks(rows: DataFrame, fork: ForkSession, plan: Reductions) -> DataFrame:
    """Turn blocks of references into written pieces. Blocks of other arrays pass through."""
    to_cut = pieces_to_cut(plan)
    if to_cut.num_rows:
        rows = rows.union(rows.sparkSession.createDataFrame(pa.Table.from_batches([to_cut])))
    total = sum(reduction.num_pieces for reduction in plan.values())
    fair = parallelism(rows.sparkSession) * _TASKS_PER_SLOT
    chunks = sum(reduction.num_chunks for reduction in plan.values())
    tasks = min(total, max(fair, chunks // _CHUNKS_PER_TASK))
    together = rows.repartition(tasks, "node_id", "piece").sortWithinPartitions("node_id", "piece")
    return map_batches(together, partial(reduce_task, fork, plan), ref_blocks.DDL)


def reduce_task(
    fork: ForkSession, plan: Reductions, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the manifests of each piece. Blocks of one piece arrive next to each other."""
    waiting: list[RefBlock] = []
    for batch in batches:
        is_cut = pc.not_equal(batch.column("piece"), ref_blocks.UNCUT)
        yield batch.filter(pc.invert(is_cut))
        for block in ref_blocks.from_batch(batch.filter(is_cut)):
            if waiting and (waiting[0].node_id, waiting[0].piece) != (block.node_id, block.piece):
                yield _reduced(fork, plan, waiting)
                waiting = []
            waiting.append(block)
    if waiting:
        yield _reduced(fork, plan, waiting)


def _reduced(fork: ForkSession, plan: Reductions, blocks: list[RefBlock]) -> pa.RecordBatch:
    first = blocks[0]
    refs, deleted = ref_blocks.joined(blocks)
    edits = RefBlock(first.node_id, refs, deleted, first.piece)
    counts = [Counts.of(block.refs) for block in blocks]
    made = write_piece(fork, plan[first.node_id], edits)
    return ref_blocks.made_batch(first.node_id, first.piece, made, Counts.total(counts))


def write_piece(fork: ForkSession, reduction: Reduction, edits: RefBlock) -> PreparedPiece:
    """Merge the edits of one piece with its manifests, and write the result."""
    handle, state = fork.workspace
    _, array = state.array(reduction.path)
    pieces = _pieces(array, reduction)
    if edits.piece <= _REST:
        ref = array.manifests[_REST - edits.piece]
        boxes = [_common(box, ref.extents) for box in pieces.beyond(reduction.hull)]
        plan = SplitsPlan(
            [], [SplitRewrite(box, sources=[ref]) for box in boxes if box is not None]
        )
    else:
        plan = _plan_piece(state, reduction, array, pieces.box(edits.piece), edits)
    made = run_blocking(write_manifests(handle, {edits.node_id: plan}, state.manifest_files))
    run_blocking(handle.driver.sync())
    both = np.concatenate([edits.deleted, edits.refs.index])
    return PreparedPiece(
        tuple(rewrite.box for rewrite in plan.rewrites),
        tuple(ref.id for rewrite in plan.rewrites for ref in rewrite.sources),
        tuple(made.get(edits.node_id, ())),
        PackedIndex.pack(both[sort_rows(both)] if len(edits.deleted) else edits.refs.index),
    )


def _plan_piece(
    state: SessionState, reduction: Reduction, array: ArrayData, box: Box, edits: RefBlock
) -> SplitsPlan:
    if _common(box, reduction.hull) is None:
        raise InternalError(
            f"a task wrote chunks {box} of {reduction.path}, the job was to write {reduction.hull}"
        )
    inside = tuple(ref for ref in array.manifests if _common(ref.extents, box) is not None)
    array = replace(array, manifests=inside)
    plan = plan_array(
        array,
        [(edits.refs, edits.deleted)],
        reduction.sizes,
        rewrite_all=reduction.rewrites_all,
        limit=reduction.limit,
        num_refs=num_refs_in(state.manifest_files, array),
        within=box,
    )
    if not reduction.rewrites_all:
        return plan
    # Parts of a manifest in other pieces are theirs.
    mine = [rewrite for rewrite in plan.rewrites if _common(rewrite.box, box) == rewrite.box]
    return SplitsPlan(plan.kept, mine)


def _pieces(array: ArrayData, reduction: Reduction) -> Splits:
    return Splits([dimension.num_chunks for dimension in array.shape], reduction.pieces)


def _common(first: Box, second: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty."""
    sides = zip(first, second, strict=True)
    box = tuple((max(start, begin), min(stop, end)) for (start, stop), (begin, end) in sides)
    return box if all(start < stop for start, stop in box) else None
