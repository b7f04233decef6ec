"""The checks of one snapshot file and its log, and the manifests that the snapshot uses.

This module makes no requests, so local and distributed verification share it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe import paths
from icefloe.changes.zarr_metadata import parse_zarr_json
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import layout
from icefloe.format.envelope import FileType, decode_envelope
from icefloe.format.flatbuffer.read import FlatBuffer
from icefloe.format.flatbuffer.schema import (
    MANIFEST_FILE_INFO_V2,
    NODE_SNAPSHOT,
    SNAPSHOT,
)
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import Snapshot, decode_snapshot
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.ids import ManifestId, NodeId, SnapshotId
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.repo.commit_notes import without_expired
from icefloe.storage.driver import Readable

USES = pa.schema(
    [
        ("manifest_id", pa.binary()),
        ("node_id", pa.binary()),
        ("path", pa.string()),
        ("extents", pa.binary()),
        ("form", pa.string()),
    ]
)
"""One row per manifest that an array of a snapshot uses. `extents` has the numbers of the file,
`form` the metadata needed to decode a chunk (empty if no chunk is read)."""

ENTRIES = pa.schema(
    [("manifest_id", pa.binary()), ("size_bytes", pa.int64()), ("num_chunk_refs", pa.int64())]
)
"""One row per manifest file that a snapshot lists."""

_MAX_PAIRS = 1 << 24


class CheckedSnapshot(NamedTuple):
    """A checked snapshot; None if the file cannot be decoded."""

    snapshot: Snapshot | None
    findings: list[Finding]


def check_snapshot_file(
    data: Readable, snapshot_id: SnapshotId, info: SnapshotInfo | None
) -> CheckedSnapshot:
    """Decode a snapshot and check it against itself and its entry in the repo object."""
    key = layout.snapshot_key(snapshot_id)
    found: list[Finding] = []

    def note(kind: FindingKind, detail: str, path: str = "") -> None:
        found.append(Finding.of(kind, key, detail, path))

    try:
        snapshot = decode_snapshot(data, key)
        order = _stored_order(data, key)
    except FormatError as error:
        note(FindingKind.DAMAGED_SNAPSHOT, error.message)
        return CheckedSnapshot(None, found)
    if snapshot.id != snapshot_id:
        note(FindingKind.WRONG_SNAPSHOT_ID, f"the file says it is {snapshot.id}")
        return CheckedSnapshot(None, found)
    found += [Finding.of(kind, key, detail) for kind, detail in order]
    _check_boxes(snapshot.nodes, note)
    return CheckedSnapshot(snapshot, found + check_decoded(snapshot, key, info))


def check_decoded(snapshot: Snapshot, key: str, info: SnapshotInfo | None) -> list[Finding]:
    """Check a decoded snapshot against itself and the entry that lists it."""
    found: list[Finding] = []

    def note(kind: FindingKind, detail: str, path: str = "") -> None:
        found.append(Finding.of(kind, key, detail, path))

    if info is not None:
        for name in ("flushed_at", "message", "metadata"):
            mine, theirs = getattr(snapshot, name), getattr(info, name)
            if name == "metadata":  # expirations leave notes in the repo object only
                mine, theirs = without_expired(mine), without_expired(theirs)
            if mine != theirs:
                detail = f"{name} is {mine!r:.60}, the repo object says {theirs!r:.60}"
                note(FindingKind.SNAPSHOT_DIFFERS, detail)
    for kind, detail, path in _check_nodes(snapshot.nodes):
        note(kind, detail, path)
    _check_manifests(snapshot, note)
    return found


def _stored_order(data: Readable, key: str) -> Iterator[tuple[FindingKind, str]]:
    """Check the order in the file. Readers use bisection, but decoding here sorts first."""
    _, payload, size = decode_envelope(data, FileType.SNAPSHOT, key)
    root = FlatBuffer(payload, size, key).root(SNAPSHOT)
    listed: list[str] = root.rows("nodes", NODE_SNAPSHOT).strings("path").to_list()
    if listed != sorted(listed):
        if listed == sorted(listed, key=paths.segments):
            yield (
                FindingKind.NODES_BY_SEGMENT,
                "nodes are ordered segment by segment, as Icechunk before 1.1 wrote them",
            )
        else:
            yield FindingKind.NODES_DISORDER, "nodes do not ascend by path"
    if root.has("manifest_files_v2"):
        ids = root.rows("manifest_files_v2", MANIFEST_FILE_INFO_V2).struct("id")
        keys = np.ascontiguousarray(ids).view("S12").reshape(-1)
        if bool((keys[1:] < keys[:-1]).any()):
            yield FindingKind.MANIFESTS_DISORDER, "manifest files do not ascend by id"


def _check_nodes(nodes: NodeTable) -> Iterator[tuple[FindingKind, str, str]]:
    keys = np.ascontiguousarray(nodes.id).view("S8").reshape(-1)
    ordered = np.sort(keys)
    for key in np.unique(ordered[1:][ordered[1:] == ordered[:-1]]):
        rows = np.flatnonzero(keys == key).tolist()
        names = " and ".join(nodes.path[row] for row in rows[:2])
        text = NodeId(nodes.id[rows[0]].tobytes()).text
        yield FindingKind.DUPLICATE_NODE_ID, f"{names} both have node id {text}", ""
    groups = {
        path for path, is_array in zip(nodes.path, nodes.is_array, strict=True) if not is_array
    }
    for path in nodes.path:
        above = path.rpartition("/")[0] or "/"
        if path != "/" and above not in groups:
            yield FindingKind.NODE_WITHOUT_GROUP, f"there is no group {above}", path
    first = 0
    ndims = iter(nodes.num_dimensions.tolist())
    sizes = list(zip(nodes.array_length.tolist(), nodes.num_chunks.tolist(), strict=True))
    for row, (path, is_array) in enumerate(zip(nodes.path, nodes.is_array.tolist(), strict=True)):
        shape = None
        if is_array:
            ndim = next(ndims)
            shape, first = sizes[first : first + ndim], first + ndim
        described = _described(nodes.user_data[row])
        if isinstance(described, str):
            yield FindingKind.BAD_NODE_METADATA, described, path
        elif (described is None) != (shape is None):
            detail = f"zarr.json describes {'a group' if described is None else 'an array'}"
            yield FindingKind.BAD_NODE_METADATA, detail, path
        elif described != shape:
            detail = f"(length, chunks) are {shape}, by zarr.json {described}"
            yield FindingKind.SHAPE_DIFFERS, detail, path


@lru_cache(maxsize=4096)  # most nodes are the same in every snapshot
def _described(user_data: bytes) -> list[tuple[int, int]] | str | None:
    """Lengths and numbers of chunks from zarr.json, None for a group, or the error in it."""
    try:
        # Rectilinear grids can be read in all versions; only writers refuse them.
        found = parse_zarr_json(user_data, "")
    except InvalidInputError as error:
        return error.message
    return found if found is None else [(s.array_length, s.num_chunks) for s in found.shape]


def _check_manifests(snapshot: Snapshot, note: Any) -> None:
    nodes, files = snapshot.nodes, snapshot.manifest_files
    used = np.ascontiguousarray(nodes.manifest_id).view("S12").reshape(-1)
    listed = np.ascontiguousarray(files.id).view("S12").reshape(-1)
    array_of = np.repeat(np.arange(len(nodes.num_manifests)), nodes.num_manifests)
    array_paths = [
        path for path, is_array in zip(nodes.path, nodes.is_array, strict=True) if is_array
    ]
    for row in np.flatnonzero(~np.isin(used, listed)).tolist():
        text = ManifestId(nodes.manifest_id[row].tobytes()).text
        detail = f"manifest {text} is not among the manifest files of the snapshot"
        note(FindingKind.UNLISTED_MANIFEST, detail, array_paths[int(array_of[row])])
    unused = int((~np.isin(listed, used)).sum())
    if unused:
        note(
            FindingKind.UNUSED_MANIFEST,
            f"{unused:,} manifest files are listed and used by no array",
        )


def _check_boxes(nodes: NodeTable, note: Any) -> None:
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


# -- logs


def check_log_file(
    data: Readable, snapshot_id: SnapshotId, snapshot: Snapshot | None
) -> list[Finding]:
    """Decode a log and compare it with its snapshot, if that is known."""
    key = layout.transaction_log_key(snapshot_id)
    try:
        log = decode_transaction_log(data, key)
    except FormatError as error:
        return [Finding.of(FindingKind.DAMAGED_LOG, key, error.message)]
    if log.id != snapshot_id:
        return [Finding.of(FindingKind.WRONG_LOG_ID, key, f"the file says it is {log.id}")]
    if snapshot is None:
        return []
    unknown = _unknown_nodes(log, snapshot)
    if not unknown:
        return []
    detail = f"{len(unknown):,} nodes are not in the snapshot, such as {min(unknown).text}"
    return [Finding.of(FindingKind.LOG_DIFFERS, key, detail)]


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
    return named - {NodeId(row.tobytes()) for row in snapshot.nodes.id}


# -- which manifests are used


def uses_of(snapshot: Snapshot, *, with_forms: bool = False) -> pa.RecordBatch:
    """The manifests that the arrays of a snapshot use, as rows of `USES`."""
    nodes = snapshot.nodes
    arrays = np.flatnonzero(nodes.is_array)
    owner = np.repeat(arrays, nodes.num_manifests)
    ndim = np.repeat(nodes.num_dimensions, nodes.num_manifests)
    names = pa.array(nodes.path, pa.string())
    forms = pa.nulls(len(nodes), pa.string()).fill_null("")
    if with_forms:
        texts = [chunk_form(nodes.user_data[row]) for row in arrays.tolist()]
        column = np.full(len(nodes), "", object)
        column[arrays] = texts
        forms = pa.array(column.tolist(), pa.string())
    return pa.RecordBatch.from_arrays(
        [
            binary_column(nodes.manifest_id, np.full(len(owner), ManifestId.size)),
            binary_column(nodes.id[owner], np.full(len(owner), NodeId.size)),
            names.take(pa.array(owner)),
            binary_column(nodes.extents, 8 * ndim),
            forms.take(pa.array(owner)),
        ],
        schema=USES,
    )


def entries_of(snapshot: Snapshot) -> pa.RecordBatch:
    """The manifest files that a snapshot lists, as rows of `ENTRIES`."""
    files = snapshot.manifest_files
    return pa.RecordBatch.from_arrays(
        [
            binary_column(files.id, np.full(len(files), ManifestId.size)),
            pa.array(files.size_bytes.astype(np.int64)),
            pa.array(files.num_chunk_refs.astype(np.int64)),
        ],
        schema=ENTRIES,
    )


def chunk_form(user_data: bytes) -> str:
    """The parts of a zarr.json that decoding a chunk needs, in a canonical form."""
    try:
        document = json.loads(user_data)
        names = ("data_type", "chunk_grid", "codecs", "fill_value")
        return json.dumps({name: document[name] for name in names}, sort_keys=True)
    except (ValueError, KeyError, TypeError):
        return ""  # reported as a separate finding


def extents_in(row: bytes) -> list[tuple[int, int]]:
    """The box of a row of `USES`."""
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
