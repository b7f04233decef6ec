"""Writing from many tasks into one session.

The driver forks the session, so that every task starts from the same snapshot, whatever happens
to the branch meanwhile. Tasks write chunk objects with ids of their own and hand back blocks of
references; what a retried, speculative or lost task wrote besides is never referred to. The blocks
of the attempts that count become changes of the session, and its commit is the only moment at
which anything becomes visible. In a big job, other tasks make manifests of the blocks first
(`reducers`), and the session takes those over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from icefloe.api.session import ForkSession, Session
from icefloe.changes.chunk_edits import EditLayer
from icefloe.changes.prepared import PreparedPiece, manifest_ids, prepare_array
from icefloe.changes.split_grid import ChunkSpan
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.snapshot.nodes import Node
from icefloe.ids import NodeId
from icefloe.repo.packing import store_packs
from icefloe.repo.restore_edits import edits_of
from icefloe.repo.workspace import Workspace
from icefloe.spark.writes import ref_blocks
from icefloe.spark.writes.reducers import Reductions, cut_blocks, plan_reductions, reduce_blocks
from icefloe.spark.writes.ref_blocks import Counts, RefBlock
from icefloe.spark.writes.task_errors import collect_repeatable
from icefloe.storage.run import run_blocking


def share(session: Session, chunks: Mapping[str, ChunkSpan]) -> SharedWrite:
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
        batch = ref_blocks.to_batch(cut_blocks(self.fork, self.reductions))
        state.discard()
        return batch


@dataclass(frozen=True, slots=True)
class SharedWrite:
    """A session that tasks write for."""

    session: Session
    base: str
    tasks: TaskSide

    def run(self, blocks: DataFrame) -> Counts:
        """Run the tasks, whose blocks are the rows, and take over what they made."""
        return self.run_told(blocks)[0]

    def run_told(self, blocks: DataFrame) -> tuple[Counts, list[Any]]:
        """The same, with what the tasks had to say besides."""
        if self.tasks.reductions:
            blocks = reduce_blocks(blocks, self.tasks.fork, self.tasks.reductions)
        rows = collect_repeatable(blocks)
        return self.take(rows), ref_blocks.told_in(rows)

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
                unfit = [key for key in made if not self._fits(nodes[key])]
                if not unfit:
                    for node_id, layer in edits.items():
                        state.changes.edits(nodes[node_id]).set_table(*layer)
                    for node_id, pieces in made.items():
                        self._prepare(nodes[node_id], pieces)
                    state.forget_nodes()
                    return ref_blocks.counts_in(rows)
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

    def _fits(self, node: Node) -> bool:
        return manifest_ids(node.array) == self.tasks.reductions[node.id].over

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
    for block in ref_blocks.from_table(rows):
        blocks.setdefault(block.node_id, []).append(block)
    return {node_id: ref_blocks.joined(made) for node_id, made in blocks.items()}


def _pieces_in(rows: pa.Table) -> dict[NodeId, list[PreparedPiece]]:
    made: dict[NodeId, list[PreparedPiece]] = {}
    for node_id, piece in ref_blocks.made_in(rows):
        made.setdefault(node_id, []).append(piece)
    return made
