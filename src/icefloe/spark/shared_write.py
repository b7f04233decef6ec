"""Many tasks write into one session: blocks of references, and manifests written by a second
stage.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from icefloe import paths
from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.changes import splits
from icefloe.changes.chunk_edits import EditLayer
from icefloe.changes.commit_plan import PreparedPiece, manifest_ids, num_refs_in, prepare_array
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InternalError,
    InvalidInputError,
    SessionStateError,
)
from icefloe.format.chunk_index import Index, PackedIndex, sort_rows
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import batch_of
from icefloe.format.nodes import ArrayData, Node
from icefloe.ids import ManifestId, NodeId
from icefloe.repo.commit import store_packs, write_manifests
from icefloe.repo.session import SessionState, Workspace, edits_of
from icefloe.scans.scan import columns
from icefloe.spark.tasks import Batches, collect_repeatable, map_batches, usual_tasks
from icefloe.spark.versions import from_arrow, spark_schema
from icefloe.storage.run import run_blocking
from icefloe.storage.urls import storage_from_url

# -- What a write task hands back: the references it made, as blocks of columns.
#
# A row holds all references that a task made of one array, or of one piece of it, as compressed
# Arrow: a few bytes per reference. So neither Spark nor the driver has one row per chunk. In a
# large job other tasks write the manifests. Then a row holds the manifests of one piece.


SCHEMA = columns(
    "node_id binary, piece bigint, ndim int, chunks bigint, virtual bigint, bytes bigint, "
    "refs binary?, deleted binary?, made binary?, told binary?"
)
SPARK_SCHEMA = spark_schema(SCHEMA)
UNCUT = -1


class Counts(NamedTuple):
    """Chunks set, how many of them are virtual, and bytes written for the others."""

    chunks: int
    virtual: int
    bytes: int

    @classmethod
    def of(cls, refs: ChunkRefs) -> Counts:
        """What a table of references adds up to."""
        is_virtual = refs.kind == ChunkKind.VIRTUAL
        return cls(len(refs), int(is_virtual.sum()), int(refs.length[~is_virtual].sum()))

    @classmethod
    def total(cls, many: Iterable[Counts]) -> Counts:
        """The sum."""
        return cls(*(sum(column) for column in zip((0, 0, 0), *many, strict=True)))


@dataclass(frozen=True, slots=True)
class RefBlock:
    """References set and indices deleted, of one array or of one of its pieces."""

    node_id: NodeId
    refs: ChunkRefs
    deleted: Index
    piece: int = UNCUT


def joined(blocks: Sequence[RefBlock]) -> tuple[ChunkRefs, Index]:
    """The references and deletions of several blocks, ascending."""
    refs = ChunkRefs.concat([block.refs for block in blocks])
    deleted = np.concatenate([block.deleted for block in blocks])
    return refs.take(sort_rows(refs.index)), deleted[sort_rows(deleted)]


def to_batch(blocks: Iterable[RefBlock]) -> pa.RecordBatch:
    """Blocks as rows."""
    return _rows(
        {
            "node_id": bytes(block.node_id),
            "piece": block.piece,
            "ndim": block.refs.ndim,
            **Counts.of(block.refs)._asdict(),
            "refs": block.refs.pack(),
            "deleted": _pack_index(block.deleted),
        }
        for block in blocks
    )


def told_batch(told: Any) -> pa.RecordBatch:
    """A row with another result of a task, besides references and manifests."""
    row = {"node_id": b"", "piece": UNCUT, "ndim": 0, "chunks": 0, "virtual": 0, "bytes": 0}
    return _rows([{**row, "told": pickle.dumps(told)}])


def _rows(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return batch_of(SCHEMA, [[row.get(name) for name in SCHEMA.names] for row in rows])


def _blocks_in(rows: pa.Table | pa.RecordBatch) -> Iterator[RefBlock]:
    """The rows that are blocks, in the order they came."""
    found = rows.select(["node_id", "piece", "ndim", "refs", "deleted"])
    for row in found.filter(pc.is_valid(found["refs"])).to_pylist():
        deleted = np.frombuffer(row["deleted"], np.uint32).reshape(-1, max(row["ndim"], 1))
        refs = ChunkRefs.unpack(row["refs"])
        yield RefBlock(NodeId(row["node_id"]), refs, deleted[:, : row["ndim"]], row["piece"])


def _pack_index(index: Index) -> bytes:
    # A 0-d array has indices without numbers; a column stands for "there is one".
    if index.shape[1] == 0:
        return np.zeros(len(index), np.uint32).tobytes()
    return np.ascontiguousarray(index).tobytes()


# -- Tasks of a large job write the manifests, so that the driver never holds their references.
#
# The driver cuts each array into pieces before the job starts. A piece is one split if the job
# fills its splits, and several neighbouring splits if the job is sparse. Tasks of the first stage
# return references cut at the borders of pieces. The shuffle brings the references of one piece
# together. A task of the second stage merges them with the existing manifests, by the code of the
# commit, writes the new manifests and returns the references to them. A repeated attempt leaves
# manifests that nothing refers to.


MIN_REDUCED_CHUNKS = 1 << 19
"""The tasks write manifests if the job may set at least this many chunks: four full manifests. The
driver merges fewer in about the time that a second stage takes to start."""

MIN_CHUNKS_PER_PIECE = 64
"""The tasks write manifests if pieces have at least this many chunks on average."""

_CHUNKS_PER_TASK = 1 << 19  # a few megabytes of blocks
_REST = UNCUT - 1
"""Piece `_REST - n` is the part of manifest `n` that lies outside all pieces of the job."""
_MAX_PIECES = 2**63  # that a column of numbers can tell apart


@dataclass(frozen=True, slots=True)
class Reduction:
    """An array whose manifests the tasks write."""

    path: str
    split: splits.Sizes
    pieces: tuple[int, ...]
    """Chunks per piece, along each axis."""
    hull: splits.Box
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
    session: Session, fork: ForkSession, chunks: Mapping[str, splits.ChunkSpan]
) -> dict[NodeId, Reduction]:
    """Choose the arrays whose manifests the tasks write; `chunks` may be set by the job.

    None in a small job. The driver merges an array if the session has edits of its chunks (they
    come before those of the job), if its manifests must be split again first, or if its pieces are
    so small that the driver would get as many manifests as chunks.
    """
    if sum(span.num_chunks for span in chunks.values()) < MIN_REDUCED_CHUNKS:
        return {}
    state = fork.workspace.state
    sizes_of = splits.split_sizes(fork.handle.settings.manifest)
    found = {}
    for path, span in chunks.items():
        node, array = state.array(paths.validate("/" + path.strip("/")))
        over = manifest_ids(array)
        cells = prod(dimension.num_chunks for dimension in array.shape)
        most = min(cells, span.num_chunks + state.manifest_files.refs_in(over))
        split = sizes_of(node.path, array, most)
        own = manifest_ids(session.workspace.state.node(node.path).array)
        if not cells or not span.num_chunks or over != own:
            continue
        counts = num_refs_in(state.manifest_files, array)
        if splits.plan_array(array, [], split.sizes, limit=split.limit, num_refs=counts).rewrites:
            continue
        reduction = _reduction(node.path, array, split, span)
        if reduction is not None:
            found[node.id] = reduction
    return found


def _reduction(
    path: str, array: ArrayData, split: splits.Sizes, span: splits.ChunkSpan
) -> Reduction | None:
    """The pieces of an array; None if there are too many."""
    grid = [dimension.num_chunks for dimension in array.shape]
    box = tuple((0, count) for count in grid) if span.box is None else span.box
    is_sparse = 2 * span.num_chunks < prod(stop - start for start, stop in box)
    sizes = split.sizes
    if is_sparse and split.limit:
        sizes = splits.coarser_sizes(grid, sizes, box, span.num_chunks // split.limit)
    pieces = splits.Splits(grid, sizes)
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
        split,
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
        kept: dict[int, splits.Rows] = dict(pieces.group(refs.index))
        gone: dict[int, splits.Rows] = dict(pieces.group(deleted))
        none = slice(0, 0)
        for number in sorted(kept.keys() | gone.keys()):
            part = refs.take(kept.get(number, none)).compact()
            yield RefBlock(node_id, part, deleted[gone.get(number, none)], number)


def pieces_to_cut(plan: Reductions) -> pa.RecordBatch:
    """Empty blocks: every part of a manifest that is cut gets a task, also without edits."""
    blocks = []
    for node_id, reduction in plan.items():
        nothing = ChunkRefs.empty(len(reduction.hull))
        numbers = (*reduction.cut, *(_REST - row for row in reduction.rest))
        blocks += [RefBlock(node_id, nothing, nothing.index, number) for number in numbers]
    return to_batch(blocks)


def reduce_blocks(rows: DataFrame, fork: ForkSession, plan: Reductions) -> DataFrame:
    """Turn blocks of references into written pieces. Blocks of other arrays pass through."""
    to_cut = pieces_to_cut(plan)
    if to_cut.num_rows:
        rows = rows.union(from_arrow(rows.sparkSession, pa.Table.from_batches([to_cut])))
    total = sum(reduction.num_pieces for reduction in plan.values())
    fair = usual_tasks(rows.sparkSession)
    chunks = sum(reduction.num_chunks for reduction in plan.values())
    tasks = min(total, max(fair, chunks // _CHUNKS_PER_TASK))
    together = rows.repartition(tasks, "node_id", "piece").sortWithinPartitions("node_id", "piece")
    return map_batches(together, partial(reduce_task, fork, plan), SPARK_SCHEMA)


def reduce_task(fork: ForkSession, plan: Reductions, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write the manifests of each piece. Blocks of one piece arrive next to each other."""
    waiting: list[RefBlock] = []
    for batch in batches:
        is_cut = pc.not_equal(batch.column("piece"), UNCUT)
        yield batch.filter(pc.invert(is_cut))
        for block in _blocks_in(batch.filter(is_cut)):
            if waiting and (waiting[0].node_id, waiting[0].piece) != (block.node_id, block.piece):
                yield _reduced(fork, plan, waiting)
                waiting = []
            waiting.append(block)
    if waiting:
        yield _reduced(fork, plan, waiting)


