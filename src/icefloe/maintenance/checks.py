"""The checks of one snapshot, log or manifest file, and what it refers to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe import paths
from icefloe.changes.change_set import parse_zarr_json
from icefloe.errors import FormatError, InvalidInputError, StorageError
from icefloe.format import layout
from icefloe.format.chunk_index import id_keys
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import Bytes
from icefloe.format.envelope import FileType, decode_envelope
from icefloe.format.flatbuffer.read import FlatBuffer
from icefloe.format.flatbuffer.schema import MANIFEST_FILE_INFO_V2, NODE_SNAPSHOT, SNAPSHOT
from icefloe.format.manifest import Manifest, decode_manifest
from icefloe.format.nodes import NodeColumns
from icefloe.format.snapshot import ManifestFileInfo, Snapshot, decode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.ids import ManifestId, NodeId, SnapshotId
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.repo.commit_notes import without_expired
from icefloe.storage.driver import Readable

SAID = pa.schema(
    [
        ("manifest_id", pa.binary()),
        ("node_id", pa.binary()),
        ("path", pa.string()),
        ("extents", pa.binary()),
        ("form", pa.string()),
        ("size_bytes", pa.int64()),
        ("num_chunk_refs", pa.int64()),
    ]
)
"""What snapshots say of manifests. One row per manifest that an array uses: `extents` has the
numbers of the file, `form` the metadata needed to decode a chunk (empty if no chunk is read). One
row without a node per manifest file that a snapshot lists."""

_MAX_PAIRS = 1 << 24


class _Notes:
    """The findings of one file."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.found: list[Finding] = []

    def __call__(self, kind: FindingKind, detail: str, path: str = "") -> None:
        self.found.append(Finding.of(kind, self.key, detail, path))


def check_decoded(snapshot: Snapshot, key: str, info: SnapshotInfo | None) -> list[Finding]:
    """Check a decoded snapshot against itself and the entry that lists it."""
    note = _Notes(key)
    if info is not None:
        for name in ("flushed_at", "message", "metadata"):
            mine, theirs = getattr(snapshot, name), getattr(info, name)
            if name == "metadata":  # expirations leave notes in the repo object only
                mine, theirs = without_expired(mine), without_expired(theirs)
            if mine != theirs:
                detail = f"{name} is {mine!r:.60}, the repo object says {theirs!r:.60}"
                note(FindingKind.SNAPSHOT_DIFFERS, detail)
    _check_nodes(snapshot.nodes.columns, note)
    _check_manifests(snapshot, note)
    return note.found


def _check_stored_order(data: Readable, note: _Notes) -> None:
    """Check the order in the file. Readers use bisection, but decoding here sorts first."""
    _, payload, size = decode_envelope(data, FileType.SNAPSHOT, note.key)
    root = FlatBuffer(payload, size, note.key).root(SNAPSHOT)
    listed: list[str] = root.rows("nodes", NODE_SNAPSHOT).strings("path").to_list()
    if listed != sorted(listed):
        if listed == sorted(listed, key=paths.segments):
            detail = "nodes are ordered segment by segment, as Icechunk before 1.1 wrote them"
            note(FindingKind.NODES_BY_SEGMENT, detail)
        else:
            note(FindingKind.NODES_DISORDER, "nodes do not ascend by path")
    if root.has("manifest_files_v2"):
        keys = id_keys(root.rows("manifest_files_v2", MANIFEST_FILE_INFO_V2).struct("id"))
        if bool((keys[1:] < keys[:-1]).any()):
            note(FindingKind.MANIFESTS_DISORDER, "manifest files do not ascend by id")


