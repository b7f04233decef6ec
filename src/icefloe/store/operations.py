"""The operations of the Zarr store, written once for its blocking and asynchronous methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe import paths
from icefloe.assets.chunks import fetch_chunk
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef
from icefloe.format.snapshot.nodes import ArrayData, Node
from icefloe.ids import ChunkId
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session_view import SessionView, all_chunks, find_chunk, load_manifests
from icefloe.repo.sessions import SessionMode, SessionState, new_node_id
from icefloe.repo.workspace import Workspace
from icefloe.storage.driver import Readable, Span
from icefloe.store.zarr_keys import (
    METADATA,
    MetadataKey,
    V2Key,
    chunk_prefix,
    metadata_key,
    parse_key,
)

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import Coordinates
    from icefloe.repo import packing
else:
    packing = on_demand("icefloe.repo.packing")

ByteRange = tuple[int | None, int | None]
"""(start, end) from the front, (start, None) to the end, or (None, n) for the last n bytes."""


# -- reading


class Located(NamedTuple):
    """An existing chunk, and the requested bytes of it."""

    ref: ChunkRef
    span: Span | None


async def get(
    workspace: Workspace, key: str, byte_range: ByteRange | None = None
) -> Readable | None:
    """The value of a key or part of it; None if there is no such node or chunk."""
    handle = workspace.handle
    found = await locate(workspace, key, byte_range)
    return await fetch(handle, found) if isinstance(found, Located) else found


async def locate(
    workspace: Workspace, key: str, byte_range: ByteRange | None
) -> Located | Readable | None:
    """The metadata, or the reference of a chunk, which the caller chooses how to read."""
    handle, state = workspace
    view = state.view
    parsed = parse_key(key, view.find_node)
    if isinstance(parsed, V2Key):
        return None
    if isinstance(parsed, MetadataKey):
        document = view.find_document(parsed.path)
        if document is None or byte_range is None:
            return document
        start, length = _span(byte_range, len(document)) or (0, len(document))
        return document[start : start + length]
    node = view.find_node(parsed.path)
    if node is None:
        return None
    if node.array is None:
        view.array(parsed.path)  # raises the right error
    ref = await _find(handle, view, node, parsed.coordinates)
    if ref is None:
        return None
    if byte_range is None:
        return Located(ref, None) if ref.inline is None else ref.inline
    span = _span(byte_range, ref.length)
    return b"" if span is not None and span.length == 0 else Located(ref, span)


async def fetch(handle: RepoHandle, found: Located) -> Readable:
    """The bytes of a located chunk."""
    return await fetch_chunk(handle.assets, found.ref, found.span)


async def _find(
    handle: RepoHandle, view: SessionView, node: Node, coordinates: Coordinates
) -> ChunkRef | None:
    if node.array is None or not _is_in_grid(node.array, coordinates):
        return None
    return await find_chunk(handle, view, node, coordinates)


async def exists(workspace: Workspace, key: str) -> bool:
    """Whether a node or chunk is stored under a key."""
    handle, state = workspace
    view = state.view
    parsed = parse_key(key, view.find_node)
    if isinstance(parsed, V2Key):
        raise _no_key(key)
    node = view.find_node(parsed.path)
    if node is None or isinstance(parsed, MetadataKey):
        return node is not None
    view.array(parsed.path)
    return await _find(handle, view, node, parsed.coordinates) is not None


async def getsize(workspace: Workspace, key: str) -> int:
    """Bytes stored under a key; 0 for a chunk that was never written."""
    handle, state = workspace
    view = state.view
    parsed = parse_key(key, view.find_node)
    if isinstance(parsed, V2Key):
        raise _no_key(key)
    node = view.node(parsed.path)
    if isinstance(parsed, MetadataKey):
        return len(node.user_data)
    view.array(parsed.path)
    ref = await _find(handle, view, node, parsed.coordinates)
    return 0 if ref is None else ref.length


async def getsize_prefix(workspace: Workspace, prefix: str) -> int:
    """Bytes of metadata and chunks at and below a node."""
    handle, state = workspace
    total = 0
    view = state.view
    nodes = view.all_nodes(_node_prefix(view, prefix))
    await load_manifests(handle, view, nodes)
    for node in nodes:
        total += len(node.user_data)
        if node.array is not None:
            total += int((await all_chunks(handle, view, node)).length.sum())
    return total


# -- listing


async def list_prefix(workspace: Workspace, prefix: str) -> list[str]:
    """Every key at or below a node: all metadata first, then chunks."""
    handle, state = workspace
    if prefix.startswith("/") and prefix != "/":
        return []
    view = state.view
    nodes = view.all_nodes(_node_prefix(view, prefix))
    keys = [metadata_key(node.path) for node in nodes]
    await load_manifests(handle, view, nodes)
    for node in nodes:
        if node.array is not None:
            keys.extend(await chunk_keys(handle, view, node))
    return keys


async def chunk_keys(handle: RepoHandle, view: SessionView, node: Node) -> list[str]:
    """The keys of all chunks of an array."""
    index = (await all_chunks(handle, view, node)).index
    prefix = chunk_prefix(node.path)
    if index.shape[1] == 0:
        return [prefix] * len(index)
    texts = [list(map(str, column)) for column in index.T.tolist()]
    return [f"{prefix}/{'/'.join(row)}" for row in zip(*texts, strict=True)]


async def list_dir(workspace: Workspace, prefix: str) -> list[str]:
    """Names directly below a node, or below part of a chunk key."""
    handle, state = workspace
    if prefix.startswith("/") and prefix != "/":
        return []
    view = state.view
    path = _path_of_prefix(view, prefix)
    node = view.find_node(path)
    if node is not None and node.array is not None:
        return [METADATA, "c"]
    if node is None and path != paths.ROOT:
        array = _owning_array(view, path)
        return [] if array is None else await _next_chunk_segments(handle, view, array, path)
    depth = len(paths.segments(path))
    children = {
        paths.segments(below)[depth]
        for below in view.all_paths(path)
        if len(paths.segments(below)) == depth + 1
    }
    # Zarr would mistake these for other nodes, or fail to list the group.
    children -= {"", ".", ".."}
    return ([METADATA] if node is not None else []) + sorted(children)


def _owning_array(view: SessionView, path: str) -> Node | None:
    """The array whose chunk keys contain `path`, if there is one."""
    for above in paths.ancestors(path):
        node = view.find_node(above)
        if node is not None:
            return node if node.array is not None else None
    return None


async def _next_chunk_segments(
    handle: RepoHandle, view: SessionView, node: Node, path: str
) -> list[str]:
    below = paths.segments(path)[len(paths.segments(node.path)) :]
    assert node.array is not None
    numbers = below[1:]
    if below[0] != "c" or len(numbers) >= len(node.array.shape):
        return []
    if not all(number.isdecimal() for number in numbers):
        return []
    index = (await all_chunks(handle, view, node)).index
    for axis, number in enumerate(numbers):
        index = index[index[:, axis] == int(number)]
    return list(map(str, np.unique(index[:, len(numbers)]).tolist()))


def _path_of_prefix(view: SessionView, prefix: str) -> str:
    """A trailing slash is ignored, unless it is part of a node's path."""
    path = paths.ROOT + prefix
    return path if view.find_node(path) is not None else paths.ROOT + prefix.strip("/")


