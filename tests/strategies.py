"""Hypothesis strategies for every value of the format, one for each type of `icefloe.format`.

Values are whatever the format can hold, not only what is likely: empty names, huge numbers, all
kinds of chunks in one array. What a spec version cannot hold is left out for that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from icefloe import paths
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.columns import BlobColumn
from icefloe.format.envelope import FileType
from icefloe.format.flatbuffer.schema import UPDATE_TYPES
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, Node, NodeTable
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import Move, NodeType, TransactionLog
from icefloe.ids import ChunkId, ManifestId, NodeId, SnapshotId


def unsigned(bits: int, lowest: int = 0) -> st.SearchStrategy[int]:
    return st.integers(lowest, 2**bits - 1)


def ids(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Ids of one class; few distinct ones among many, so that order and equality get tried."""
    size: int = kind.size
    near = st.integers(0, 300).map(lambda number: number.to_bytes(size, "big"))
    return (near | st.binary(min_size=size, max_size=size)).map(kind)


OBJECT_IDS = st.sampled_from([SnapshotId, ManifestId, ChunkId, NodeId]).flatmap(ids)
SNAPSHOT_IDS = ids(SnapshotId)
NODE_IDS = ids(NodeId)

# Half a surrogate pair has no UTF-8; anything else is text to the format, zero bytes included.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BLOBS = st.binary(max_size=20)
OPTIONAL_BLOBS = st.none() | BLOBS

_SEGMENTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=6
).filter(lambda segment: segment not in (".", ".."))
PATHS = st.lists(st.sampled_from(["a", "a-b", "b"]) | _SEGMENTS, max_size=3).map(
    lambda segments: paths.ROOT + "/".join(segments)
)

_KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
METADATA_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
METADATA = st.dictionaries(TEXT, METADATA_VALUES, max_size=3)

HEADERS = st.tuples(
    st.sampled_from([1, 2]),
    st.sampled_from(FileType),
    st.text(st.characters(codec="ascii", exclude_characters="\0 "), max_size=24),
)


# --- chunk references ------------------------------------------------------------------------


def chunk_indices(ndim: int, min_size: int = 0, max_size: int = 8) -> st.SearchStrategy[Any]:
    """Distinct chunk indices, ascending, as tuples; near each other or far apart."""
    if ndim == 0:
        max_size = min(max_size, 1)
    coordinate = unsigned(2) | unsigned(32)
    index = st.tuples(*[coordinate] * ndim)
    return st.lists(index, unique=True, min_size=min_size, max_size=max_size).map(sorted)


_LOCATIONS = st.sampled_from(["s3://bucket/a.nc", "s3://bucket/b.nc", ""]) | TEXT
NATIVE_REFS = st.tuples(st.just(ChunkKind.NATIVE), unsigned(64), unsigned(64), ids(ChunkId)).map(
    lambda fields: ChunkRef(*fields)
)
INLINE_REFS = BLOBS.map(lambda data: ChunkRef(ChunkKind.INLINE, 0, len(data), inline=data))
VIRTUAL_REFS = st.builds(
    ChunkRef,
    kind=st.just(ChunkKind.VIRTUAL),
    offset=unsigned(64),
    length=unsigned(64),
    chunk_id=st.none(),
    location=_LOCATIONS,
    etag=st.none() | st.sampled_from(["", "etag"]) | TEXT,
    last_modified=st.none() | unsigned(32, lowest=1),
    inline=st.none(),
)
CHUNK_REFS_OF_ANY_KIND = NATIVE_REFS | VIRTUAL_REFS | INLINE_REFS


@st.composite
def chunk_rows(draw: st.DrawFn, min_size: int = 0) -> tuple[int, dict[tuple[int, ...], ChunkRef]]:
    """A number of dimensions, and one reference for each of some chunk indices."""
    ndim = draw(st.integers(0, 4))
    index = draw(chunk_indices(ndim, min_size=min_size))
    kinds = [NATIVE_REFS, VIRTUAL_REFS, INLINE_REFS, CHUNK_REFS_OF_ANY_KIND]
    kind = draw(st.sampled_from(kinds))
    return ndim, {at: draw(kind) for at in index}


def refs_from_rows(ndim: int, rows: Mapping[tuple[int, ...], ChunkRef]) -> ChunkRefs:
    """Columns of these rows, made by the public constructors and merged."""
    table = ChunkRefs.empty(ndim)
    for kind in ChunkKind:
        chosen = {at: ref for at, ref in rows.items() if ref.kind == kind}
        if chosen:
            table = table.merge(_columns(kind, ndim, chosen))
    return table