def _check_nodes(nodes: NodeColumns, note: _Notes) -> None:
    keys = np.ascontiguousarray(nodes.id).view("S8").reshape(-1)
    ordered = np.sort(keys)
    for key in np.unique(ordered[1:][ordered[1:] == ordered[:-1]]):
        rows = np.flatnonzero(keys == key).tolist()
        names = " and ".join(nodes.path[row] for row in rows[:2])
        text = NodeId(nodes.id[rows[0]].tobytes()).text
        note(FindingKind.DUPLICATE_NODE_ID, f"{names} both have node id {text}")
    is_array = nodes.is_array.tolist()
    groups = {path for path, is_one in zip(nodes.path, is_array, strict=True) if not is_one}
    first = 0
    ndims = iter(nodes.num_dimensions.tolist())
    sizes = list(zip(nodes.array_length.tolist(), nodes.num_chunks.tolist(), strict=True))
    for row, path in enumerate(nodes.path):
        above = path.rpartition("/")[0] or "/"
        if path != "/" and above not in groups:
            note(FindingKind.NODE_WITHOUT_GROUP, f"there is no group {above}", path)
        shape = None
        if is_array[row]:
            ndim = next(ndims)
            shape, first = sizes[first : first + ndim], first + ndim
        described = _described(nodes.user_data[row])
        if isinstance(described, str):
            note(FindingKind.BAD_NODE_METADATA, described, path)
        elif (described is None) != (shape is None):
            detail = f"zarr.json describes {'a group' if described is None else 'an array'}"
            note(FindingKind.BAD_NODE_METADATA, detail, path)
        elif described != shape:
            detail = f"(length, chunks) are {shape}, by zarr.json {described}"
            note(FindingKind.SHAPE_DIFFERS, detail, path)


@lru_cache(maxsize=4096)  # most nodes are the same in every snapshot
def _described(user_data: bytes) -> list[tuple[int, int]] | str | None:
    """Lengths and numbers of chunks from zarr.json, None for a group, or the error in it."""
    try:
        # Rectilinear grids can be read in all versions; only writers refuse them.
        found = parse_zarr_json(user_data, "")
    except InvalidInputError as error:
        return error.message
    return found if found is None else [(s.array_length, s.num_chunks) for s in found.shape]


def _check_manifests(snapshot: Snapshot, note: _Notes) -> None:
    nodes, files = snapshot.nodes.columns, snapshot.manifest_files
    used, listed = id_keys(nodes.manifest_id), id_keys(files.id)
    owner = np.repeat(np.flatnonzero(nodes.is_array), nodes.num_manifests)
    for row in np.flatnonzero(~np.isin(used, listed)).tolist():
        text = ManifestId(nodes.manifest_id[row].tobytes()).text
        detail = f"manifest {text} is not among the manifest files of the snapshot"
        note(FindingKind.UNLISTED_MANIFEST, detail, nodes.path[int(owner[row])])
    unused = int((~np.isin(listed, used)).sum())
    if unused:
        detail = f"{unused:,} manifest files are listed and used by no array"
        note(FindingKind.UNUSED_MANIFEST, detail)


def _check_boxes(nodes: NodeColumns, note: _Notes) -> None:
    """Check that an array has at most one manifest for a chunk. Icechunk reads no second one."""
    arrays = np.flatnonzero(nodes.is_array)
    ends = np.cumsum(nodes.num_manifests * nodes.num_dimensions)
    for row in np.flatnonzero(nodes.num_manifests > 1).tolist():
        count, ndim, end = (int(x[row]) for x in (nodes.num_manifests, nodes.num_dimensions, ends))
        boxes = nodes.extents[end - count * ndim : end].reshape(count, ndim, 2)
        if next(overlapping_boxes(boxes), None) is not None:
            detail = f"boxes of its {count:,} manifests overlap, so Icechunk misses chunks"
            note(FindingKind.OVERLAPPING_MANIFESTS, detail, nodes.path[int(arrays[row])])


def overlapping_boxes(boxes: NDArray[np.uint32]) -> Iterator[list[int]]:
    """Groups of boxes of which some share a cell, as ascending rows.

    Boxes are separated by cuts, axis by axis, until no cut is left. So the hull of a group has no
    cell of any other box.
    """
    waiting = [(np.flatnonzero((boxes[:, :, 1] > boxes[:, :, 0]).all(axis=1)), 0, 0)]
    ndim = boxes.shape[1]
    while waiting:
        rows, axis, stuck = waiting.pop()
        if len(rows) < 2:
            continue
        if stuck >= ndim:
            if _overlaps_pairwise(boxes[rows]):
                yield sorted(rows.tolist())
            continue
        rows = rows[np.argsort(boxes[rows, axis, 0], kind="stable")]
        reach = np.maximum.accumulate(boxes[rows, axis, 1])
        cuts = np.flatnonzero(boxes[rows[1:], axis, 0] >= reach[:-1]) + 1
        parts = np.split(rows, cuts) if len(cuts) else [rows]
        waiting += [(part, (axis + 1) % ndim, 0 if len(cuts) else stuck + 1) for part in parts]


