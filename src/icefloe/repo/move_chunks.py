"""Shifting and reindexing the chunks of an array inside a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from icefloe import paths
from icefloe.changes.relabel import Relabel, reindexed, shifted
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.snapshot.nodes import Node
from icefloe.repo.session_view import all_chunks
from icefloe.repo.sessions import SessionState
from icefloe.repo.workspace import Workspace

_Move = Callable[[ChunkRefs, Index, Sequence[int]], tuple[ChunkRefs, Index]]
"""From the references of an array, the indices of those that the session has changed, and the grid:
references in new places, places now empty."""

_MAX_ATTEMPTS = 100


async def shift_array(workspace: Workspace, path: str, offset: Iterable[int]) -> None:
    """Move every chunk by an offset. Chunks that leave the grid are dropped."""
    steps = tuple(offset)
    await _relabel(workspace, path, lambda refs, _, grid: shifted(refs, steps, grid))


async def reindex_array(
    workspace: Workspace,
    path: str,
    forward: Relabel,
    backward: Relabel | None,
) -> None:
    """Move every chunk to the index that a function returns for it."""
    await _relabel(
        workspace,
        path,
        lambda refs, own, grid: reindexed(refs, own, forward, backward, grid),
    )


async def _relabel(workspace: Workspace, path: str, move: _Move) -> None:
    """Change the indices of chunks. The move is retried after a concurrent write to the array."""
    handle, state = workspace
    for _ in range(_MAX_ATTEMPTS):
        node, grid = _regular_array(state, path)
        with state.lock:
            state.packs.close(state.changes)  # an open pack identifies its chunks by their indices
            seen, view = _edits_of(state, node), state.view
            own = np.empty((0, len(grid)), np.uint32)
            if node.id in state.changes.edited:
                own = state.changes.touched_chunks(node.id)
        moved, vacated = move(await all_chunks(handle, view, node), own, grid)
        with state.writing():
            if _edits_of(state, node) is not seen:
                continue
            if (len(moved) or len(vacated)) and (edits := state.edits(node)) is not None:
                edits.set_table(moved, vacated)
            return
    raise SessionStateError(
        f"array {path!r} was written to by another thread during each of {_MAX_ATTEMPTS} tries to "
        "move its chunks; let that thread finish first",
        ErrorKind.UNKNOWN,
    )


def _edits_of(state: SessionState, node: Node) -> object:
    """The same object as long as no chunk of the array is set or deleted."""
    edits = state.changes.chunks.get(node.id)
    return None if edits is None else edits.state


def _regular_array(state: SessionState, path: str) -> tuple[Node, list[int]]:
    state.require_writable()
    node, array = state.array(paths.validate(path, state.find_node))
    grid = json.loads(node.user_data).get("chunk_grid", {}).get("name")
    if grid != "regular":
        raise InvalidInputError(
            f"array {path!r} has a {grid} chunk grid, whose chunks differ in size; only chunks of "
            "a regular grid can change places",
            ErrorKind.UNKNOWN,
        )
    return node, [dimension.num_chunks for dimension in array.shape]
