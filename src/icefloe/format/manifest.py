"""Manifest files: decoded and encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.config.manifest import ResolvedLocationCompression
from icefloe.errors import ErrorKind, FormatError
from icefloe.format import small
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.columns import (
    BlobColumn,
    Bytes,
    Ints,
    is_ascending_ids,
    parts_of,
    scatter,
    spread,
    windows,
)
from icefloe.format.envelope import FileType, decode_envelope, encode_envelope
from icefloe.format.flatbuffer.read import FlatBuffer, Rows, index_tail
from icefloe.format.flatbuffer.schema import ARRAY_MANIFEST, CHUNK_REF, MANIFEST
from icefloe.format.flatbuffer.write import FlatWriter, Produced, padded, table_layout
from icefloe.format.locations import MAX_COMPRESSED_LOCATION_BYTES, Coded
from icefloe.format.manifest_lookup import RefsDecoder, StoredRefs
from icefloe.ids import ChunkId, ManifestId, NodeId

# -- Manifest files: the chunk references of one or several arrays, decoded to columns.
#
# `manifest_encode` is the way back.


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
        """All references as columns, built on first access, then kept.

        Raises:
            FormatError: they are not whole and consistent.
        """
        refs = self._refs
        if isinstance(refs, StoredRefs):
            refs = self._refs = refs.decode()
        return refs

    def is_searched_for(self, count: int) -> bool:
        """Whether finding so many chunks one by one costs less than decoding all references."""
        return isinstance(self._refs, StoredRefs) and self._refs.is_searched_for(count)

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


class SharedArrays(Sequence[ArrayManifest]):
    """Many small arrays of one manifest: one table for all arrays of a rank, one array's rows
    after another's. The value of an array is made on first access, then kept."""

    def __init__(
        self, node_id: Bytes, ndim: Ints, num_refs: Ints, tables: Mapping[int, ChunkRefs]
    ) -> None:
        """Ascending ids, with the rank of each array and how many references it has."""
        self.node_id = node_id
        self.ndim = ndim
        self.num_refs = num_refs
        self.tables = tables
        self._start = np.zeros(len(num_refs), np.int64)
        """Where the rows of each array begin in the table of its rank."""
        for rank in tables:
            mine = ndim == rank
            self._start[mine] = np.cumsum(num_refs[mine]) - num_refs[mine]
        self._values: list[ArrayManifest | None] = [None] * len(num_refs)
        self._row: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return tuple(self)[row]
        value = self._values[row]
        if value is None:
            start, count = int(self._start[row]), int(self.num_refs[row])
            refs = self.tables[int(self.ndim[row])].take(slice(start, start + count))
            value = ArrayManifest(NodeId(self.node_id[row].tobytes()), refs)
            self._values[row] = value
        return value

    def find(self, node_id: NodeId) -> ArrayManifest | None:
        """The part of one array, or None."""
        if not self._row:
            self._row = {key: row for row, key in enumerate(NodeId.of_rows(self.node_id))}
        row = self._row.get(node_id)
        return None if row is None else self[row]

    def rows_of(self, arrays: Ints) -> Ints:
        """The rows of these arrays, all of one rank, in the table of the rank."""
        return spread(self._start[arrays], self.num_refs[arrays], 1)

    def sizes(self) -> Ints:
        """The bytes of the chunks of each array."""
        found = np.zeros(len(self), np.int64)
        for rank, refs in self.tables.items():
            mine = np.flatnonzero(self.ndim == rank)
            found[mine] = np.add.reduceat(refs.length.astype(np.int64), self._start[mine])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A decoded manifest; arrays ascend by node id."""

    id: ManifestId
    arrays: Sequence[ArrayManifest]
    extra: bytes | None = None

    def array(self, node_id: NodeId) -> ArrayManifest | None:
        """The part of one array, or None if this manifest does not hold it."""
        if isinstance(self.arrays, SharedArrays):
            return self.arrays.find(node_id)
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
        array = self.array(node_id)
        return 0 if array is None else array.kind_at(coordinates)

    @property
    def num_chunk_refs(self) -> int:
        if isinstance(self.arrays, SharedArrays):
            return int(self.arrays.num_refs.sum())
        return sum(map(len, self.arrays))

    @property
    def nbytes(self) -> int:
        """Bytes of memory the references of all arrays take."""
        if isinstance(self.arrays, SharedArrays):
            return sum(table.nbytes for table in self.arrays.tables.values())
        return sum(array.nbytes for array in self.arrays)

    @property
    def tables(self) -> Iterable[ChunkRefs]:
        """All references: a table for each array, or for all small arrays of one rank."""
        if isinstance(self.arrays, SharedArrays):
            return self.arrays.tables.values()
        return (array.refs for array in self.arrays)

    def native_chunk_ids(self) -> Bytes:
        """The chunk objects that the manifest refers to, once for every reference."""
        found = [np.empty((0, ChunkId.size), np.uint8)]
        for table in self.tables:
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
    data: bytes | memoryview, name: str = "manifest", *, lazy_from: int | None = None
) -> Manifest:
    """Decode a manifest file. `name` is what errors call it.

    Locations stored as zstd frames stay compressed until first access. Arrays with
    `lazy_from` references or more (`small.REFS` decides if it is not given) stay as the file has
    them until many are read, and are checked only then.

    Raises:
        FormatError: the bytes are not a whole, consistent manifest.
    """
    _, payload, size = decode_envelope(data, FileType.MANIFEST, name)
    buffer = FlatBuffer(payload, size, name)
    root = buffer.root(MANIFEST)
    dictionary = root.bytes("location_dictionary")
    if root.scalar("compression_algorithm") != _COMPRESSION_ZSTD_DICTIONARY:
        dictionary = None
    lazy_from = small.REFS + 1 if lazy_from is None else lazy_from
    manifest_id, extra = ManifestId(root.id("id")), root.bytes("extra")
    if root.count("arrays") > 1:
        shared = _decode_shared(root.rows("arrays", ARRAY_MANIFEST), dictionary, lazy_from)
        if shared is not None:
            return Manifest(manifest_id, shared, extra)
    decoded: list[ArrayManifest] = []
    for array in root.tables("arrays", ARRAY_MANIFEST):
        node_id = NodeId(array.id("node_id"))
        if decoded and decoded[-1].node_id >= node_id:
            buffer.fail("arrays do not ascend by node id")
        first, number = array.vector("refs", 4) or (4, 0)
        if number >= lazy_from:
            refs: ChunkRefs | StoredRefs = StoredRefs(buffer, first, number, dictionary, node_id)
        else:
            slots = np.arange(first, first + 4 * number, 4, dtype=np.int64)
            refs = RefsDecoder(buffer, slots, dictionary).decode(node_id)
        decoded.append(ArrayManifest(node_id, refs, array.bytes("extra")))
    return Manifest(manifest_id, tuple(decoded), extra)


def _decode_shared(arrays: Rows, dictionary: bytes | None, lazy_from: int) -> SharedArrays | None:
    """All arrays together; None if one is large, empty, or has extra bytes."""
    buffer, ids = arrays.buffer, arrays.struct("node_id")
    start, count, _ = arrays.vectors("refs", 4)
    if not count.all() or int(count.max()) >= lazy_from:
        return None
    if not arrays.is_absent_everywhere("extra"):
        return None
    if not is_ascending_ids(ids):
        buffer.fail("arrays do not ascend by node id")
    buffer.check_apart(4 * int(count.sum()), "ArrayManifest.refs")
    # The first reference says how many dimensions an array has; `RefsDecoder` checks the others.
    index_at = buffer.targets(Rows(buffer, buffer.targets(start), CHUNK_REF).field("index")[0])
    buffer.check(index_at, 4, 4, "ChunkRef.index")
    ndim = buffer.u4.take(index_at >> 2).astype(np.int64)
    tables = {}
    for rank in np.unique(ndim).tolist():
        mine = np.flatnonzero(ndim == rank)
        slots = spread(start[mine], count[mine], 4)
        owner = np.repeat(mine, count[mine])
        tables[rank] = RefsDecoder(buffer, slots, dictionary).decode(owner)
    return SharedArrays(ids, ndim, count, tables)


# -- Locations of virtual chunks as zstd frames that share a dictionary, for manifests of version
# 2.
#
# Only written where the configuration asks for it: whole manifests are compressed anyway.


_SHORTEST_SAMPLE = 8
"""Bytes. zstd makes no dictionary out of shorter samples."""

_LARGEST_DICTIONARY = 1 << 20
"""Bytes. Every reader of the manifest loads it, and it is made out of as many bytes of samples."""

_Sample: TypeAlias = bytes | bytearray | memoryview
"""What zstd takes."""


class Frames(NamedTuple):
    """A column of frames as numbers into the distinct ones; -1 where the location stays plain."""

    codes: NDArray[np.int32]
    frames: BlobColumn

    def take(self, rows: Any) -> Frames:
        return Frames(self.codes[rows], self.frames)


class LocationCompressor:
    """Makes the frames of one manifest."""

    def __init__(self, dictionary: zstandard.ZstdCompressionDict, level: int) -> None:
        self.dictionary: bytes = dictionary.as_bytes()
        dictionary.precompute_compress(level)
        self._compressor = zstandard.ZstdCompressor(level, dict_data=dictionary)

    def compress(self, column: Coded) -> Frames:
        """The frames of a column's locations. Those too long for readers to inflate have none."""
        texts = column.values.strings()
        fits = texts.length <= MAX_COMPRESSED_LOCATION_BYTES
        fits &= np.isin(np.arange(len(texts)), column.codes)
        rows: Ints = np.flatnonzero(fits)
        data = texts.data
        spans = zip(texts.offsets[rows].tolist(), texts.offsets[rows + 1].tolist(), strict=True)
        frames = [self._compressor.compress(data[start:stop].tobytes()) for start, stop in spans]
        number = np.where(fits, np.cumsum(fits) - 1, -1).astype(np.int32)
        codes = np.where(column.codes < 0, -1, number.take(column.codes, mode="clip"))
        return Frames(codes.astype(np.int32), BlobColumn.from_values(frames))