def _overlaps_pairwise(boxes: NDArray[np.uint32]) -> bool:
    step = max(1, _MAX_PAIRS // len(boxes))
    for first in range(0, len(boxes), step):
        some = boxes[first : first + step]
        shared = np.ones((len(some), len(boxes)), np.bool_)
        for axis in range(boxes.shape[1]):
            shared &= some[:, None, axis, 0] < boxes[None, :, axis, 1]
            shared &= boxes[None, :, axis, 0] < some[:, None, axis, 1]
        if int(shared.sum()) > len(some):  # each box overlaps itself
            return True
    return False


def _check_log(
    history: History, snapshot_id: SnapshotId, snapshot: Snapshot | None, data: Fetched
) -> list[Finding]:
    """Decode a log and compare it with its snapshot, if that is known."""
    note = _Notes(layout.transaction_log_key(snapshot_id))
    if data is None:
        if history.needs_log(snapshot_id, snapshot):
            note(FindingKind.MISSING_LOG, "the log of a commit does not exist")
        return note.found
    if isinstance(data, StorageError):
        note(FindingKind.DAMAGED_LOG, f"cannot be read: {data.message}")
        return note.found
    try:
        log = decode_transaction_log(data, note.key)
    except FormatError as error:
        note(FindingKind.DAMAGED_LOG, error.message)
        return note.found
    unknown = set() if snapshot is None else _unknown_nodes(log, snapshot)
    if log.id != snapshot_id:
        note(FindingKind.WRONG_LOG_ID, f"the file says it is {log.id}")
    elif unknown:
        detail = f"{len(unknown):,} nodes are not in the snapshot, such as {min(unknown).text}"
        note(FindingKind.LOG_DIFFERS, detail)
    return note.found


def _unknown_nodes(log: TransactionLog, snapshot: Snapshot) -> set[NodeId]:
    named = {
        *log.new_groups,
        *log.new_arrays,
        *log.updated_arrays,
        *log.updated_groups,
        *log.updated_chunks,
        *(move.node_id for move in log.moved_nodes or ()),
    }
    named -= log.deleted_groups | log.deleted_arrays
    return named - {NodeId(row.tobytes()) for row in snapshot.nodes.columns.id}


def uses_of(snapshot: Snapshot, *, with_forms: bool = False) -> pa.RecordBatch:
    """The manifests that the arrays of a snapshot use, as rows of `SAID`."""
    nodes = snapshot.nodes.columns
    owner = np.repeat(np.flatnonzero(nodes.is_array), nodes.num_manifests)
    ndim = np.repeat(nodes.num_dimensions, nodes.num_manifests)
    forms = [""] * len(nodes)
    if with_forms:
        found = zip(nodes.user_data, nodes.is_array.tolist(), strict=True)
        forms = [chunk_form(data) if is_array else "" for data, is_array in found]
    rows = pa.array(owner)
    return _said(
        manifest_id=id_column(nodes.manifest_id),
        node_id=id_column(nodes.id[owner]),
        path=pa.array(nodes.path, pa.string()).take(rows),
        extents=binary_column(nodes.extents, 8 * ndim),
        form=pa.array(forms, pa.string()).take(rows),
    )


def entries_of(snapshot: Snapshot) -> pa.RecordBatch:
    """The manifest files that a snapshot lists, as rows of `SAID`."""
    files = snapshot.manifest_files
    return _said(
        manifest_id=id_column(files.id),
        size_bytes=pa.array(files.size_bytes.astype(np.int64)),
        num_chunk_refs=pa.array(files.num_chunk_refs.astype(np.int64)),
    )


def _said(manifest_id: pa.Array, **columns: pa.Array) -> pa.RecordBatch:
    arrays = [columns.get(each.name, pa.nulls(len(manifest_id), each.type)) for each in SAID]
    return pa.RecordBatch.from_arrays([manifest_id, *arrays[1:]], schema=SAID)


def chunk_form(user_data: bytes) -> str:
    """The parts of a zarr.json that decoding a chunk needs, in a canonical form."""
    try:
        document = json.loads(user_data)
        names = ("data_type", "chunk_grid", "codecs", "fill_value")
        return json.dumps({name: document[name] for name in names}, sort_keys=True)
    except (ValueError, KeyError, TypeError):
        return ""  # reported as a separate finding


def extents_in(row: bytes) -> list[tuple[int, int]]:
    """The box of a row of `SAID`."""
    pairs: Sequence[Sequence[int]] = np.frombuffer(row, np.uint32).reshape(-1, 2).tolist()
    return [(pair[0], pair[1]) for pair in pairs]


def binary_column(rows: NDArray[Any], length: NDArray[Any]) -> pa.Array:
    """Concatenated rows of bytes as a column."""
    ends = np.zeros(len(length) + 1, np.int32)
    np.cumsum(length, out=ends[1:])
    data = np.ascontiguousarray(rows)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(length), [None, pa.py_buffer(ends), pa.py_buffer(data.tobytes())]
    )


