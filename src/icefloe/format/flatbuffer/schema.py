"""The flatbuffer tables of the format: their fields in slot order.

A reader and a writer are driven by the same declarations. Structs are laid out by hand in the
modules that use them; their sizes are named here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

OBJECT_ID_SIZE = 12
NODE_ID_SIZE = 8

DIMENSION_SHAPE = np.dtype([("array_length", "<u8"), ("chunk_length", "<u8")])
CHUNK_INDEX_RANGE = np.dtype([("from", "<u4"), ("to", "<u4")])
MANIFEST_FILE_INFO = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": ["V12", "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)


class Field(NamedTuple):
    """One slot: how many bytes it takes in the table, and what its absence means."""

    size: int
    align: int
    dtype: str = ""
    default: int = 0
    is_offset: bool = False
    is_required: bool = False


class TableSpec:
    """A table's name and its fields; the n-th field has slot n."""

    __slots__ = ("_slots", "fields", "name", "required", "sizes")

    def __init__(self, name: str, fields: dict[str, Field]) -> None:
        self.name = name
        self.fields = fields
        self.sizes = np.array([field.size for field in fields.values()], np.int64)
        self.required = np.array([field.is_required for field in fields.values()], np.bool_)
        self._slots = {field: slot for slot, field in enumerate(fields)}

    def slot(self, field: str) -> int:
        return self._slots[field]


def _scalar(dtype: str, default: int = 0) -> Field:
    size = np.dtype(dtype).itemsize
    return Field(size, size, dtype, default)


def _id12(*, is_required: bool = True) -> Field:
    return Field(OBJECT_ID_SIZE, 1, is_required=is_required)


def _id8() -> Field:
    return Field(NODE_ID_SIZE, 1, is_required=True)


def _offset(*, is_required: bool = False) -> Field:
    return Field(4, 4, is_offset=True, is_required=is_required)


U1, U2, U4, U8, I4 = (_scalar(dtype) for dtype in ("<u1", "<u2", "<u4", "<u8", "<i4"))
REQUIRED = _offset(is_required=True)
OPTIONAL = _offset()

METADATA_ITEM = TableSpec("MetadataItem", {"name": REQUIRED, "value": REQUIRED})

SNAPSHOT = TableSpec(
    "Snapshot",
    {
        "id": _id12(),
        "parent_id": _id12(is_required=False),
        "nodes": REQUIRED,
        "flushed_at": U8,
        "message": REQUIRED,
        "metadata": REQUIRED,
        "manifest_files": REQUIRED,
        "manifest_files_v2": OPTIONAL,
        "extra": OPTIONAL,
    },
)
NODE_SNAPSHOT = TableSpec(
    "NodeSnapshot",
    {
        "id": _id8(),
        "path": REQUIRED,
        "user_data": REQUIRED,
        "node_data_type": U1,
        "node_data": REQUIRED,
        "extra": OPTIONAL,
    },
)
ARRAY_NODE_DATA = TableSpec(
    "ArrayNodeData",
    {
        "shape": REQUIRED,
        "dimension_names": OPTIONAL,
        "manifests": REQUIRED,
        "shape_v2": OPTIONAL,
    },
)
GROUP_NODE_DATA = TableSpec("GroupNodeData", {})
DIMENSION_NAME = TableSpec("DimensionName", {"name": OPTIONAL})
DIMENSION_SHAPE_V2 = TableSpec("DimensionShapeV2", {"array_length": U8, "num_chunks": U4})
MANIFEST_REF = TableSpec("ManifestRef", {"object_id": _id12(), "extents": REQUIRED})
MANIFEST_FILE_INFO_V2 = TableSpec(
    "ManifestFileInfoV2",
    {"id": _id12(), "size_bytes": U8, "num_chunk_refs": U4, "extra": OPTIONAL},
)

MANIFEST = TableSpec(
    "Manifest",
    {
        "id": _id12(),
        "arrays": REQUIRED,
        "location_dictionary": OPTIONAL,
        "compression_algorithm": _scalar("<u1", default=1),
        "extra": OPTIONAL,
    },
)
ARRAY_MANIFEST = TableSpec(
    "ArrayManifest", {"node_id": _id8(), "refs": REQUIRED, "extra": OPTIONAL}
)
CHUNK_REF = TableSpec(
    "ChunkRef",
    {
        "index": REQUIRED,
        "inline": OPTIONAL,
        "offset": U8,
        "length": U8,
        "chunk_id": _id12(is_required=False),
        "location": OPTIONAL,
        "checksum_etag": OPTIONAL,
        "checksum_last_modified": U4,
        "compressed_location": OPTIONAL,
        "extra": OPTIONAL,
    },
)

