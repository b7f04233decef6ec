"""Snapshots of the numbered generations as values, independent of their encoding.

Nodes are values, because an old snapshot is read or written as a whole. Chunk references are always
columns (`refs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from icefloe.ids import NodeId
from icefloe.records import record

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


@record(frozen=True)
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


@record(frozen=True)
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


@record(frozen=True)
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


def node_number(identity: NodeId) -> int | None:
    """The 32-bit number of such an id, or None."""
    number = int.from_bytes(identity, "big")
    return number if number < 2**32 else None