def id_column(ids: Bytes) -> pa.Array:
    """Rows of bytes of one width as a column."""
    return binary_column(ids, np.full(len(ids), ids.shape[1]))


# -- manifests, and the objects and sources they refer to


NATIVE = pa.schema(
    [
        ("chunk_id", pa.binary()),
        ("end", pa.int64()),
        ("manifest_id", pa.binary()),
        ("path", pa.string()),
    ]
)
"""One row per chunk object that a manifest refers to, with the largest end of its references."""

SOURCES = pa.schema(
    [
        ("location", pa.string()),
        ("etag", pa.string()),
        ("last_modified", pa.int64()),
        ("end", pa.int64()),
        ("manifest_id", pa.binary()),
        ("path", pa.string()),
    ]
)
"""The same for virtual sources, with their expected state."""

_NO_NATIVE = pa.RecordBatch.from_pylist([], schema=NATIVE)
_NO_SOURCES = pa.RecordBatch.from_pylist([], schema=SOURCES)

_FARTHEST = np.uint64(2**63 - 1)


class Use(NamedTuple):
    """How an array of some snapshot uses a manifest; see `SAID`."""

    node_id: bytes
    path: str
    extents: bytes
    form: str


class CheckedManifest(NamedTuple):
    """A checked manifest; None if the file cannot be decoded."""

    manifest: Manifest | None
    findings: list[Finding]
    native: pa.RecordBatch
    sources: pa.RecordBatch


def check_decoded_manifest(manifest: Manifest, key: str, one: ManifestToCheck) -> CheckedManifest:
    """Compare a manifest with the snapshots that list it."""
    note = _Notes(key)
    count = manifest.num_chunk_refs
    for number in sorted({entry.num_chunk_refs for entry in one.entries} - {count}):
        detail = f"it has {count:,} references, a snapshot says {number:,}"
        note(FindingKind.WRONG_REF_COUNT, detail)
    users: dict[NodeId, list[Use]] = {}
    for use in one.uses:
        users.setdefault(NodeId(use.node_id), []).append(use)
    paths_of = {node_id: min(use.path for use in some) for node_id, some in users.items()}
    _check_arrays(manifest, users, paths_of, note)
    read = tuple(array for array in manifest.arrays if array.node_id in users)
    sources = sources_of(Manifest(manifest.id, read), paths_of)
    return CheckedManifest(manifest, note.found, native_of(manifest, paths_of), sources)


def _check_arrays(
    manifest: Manifest,
    users: Mapping[NodeId, list[Use]],
    paths_of: Mapping[NodeId, str],
    note: _Notes,
) -> None:
    held = {array.node_id: array.refs for array in manifest.arrays}
    for node_id, some in users.items():
        path, boxes = paths_of[node_id], sorted({use.extents for use in some})
        if node_id in held:
            for extents in boxes:
                _check_extents(held[node_id], extents, path, note)
        elif not all(map(_is_empty, boxes)):
            note(FindingKind.ARRAY_NOT_IN_MANIFEST, f"it has no references of node {node_id}", path)
    for node_id in held.keys() & users.keys():
        refs = held[node_id]
        empty = np.flatnonzero(refs.length == 0)
        if len(empty):
            first = tuple(refs.index[empty[0]].tolist())
            detail = f"{len(empty):,} chunks have no bytes, such as {first}"
            note(FindingKind.ZERO_LENGTH, detail, paths_of[node_id])


def _is_empty(extents: bytes) -> bool:
    return any(start >= stop for start, stop in extents_in(extents))


def _check_extents(refs: ChunkRefs, extents: bytes, path: str, note: _Notes) -> None:
    box = extents_in(extents)
    if _is_empty(extents) or len(box) != refs.ndim:
        if len(refs) and len(box) != refs.ndim:
            detail = f"{len(refs):,} references of {refs.ndim} dimensions, the array has {len(box)}"
            note(FindingKind.OTHER_RANK, detail, path)
        return
    outside = np.zeros(len(refs), np.bool_)
    for column, (start, stop) in zip(refs.index.T, box, strict=True):
        outside |= (column < start) | (column >= stop)
    count = int(outside.sum())
    if count:
        first = tuple(refs.index[np.flatnonzero(outside)[0]].tolist())
        detail = f"{count:,} references are outside the box {box} that a snapshot gives, as {first}"
        note(FindingKind.OUTSIDE_EXTENTS, detail, path)


