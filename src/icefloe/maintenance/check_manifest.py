"""The checks of one manifest file, and the objects and sources it refers to.

This module makes no requests, so local and distributed verification share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format import layout
from icefloe.format.columns.blobs import Bytes
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.file import Manifest, decode_manifest
from icefloe.ids import ChunkId, ManifestId, NodeId
from icefloe.maintenance.check_snapshot import binary_column, extents_in
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.storage.driver import Readable

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

_FARTHEST = np.uint64(2**63 - 1)


class Use(NamedTuple):
    """How an array of some snapshot uses a manifest; see `check_snapshot.USES`."""

    node_id: bytes
    path: str
    extents: bytes
    form: str


class ListedFile(NamedTuple):
    """The entry of a manifest file in a snapshot."""

    size_bytes: int
    num_chunk_refs: int


class CheckedManifest(NamedTuple):
    """A checked manifest; None if the file cannot be decoded."""

    manifest: Manifest | None
    findings: list[Finding]
    native: pa.RecordBatch
    sources: pa.RecordBatch


def check_manifest_file(
    data: Readable, manifest_id: ManifestId, entries: Iterable[ListedFile], uses: Sequence[Use]
) -> CheckedManifest:
    """Decode a manifest and compare it with the snapshots that list it."""
    key = layout.manifest_key(manifest_id)
    found: list[Finding] = []

    def note(kind: FindingKind, detail: str, path: str = "") -> None:
        found.append(Finding.of(kind, key, detail, path))

    def broken(kind: FindingKind, detail: str) -> CheckedManifest:
        note(kind, detail, min((use.path for use in uses), default=""))
        return CheckedManifest(None, found, *nothing_referred_to())

    try:
        manifest = decode_manifest(data, key)
        for array in manifest.arrays:
            array.refs  # noqa: B018 - large ones are decoded on first access
    except FormatError as error:
        return broken(FindingKind.DAMAGED_MANIFEST, error.message)
    if manifest.id != manifest_id:
        return broken(FindingKind.WRONG_MANIFEST_ID, f"the file says it is {manifest.id}")
    return check_decoded_manifest(manifest, key, entries, uses)


def check_decoded_manifest(
    manifest: Manifest, key: str, entries: Iterable[ListedFile], uses: Sequence[Use]
) -> CheckedManifest:
    """Compare a manifest with the snapshots that list it."""
    found: list[Finding] = []

    def note(kind: FindingKind, detail: str, path: str = "") -> None:
        found.append(Finding.of(kind, key, detail, path))

    for number in sorted({entry.num_chunk_refs for entry in entries} - {manifest.num_chunk_refs}):
        detail = f"it has {manifest.num_chunk_refs:,} references, a snapshot says {number:,}"
        note(FindingKind.WRONG_REF_COUNT, detail)
    users: dict[NodeId, list[Use]] = {}
    for use in uses:
        users.setdefault(NodeId(use.node_id), []).append(use)
    paths_of = {node_id: min(use.path for use in some) for node_id, some in users.items()}
    _check_arrays(manifest, users, paths_of, note)
    return CheckedManifest(
        manifest, found, native_of(manifest, paths_of), sources_of(manifest, paths_of)
    )


def _check_arrays(
    manifest: Manifest,
    users: Mapping[NodeId, list[Use]],
    paths_of: Mapping[NodeId, str],
    note: Any,
) -> None:
    held = {array.node_id: array.refs for array in manifest.arrays}
    for node_id, some in users.items():
        path, boxes = paths_of[node_id], sorted({use.extents for use in some})
        if node_id in held:
            for extents in boxes:
                _check_extents(held[node_id], extents, path, note)
        elif not all(map(_is_empty, boxes)):
            note(FindingKind.ARRAY_NOT_IN_MANIFEST, f"it has no references of node {node_id}", path)
    for node_id, refs in held.items():
        empty = np.flatnonzero(refs.length == 0)
        if len(empty):
            first = tuple(refs.index[empty[0]].tolist())
            detail = f"{len(empty):,} chunks have no bytes, such as {first}"
            note(FindingKind.ZERO_LENGTH, detail, paths_of.get(node_id, ""))


def _is_empty(extents: bytes) -> bool:
    return any(start >= stop for start, stop in extents_in(extents))


def _check_extents(refs: ChunkRefs, extents: bytes, path: str, note: Any) -> None:
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


# -- what is referred to


def native_of(manifest: Manifest, paths_of: Mapping[NodeId, str]) -> pa.RecordBatch:
    """The chunk objects of a manifest, once per array, as rows of `NATIVE`."""
    parts = []
    for array in manifest.arrays:
        refs = array.refs
        if refs.chunk_id is None:
            continue
        is_native = refs.kind == ChunkKind.NATIVE
        ids, end = distinct_ids(refs.chunk_id[is_native], ends_of(refs)[is_native])
        parts.append((ids, end, paths_of.get(array.node_id, "")))
    count = sum(len(ids) for ids, _, _ in parts)
    if not count:
        return nothing_referred_to()[0]
    ids = np.concatenate([ids for ids, _, _ in parts])
    return pa.RecordBatch.from_arrays(
        [
            binary_column(ids, np.full(count, ChunkId.size)),
            pa.array(np.concatenate([end for _, end, _ in parts])),
            pa.repeat(pa.scalar(bytes(manifest.id), pa.binary()), count),
            pa.concat_arrays([pa.repeat(path, len(ids)) for ids, _, path in parts]),
        ],
        schema=NATIVE,
    )


def distinct_ids(ids: Bytes, end: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Distinct ids in ascending order, with the largest end of each."""
    if not len(ids):
        return ids, end
    keys = np.ascontiguousarray(ids).view("S12").reshape(-1)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ids[order[first]], np.maximum.reduceat(end[order], first)


def sources_of(manifest: Manifest, paths_of: Mapping[NodeId, str]) -> pa.RecordBatch:
    """The virtual sources of a manifest, once per expected state."""
    tables = []
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
        tables.append(pa.RecordBatch.from_arrays(columns, schema=SOURCES))
    if not tables:
        return nothing_referred_to()[1]
    return pa.Table.from_batches(tables).combine_chunks().to_batches()[0]


def _texts(column: Any, codes: pa.ChunkedArray) -> pa.Array:
    numbers = codes.combine_chunks()
    if column is None:
        return pa.nulls(len(numbers), pa.string())
    wanted = pc.if_else(pc.less(numbers, 0), None, numbers)
    return column.values.strings().to_arrow().cast(pa.string()).take(wanted)


def ends_of(refs: ChunkRefs) -> NDArray[np.int64]:
    """The end of each chunk in its object."""
    end = refs.offset + refs.length
    wrapped = end < refs.offset
    found: NDArray[np.int64] = np.where(wrapped, _FARTHEST, np.minimum(end, _FARTHEST)).astype(
        np.int64
    )
    return found


def nothing_referred_to() -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """No rows of `NATIVE`, and none of `SOURCES`."""
    return (
        pa.RecordBatch.from_pylist([], schema=NATIVE),
        pa.RecordBatch.from_pylist([], schema=SOURCES),
    )