def _reduced(fork: ForkSession, plan: Reductions, blocks: list[RefBlock]) -> pa.RecordBatch:
    first = blocks[0]
    refs, deleted = joined(blocks)
    edits = RefBlock(first.node_id, refs, deleted, first.piece)
    row = {
        "node_id": bytes(first.node_id),
        "piece": first.piece,
        "ndim": refs.ndim,
        **Counts.total(Counts.of(block.refs) for block in blocks)._asdict(),
        "made": pickle.dumps(write_piece(fork, plan[first.node_id], edits)),
    }
    return _rows([row])


def write_piece(fork: ForkSession, reduction: Reduction, edits: RefBlock) -> PreparedPiece:
    """Merge the edits of one piece with its manifests, and write the result."""
    handle, state = fork.workspace
    _, array = state.array(reduction.path)
    pieces = _pieces(array, reduction)
    if edits.piece <= _REST:
        ref = array.manifests[_REST - edits.piece]
        boxes = [_common(box, ref.extents) for box in pieces.beyond(reduction.hull)]
        plan = splits.SplitsPlan(
            [], [splits.SplitRewrite(box, sources=[ref]) for box in boxes if box is not None]
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
    state: SessionState, reduction: Reduction, array: ArrayData, box: splits.Box, edits: RefBlock
) -> splits.SplitsPlan:
    if _common(box, reduction.hull) is None:
        raise InternalError(
            f"a task wrote chunks {box} of {reduction.path}, the job was to write {reduction.hull}"
        )
    inside = tuple(ref for ref in array.manifests if _common(ref.extents, box) is not None)
    array = replace(array, manifests=inside)
    plan = splits.plan_array(
        array,
        [(edits.refs, edits.deleted)],
        reduction.split.sizes,
        rewrite_all=reduction.rewrites_all,
        limit=reduction.split.limit,
        num_refs=num_refs_in(state.manifest_files, array),
        within=box,
    )
    if not reduction.rewrites_all:
        return plan
    # Parts of a manifest in other pieces are theirs.
    mine = [rewrite for rewrite in plan.rewrites if _common(rewrite.box, box) == rewrite.box]
    return splits.SplitsPlan(plan.kept, mine)


