"""The arrays of one group as a scan sees them: names, dimensions, chunks, codings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from zarr.core.dtype import VariableLengthBytes
from zarr.core.metadata import ArrayV3Metadata

from icefloe import paths
from icefloe.api.session import Session
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
)
from icefloe.format.snapshot.nodes import Node
from icefloe.geometry import Slices, chunks_of, shape_of
from icefloe.scans.coding import Coding, Values, find_coding
from icefloe.storage.run import run_blocking


class OpenArrays:
    """Arrays of one session, each opened once. Kept no longer than the task that reads them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._opened: dict[str, zarr.Array[Any]] = {}

    def at(self, path: str) -> zarr.Array[Any]:
        """The array at a path."""
        if path not in self._opened:
            store = self.session.store
            self._opened[path] = zarr.open_array(store, path=paths.to_key(path), mode="r")
        return self._opened[path]


@dataclass(frozen=True, slots=True)
class Variable:
    """One array. `chunk_shape` is that of the stored chunks, which are shards where there are."""

    name: str
    path: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    coding: Coding | None
    bounds: str | None = None
    """The array that has the bounds of its cells."""

    @property
    def is_coordinate(self) -> bool:
        """Whether it gives the values along the dimension of its own name."""
        return self.dimensions == (self.name,)

    def read(self, arrays: OpenArrays, region: Slices) -> NDArray[Any]:
        """The stored values of a region."""
        return np.asarray(arrays.at(self.path)[region])

    def read_decoded(self, arrays: OpenArrays, region: Slices) -> Values:
        assert self.coding is not None
        return self.coding.decode(self.read(arrays, region))

    def present_chunks(self, session: Session, region: Slices) -> NDArray[np.bool_]:
        """Which of the chunks that a region touches were ever written."""
        box = chunks_of(region, self.chunk_shape)
        found = np.zeros(shape_of(box), np.bool_)
        for index in chunk_indices(session, self.path, box):
            found[tuple((index - np.array([span.start for span in box], np.int64)).T)] = True
        return found


def chunk_indices(session: Session, path: str, box: Slices) -> list[NDArray[np.int64]]:
    """The indices of the chunks inside a box of chunks, a matrix from each manifest."""
    node, array = session.workspace.state.array(path)
    assets = session.handle.assets
    files = session.workspace.state.snapshot.manifest_files
    wanted = [
        (ref.id, files[ref.id].size_bytes)
        for ref in array.manifests
        if all(
            low < span.stop and span.start < high
            for (low, high), span in zip(ref.extents, box, strict=True)
        )
    ]
    start, stop = [span.start for span in box], [span.stop for span in box]
    found = []
    for manifest in run_blocking(assets.manifests(wanted)):
        refs = manifest.find(node.id)
        if refs is not None and len(refs):
            found.append(refs.select(start, stop).index.astype(np.int64))
    return found


def find_variables(
    session: Session, group: str, names: Sequence[str] | None, *, decode: bool, is_coded: bool
) -> list[Variable]:
    """The arrays directly in a group, or those named.

    Args:
        is_coded: whether columns are made of their values; if not, any data type will do.

    Raises:
        NodeNotFoundError: there is no such group or array.
    """
    folder = paths.validate("/" + group.strip("/"))
    node = session.workspace.state.find_node(folder)
    if node is None:
        raise NodeNotFoundError(f"group {folder!r} in snapshot {session.snapshot_id}")
    if node.array is not None:
        above = paths.parent(folder)
        raise InvalidInputError(
            f"{folder!r} is an array; give group={above!r} and variables=[{paths.name(folder)!r}]",
            ErrorKind.NOT_A_GROUP,
        )
    depth = len(paths.segments(folder))
    arrays = {
        paths.name(path): found
        for path in session.workspace.state.all_paths(folder)
        if len(paths.segments(path)) == depth + 1
        and (found := session.workspace.state.node(path)).array is not None
    }
    wanted = list(arrays) if names is None else list(names)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise NodeNotFoundError(
            f"array {missing[0]!r} in group {folder!r}; arrays are "
            f"{', '.join(map(repr, arrays)) or 'none'}"
        )
    return [
        _variable(session, name, arrays[name], decode=decode, is_coded=is_coded) for name in wanted
    ]


def _variable(session: Session, name: str, node: Node, *, decode: bool, is_coded: bool) -> Variable:
    array = zarr.open_array(session.store, path=paths.to_key(node.path), mode="r")
    metadata = array.metadata
    assert isinstance(metadata, ArrayV3Metadata)
    given = metadata.dimension_names or (None,) * len(array.shape)
    names = tuple(text or f"dim_{axis}" for axis, text in enumerate(given))
    chunk_shape = getattr(metadata.chunk_grid, "chunk_shape", None)
    if chunk_shape is None:
        raise InvalidInputError(
            f"array {node.path!r} has chunks of several sizes, which cannot be read by Spark yet",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    dtype = np.dtype(metadata.data_type.to_native_dtype())
    coding = array_coding(session, node.path, array, decode=decode) if is_coded else None
    shapes = tuple(array.shape), tuple(chunk_shape)
    return Variable(name, node.path, names, *shapes, dtype, coding, _bounds(array.attrs))


def _bounds(attributes: Mapping[str, Any]) -> str | None:
    for key in ("bounds", "climatology"):
        if isinstance(attributes.get(key), str):
            return str(attributes[key])
    return None


def array_coding(
    session: Session, path: str, array: zarr.Array[Any], *, decode: bool = True
) -> Coding:
    """How the values of an array are read. Every reader of values in icefloe decodes with this."""
    metadata = array.metadata
    assert isinstance(metadata, ArrayV3Metadata)
    dtype = np.dtype(metadata.data_type.to_native_dtype())
    if dtype.kind == "O" and isinstance(metadata.data_type, VariableLengthBytes):
        return Coding(pa.binary(), "O")
    parent = _bounds_parent(session, path, metadata.dimension_names)
    return find_coding(path, dtype, dict(array.attrs), decode=decode, parent=parent)


def _bounds_parent(
    session: Session, path: str, dimensions: Sequence[str | None] | None
) -> dict[str, Any] | None:
    """The attributes of the first dimension's coordinate, if it names this array as its bounds."""
    group, _, name = path.rpartition("/")
    if not dimensions or dimensions[0] in (None, name):
        return None
    coordinate = f"{group}/{dimensions[0]}"
    node = session.workspace.state.find_node(coordinate)
    if node is None or node.array is None:
        return None
    found = zarr.open_array(session.store, path=paths.to_key(coordinate), mode="r")
    attributes = dict(found.attrs)
    return attributes if name in (attributes.get("bounds"), attributes.get("climatology")) else None


def cell_bytes(variables: Sequence[Variable]) -> int:
    """Bytes of one cell of every variable, about; text counts as 16."""
    return sum(16 if v.dtype.kind in "OT" else max(v.dtype.itemsize, 1) for v in variables)