def train(
    arrays: Sequence[ChunkRefs], wanted: ResolvedLocationCompression
) -> LocationCompressor | None:
    """A compressor with a dictionary for these references, or None if locations stay plain.

    They do where there are too few, or where zstd can make no dictionary: because they are very
    short, or because the configuration has too little room or too few samples for one.
    """
    columns = [refs.location for refs in arrays if refs.location is not None]
    count = sum(int((column.codes >= 0).sum()) for column in columns)
    if not count or count < wanted.min_num_chunks:
        return None
    samples = _samples(columns, count, wanted.dictionary_max_training_samples)
    size = min(wanted.dictionary_max_size_bytes, _LARGEST_DICTIONARY)
    if 2 * sum(len(sample) < _SHORTEST_SAMPLE for sample in samples) >= len(samples):
        return None
    # zstd wants more bytes of samples than the dictionary may have.
    samples *= 1 + size // sum(map(len, samples))
    try:
        dictionary = zstandard.train_dictionary(size, samples)
    except zstandard.ZstdError:
        return None
    level = min(wanted.compression_level, zstandard.MAX_COMPRESSION_LEVEL)
    return LocationCompressor(dictionary, level)


def _samples(columns: Sequence[Coded], count: int, most: int) -> list[_Sample]:
    """Locations at equal distances, so that the same references make the same file."""
    picked = np.linspace(0, count - 1, min(most, count)).astype(np.int64)
    samples: list[_Sample] = []
    first = 0
    for column in columns:
        codes = column.codes[column.codes >= 0]
        rows = picked[(picked >= first) & (picked < first + len(codes))] - first
        texts = column.values.strings()
        samples += [texts[code].encode() for code in codes[rows].tolist()]
        first += len(codes)
    return samples