def _pieces(array: ArrayData, reduction: Reduction) -> splits.Splits:
    return splits.Splits([dimension.num_chunks for dimension in array.shape], reduction.pieces)


def _common(first: splits.Box, second: splits.Box) -> splits.Box | None:
    """The intersection of two boxes; None if it is empty."""
    sides = zip(first, second, strict=True)
    box = tuple((max(start, begin), min(stop, end)) for (start, stop), (begin, end) in sides)
    return box if all(start < stop for start, stop in box) else None


# -- Writing from many tasks into one session.
#
# The driver forks the session, so that every task starts from the same snapshot, whatever happens
# to the branch meanwhile. Tasks write chunk objects with ids of their own and hand back blocks of
# references; what a retried, speculative or lost task wrote besides is never referred to. The
# blocks of the attempts that count become changes of the session, and its commit is the only
# moment at which anything becomes visible.


def share(session: Session, chunks: Mapping[str, splits.ChunkSpan]) -> SharedWrite:
    """Fork a session for tasks; `chunks` are those they may set, by path of array."""
    base, fork = session.snapshot_id, session.fork()
    tasks = TaskSide(fork, plan_reductions(session, fork, chunks))
    return SharedWrite(session, base, tasks)


@dataclass(frozen=True, slots=True)
class TaskSide:
    """What tasks need to write for a session."""

    fork: ForkSession
    reductions: Reductions

    def drain(self) -> pa.RecordBatch:
        """Take the chunk edits out of the fork, once their objects are safe."""
        handle, state = self.fork.workspace
        run_blocking(store_packs(Workspace(handle, state)))
        run_blocking(handle.driver.sync())
        batch = to_batch(cut_blocks(self.fork, self.reductions))
        state.discard()
        return batch