def concat_batches(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows as one batch; Arrow's own function is newer than the oldest Arrow supported."""
    columns = zip(*(part.columns for part in parts), strict=True)
    return pa.RecordBatch.from_arrays([*map(pa.concat_arrays, columns)], schema=parts[0].schema)


def native_of(manifest: Manifest, paths_of: Mapping[NodeId, str]) -> pa.RecordBatch:
    """The chunk objects of a manifest, once per array, as rows of `NATIVE`.

    An array that left a manifest which it shared reads nothing by it: the end is 0.
    """
    parts = [_NO_NATIVE]
    for array in manifest.arrays:
        refs = array.refs
        if refs.chunk_id is None:
            continue
        is_native = refs.kind == ChunkKind.NATIVE
        end = ends_of(refs)[is_native] * (array.node_id in paths_of)
        ids, end = distinct_ids(refs.chunk_id[is_native], end)
        columns = [
            id_column(ids),
            pa.array(end),
            pa.repeat(pa.scalar(bytes(manifest.id), pa.binary()), len(ids)),
            pa.repeat(paths_of.get(array.node_id, ""), len(ids)),
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=NATIVE))
    return concat_batches(parts)


def distinct_ids(ids: Bytes, end: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Distinct ids in ascending order, with the largest end of each."""
    if not len(ids):
        return ids, end
    keys = id_keys(ids)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ids[order[first]], np.maximum.reduceat(end[order], first)


def sources_of(manifest: Manifest, paths_of: Mapping[NodeId, str]) -> pa.RecordBatch:
    """The virtual sources of a manifest, once per expected state."""
    parts = [_NO_SOURCES]
    for array in manifest.arrays:
        refs = array.refs
        rows = np.flatnonzero(refs.kind == ChunkKind.VIRTUAL)
        if not len(rows) or refs.location is None:
            continue
        modified = np.zeros(len(rows), np.int64)
        if refs.last_modified is not None:
            modified = refs.last_modified[rows].astype(np.int64)
        etags = np.full(len(rows), -1, np.int32)
        if refs.etag is not None:
            etags = refs.etag.codes[rows]
        plain = pa.table(
            {
                "location": pa.array(refs.location.codes[rows]),
                "etag": pa.array(etags),
                "last_modified": pa.array(modified),
                "end": pa.array(ends_of(refs)[rows]),
            }
        )
        plain = plain.group_by(["location", "etag", "last_modified"]).aggregate([("end", "max")])
        columns = [
            _texts(refs.location, plain["location"]),
            _texts(refs.etag, plain["etag"]),
            plain["last_modified"].combine_chunks(),
            plain["end_max"].combine_chunks(),
            pa.repeat(pa.scalar(bytes(manifest.id), pa.binary()), len(plain)),
            pa.repeat(paths_of.get(array.node_id, ""), len(plain)),
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=SOURCES))
    return concat_batches(parts)


def _texts(column: Any, codes: pa.ChunkedArray) -> pa.Array:
    numbers = codes.combine_chunks()
    if column is None:
        return pa.nulls(len(numbers), pa.string())
    wanted = pc.if_else(pc.less(numbers, 0), None, numbers)
    return column.values.strings().to_arrow().cast(pa.string()).take(wanted)


def ends_of(refs: ChunkRefs) -> NDArray[np.int64]:
    """The end of each chunk in its object."""
    end = refs.offset + refs.length
    end[(end < refs.offset) | (end > _FARTHEST)] = _FARTHEST
    return end.astype(np.int64)


Fetched = Readable | StorageError | None
"""The bytes of a file, its error, or None if it does not exist."""


class CheckedSnapshot(NamedTuple):
    """A snapshot, if it could be decoded, and the number of logs that could be read."""

    snapshot: Snapshot | None
    findings: list[Finding]
    num_logs: int


def check_snapshot(
    history: History, snapshot_id: SnapshotId, data: Fetched, log: Fetched
) -> CheckedSnapshot:
    """Check a referenced snapshot against itself, its entry in the repo object, and its log."""
    note = _Notes(layout.snapshot_key(snapshot_id))
    snapshot = None
    if data is None:
        is_tip = snapshot_id in history.names
        kind = FindingKind.DANGLING_REF if is_tip else FindingKind.MISSING_SNAPSHOT
        note(kind, f"the snapshot does not exist; {history.named_by(snapshot_id)}")
    elif isinstance(data, StorageError):
        note(FindingKind.DAMAGED_SNAPSHOT, f"cannot be read: {data.message}")
    else:
        snapshot = _check_snapshot_file(history, snapshot_id, data, note)
    found = note.found + _check_log(history, snapshot_id, snapshot, log)
    has_log = log is not None and not isinstance(log, StorageError)
    return CheckedSnapshot(snapshot, found, int(has_log))


def _check_snapshot_file(
    history: History, snapshot_id: SnapshotId, data: Readable, note: _Notes
) -> Snapshot | None:
    try:
        snapshot = decode_snapshot(data, note.key)
    except FormatError as error:
        note(FindingKind.DAMAGED_SNAPSHOT, error.message)
        return None
    if snapshot.id != snapshot_id:
        note(FindingKind.WRONG_SNAPSHOT_ID, f"the file says it is {snapshot.id}")
        return None
    _check_stored_order(data, note)
    _check_boxes(snapshot.nodes.columns, note)
    note.found += check_decoded(snapshot, note.key, history.info(snapshot_id))
    parent = history.parent_of(snapshot)
    if parent is not None and history.times.get(parent, -1) >= snapshot.flushed_at:
        detail = f"its parent {parent} was flushed at or after the time of the snapshot"
        note(FindingKind.PARENT_IS_NEWER, detail)
    return snapshot


class ManifestToCheck(NamedTuple):
    """A manifest, and its entries in snapshots."""

    id: ManifestId
    entries: list[ManifestFileInfo]
    uses: list[Use]
    stored_bytes: int | None = None
    """The size of the file; None if there is none."""

    @property
    def described(self) -> str:
        """For messages."""
        number = max((entry.num_chunk_refs for entry in self.entries), default=0)
        return f"it had {number:,} references" if number else "no snapshot says what it had"


def check_manifest(one: ManifestToCheck, data: Fetched) -> CheckedManifest:
    """Decode a referenced manifest and compare it with the snapshots that list it."""
    note = _Notes(layout.manifest_key(one.id))
    path = min((use.path for use in one.uses), default="")
    broken = CheckedManifest(None, note.found, _NO_NATIVE, _NO_SOURCES)
    if data is None:
        note(FindingKind.MISSING_MANIFEST, f"the manifest does not exist; {one.described}", path)
        return broken
    if isinstance(data, StorageError):
        note(FindingKind.DAMAGED_MANIFEST, f"cannot be read: {data.message}", path)
        return broken
    # Readers fetch as many bytes as a snapshot says.
    for other in sorted({entry.size_bytes for entry in one.entries} - {len(data)}):
        detail = f"the file has {len(data):,} bytes, a snapshot says {other:,}"
        note(FindingKind.WRONG_MANIFEST_SIZE, detail, path)
    try:
        manifest = decode_manifest(data, note.key)
        for array in manifest.arrays:
            array.refs  # noqa: B018 - large ones are decoded on first access
    except FormatError as error:
        note(FindingKind.DAMAGED_MANIFEST, error.message, path)
        return broken
    if manifest.id != one.id:
        note(FindingKind.WRONG_MANIFEST_ID, f"the file says it is {manifest.id}", path)
        return broken
    checked = check_decoded_manifest(manifest, note.key, one)
    return checked._replace(findings=note.found + checked.findings)


def manifests_to_check(said: Iterable[pa.RecordBatch]) -> Iterator[ManifestToCheck]:
    """One item per manifest of these rows of `SAID`, in which those of a manifest are together.

    A further column has the sizes of the files. Only few rows at a time are Python objects.
    """
    rows = (
        row
        for batch in said
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for raw, group in groupby(rows, key=itemgetter(0)):
        manifest_id, entries, uses, stored_bytes = ManifestId(raw), [], [], None
        for _, node_id, path, extents, form, size_bytes, num_chunk_refs, *there in group:
            stored_bytes = there[0] if there else None
            if node_id is None:
                entries.append(ManifestFileInfo(manifest_id, size_bytes, num_chunk_refs))
            else:
                uses.append(Use(node_id, path, extents, form))
        yield ManifestToCheck(manifest_id, entries, uses, stored_bytes)
