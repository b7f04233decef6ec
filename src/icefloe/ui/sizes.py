"""Bytes of arrays at one snapshot by where they are, a page of arrays at a time."""

from __future__ import annotations

from math import prod
from typing import Any

from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.maintenance.usage import snapshot_usage
from icefloe.repo.session_view import all_chunks, load_manifests
from icefloe.storage.run import run_blocking
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.tree import Tree


def sizes_page(
    opened: OpenedRepository, snapshot: str, tree: Tree, offset: int, limit: int
) -> dict[str, Any]:
    """Bytes and chunks of each kind for some arrays, in the order of their paths."""
    paths = tree.array_paths()
    rows = run_blocking(_sizes(opened, snapshot, paths[offset : offset + limit]))
    return {"total": len(paths), "offset": offset, "rows": rows}


def exclusive_bytes(opened: OpenedRepository, snapshot: str) -> dict[str, int]:
    """Bytes that no other snapshot needs. All manifests of the repository are read for this."""
    history = opened.history()
    key = history.rows[opened.row(history, snapshot)].info.id
    [found] = run_blocking(snapshot_usage(opened.handle, [key]))
    return {"bytes": found.total().exclusive_bytes}


async def _sizes(opened: OpenedRepository, snapshot: str, paths: list[str]) -> list[dict[str, Any]]:
    handle, view = opened.handle, opened.view(snapshot)
    nodes = [view.node(path) for path in paths]
    await load_manifests(handle, view, nodes)
    rows = []
    for node in nodes:
        assert node.array is not None
        grid = [dimension.num_chunks for dimension in node.array.shape]
        refs = await all_chunks(handle, view, node)
        rows.append({"path": node.path, "grid": prod(grid), **_by_kind(refs)})
    return rows


def _by_kind(refs: ChunkRefs) -> dict[str, int]:
    found = {"chunks": len(refs)}
    for kind in ChunkKind:
        is_kind = refs.kind == kind
        found[kind.name.lower()] = int(refs.length[is_kind].sum())
    return found
