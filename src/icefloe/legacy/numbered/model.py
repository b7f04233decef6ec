"""Snapshots of numbered repositories as values, chunk references as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from icefloe.errors import IcechunkError
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import Bytes
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.ids import ManifestId, NodeId, decode_base32_rows
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.names import IdMap

DataType = str | Mapping[str, int]
"""A name, or {"rawbits": number of bits}."""


class FillValue(NamedTuple):
    """A value and the name of its kind: `Float32`, `RawBits`, ..."""

    kind: str
    value: Any


class NamedConfiguration(NamedTuple):
    """A codec or a storage transformer."""

    name: str
    configuration: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ArrayMetadata:
    """The parts of an array's `zarr.json`."""

    shape: tuple[int, ...]
    data_type: DataType
    chunk_shape: tuple[int, ...]
    chunk_key_encoding: str
    fill_value: FillValue
    codecs: tuple[NamedConfiguration, ...]
    storage_transformers: tuple[NamedConfiguration, ...] | None = None
    dimension_names: tuple[str | None, ...] | None = None


class AttributesRef(NamedTuple):
    """User attributes in an attributes file; `location` is their position in it."""

    object_id: bytes
    location: int


class OldManifestRef(NamedTuple):
    """A manifest with chunks of an array, and their box if the file has it."""

    object_id: bytes
    extents: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class OldNode:
    """A group, or with `metadata` an array."""

    id: NodeId
    path: str
    attributes: Mapping[str, Any] | AttributesRef | None = None
    metadata: ArrayMetadata | None = None
    manifests: tuple[OldManifestRef, ...] = ()


class OldManifestFile(NamedTuple):
    """A manifest as a snapshot lists it. 0 for numbers that the generation does not store."""

    object_id: bytes
    size_bytes: int = 0
    num_refs: int = 0


class Ancestor(NamedTuple):
    """A snapshot as a descendant lists it."""

    id: bytes
    written_at: int
    message: str


@dataclass(frozen=True, slots=True)
class OldSnapshot:
    """A snapshot file. Ids have 12 or 16 bytes, times are microseconds since the epoch."""

    id: bytes
    written_at: int
    message: str
    nodes: Sequence[OldNode]
    properties: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Ancestor, ...] = ()
    """Newest first, without the snapshot itself. It may not reach the first snapshot."""
    total_parents: int = 0
    started_at: int | None = None
    parent_id: bytes | None = None
    manifest_files: tuple[OldManifestFile, ...] = ()
    attribute_files: tuple[bytes, ...] = ()

    @property
    def parent(self) -> bytes | None:
        """The parent; None if there is none or the file does not have it."""
        if self.parent_id is not None or not self.history:
            return self.parent_id
        return self.history[0].id


def node_id(number: int) -> NodeId:
    """The eight-byte id for a node that has a 32-bit number in the file."""
    return NodeId(number.to_bytes(8, "big"))


# -- chunk references, converted between rows of a file and columns

_MAX_INDEX = 2**32 - 1


class RefRows:
    """References of one array as read from a file, by kind.

    A row is the index of the chunk, and then its bytes (inline), id, offset and length (native), or
    location, offset, length, ETag and seconds of the last change or 0 (virtual). Ids are bytes or
    text.
    """

    def __init__(self) -> None:
        self._rows: dict[ChunkKind, list[tuple[Any, ...]]] = {kind: [] for kind in ChunkKind}

    def add(self, kind: ChunkKind, index: Sequence[int], *values: Any) -> None:
        self._rows[kind].append((index, *values))

    def columns(self, checked: Checked, ids: IdMap) -> ChunkRefs:
        """The references as columns, checked."""
        ranks = {len(row[0]) for rows in self._rows.values() for row in rows}
        if len(ranks) > 1:
            raise checked.fail(
                f"chunks of one array have {sorted(ranks)} dimensions, expected one number"
            )
        ndim = ranks.pop() if ranks else 0
        try:
            parts = [
                _part(kind, ndim, list(zip(*rows, strict=True)), checked, ids)
                for kind, rows in self._rows.items()
                if rows
            ]
        except IcechunkError as error:
            raise checked.fail(error.message.removeprefix(f"{checked.name}: ")) from None
        refs = ChunkRefs.overlay([(part, None) for part in parts], ndim)[0]
        if len(refs) != sum(map(len, self._rows.values())):
            raise checked.fail("a chunk of an array is listed twice")
        return refs