# -- Manifest files, from columns to bytes.
#
# The layout is chosen for the compressor. Records of one array have a fixed size, and every
# `_BLOCK` of them are followed by their own copy of the vtable and of the locations they use: the
# offsets that lead there then repeat from block to block instead of changing with every record.
# Where neighbouring rows hardly ever share a location, each distinct one is written once instead.
# Compressed locations are always written once.


MAX_APPARENT_BYTES = 2**31
"""Official readers refuse a manifest whose refs, with a shared location counted for each of
them, add up to more than this."""

_BLOCK = 64
_ROWS_PER_SLICE = 1024 * _BLOCK
_TEXT_FIELDS = {"location": "location", "checksum_etag": "etag"}


def encode_manifest(
    manifest: Manifest,
    *,
    spec_version: int = 2,
    level: int = 3,
    locations: ResolvedLocationCompression | None = None,
) -> bytes:
    """Encode a manifest; readers rely on arrays ascending by node id, so they are sorted here.

    `locations` says how locations of virtual chunks are compressed one by one; version 1 has no
    place for that.

    Raises:
        FormatError: there is nothing to write, or more than one file may hold.
    """
    arrays = manifest.arrays
    if not isinstance(arrays, SharedArrays):
        arrays = sorted(arrays, key=lambda array: array.node_id)
    if not manifest.num_chunk_refs:
        raise FormatError(
            f"manifest {manifest.id}: has no chunk refs; leave it out of the snapshot instead",
            ErrorKind.SERIALIZATION,
        )
    _check_size(manifest)
    compressor = None
    if locations is not None and spec_version > 1:
        compressor = train(list(manifest.tables), locations)
    writer = FlatWriter()
    fields = [
        "id",
        "arrays",
        "compression_algorithm" if compressor is None else "location_dictionary",
    ]
    extra = [] if manifest.extra is None else ["extra"]
    root = writer.table(MANIFEST, [*fields, *extra])
    root.set("id", manifest.id)
    if compressor is None:
        root.set("compression_algorithm", 0)  # 1, the default, means a location dictionary
    else:
        root.point("location_dictionary", writer.blob(compressor.dictionary))
    vector = writer.offsets(len(arrays))
    root.point("arrays", vector.position)
    is_shared = isinstance(arrays, SharedArrays)
    has_extra = not is_shared and any(array.extra is not None for array in arrays)
    parts: dict[str, NDArray[np.bool_] | None] = {"node_id": None, "refs": None}
    if has_extra:
        parts["extra"] = np.array([array.extra is not None for array in arrays])
    tables = writer.tables(ARRAY_MANIFEST, len(arrays), parts)
    vector.point(tables.position)
    if isinstance(arrays, SharedArrays):
        tables.set("node_id", arrays.node_id)
        tables.point("refs", _add_shared_refs(writer, arrays, compressor))
    else:
        tables.set("node_id", np.frombuffer(b"".join(array.node_id for array in arrays), np.uint8))
        tables.point("refs", [_add_refs(writer, array, compressor) for array in arrays])
    if has_extra:
        tables.point("extra", writer.blobs([array.extra for array in arrays], 0))
    if manifest.extra is not None:
        root.point("extra", writer.blob(manifest.extra))
    return encode_envelope(writer.finish(root), spec_version, FileType.MANIFEST, level)


