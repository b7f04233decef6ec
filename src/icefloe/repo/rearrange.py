"""Rearrange sessions: they move nodes to other paths and change nothing else."""

from __future__ import annotations

from icefloe import paths
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionMode, SessionState, open_at_tip
from icefloe.repo.workspace import Workspace


async def open_rearrange(handle: RepoHandle, branch: str) -> SessionState:
    """A session that can move nodes and commit the moves to `branch`."""
    handle.family.require_moves()
    handle.require_writable()
    tip = await handle.family.movable_tip(handle, branch)
    return await open_at_tip(handle, tip, branch, SessionMode.rearrange)


async def move_node(workspace: Workspace, source: str, destination: str) -> None:
    """Move a node and everything below it."""
    handle, state = workspace
    handle.family.require_moves()
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
