"""Zarr keys: the node of a key, and whether the key is its metadata or a chunk."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from icefloe import paths
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import Coordinates

METADATA = "zarr.json"
_CHUNK = re.compile(r"(?:(.*)/)?c((?:/[0-9]+)*)\Z", re.DOTALL)
_V2_DOCUMENTS = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
_MAX_INDEX = 2**32 - 1


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
            if max(coordinates) <= _MAX_INDEX:
                return ChunkKey(_path(folder, key, find), coordinates)
    folder, _, name = key.rpartition("/")
    if name == METADATA:
        return MetadataKey(_path(folder, key, find))
    if name in _V2_DOCUMENTS:
        return V2Key(key)
    chunk = _CHUNK.match(key)
    if chunk is not None:
        coordinates = tuple(map(int, chunk[2].split("/")[1:]))
        if all(at <= _MAX_INDEX for at in coordinates):
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