def _check_size(manifest: Manifest) -> None:
    apparent = 0
    for refs in manifest.tables:
        apparent += len(refs) * (100 + 4 * refs.ndim)
        if refs.location is not None:
            length, codes = refs.location.values.strings().length, refs.location.codes
            for rows in _slices(len(refs)):
                apparent += int(length.take(codes[rows][codes[rows] >= 0]).sum())
    if apparent >= MAX_APPARENT_BYTES:
        raise FormatError(
            f"manifest {manifest.id}: {manifest.num_chunk_refs:,} refs amount to {apparent:,} "
            f"bytes, readers accept less than {MAX_APPARENT_BYTES:,}; split the array over "
            "several manifests",
            ErrorKind.SERIALIZATION,
        )


def _add_refs(
    writer: FlatWriter, array: ArrayManifest, compressor: LocationCompressor | None
) -> int:
    """Place one array's refs; returns the position of their vector."""
    words = np.empty(len(array) + 1, "<u4")
    words[0] = len(array)
    start = writer.add(words)
    for row, position in _add_tables(writer, array.refs, compressor):
        words[1 + row] = position - (start + 4 + 4 * row)
    return start


def _add_shared_refs(
    writer: FlatWriter, arrays: SharedArrays, compressor: LocationCompressor | None
) -> Ints:
    """Place the refs of many small arrays; returns the position of each array's vector."""
    vectors = writer.nested_offsets(arrays.num_refs)
    target = np.empty(int(arrays.num_refs.sum()), np.int64)
    for rank, refs in arrays.tables.items():
        slots = parts_of(arrays.num_refs, np.flatnonzero(arrays.ndim == rank))
        for row, position in _add_tables(writer, refs, compressor):
            target[slots[row]] = position
    vectors.point(target)
    return vectors.position