@dataclass(frozen=True, slots=True)
class SharedWrite:
    """A session that tasks write for."""

    session: Session
    base: str
    tasks: TaskSide

    def run(self, blocks: DataFrame) -> tuple[Counts, list[Any]]:
        """Run the tasks, whose blocks are the rows, and take over what they made.

        Also returns what they had to say besides.
        """
        if self.tasks.reductions:
            blocks = reduce_blocks(blocks, self.tasks.fork, self.tasks.reductions)
        rows = collect_repeatable(blocks)
        told = [pickle.loads(told) for told in rows["told"].drop_null().to_pylist()]
        return self.take(rows), told

    def take(self, rows: pa.Table) -> Counts:
        """Lay what tasks made over the session, all of it or nothing.

        Raises:
            SessionStateError: the session is no longer at its base, or an array is gone from it,
                kind `merge-not-allowed`.
        """
        edits, made = _edits_in(rows), _pieces_in(rows)
        state = self.session.workspace.state
        while True:
            with state.lock:
                self._require_base()
                state.require_writable()
                nodes = {
                    node.id: node for path in state.all_paths() if (node := state.node(path)).array
                }
                if not nodes.keys() >= {*edits, *made}:
                    raise SessionStateError(
                        "an array was deleted from the session while Spark was writing it; nothing "
                        "was taken over",
                        ErrorKind.MERGE_NOT_ALLOWED,
                    )
                over = self.tasks.reductions
                unfit = [key for key in made if manifest_ids(nodes[key].array) != over[key].over]
                if not unfit:
                    for node_id, layer in edits.items():
                        state.changes.edits(nodes[node_id]).set_table(*layer)
                    for node_id, pieces in made.items():
                        self._prepare(nodes[node_id], pieces)
                    state.forget_nodes()
                    return Counts(*(sum(rows[name].to_pylist()) for name in Counts._fields))
            # Another thread gave these arrays other manifests meanwhile.
            for node_id in unfit:
                pieces = made.pop(node_id)
                ahead = prepare_array(None, None, pieces, pieces[0].touched.ndim)
                found = edits_of(self.session.handle, node_id, ahead)
                edits[node_id] = run_blocking(found)

    def _require_base(self) -> None:
        session = self.session
        if session.snapshot_id != self.base or session.read_only:
            raise SessionStateError(
                f"the session moved from snapshot {self.base} to {session.snapshot_id} while Spark "
                "was writing; nothing was taken over, write again",
                ErrorKind.MERGE_NOT_ALLOWED,
            )

    def _prepare(self, node: Node, pieces: Sequence[PreparedPiece]) -> None:
        state = self.session.workspace.state
        assert node.array is not None
        found = state.snapshot.nodes.find(node.path)
        array = found.array if found is not None and found.id == node.id else None
        before = state.changes.prepared.get(node.id)
        ahead = prepare_array(array, before, pieces, len(node.array.shape))
        state.changes.prepare(node, ahead)