def _columns(kind: ChunkKind, ndim: int, rows: Mapping[tuple[int, ...], ChunkRef]) -> ChunkRefs:
    refs = list(rows.values())
    index = np.array(list(rows), np.uint32).reshape(len(refs), ndim)
    offset = np.array([ref.offset for ref in refs], np.uint64)
    length = np.array([ref.length for ref in refs], np.uint64)
    if kind == ChunkKind.NATIVE:
        raw = np.frombuffer(b"".join(ref.chunk_id or b"" for ref in refs), np.uint8)
        return ChunkRefs.native(index, raw, offset, length)
    if kind == ChunkKind.INLINE:
        return ChunkRefs.inline_chunks(index, [ref.inline for ref in refs])
    return ChunkRefs.virtual(
        index,
        [ref.location for ref in refs],
        offset,
        length,
        [ref.etag for ref in refs],
        [ref.last_modified or 0 for ref in refs],
    )


@st.composite
def chunk_refs(draw: st.DrawFn, min_size: int = 0) -> ChunkRefs:
    """References of all kinds, mixed or not, some with extra bytes."""
    refs = refs_from_rows(*draw(chunk_rows(min_size=min_size)))
    if not draw(st.booleans()):
        return refs
    extra = draw(st.lists(OPTIONAL_BLOBS, min_size=len(refs), max_size=len(refs)))
    if all(item is None for item in extra):
        return refs
    return replace(refs, extra=BlobColumn.from_values(extra))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """One to three arrays, ascending by node id."""
    nodes = sorted(draw(st.sets(NODE_IDS, min_size=1, max_size=3)))
    arrays = tuple(
        ArrayManifest(node, draw(chunk_refs(min_size=1)), draw(OPTIONAL_BLOBS)) for node in nodes
    )
    return Manifest(draw(ids(ManifestId)), arrays, draw(OPTIONAL_BLOBS))


# --- snapshots -------------------------------------------------------------------------------


