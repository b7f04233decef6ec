"""Shifting and reindexing the chunks of an array inside a session."""

from __future__ import annotations

import json
from collections.abc import Iterable

from icefloe import paths
from icefloe.changes.relabel import Relabel, reindexed, shifted
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import Node
from icefloe.repo.handle import RepoHandle
from icefloe.repo.packing import store_packs
from icefloe.repo.sessions import SessionState, all_chunks


async def shift_array(
    handle: RepoHandle, state: SessionState, path: str, offset: Iterable[int]
) -> None:
    """Move every chunk by an offset; chunks that leave the grid are gone."""
    node, grid = _regular_array(state, path)
    await store_packs(handle, state)  # a chunk in an open pack is known by its place
    _lay_over(state, node, *shifted(await all_chunks(handle, state, node), offset, grid))


async def reindex_array(
    handle: RepoHandle,
    state: SessionState,
    path: str,
    forward: Relabel,
    backward: Relabel | None,
) -> None:
    """Move every chunk to where a function sends it."""
    node, grid = _regular_array(state, path)
    await store_packs(handle, state)
    refs = await all_chunks(handle, state, node)
    _lay_over(state, node, *reindexed(refs, forward, backward, grid))


def _regular_array(state: SessionState, path: str) -> tuple[Node, list[int]]:
    state.require_writable()
    node, array = state.array(paths.validate(path))
    grid = json.loads(node.user_data).get("chunk_grid", {}).get("name")
    if grid != "regular":
        raise InvalidInputError(
            f"array {path!r} has a {grid} chunk grid, whose chunks differ in size; only chunks of "
            "a regular grid can change places",
            ErrorKind.UNKNOWN,
        )
    return node, [dimension.num_chunks for dimension in array.shape]


def _lay_over(state: SessionState, node: Node, moved: ChunkRefs, vacated: Index) -> None:
    if len(moved) or len(vacated):
        with state.writing():
            state.changes.edits(node).set_table(moved, vacated)
