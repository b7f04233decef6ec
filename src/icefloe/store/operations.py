"""The operations of the Zarr store, written once for its blocking and asynchronous methods."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index as as_index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.assets.assets import fetch_chunk
from icefloe.changes.chunk_edits import Coordinates
from icefloe.config.containers import VCC, ContainerSet
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.locations import Coded
from icefloe.format.nodes import ArrayData, Node
from icefloe.ids import ChunkId, NodeId
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import (
    SessionMode,
    SessionState,
    SessionView,
    Workspace,
    all_chunks,
    find_chunk,
    load_manifests,
    new_node_id,
)
from icefloe.storage.driver import Readable, Span

ByteRange = tuple[int | None, int | None]
"""(start, end) from the front, (start, None) to the end, or (None, n) for the last n bytes."""
ChunkBatch = tuple[
    NDArray[np.uint32],
    NDArray[np.uint8],
    list[str],
    NDArray[np.uint64],
    NDArray[np.uint64],
    dict[int, bytes],
]
"""Index, kind, path, offset and length of chunks, and the bytes of inline ones by row."""

METADATA = "zarr.json"
_CHUNK = re.compile(r"(?:(.*)/)?c((?:/[0-9]+)*)\Z", re.DOTALL)
_V2_DOCUMENTS = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
MAX_INDEX = 2**32 - 1
_FIRST_OF_NAME = ord(VCC[0])
"""The first letter of locations with the name of a container, and of few others."""


# -- keys


class MetadataKey(NamedTuple):
    """`zarr.json` of the node at `path`."""

    path: str


class ChunkKey(NamedTuple):
    """One chunk of the array at `path`."""

    path: str
    coordinates: Coordinates


class V2Key(NamedTuple):
    """A document of Zarr version 2. It never exists and cannot be written."""

    key: str


Key = MetadataKey | ChunkKey | V2Key


def parse_key(key: str, find: Callable[[str], object] = lambda path: None) -> Key:
    """Parse a key.

    The chunk separator is the last segment `c` that only numbers follow, so nodes may be called
    `c` as well. `find` looks up nodes whose paths are not canonical.

    Raises:
        InvalidInputError: it is neither metadata nor a chunk, kind `invalid-key`.
    """
    # Fast path: nearly all keys have this form.
    folder, separator, numbers = key.rpartition("/c/")
    if separator and numbers.isascii() and numbers.replace("/", "0").isdigit():
        texts = numbers.split("/")
        if "" not in texts:
            coordinates = tuple(map(int, texts))
            if max(coordinates) <= MAX_INDEX:
                return ChunkKey(_path(folder, key, find), coordinates)
    folder, _, name = key.rpartition("/")
    if name == METADATA:
        return MetadataKey(_path(folder, key, find))
    if name in _V2_DOCUMENTS:
        return V2Key(key)
    chunk = _CHUNK.match(key)
    if chunk is not None:
        coordinates = tuple(map(int, chunk[2].split("/")[1:]))
        if all(at <= MAX_INDEX for at in coordinates):
            return ChunkKey(_path(chunk[1] or "", key, find), coordinates)
    raise InvalidInputError(
        f"key {key!r}: expected 'zarr.json', 'c', or 'c/' and chunk numbers below a node's path",
        ErrorKind.INVALID_KEY,
    )


@lru_cache(maxsize=4096)
def _valid_path(name: str) -> str:
    return paths.validate("/" + name)


def _path(name: str, key: str, find: Callable[[str], object]) -> str:
    """The path of the node called `name` in a key; Zarr's names have no leading slash."""
    if name == "" and not key.startswith("/"):
        return paths.ROOT
    try:
        return _valid_path(name)
    except InvalidInputError as error:
        if find("/" + name) is not None:
            return "/" + name
        raise InvalidInputError(f"key {key!r}: {error.message}", ErrorKind.INVALID_KEY) from None


def metadata_key(path: str) -> str:
    """The key of a node's zarr.json."""
    return METADATA if path == paths.ROOT else f"{paths.to_key(path)}/{METADATA}"


def chunk_prefix(path: str) -> str:
    """The prefix of all chunk keys of an array. The prefix itself is the chunk of a 0-d array."""
    return "c" if path == paths.ROOT else f"{paths.to_key(path)}/c"


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
    ref = await find_ref(handle, view, node, parsed.coordinates)
    if ref is None:
        return None
    if byte_range is None:
        return Located(ref, None) if ref.inline is None else ref.inline
    span = _span(byte_range, ref.length)
    return b"" if span is not None and span.length == 0 else Located(ref, span)


async def fetch(handle: RepoHandle, found: Located) -> Readable:
    """The bytes of a located chunk."""
    return await fetch_chunk(handle.assets, found.ref, found.span)