def _add_tables(
    writer: FlatWriter, refs: ChunkRefs, compressor: LocationCompressor | None
) -> Iterator[tuple[Ints, Ints]]:
    """Place the tables of references; yields rows and the positions of their tables."""
    compressed = None
    if compressor is not None and refs.location is not None:
        compressed = compressor.compress(refs.location)
    for rows, fields in _groups(refs, compressed):
        group = _add_group(
            writer,
            refs if rows is None else refs.take(rows),
            fields,
            None if compressed is None else compressed.take(slice(None) if rows is None else rows),
        )
        for part in _slices(len(refs) if rows is None else len(rows)):
            row = np.arange(part.start, part.stop) if rows is None else rows[part]
            yield row, group.position(part)


def _slices(count: int) -> Iterator[slice]:
    """All rows, some whole blocks at a time: what is computed of them stays in the processor
    cache."""
    for first in range(0, count, _ROWS_PER_SLICE):
        yield slice(first, min(first + _ROWS_PER_SLICE, count))


def _groups(refs: ChunkRefs, compressed: Frames | None) -> list[tuple[Ints | None, list[str]]]:
    """Rows that need the same fields: [(rows or None for all, field names)]."""
    if not len(refs):
        return []
    pattern = refs.kind.copy()
    for bit, column in ((4, refs.etag), (8, refs.extra), (16, compressed)):
        if isinstance(column, Coded | Frames):
            pattern |= np.where(column.codes >= 0, np.uint8(bit), np.uint8(0))
        elif column is not None:
            pattern |= np.where(column.is_valid(), np.uint8(bit), np.uint8(0))
    found: list[tuple[Ints | None, list[str]]] = []
    is_uniform = bool((pattern == pattern[0]).all())
    for code in pattern[:1].tolist() if is_uniform else np.unique(pattern).tolist():
        rows = slice(None) if is_uniform else np.flatnonzero(pattern == code)
        kind = ChunkKind(code & 3)
        fields = ["index"]
        if kind == ChunkKind.INLINE:
            fields.append("inline")
        else:
            fields += ["offset"] if refs.offset[rows].any() else []
            location = "compressed_location" if code & 16 else "location"
            fields += ["length", "chunk_id" if kind == ChunkKind.NATIVE else location]
        if kind == ChunkKind.VIRTUAL:
            fields += ["checksum_etag"] if code & 4 else []
            if refs.last_modified is not None and refs.last_modified[rows].any():
                fields.append("checksum_last_modified")
        fields += ["extra"] if code & 8 else []
        found.append((None if isinstance(rows, slice) else rows, fields))
    return found