@st.composite
def _dimensions_v1(draw: st.DrawFn) -> Dimension:
    length = draw(unsigned(4) | unsigned(64))
    fewest = -(-length // (2**32 - 1))  # more chunks than that, and version 2 cannot count them
    chunk = draw(st.integers(max(fewest, 1), max(fewest, 1) + 20) | unsigned(64, max(fewest, 1)))
    return Dimension(length, -(-length // chunk), chunk)


# `builds` would make up a value for a field with a default, hence the None.
_DIMENSIONS_V2 = st.builds(Dimension, unsigned(64), unsigned(32), st.none())


def dimensions(spec_version: int) -> st.SearchStrategy[Dimension]:
    """Version 1 knows chunk lengths, version 2 any number of chunks."""
    return _dimensions_v1() if spec_version == 1 else _DIMENSIONS_V2


@st.composite
def array_data(draw: st.DrawFn, spec_version: int) -> ArrayData:
    shape = tuple(draw(st.lists(dimensions(spec_version), max_size=4)))
    # An empty dimension name is stored like no name, so none is made up here.
    names = st.tuples(*[st.none() | TEXT.filter(bool)] * len(shape))
    box = st.tuples(*[st.tuples(unsigned(32), unsigned(32))] * len(shape))
    refs = st.lists(st.builds(ManifestRef, ids(ManifestId), box), max_size=2)
    return ArrayData(shape, draw(st.none() | names), tuple(draw(refs)))


def nodes(spec_version: int) -> st.SearchStrategy[Node]:
    return st.builds(
        Node, NODE_IDS, PATHS, BLOBS, st.none() | array_data(spec_version), OPTIONAL_BLOBS
    )


def node_tables(spec_version: int) -> st.SearchStrategy[NodeTable]:
    rows = st.lists(nodes(spec_version), max_size=5, unique_by=lambda node: node.path)
    return rows.map(NodeTable.from_nodes)


def manifest_files(spec_version: int) -> st.SearchStrategy[ManifestFiles]:
    """Extra bytes are new in version 2."""
    extra = st.none() if spec_version == 1 else OPTIONAL_BLOBS
    info = st.builds(ManifestFileInfo, ids(ManifestId), unsigned(64), unsigned(32), extra)
    infos = st.lists(info, max_size=3, unique_by=lambda item: item.id)
    return infos.map(ManifestFiles.from_infos)


def snapshots(spec_version: int) -> st.SearchStrategy[Snapshot]:
    return st.builds(
        Snapshot,
        SNAPSHOT_IDS,
        node_tables(spec_version),
        unsigned(64),
        TEXT,
        METADATA,
        manifest_files(spec_version),
        st.none() | SNAPSHOT_IDS,
        OPTIONAL_BLOBS,
    )


# --- transaction logs ------------------------------------------------------------------------

_MOVES = st.builds(Move, PATHS, PATHS, NODE_IDS, st.sampled_from(NodeType))
MOVES = st.none() | st.lists(_MOVES, max_size=4).map(
    lambda moves: tuple(sorted(moves, key=lambda move: paths.segments(move.destination)))
)


@st.composite
def index_matrices(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Chunk indices of one array as the rows of a matrix, ascending."""
    ndim = draw(st.integers(0, 4))
    rows = draw(chunk_indices(ndim, min_size=1))
    return np.array(rows, np.uint32).reshape(len(rows), ndim)


_NODE_ID_SETS = st.frozensets(NODE_IDS, max_size=3)
TRANSACTION_LOGS = st.builds(
    TransactionLog,
    SNAPSHOT_IDS,
    _NODE_ID_SETS,
    _NODE_ID_SETS,
    _NODE_ID_SETS,
    _NODE_ID_SETS,
    _NODE_ID_SETS,
    _NODE_ID_SETS,
    st.dictionaries(NODE_IDS, index_matrices(), max_size=3),
    MOVES,
    OPTIONAL_BLOBS,
)


# --- the repo object -------------------------------------------------------------------------


@st.composite
def snapshot_infos(draw: st.DrawFn, min_size: int = 0, max_size: int = 5) -> list[SnapshotInfo]:
    """Snapshots whose parents, if any, come before them in the list."""
    keys = draw(st.lists(SNAPSHOT_IDS, unique=True, min_size=min_size, max_size=max_size))
    infos: list[SnapshotInfo] = []
    for row, key in enumerate(keys):
        parent = draw(st.none() | st.sampled_from(keys[:row])) if row else None
        pruned = tuple(draw(st.lists(SNAPSHOT_IDS, max_size=2)))
        infos.append(
            SnapshotInfo(key, parent, draw(unsigned(64)), draw(TEXT), draw(METADATA), pruned)
        )
    return infos


SNAPSHOT_TABLES = snapshot_infos().map(SnapshotTable.from_infos)
STATUSES = st.builds(RepoStatus, st.sampled_from(RepoAvailability), unsigned(64), st.none() | TEXT)

_UPDATE_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "from_version": unsigned(8),
    "to_version": unsigned(8),
    "name": TEXT,
    "branch": TEXT,
    "previous_snap_id": SNAPSHOT_IDS,
    "new_snap_id": SNAPSHOT_IDS,
    "id": unsigned(16),
    "new_value": st.booleans(),
    "is_set": st.booleans(),
    "status": STATUSES,
}


def updates(kind: UpdateKind) -> st.SearchStrategy[Update]:
    """Entries of the operations log of one kind."""
    values = {name: _UPDATE_FIELDS[name] for name in UPDATE_TYPES[kind].fields}
    return st.builds(
        Update, st.just(kind), unsigned(64), st.fixed_dictionaries(values), st.none() | TEXT
    )


UPDATES = st.sampled_from(UpdateKind).flatmap(updates)
_FLAGS = st.none() | st.sets(unsigned(16), max_size=3).map(lambda flags: tuple(sorted(flags)))


@st.composite
def repo_infos(draw: st.DrawFn) -> RepoInfo:
    table = SnapshotTable.from_infos(draw(snapshot_infos(min_size=1)))
    tips = st.sampled_from(list(table))
    branches = draw(st.dictionaries(TEXT, tips, max_size=2))
    return RepoInfo(
        {**branches, "main": draw(tips)},
        table,
        draw(STATUSES),
        tuple(draw(st.lists(UPDATES, min_size=1, max_size=6))),
        draw(st.dictionaries(TEXT, tips, max_size=3)),
        draw(st.frozensets(TEXT, max_size=3)),
        draw(METADATA),
        draw(st.none() | TEXT),
        draw(OPTIONAL_BLOBS),
        draw(_FLAGS),
        draw(_FLAGS),
        draw(OPTIONAL_BLOBS),
    )