def _part(
    kind: ChunkKind, ndim: int, columns: Sequence[Sequence[Any]], checked: Checked, ids: IdMap
) -> ChunkRefs:
    index = _matrix(columns[0], ndim, checked)
    if kind == ChunkKind.INLINE:
        return ChunkRefs.inline_chunks(index, columns[1])
    offset, length = (_numbers(each, checked) for each in columns[2:4])
    if kind == ChunkKind.NATIVE:
        return ChunkRefs.native(
            index, ids.shorten(_id_rows(columns[1], ids, checked)), offset, length
        )
    _, location, _, _, etag, modified = columns
    return ChunkRefs.virtual(
        index,
        list(location),
        offset,
        length,
        list(etag) if any(each is not None for each in etag) else None,
        np.array(modified, np.uint32) if any(modified) else None,
    )


def _id_rows(raw: Sequence[bytes | str], ids: IdMap, checked: Checked) -> Bytes:
    if all(isinstance(each, str) and each.isascii() for each in raw):
        # All texts are decoded at once, unless one of them is not canonical.
        rows, is_id = decode_base32_rows(np.array(raw, np.bytes_), ids.size)
        if is_id.all():
            return rows
    found = [
        checked.id_text(each, "chunk id", 12, 16) if isinstance(each, str) else each for each in raw
    ]
    sizes = set(map(len, found))
    if len(sizes) > 1:
        raise checked.fail(f"chunk ids have {sorted(sizes)} bytes, expected one size in a file")
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, sizes.pop())


def _matrix(rows: Sequence[Sequence[int]], ndim: int, checked: Checked) -> Index:
    flat = _numbers([at for row in rows for at in row], checked)
    if len(flat) and int(flat.max()) > _MAX_INDEX:
        raise checked.fail(f"chunk index {int(flat.max()):,}, at most {_MAX_INDEX:,} can be read")
    matrix: Index = flat.astype(np.uint32).reshape(len(rows), ndim)
    return matrix


def _numbers(values: Sequence[Any], checked: Checked) -> Any:
    if set(map(type, values)) - {int}:
        raise checked.fail("an offset, length or chunk index is not a whole number")
    try:
        return np.array(values, np.uint64) if values else np.empty(0, np.uint64)
    except (OverflowError, ValueError):
        raise checked.fail("an offset, length or chunk index is not from 0 to 2**64 - 1") from None


class DecodedManifest(NamedTuple):
    """A manifest file: the references of each array. Old files do not have their own id."""

    object_id: bytes | None
    arrays: dict[NodeId, ChunkRefs]

    def manifest(self, manifest_id: ManifestId) -> Manifest:
        """The manifest as sessions use it."""
        ordered = sorted(self.arrays.items())
        return Manifest(manifest_id, tuple(ArrayManifest(*entry) for entry in ordered))


@dataclass(frozen=True, slots=True)
class RefLists:
    """References as lists, to be written to a file."""

    index: list[list[int]]
    kind: list[int]
    chunk_id: list[bytes]
    offset: list[int]
    length: list[int]
    location: list[str | None]
    inline: list[bytes | None]

    @classmethod
    def of(cls, refs: ChunkRefs, ids: IdMap) -> RefLists:
        """Ids as in files, one row per reference; empty for a chunk without an id."""
        count = len(refs)
        chunk_id = [b""] * count
        if refs.chunk_id is not None:
            native = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
            wide = ids.widen(np.ascontiguousarray(refs.chunk_id[native]))
            for row, each in zip(native.tolist(), wide, strict=True):
                chunk_id[row] = each.tobytes()
        location = [None] * count if refs.location is None else refs.location.to_arrow().to_pylist()
        inline = [None] * count if refs.inline is None else refs.inline.to_list()
        return cls(
            refs.index.tolist(),
            refs.kind.tolist(),
            chunk_id,
            refs.offset.tolist(),
            refs.length.tolist(),
            location,
            inline,
        )
