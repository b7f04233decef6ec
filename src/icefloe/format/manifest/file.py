"""Manifest files: the chunk references of one or several arrays, decoded to columns.

`manifest_encode` is the way back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icefloe.format.columns.blobs import Bytes
from icefloe.format.envelope import FileType, decode_envelope
from icefloe.format.flatbuffer.read import FlatBuffer
from icefloe.format.flatbuffer.schema import ARRAY_MANIFEST, MANIFEST
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.manifest.decode_refs import RefsDecoder
from icefloe.format.manifest.stored_refs import StoredRefs
from icefloe.ids import ChunkId, ManifestId, NodeId
from icefloe.records import record

_MANY_REFS = 1 << 15
"""Arrays with fewer are decoded at once: that takes a few milliseconds."""
_COMPRESSION_ZSTD_DICTIONARY = 1


class ArrayManifest:
    """The references of one array in one manifest."""

    __slots__ = ("_refs", "extra", "node_id")

    def __init__(
        self, node_id: NodeId, refs: ChunkRefs | StoredRefs, extra: bytes | None = None
    ) -> None:
        self.node_id = node_id
        self.extra = extra
        self._refs = refs

    @property
    def refs(self) -> ChunkRefs:
        """All references as columns, made when they are first asked for, then kept.

        Raises:
            FormatError: they are not whole and consistent.
        """
        refs = self._refs
        if isinstance(refs, StoredRefs):
            refs = self._refs = refs.decode()
        return refs

    def get(self, coordinates: Sequence[int]) -> ChunkRef | None:
        """The reference of one chunk, or None."""
        refs = self._refs
        if isinstance(refs, StoredRefs) and refs.probes_left > 0:
            return refs.get(coordinates)
        return self.refs.get(coordinates)

    def kind_at(self, coordinates: Sequence[int]) -> int:
        """The `ChunkKind` of one chunk; 0 if there is none."""
        refs = self._refs
        if isinstance(refs, StoredRefs) and refs.probes_left > 0:
            form = refs.find(coordinates)[1]
            return 0 if form is None else form.kind
        return self.refs.kind_at(coordinates)

    @property
    def nbytes(self) -> int:
        """Bytes of memory the references take."""
        return self._refs.nbytes

    def __len__(self) -> int:
        return len(self._refs)


@record(frozen=True, eq=False)
class Manifest:
    """A decoded manifest; arrays ascend by node id."""

    id: ManifestId
    arrays: tuple[ArrayManifest, ...]
    extra: bytes | None = None

    def array(self, node_id: NodeId) -> ArrayManifest | None:
        """The part of one array, or None if this manifest does not hold it."""
        for array in self.arrays:
            if array.node_id == node_id:
                return array
        return None

    def find(self, node_id: NodeId) -> ChunkRefs | None:
        """The references of one array, or None if this manifest does not hold it."""
        array = self.array(node_id)
        return None if array is None else array.refs

    def get(self, node_id: NodeId, coordinates: Sequence[int]) -> ChunkRef | None:
        """The reference of one chunk, or None; cheaper than `find` as long as few are wanted."""
        array = self.array(node_id)
        return None if array is None else array.get(coordinates)

    def kind_at(self, node_id: NodeId, coordinates: Sequence[int]) -> int:
        """The `ChunkKind` of one chunk; 0 if there is none."""
        for array in self.arrays:
            if array.node_id == node_id:
                return array.kind_at(coordinates)
        return 0

    @property
    def num_chunk_refs(self) -> int:
        return sum(map(len, self.arrays))

    @property
    def nbytes(self) -> int:
        """Bytes of memory the references of all arrays take."""
        return sum(array.nbytes for array in self.arrays)

    def native_chunk_ids(self) -> Bytes:
        """The chunk objects that the manifest refers to, once for every reference."""
        found = [np.empty((0, ChunkId.size), np.uint8)]
        for array in self.arrays:
            table = array.refs
            if table.chunk_id is not None:
                is_native = table.kind == ChunkKind.NATIVE
                found.append(table.chunk_id if is_native.all() else table.chunk_id[is_native])
        return np.concatenate(found)

    def equals(self, other: Manifest) -> bool:
        """Same id, arrays, references and extra bytes."""
        return (self.id, self.extra, len(self.arrays)) == (
            other.id,
            other.extra,
            len(other.arrays),
        ) and all(
            (mine.node_id, mine.extra) == (yours.node_id, yours.extra)
            and mine.refs.equals(yours.refs)
            for mine, yours in zip(self.arrays, other.arrays, strict=True)
        )


def decode_manifest(
    data: bytes | memoryview, name: str = "manifest", *, lazy_from: int = _MANY_REFS
) -> Manifest:
    """Decode a manifest file. `name` is what errors call it.

    Locations stored as zstd frames stay compressed until they are asked for. Arrays with
    `lazy_from` references or more stay as the file has them until somebody wants many: what is
    wrong with those is found out then.

    Raises:
        FormatError: the bytes are not a whole, consistent manifest.
    """
    _, payload, size = decode_envelope(data, FileType.MANIFEST, name)
    buffer = FlatBuffer(payload, size, name)
    root = buffer.root(MANIFEST)
    dictionary = root.bytes("location_dictionary")
    if root.scalar("compression_algorithm") != _COMPRESSION_ZSTD_DICTIONARY:
        dictionary = None
    decoded: list[ArrayManifest] = []
    for array in root.tables("arrays", ARRAY_MANIFEST):
        node_id = NodeId(array.id("node_id"))
        if decoded and decoded[-1].node_id >= node_id:
            buffer.fail("arrays do not ascend by node id")
        first, number = array.vector("refs", 4) or (4, 0)
        if number >= lazy_from:
            refs: ChunkRefs | StoredRefs = StoredRefs(buffer, first, number, dictionary, node_id)
        else:
            refs = RefsDecoder(buffer, first, number, dictionary).decode(node_id)
        decoded.append(ArrayManifest(node_id, refs, array.bytes("extra")))
    return Manifest(ManifestId(root.id("id")), tuple(decoded), root.bytes("extra"))