TRANSACTION_LOG = TableSpec(
    "TransactionLog",
    {
        "id": _id12(),
        "new_groups": REQUIRED,
        "new_arrays": REQUIRED,
        "deleted_groups": REQUIRED,
        "deleted_arrays": REQUIRED,
        "updated_arrays": REQUIRED,
        "updated_groups": REQUIRED,
        "updated_chunks": REQUIRED,
        "moved_nodes": OPTIONAL,
        "extra": OPTIONAL,
    },
)
ARRAY_UPDATED_CHUNKS = TableSpec("ArrayUpdatedChunks", {"node_id": _id8(), "chunks": REQUIRED})
CHUNK_INDICES = TableSpec("ChunkIndices", {"coords": REQUIRED})
MOVE_OPERATION = TableSpec(
    "MoveOperation", {"from": REQUIRED, "to": REQUIRED, "node_id": _id8(), "node_type": U1}
)

REPO = TableSpec(
    "Repo",
    {
        "spec_version": U1,
        "tags": REQUIRED,
        "branches": REQUIRED,
        "deleted_tags": REQUIRED,
        "snapshots": REQUIRED,
        "status": REQUIRED,
        "metadata": OPTIONAL,
        "latest_updates": REQUIRED,
        "repo_before_updates": OPTIONAL,
        "config": OPTIONAL,
        "enabled_feature_flags": OPTIONAL,
        "disabled_feature_flags": OPTIONAL,
        "extra": OPTIONAL,
    },
)
REF = TableSpec("Ref", {"name": REQUIRED, "snapshot_index": U4})
SNAPSHOT_INFO = TableSpec(
    "SnapshotInfo",
    {
        "id": _id12(),
        "parent_offset": I4,
        "flushed_at": U8,
        "message": REQUIRED,
        "metadata": OPTIONAL,
        "pruned_ancestor_tx_logs": OPTIONAL,
    },
)
REPO_STATUS = TableSpec(
    "RepoStatus",
    {"availability": U1, "set_at": U8, "limited_availability_reason": OPTIONAL},
)
UPDATE = TableSpec(
    "Update",
    {"update_type_type": U1, "update_type": REQUIRED, "updated_at": U8, "backup_path": OPTIONAL},
)

_NAMED = {"name": REQUIRED}
_NAMED_PREVIOUS = {"name": REQUIRED, "previous_snap_id": _id12()}

UPDATE_TYPES = {
    1: TableSpec("RepoInitializedUpdate", {}),
    2: TableSpec("RepoMigratedUpdate", {"from_version": U1, "to_version": U1}),
    3: TableSpec("ConfigChangedUpdate", {}),
    4: TableSpec("MetadataChangedUpdate", {}),
    5: TableSpec("TagCreatedUpdate", _NAMED),
    6: TableSpec("TagDeletedUpdate", _NAMED_PREVIOUS),
    7: TableSpec("BranchCreatedUpdate", _NAMED),
    8: TableSpec("BranchDeletedUpdate", _NAMED_PREVIOUS),
    9: TableSpec("BranchResetUpdate", _NAMED_PREVIOUS),
    10: TableSpec("NewCommitUpdate", {"branch": REQUIRED, "new_snap_id": _id12()}),
    11: TableSpec(
        "CommitAmendedUpdate",
        {"branch": REQUIRED, "previous_snap_id": _id12(), "new_snap_id": _id12()},
    ),
    12: TableSpec("NewDetachedSnapshotUpdate", {"new_snap_id": _id12()}),
    13: TableSpec("GCRanUpdate", {}),
    14: TableSpec("ExpirationRanUpdate", {}),
    15: TableSpec("FeatureFlagChangedUpdate", {"id": U2, "new_value": U1, "is_set": U1}),
    16: TableSpec("RepoStatusChangedUpdate", {"status": REQUIRED}),
}
"""The operations log's union: tag on disk -> table."""