async def find_ref(
    handle: RepoHandle, view: SessionView, node: Node, coordinates: Coordinates
) -> ChunkRef | None:
    """The reference of a chunk inside the grid of its array; else None."""
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
    return await find_ref(handle, view, node, parsed.coordinates) is not None


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
    ref = await find_ref(handle, view, node, parsed.coordinates)
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
        array = handle.format.parse_array(given, parsed.path)
        document = handle.format.stored_document(given, parsed.path)
        with state.writing():
            base, new_id = state.snapshot.nodes, new_node_id(handle, state)
            state.changes.put_node(base, parsed.path, document, array, new_id)
            state.forget_nodes()
        return
    node, array = state.array(parsed.path)
    check_chunk(key, array, parsed.coordinates, memoryview(value).nbytes)
    written = WrittenChunks()
    await store_chunks(handle, [(parsed.coordinates, value)], written)
    await set_chunks(workspace, node, written)


@dataclass(slots=True)
class WrittenChunks:
    """Chunks of one array that are stored, but not yet part of the session."""

    refs: dict[Coordinates, ChunkRef | None] = field(default_factory=dict)
    """None for chunks to delete."""
    packed: dict[Coordinates, bytes] = field(default_factory=dict)
    """Chunks for objects that several share; see `packing`."""


async def store_chunks(
    handle: RepoHandle, encoded: Iterable[tuple[Coordinates, Any]], written: WrittenChunks
) -> None:
    """Store chunks, and add them to `written`. Bytes are None for a chunk to delete.

    Only what is too large to be inline or packed becomes an object.
    """
    from icefloe.repo.commit import is_packed

    objects = []
    native = {}
    inline_bytes = handle.settings.inline_chunk_threshold_bytes
    for coordinates, data in encoded:
        if data is None:
            written.refs[coordinates] = None
            continue
        view = memoryview(data)
        size = view.nbytes
        if size <= inline_bytes:
            written.refs[coordinates] = ChunkRef(ChunkKind.INLINE, 0, size, inline=bytes(view))
        elif is_packed(handle, size):
            written.packed[coordinates] = bytes(view)
        else:
            chunk_id = handle.new_id(ChunkId)
            objects.append((handle.assets.chunk_key(chunk_id), view))
            native[coordinates] = ChunkRef(ChunkKind.NATIVE, 0, size, chunk_id)
    if objects:
        storage_class = handle.settings.storage.chunks_storage_class
        await handle.driver.put_new(objects, storage_class=storage_class)
    written.refs.update(native)


async def set_chunks(workspace: Workspace, node: Node, written: WrittenChunks) -> None:
    """Enter chunks that are stored into the session, all at once."""
    from icefloe.repo.commit import add_chunk

    state = workspace.state
    for coordinates, data in written.packed.items():
        await add_chunk(workspace, node, coordinates, data)
    if not written.refs:
        return
    with state.writing():
        if (edits := state.edits(node)) is not None:
            for coordinates, ref in written.refs.items():
                edits.set(coordinates, ref)


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


# -- queries about nodes and chunks


async def node_id(workspace: Workspace, path: str) -> NodeId:
    """The id of the node at a path."""
    state = workspace.state
    return state.node(paths.validate(path, state.find_node)).id


async def chunk_kind(workspace: Workspace, path: str, coordinates: Sequence[int]) -> int:
    """The `ChunkKind` of a chunk, 0 if it was never written."""
    handle, state = workspace
    view = state.view
    node, array = view.array(paths.validate(path, view.find_node))
    wanted = tuple(map(as_index, coordinates))
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
    found: list[str] = []
    containers = workspace.handle.assets.virtual.access.containers
    async for refs, location, is_virtual in virtual_refs(workspace):
        is_all = len(is_virtual) == len(refs)
        urls = _absolute(location if is_all else location.take(is_virtual), containers)
        if found:
            found.extend(urls)
        else:
            found = urls
    return found


async def virtual_refs(
    workspace: Workspace,
) -> AsyncIterator[tuple[ChunkRefs, Coded, NDArray[Any]]]:
    """The chunks of each array that has virtual ones, their locations, and the virtual rows."""
    handle, view = workspace.handle, workspace.state.view
    nodes = view.all_nodes()
    await load_manifests(handle, view, nodes)
    for node in nodes:
        if node.array is None:
            continue
        refs = await all_chunks(handle, view, node)
        rows = np.flatnonzero(refs.kind == ChunkKind.VIRTUAL)
        if refs.location is not None and len(rows):
            yield refs, refs.location, rows


def _absolute(column: Coded, containers: ContainerSet) -> list[str]:
    """Absolute locations, with container names expanded; "" if there is no location."""
    codes = column.codes
    texts = None if column.uses_few_values else _without_names(column)
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
) -> AsyncIterator[ChunkBatch]:
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
