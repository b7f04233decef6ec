"""Queries about the nodes and chunks of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from operator import index

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.config.container_set import ContainerSet
from icefloe.config.virtual_urls import VCC
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.format.manifest.coded import Coded
from icefloe.ids import NodeId
from icefloe.repo.session_view import all_chunks, find_chunk, load_manifests
from icefloe.repo.workspace import Workspace

_FEW_OF = 8
"""Locations are inflated one by one if at most one of so many is asked for, else all at once."""
_FIRST_OF_NAME = ord(VCC[0])
"""The first letter of locations with the name of a container, and of few others."""


async def node_id(workspace: Workspace, path: str) -> NodeId:
    """The id of the node at a path."""
    state = workspace.state
    return state.node(paths.validate(path, state.find_node)).id


async def chunk_kind(workspace: Workspace, path: str, coordinates: Sequence[int]) -> int:
    """The `ChunkKind` of a chunk, 0 if it was never written."""
    handle, state = workspace
    view = state.view
    node, array = view.array(paths.validate(path, view.find_node))
    wanted = tuple(map(index, coordinates))
    if len(wanted) != len(array.shape):
        raise InvalidInputError(
            f"chunk index {wanted} has {len(wanted)} dimensions, array {path!r} "
            f"has {len(array.shape)}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    if not all(0 <= at < 2**32 for at in wanted):
        raise InvalidInputError(
            f"chunk index {wanted}: numbers run from 0 to {2**32 - 1:,}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    ref = await find_chunk(handle, view, node, wanted)
    return 0 if ref is None else int(ref.kind)


async def virtual_locations(workspace: Workspace) -> list[str]:
    """The absolute URL of every virtual chunk of every array."""
    handle, state = workspace
    found: list[str] = []
    containers = handle.assets.virtual.access.containers
    view = state.view
    nodes = view.all_nodes()
    await load_manifests(handle, view, nodes)
    for node in nodes:
        if node.array is None:
            continue
        refs = await all_chunks(handle, view, node)
        is_virtual = refs.kind == ChunkKind.VIRTUAL
        if refs.location is not None and is_virtual.any():
            chosen = refs.location
            if not is_virtual.all():
                chosen = chosen.take(np.flatnonzero(is_virtual))
            urls = _absolute(chosen, containers)
            if found:
                found.extend(urls)
            else:
                found = urls
    return found


def _absolute(column: Coded, containers: ContainerSet) -> list[str]:
    """Absolute locations, with container names expanded; "" if there is no location."""
    codes = column.codes
    texts = _without_names(column) if len(codes) * _FEW_OF > len(column.values) else None
    if texts is not None:
        if len(codes) == len(texts) and bool((codes == np.arange(len(codes))).all()):
            return texts
        texts.append("")  # where code -1 leads
        return list(map(texts.__getitem__, codes.tolist()))
    used = np.unique(codes)
    url = {-1: ""}
    for code in used[used >= 0].tolist():
        url[code] = containers.expand(column.values.get(code))
    return [url[code] for code in codes.tolist()]


def _without_names(column: Coded) -> list[str] | None:
    """All distinct locations of a column; None if one may have the name of a container."""
    values, texts = column.values, list[str]()
    # A part of a column will be followed by others, which want the same locations again.
    is_whole = len(column.codes) >= len(values)
    for part in values.parts() if is_whole else [values.strings()]:
        starts = part.offsets[:-1][np.diff(part.offsets) > 0]
        if (part.data[starts] == _FIRST_OF_NAME).any():
            return None
        texts += part.to_list()
    return texts


async def chunk_batches(
    workspace: Workspace, array_path: str, batch_size: int
) -> AsyncIterator[
    tuple[
        NDArray[np.uint32],
        NDArray[np.uint8],
        list[str],
        NDArray[np.uint64],
        NDArray[np.uint64],
        dict[int, bytes],
    ]
]:
    """The references of an array in batches; see `IcechunkStore.array_chunk_iterator`."""
    handle, state = workspace
    if batch_size < 1:
        raise InvalidInputError(f"batch_size is {batch_size}, expected at least 1")
    view = state.view
    node, _ = view.array(paths.validate("/" + array_path.strip("/")))
    with view.lock:
        view.packs.close(view.changes)  # so that every chunk has an offset
    everything = await all_chunks(handle, view, node)
    containers = handle.assets.virtual.access.containers
    for first in range(0, len(everything), batch_size):
        refs = everything.take(slice(first, first + batch_size))
        texts = [""] * len(refs)
        if refs.location is not None:
            texts = _absolute(refs.location, containers)
        if refs.chunk_id is not None:
            is_named = np.array([text != "" for text in texts], np.bool_)
            rows = np.flatnonzero((refs.kind == ChunkKind.NATIVE) & ~is_named)
            keys = handle.assets.chunk_keys(refs.chunk_id[rows])
            for row, key in zip(rows.tolist(), keys, strict=True):
                texts[row] = key.removeprefix(handle.assets.folders["chunks"])
        inlined = {}
        if refs.inline is not None:
            rows = np.flatnonzero(refs.kind == ChunkKind.INLINE)
            values = refs.inline.take(rows).to_list()
            inlined = dict(zip(rows.tolist(), values, strict=True))
        yield refs.index, refs.kind, texts, refs.offset, refs.length, inlined
