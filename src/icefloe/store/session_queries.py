"""Questions about the nodes and chunks a session sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icefloe import paths
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_refs import ChunkKind
from icefloe.ids import NodeId
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionState, all_chunks, find_chunk, load_manifests


async def node_id(_handle: RepoHandle, state: SessionState, path: str) -> NodeId:
    """The id of the node at a path."""
    return state.node(_node_path(path)).id


async def chunk_kind(
    handle: RepoHandle, state: SessionState, path: str, coordinates: Sequence[int]
) -> int:
    """The `ChunkKind` of a chunk, 0 when it was never written."""
    node, array = state.array(_node_path(path))
    if len(coordinates) != len(array.shape):
        raise InvalidInputError(
            f"chunk index {tuple(coordinates)} has {len(coordinates)} dimensions, array {path!r} "
            f"has {len(array.shape)}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    if not all(0 <= at < 2**32 for at in coordinates):
        raise InvalidInputError(
            f"chunk index {tuple(coordinates)}: numbers run from 0 to {2**32 - 1:,}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    ref = await find_chunk(handle, state, node, tuple(coordinates))
    return 0 if ref is None else int(ref.kind)


async def virtual_locations(handle: RepoHandle, state: SessionState) -> list[str]:
    """The location of every virtual chunk of every array."""
    found: list[str] = []
    nodes = [state.node(path) for path in state.all_paths()]
    await load_manifests(handle, state, nodes)
    for node in nodes:
        if node.array is None:
            continue
        refs = await all_chunks(handle, state, node)
        rows = np.flatnonzero(refs.kind == ChunkKind.VIRTUAL)
        if len(rows) and refs.location is not None:
            found.extend(refs.location.take(rows).to_arrow().to_pylist())
    return found


def _node_path(path: str) -> str:
    return paths.validate(path)
