"""The chunk map of an array for the page, and one chunk of it."""

from __future__ import annotations

from typing import Any

from icefloe.api.chunk_map import ChunkMap, default_axes
from icefloe.api.named_numbers import ChunkType
from icefloe.errors import InvalidInputError
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.repo.session_view import find_chunk
from icefloe.storage.run import run_blocking
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.query import Query

_MOST_CELLS = 512
_MOST_COMMITS = 1000


def chunk_map(opened: OpenedRepository, query: Query) -> ChunkMap:
    """The map that a request asks for; `at` has a chunk number for every dimension."""
    axes, at = query.numbers("axes"), query.numbers("at")
    path = query.text("path")
    session = opened.session(query.text("snapshot"))
    _, array = session.workspace.state.view.array(path)
    if at is not None and len(at) != len(array.shape):
        raise InvalidInputError(
            f"the position has {len(at)} numbers, the array {len(array.shape)} dimensions"
        )
    if axes is None:
        axes = tuple(default_axes([dimension.num_chunks for dimension in array.shape]))
    others: dict[int | str, int] = {
        axis: number for axis, number in enumerate(at or ()) if axis not in axes
    }
    return session.chunk_map(
        path,
        axes=axes,
        at=others,
        by=query.choice("by", "kind", "commit"),
        max_commits=_MOST_COMMITS,
    )


def chunk_map_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """The cells of a map by row, with a legend."""
    found = chunk_map(opened, query)
    cells, factors = found.coarser(_MOST_CELLS)
    return {
        "grid": list(found.grid),
        "factors": list(factors),
        "dimensions": list(found.dimensions),
        "cells": cells.tolist(),
        "legend": [entry._asdict() for entry in found.legend],
        "missing": found.counts["missing"],
    }


def chunk_page(opened: OpenedRepository, query: Query) -> dict[str, Any]:
    """Where one chunk is. The bytes of an inline chunk are not sent."""
    view = opened.view(query.text("snapshot"))
    node, array = view.array(query.text("path"))
    index = query.numbers("index")
    if index is None or len(index) != len(array.shape) or max(index, default=0) >= 2**32:
        raise InvalidInputError(f"a chunk of this array has {len(array.shape)} numbers in `index`")
    ref = run_blocking(find_chunk(opened.handle, view, node, index))
    if ref is None:
        return {"kind": "missing"}
    shown: dict[str, Any] = {"kind": ChunkType(ref.kind).name, "length": ref.length}
    if ref.kind == ChunkKind.INLINE:
        return shown
    if ref.chunk_id is not None:
        key = opened.handle.assets.chunk_key(ref.chunk_id)
        return {**shown, "object": key, "offset": ref.offset}
    containers = opened.handle.assets.virtual.access.containers
    location = ref.location or ""
    if ref.kind == ChunkKind.VIRTUAL:
        location = containers.expand(location)
    return {**shown, "object": location, "offset": ref.offset}