def _edits_in(rows: pa.Table) -> dict[NodeId, EditLayer]:
    """The blocks of all tasks, those of one array put together."""
    blocks: dict[NodeId, list[RefBlock]] = {}
    for block in _blocks_in(rows):
        blocks.setdefault(block.node_id, []).append(block)
    return {node_id: joined(made) for node_id, made in blocks.items()}


def _pieces_in(rows: pa.Table) -> dict[NodeId, list[PreparedPiece]]:
    """The pieces whose manifests are written, by array."""
    made: dict[NodeId, list[PreparedPiece]] = {}
    written = rows.filter(pc.is_valid(rows["made"])).select(["node_id", "made"])
    for row in written.to_pylist():
        made.setdefault(NodeId(row["node_id"]), []).append(pickle.loads(row["made"]))
    return made


# -- Writes that happen once, however often they are tried: the commit says which one it was.
#
# An application numbers its writes. The number is in the metadata of the commit, so that it
# becomes visible together with the data or not at all, and a write that is tried again finds it
# there.


APP_KEY = "icefloe.stream.app"
BATCH_KEY = "icefloe.stream.batch"


@dataclass(frozen=True, slots=True)
class BatchId:
    """One write of an application; numbers only grow."""

    app: str
    batch: int

    @classmethod
    def of(cls, given: Any) -> BatchId | None:
        """From what a caller gave: an application and a number, or None."""
        if given is None:
            return None
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        if not is_pair or not isinstance(given[0], str) or not given[0]:
            raise InvalidInputError(
                f"transaction is {given!r:.80}, expected the name of an application and a number, "
                "such as ('nightly', 12)"
            )
        if isinstance(given[1], bool) or not isinstance(given[1], int):
            raise InvalidInputError(f"transaction has {given[1]!r:.80}, expected a whole number")
        return cls(given[0], given[1])

    @property
    def metadata(self) -> dict[str, Any]:
        """What the commit says about it."""
        return {APP_KEY: self.app, BATCH_KEY: self.batch}

    def find(self, repository: Repository, snapshot_id: str) -> str | None:
        """The commit before or at a snapshot that has this write, or a later one of the same
        application; None if it has to be written."""
        for info in repository.ancestry(snapshot_id=snapshot_id):
            if info.metadata.get(APP_KEY) == self.app:
                return info.id if int(info.metadata[BATCH_KEY]) >= self.batch else None
        return None


def app_of(options: Mapping[str, str]) -> str:
    """The name under which a query numbers its batches."""
    given = options.get("app-id")
    if given:
        return given
    location = options.get("checkpointLocation") or options.get("checkpointlocation")
    if not location:
        raise InvalidInputError(
            "option app-id is missing, expected a name for this query that stays the same when it "
            "is started again; or give option checkpointLocation"
        )
    try:  # Spark keeps the id of a query in its checkpoint
        driver = storage_from_url(location).driver(blocking=True)
        found = json.loads(bytes(run_blocking(driver.get("metadata"))))
        name = found.get("id") if isinstance(found, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"metadata is {found!r:.80}, expected an id")
        return name
    except (IcefloeError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"option app-id is missing, and the id of the query was not found in its checkpoint "
            f"{location}: {error}; give app-id, a name that stays the same as long as the "
            "checkpoint does"
        ) from error