def _node_prefix(view: SessionView, prefix: str) -> str:
    path = _path_of_prefix(view, prefix)
    if path != paths.ROOT and view.find_node(path) is None:
        raise InvalidInputError(
            f"prefix {prefix!r} is not the path of a group or array", ErrorKind.BAD_KEY_PREFIX
        )
    return path


# -- writing


async def set_key(workspace: Workspace, key: str, value: Any) -> None:
    """Write metadata or a chunk. `value` is bytes or anything with their buffer."""
    handle, state = workspace
    require_writable(state)
    parsed = parse_key(key, state.find_node)
    if isinstance(parsed, V2Key):
        raise SessionStateError(
            f"key {key!r} belongs to Zarr version 2, repositories hold version 3",
            ErrorKind.UNIMPLEMENTED,
        )
    if isinstance(parsed, MetadataKey):
        given = bytes(value)
        array = handle.family.parse_array(given, parsed.path)
        document = handle.family.stored_document(given, parsed.path)
        with state.writing():
            base, new_id = state.snapshot.nodes, new_node_id(handle, state)
            state.changes.put_node(base, parsed.path, document, array, new_id)
            state.forget_nodes()
        return
    node, array = state.array(parsed.path)
    view = memoryview(value)
    size = view.nbytes
    check_chunk(key, array, parsed.coordinates, size)
    if size <= handle.settings.inline_chunk_threshold_bytes:
        ref = ChunkRef(ChunkKind.INLINE, 0, size, inline=bytes(view))
    elif packing.is_packed(handle, size):
        await packing.add_chunk(workspace, node, parsed.coordinates, bytes(view))
        return
    else:
        chunk_id = handle.new_id(ChunkId)
        storage_class = handle.settings.storage.chunks_storage_class
        key = handle.assets.chunk_key(chunk_id)
        await handle.driver.put_new([(key, view)], storage_class=storage_class)
        ref = ChunkRef(ChunkKind.NATIVE, 0, size, chunk_id)
    with state.writing():
        if (edits := state.edits(node)) is not None:
            edits.set(parsed.coordinates, ref)


