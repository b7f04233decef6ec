"""The contents of metadata files as plain values, with the same members as Icechunk's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import numpy as np

from icefloe.changes.commit_plan import union_of_logs
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkKind
from icefloe.format.envelope import FileType, Header, decode_envelope, decode_header
from icefloe.format.flatbuffer.read import FlatBuffer, Rows
from icefloe.format.flatbuffer.schema import ARRAY_MANIFEST, CHUNK_REF, MANIFEST
from icefloe.format.manifest import ArrayManifest, decode_manifest
from icefloe.format.nodes import Node
from icefloe.format.operations_log import RepoStatus, Update, UpdateKind
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot import decode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.format.transaction_log import NODE_LISTS, TransactionLog, decode_transaction_log
from icefloe.ids import ManifestId, ObjectId, SnapshotId
from icefloe.repo import history
from icefloe.repo.handle import RepoHandle

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FILE_TYPES = {
    FileType.SNAPSHOT: "snapshot",
    FileType.MANIFEST: "manifest",
    FileType.TRANSACTION_LOG: "transaction-log",
    FileType.REPO_INFO: "repo-info",
}
_NOTE = (
    "Expiration took snapshots out of this one's history. The lists below join the logs of those "
    "snapshots with its own; `header` is that of its own log."
)
_KINDS = ("inline", "native", "virtual")
_AVAILABILITY = ("Online", "ReadOnly", "Offline")


async def inspect_snapshot(handle: RepoHandle, snapshot_id: str) -> dict[str, Any]:
    """The nodes of a snapshot and the manifests they use."""
    handle.format.require_spec_folders("inspecting a snapshot file")
    key = layout.snapshot_key(await handle.given_id(snapshot_id))
    data = await handle.driver.get(key)
    snapshot = decode_snapshot(data, key)
    return {
        "id": snapshot.id.text,
        "header": _header(decode_header(data, key)),
        "flushed_at": _time(snapshot.flushed_at),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {"id": one.id.text, "size_bytes": one.size_bytes, "num_chunk_refs": one.num_chunk_refs}
            for one in snapshot.manifest_files.values()
        ],
        "nodes": [_node(node) for node in snapshot.nodes],
    }


async def inspect_manifest(handle: RepoHandle, manifest_id: str) -> dict[str, Any]:
    """The number of chunks of each kind in a manifest, and how it stores locations."""
    handle.format.require_spec_folders("inspecting a manifest file")
    key = layout.manifest_key(ManifestId.parse(manifest_id))
    data = await handle.driver.get(key)
    manifest = decode_manifest(data, key)
    arrays = [_array(one) for one in manifest.arrays]
    _, payload, size = decode_envelope(data, FileType.MANIFEST, key)
    return {
        "id": manifest.id.text,
        "header": _header(decode_header(data, key)),
        "size_bytes": size,
        "num_arrays": len(arrays),
        "total_chunk_refs": manifest.num_chunk_refs,
        **{f"total_{kind}": sum(one[f"num_{kind}"] for one in arrays) for kind in _KINDS},
        "arrays": arrays,
        "compression": _compression(FlatBuffer(payload, size, key)),
    }


async def inspect_transaction_log(handle: RepoHandle, commit_id: str) -> dict[str, Any]:
    """The changes of a commit, including those of expired commits right before it."""
    handle.format.require_spec_folders("inspecting a transaction log")
    snapshot_id = await handle.given_id(commit_id)
    key = layout.transaction_log_key(snapshot_id)
    data = await handle.driver.get(key)
    log = decode_transaction_log(data, key)
    pruned: tuple[SnapshotId, ...] = ()
    if handle.format.has_repo_object:
        listed = (await handle.assets.repo_object()).info.snapshots
        pruned = listed[snapshot_id].pruned_ancestor_tx_logs if snapshot_id in listed else ()
    found = {one: await history.find_log(handle, one) for one in pruned}
    logs = [*(each for each in found.values() if each is not None), log]
    joined = reduce(union_of_logs, logs)
    shown = {"header": _header(decode_header(data, key)), **_log(joined)}
    if pruned:
        shown["synthetic_composite"] = {
            "note": _NOTE,
            "merged_pruned_ancestor_tx_logs": [
                one.text for one, each in found.items() if each is not None
            ],
            "missing_tx_logs": [one.text for one, each in found.items() if each is None],
        }
    return shown


async def inspect_repo_info(handle: RepoHandle) -> dict[str, Any]:
    """Refs, snapshots and the newest operations of a version-2 repository."""
    handle.format.require_repo_object("inspecting the repo object")
    data = (await handle.assets.repo_object()).data
    info = decode_repo_info(data, layout.REPO)
    shown: dict[str, Any] = {
        "header": _header(decode_header(data, layout.REPO)),
        "spec_version": "2.0",
        "branches": {name: info.branches[name].text for name in sorted(info.branches)},
        "tags": {name: info.tags[name].text for name in sorted(info.tags)},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_snapshot(one) for one in info.snapshots.values()],
        "metadata": dict(info.metadata),
        "latest_updates": [_update(one) for one in info.latest_updates],
    }
    if info.repo_before_updates is not None:
        shown["repo_before_updates"] = info.repo_before_updates
    return shown


def _header(header: Header) -> dict[str, Any]:
    name, dash, version = header.writer.partition("-")
    return {
        "written_by": header.writer,
        "app_name": name if dash else header.writer,
        "app_version": version if dash else None,
        "spec_version": f"{header.spec_version}.0",
        "file_type": _FILE_TYPES[header.file_type],
        "compression": "zstd" if header.is_compressed else "none",
    }


def _time(microseconds: int) -> str:
    """RFC 3339 with milliseconds or microseconds only if needed."""
    time = _EPOCH + timedelta(microseconds=microseconds)
    precision = "seconds" if not time.microsecond else "milliseconds"
    if time.microsecond % 1000:
        precision = "microseconds"
    return time.isoformat(timespec=precision).replace("+00:00", "Z")


def _node(node: Node) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": node.id.text,
        "path": node.path,
        "node_type": "group" if node.array is None else "array",
    }
    if node.array is not None:
        names = node.array.dimension_names or (None,) * len(node.array.shape)
        shown["shape"] = [
            ({} if name is None else {"name": name})
            | {"array_length": one.array_length, "num_chunks": one.num_chunks}
            for name, one in zip(names, node.array.shape, strict=True)
        ]
        shown["manifest_refs"] = [
            {"id": ref.id.text, "extents": [list(extent) for extent in ref.extents]}
            for ref in node.array.manifests
        ]
    return shown


def _array(array: ArrayManifest) -> dict[str, Any]:
    kinds = array.refs.kind
    return {
        "node_id": array.node_id.text,
        "num_chunk_refs": len(array),
        **{f"num_{kind}": int((kinds == ChunkKind[kind.upper()]).sum()) for kind in _KINDS},
    }


def _compression(buffer: FlatBuffer) -> dict[str, Any]:
    root = buffer.root(MANIFEST)
    dictionary = root.bytes("location_dictionary")
    start, count, _ = root.rows("arrays", ARRAY_MANIFEST).vectors("refs", 4)
    number = 0
    for first, many in zip(start.tolist(), count.tolist(), strict=True):
        slots = np.arange(first, first + 4 * many, 4, dtype=np.int64)
        rows = Rows(buffer, buffer.targets(slots), CHUNK_REF)
        slot = rows.spec.slot("compressed_location")
        number += int(rows.per_row(rows.field_offsets[:, slot] != 0).sum()) if many else 0
    shown: dict[str, Any] = {
        "uses_location_compression": root.scalar("compression_algorithm") == 1,
    }
    if dictionary is not None:
        shown["dictionary_size_bytes"] = len(dictionary)
    return {**shown, "num_compressed_refs": number}


def _log(log: TransactionLog) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: [str(one) for one in sorted(getattr(log, name))] for name in NODE_LISTS
    }
    shown["updated_chunks"] = [
        {"node_id": node_id.text, "chunks": log.updated_chunks[node_id].tolist()}
        for node_id in sorted(log.updated_chunks)
    ]
    shown["moved_nodes"] = [
        {"from": move.source, "to": move.destination} for move in log.moved_nodes or ()
    ]
    return shown


def _snapshot(info: SnapshotInfo) -> dict[str, Any]:
    parent = {} if info.parent_id is None else {"parent_id": info.parent_id.text}
    return {
        "id": info.id.text,
        **parent,
        "flushed_at": _time(info.flushed_at),
        "message": info.message,
        "metadata": dict(info.metadata),
    }


def _update(update: Update) -> dict[str, Any]:
    values = {name: _value(value) for name, value in update.values.items()}
    kind = UpdateKind(update.kind) if update.kind in list(UpdateKind) else None
    if kind is None:
        name, values = "Unknown", {"number": int(update.kind)}
    else:
        words = kind.name.split("_")
        name = "".join("GC" if word == "GC" else word.capitalize() for word in words)
        name += "" if kind == UpdateKind.FEATURE_FLAG_CHANGED else "Update"
    if kind == UpdateKind.FEATURE_FLAG_CHANGED and not values.pop("is_set"):
        values["new_value"] = None
    if kind == UpdateKind.REPO_MIGRATED:
        values = {name: f"{version}.0" for name, version in values.items()}
    shown = {"update_type": {"type": name, **values}, "updated_at": _time(update.updated_at)}
    if update.backup_path is not None:
        shown["backup_path"] = update.backup_path
    return shown


def _value(value: Any) -> Any:
    if isinstance(value, ObjectId):
        return value.text
    if isinstance(value, RepoStatus):
        return {
            "availability": _AVAILABILITY[value.availability],
            "set_at": _time(value.set_at),
            "limited_availability_reason": value.limited_availability_reason,
        }
    return value