def _add_group(
    writer: FlatWriter, refs: ChunkRefs, fields: Sequence[str], compressed: Frames | None
) -> _Blocks:
    """Place the tables of rows with the same fields; they are made while they are compressed."""
    layout, vtable = table_layout(CHUNK_REF, tuple(fields), index_tail(refs.ndim))
    near: dict[str, _Copies] = {}
    for name in fields:
        if name in _TEXT_FIELDS:
            copies = _Copies(getattr(refs, _TEXT_FIELDS[name]))
            if copies.is_cheap(len(refs)):
                near[name] = copies
    blocks = _Blocks(refs, layout, vtable, near)
    blocks.base = writer.add(Produced(blocks.size, blocks.pieces), align=8)
    for name in fields:
        if name in near:
            continue
        if name in _TEXT_FIELDS:
            blocks.target[name] = _add_shared(writer, getattr(refs, _TEXT_FIELDS[name]))
        elif name == "compressed_location":
            assert compressed is not None
            used, number = np.unique(compressed.codes.astype(np.int64), return_inverse=True)
            blocks.target[name] = _add_blobs(writer, compressed.frames.take(used), 0), number
        elif name in ("inline", "extra"):
            blocks.target[name] = _add_blobs(writer, getattr(refs, name), 0), None
    return blocks


_Target = tuple[Ints, NDArray[Any] | None]
"""Where values are, and which of them each row has; None if each row has its own."""


def _add_shared(writer: FlatWriter, column: Coded) -> _Target:
    """Place each distinct text once."""
    used = np.zeros(len(column.values), np.bool_)
    used[column.codes] = True
    values = column.values.strings()
    if used.all():
        return _add_blobs(writer, values), column.codes
    number = np.cumsum(used) - 1
    return _add_blobs(writer, values.take(np.flatnonzero(used))).take(number), column.codes


def _add_blobs(writer: FlatWriter, column: BlobColumn, terminator: int = 1) -> Ints:
    return np.asarray(writer.blobs(column, terminator), np.int64)


class _Copies:
    """A text column written whenever it changes and at the start of every block."""

    def __init__(self, column: Coded) -> None:
        is_head = np.empty(len(column.codes), np.bool_)
        is_head[0] = True
        np.not_equal(column.codes[1:], column.codes[:-1], out=is_head[1:])
        is_head[::_BLOCK] = True
        self.head: Ints = np.flatnonzero(is_head)
        texts: BlobColumn = column.values.strings()
        offsets, self._data = texts.offsets, texts.data
        codes = column.codes[self.head]
        self._start = offsets[:-1].take(codes)
        self._length = np.diff(offsets).take(codes)
        self.size: Ints = (self._length + 4 + 1 + 3) & ~3
        self.position: Ints = np.zeros(len(self.head), np.int64)
        self._shared_bytes = len(self._data)

    def is_cheap(self, rows: int) -> bool:
        """Whether copying adds little to writing each distinct text once."""
        return int(self.size.sum()) <= 1.25 * self._shared_bytes + 8 * rows

    def _runs(self, rows: slice) -> slice:
        """The copies that some blocks have."""
        return slice(*np.searchsorted(self.head, [rows.start, rows.stop]).tolist())

    def of_rows(self, rows: slice) -> Ints:
        """Where the text of each row is."""
        runs = self._runs(rows)
        return np.repeat(self.position[runs], np.diff(self.head[runs], append=rows.stop))

    def write(self, rows: slice, piece: NDArray[np.uint8], first: int) -> None:
        """Write the texts of some blocks into their part of the segment, `first` bytes from its
        start."""
        runs = self._runs(rows)
        position, length = self.position[runs] - first, self._length[runs]
        piece.view("<u4")[position >> 2] = length
        scatter(piece, position + 4, self._data, self._start[runs], length)