async def set_if_not_exists(workspace: Workspace, key: str, value: Any) -> None:
    """Write a key unless something is stored there."""
    state = workspace.state
    require_writable(state)
    if not await exists(workspace, key):
        await set_key(workspace, key, value)


async def delete(workspace: Workspace, key: str) -> None:
    """Delete a chunk, an array, or a group with everything below it. Missing ones are ignored."""
    state = workspace.state
    state.require_writable()
    parsed = parse_key(key, state.find_node)
    if isinstance(parsed, V2Key):
        return
    with state.writing():
        if isinstance(parsed, MetadataKey):
            state.changes.delete_node(state.snapshot.nodes, parsed.path)
            state.forget_nodes()
            return
        node = state.find_node(parsed.path)
        if node is None or node.array is None:
            return
        if _is_in_grid(node.array, parsed.coordinates):
            state.changes.edits(node).set(parsed.coordinates, None)


async def delete_dir(workspace: Workspace, prefix: str) -> None:
    """Delete a node, or the chunks of an array whose keys start with `prefix`."""
    handle, state = workspace
    state.require_writable()
    view = state.view
    path = _path_of_prefix(view, prefix)
    if path == paths.ROOT or view.find_node(path) is not None:
        with state.writing():
            if path == paths.ROOT:
                state.changes.delete_all(state.snapshot.nodes)
            else:
                state.changes.delete_node(state.snapshot.nodes, path)
            state.forget_nodes()
        return
    node = _owning_array(view, path)
    if node is None:
        return
    below = paths.segments(path)[len(paths.segments(node.path)) :]
    if below[0] != "c" or not all(number.isdecimal() for number in below[1:]):
        return
    index = (await all_chunks(handle, view, node)).index
    for axis, number in enumerate(below[1:]):
        if axis >= index.shape[1]:
            return
        index = index[index[:, axis] == int(number)]
    if not len(index):
        return  # creating the edits of an array would count as a change
    with state.writing():
        if (edits := state.edits(node)) is not None:
            for row in index.tolist():
                edits.set(tuple(row), None)


def require_writable(state: SessionState) -> None:
    """Refuse to write in a read-only session, with the error of a store."""
    if state.mode == SessionMode.readonly:
        raise ReadOnlyError(state.why_read_only(), ErrorKind.READ_ONLY_STORE)
    state.require_writable()


def check_chunk(key: str, array: ArrayData, coordinates: Coordinates, size: int) -> None:
    """Refuse a chunk without bytes or outside of its array's grid."""
    if size == 0:
        raise InvalidInputError(
            f"chunk {key!r} has no bytes; delete the chunk instead", ErrorKind.ZERO_LENGTH_CHUNK
        )
    grid = [dimension.num_chunks for dimension in array.shape]
    # A dimension without chunks still accepts index 0, because writers use it before resizing.
    if len(coordinates) != len(grid) or any(
        at > max(count, 1) - 1 for at, count in zip(coordinates, grid, strict=False)
    ):
        raise InvalidInputError(
            f"chunk {key!r} is not in the array's grid of {tuple(grid)} chunks",
            ErrorKind.INVALID_CHUNK_INDEX,
        )


def _is_in_grid(array: ArrayData, coordinates: Sequence[int]) -> bool:
    if len(coordinates) != len(array.shape):
        return False
    for at, dimension in zip(coordinates, array.shape, strict=True):
        if at >= dimension.num_chunks and at:
            return False
    return True


def _span(byte_range: ByteRange | None, size: int) -> Span | None:
    """The requested bytes that exist. Ends are clamped, as in Zarr's stores."""
    if byte_range is None:
        return None
    start, end = byte_range
    if min(start or 0, end or 0) < 0 or (end is not None and end < (start or 0)):
        raise InvalidInputError(
            f"bytes {start} to {end}: expected numbers from 0 on, the end not before the start",
            ErrorKind.INVALID_BYTE_RANGE,
        )
    if start is None:
        length = min(end or 0, size)
        return Span(size - length, length)
    start = min(start, size)
    return Span(start, max(0, min(size if end is None else end, size) - start))


def _no_key(key: str) -> NodeNotFoundError:
    return NodeNotFoundError(f"nothing is stored under key {key!r}", ErrorKind.KEY_NOT_FOUND)
