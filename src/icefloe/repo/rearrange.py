"""Moving nodes, moving chunks, and writing all manifests again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from icefloe import paths
from icefloe.changes.chunk_edits import Relabel, reindexed, shifted
from icefloe.config.manifest import ONE_MANIFEST_PER_ARRAY
from icefloe.errors import ErrorKind, FormatError, InvalidInputError, SessionStateError
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.config import splitting_document
from icefloe.format.nodes import Node
from icefloe.ids import SnapshotId
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.commit import amend, commit
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import (
    CommitMethod,
    SessionMode,
    SessionState,
    Workspace,
    all_chunks,
    open_at_tip,
    open_writable,
)


async def open_rearrange(handle: RepoHandle, branch: str) -> SessionState:
    """A session that can move nodes and commit the moves to `branch`."""
    handle.format.require_moves()
    handle.require_writable()
    tip = await handle.format.movable_tip(handle, branch)
    return await open_at_tip(handle, tip, branch, SessionMode.rearrange)


async def move_node(workspace: Workspace, source: str, destination: str) -> None:
    """Move a node and everything below it."""
    handle, state = workspace
    handle.format.require_moves()
    state.require_open()
    if state.mode != SessionMode.rearrange:
        raise SessionStateError(
            "nodes are moved in a session of their own; open a rearrange_session",
            ErrorKind.NON_REARRANGE_SESSION,
        )
    start = source if state.find_node(source) is not None else _node_path(source)
    end = _node_path(destination)
    with state.writing():
        state.changes.moves.move(state.snapshot.nodes, start, end)
        state.forget_nodes()


def _node_path(path: str) -> str:
    return paths.validate(path.removesuffix("/") if path != paths.ROOT else path)


# -- Shifting and reindexing the chunks of an array inside a session.


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


Cut = Callable[[Workspace], None]
"""Lets the tasks of a cluster cut the manifests of large arrays before the commit."""


def cut_by_commit(_workspace: Workspace) -> None:
    """The commit writes all manifests in this process."""


@observed("rewrite_manifests", MAINTENANCE)
async def rewrite_manifests(
    handle: RepoHandle,
    message: str,
    branch: str,
    metadata: Mapping[str, Any] | None,
    commit_method: str,
    cut: Cut = cut_by_commit,
) -> SnapshotId:
    """Commit to `branch`, or amend its tip, with every manifest rewritten.

    Small arrays share manifests, which the commit writes in any case.
    """
    if commit_method not in get_args(CommitMethod):
        raise InvalidInputError(
            f"commit_method is {commit_method!r}, expected 'new_commit' or 'amend'"
        )
    if commit_method == "amend" and not handle.format.can_amend:
        raise FormatError(
            f"commits cannot be amended in {handle.format.noun}; use 'new_commit'",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    rules = handle.settings.manifest.splitting.split_sizes or ONE_MANIFEST_PER_ARRAY
    described = {"__icechunk": {"splitting_config": splitting_document(rules)}}
    workspace = Workspace(handle, await open_writable(handle, branch))
    cut(workspace)
    make = amend if commit_method == "amend" else commit
    return await make(
        workspace,
        message,
        {**(metadata or {}), **described},
        allow_empty=True,
        rewrite_all=True,
    )