class _Blocks:
    """Records in blocks: vtable, up to `_BLOCK` records, then the texts they use."""

    def __init__(
        self,
        refs: ChunkRefs,
        layout: np.dtype[Any],
        vtable: NDArray[np.uint16],
        near: dict[str, _Copies],
    ) -> None:
        self._refs = refs
        self._layout = layout
        self._vtable = np.zeros(padded(vtable.nbytes, 8) // 2, "<u2")
        self._vtable[: len(vtable)] = vtable
        self._near = near
        self.target: dict[str, _Target] = {}
        """What fields lead to that is outside of the blocks."""
        self.base = 0
        """Where the first block is in the file."""
        self._place(list(near.values()))

    def _place(self, copies: Sequence[_Copies]) -> None:
        """Decide where everything goes."""
        count = len(self._refs)
        blocks = -(-count // _BLOCK)
        end = np.full(blocks, self._vtable.nbytes + _BLOCK * self._layout.itemsize, np.int64)
        end[-1] -= (_BLOCK * blocks - count) * self._layout.itemsize
        for texts in copies:
            block = texts.head // _BLOCK
            before = np.cumsum(texts.size) - texts.size
            first = np.searchsorted(block, np.arange(blocks))
            texts.position = end[block] + before - before[first][block]
            np.add.at(end, block, texts.size)
        size = (end + 7) & ~7
        stop = np.cumsum(size)
        self._start: Ints = stop - size
        self.size = int(stop[-1])
        for texts in copies:
            texts.position += self._start[texts.head // _BLOCK]

    def position(self, rows: slice) -> Ints:
        """Where the records of some blocks are in the file."""
        row = np.arange(rows.start, rows.stop)
        first: Ints = self._start[row // _BLOCK] + (self.base + self._vtable.nbytes)
        first += row % _BLOCK * self._layout.itemsize
        return first

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """The blocks, some at a time."""
        layout, ends = self._layout, [*self._start.tolist(), self.size]
        for rows in _slices(len(self._refs)):
            blocks = slice(rows.start // _BLOCK, -(-rows.stop // _BLOCK))
            first, start = ends[blocks.start], self._start[blocks]
            piece = np.zeros(ends[blocks.stop] - first, np.uint8)
            vtables = windows(piece, self._vtable.nbytes)
            vtables[start - first] = self._vtable.view(f"V{self._vtable.nbytes}")[0]
            for copies in self._near.values():
                copies.write(rows, piece, first)
            position = self.position(rows)
            records = self._records(rows, position)
            block = np.arange(len(position)) // _BLOCK
            records["soffset"] = position - self.base - start[block]
            at = position - (self.base + first)
            windows(piece, layout.itemsize)[at] = records.view(f"V{layout.itemsize}")
            yield piece

    def _records(self, rows: slice, position: Ints) -> NDArray[Any]:
        refs, layout = self._refs, self._layout
        records = np.zeros(len(position), layout)
        at: dict[str, int] = {name: spot[1] for name, spot in layout.fields.items()}  # type: ignore[union-attr]
        records["index"] = at["tail"] - at["index"]
        records["tail"]["count"] = refs.ndim
        if refs.ndim:
            records["tail"]["at"] = refs.index[rows]
        for name in ("offset", "length"):
            if name in at:
                records[name] = getattr(refs, name)[rows]
        if "chunk_id" in at:
            assert refs.chunk_id is not None
            records["chunk_id"] = np.ascontiguousarray(refs.chunk_id[rows]).view("V12").reshape(-1)
        if "checksum_last_modified" in at:
            assert refs.last_modified is not None
            records["checksum_last_modified"] = refs.last_modified[rows]
        for name, copies in self._near.items():
            records[name] = copies.of_rows(rows) + self.base - (position + at[name])
        for name, (where, number) in self.target.items():
            found = where[rows] if number is None else where.take(number[rows])
            records[name] = found - (position + at[name])
        return records
