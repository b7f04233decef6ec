"""The `repo` object of version 2: refs, snapshots, status, settings and the operations log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.blobs import Ints
from icefloe.format.envelope import FileType, decode_envelope, encode_envelope
from icefloe.format.flat_read import FlatBuffer, Rows, Table
from icefloe.format.flat_write import FlatWriter, TableWriter
from icefloe.format.metadata import decode_metadata, encode_metadata, read_items, write_item_vector
from icefloe.format.schema import (
    METADATA_ITEM,
    REF,
    REPO,
    REPO_STATUS,
    SNAPSHOT_INFO,
    UPDATE,
    UPDATE_TYPES,
)
from icefloe.format.snapshot_table import (
    SnapshotTable,
    add_snapshot_table,
    decode_snapshot_table,
)
from icefloe.ids import SnapshotId

SPEC_VERSION = 2


class RepoAvailability(IntEnum):
    """Whether a repository takes writes."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Availability, since when (microseconds), and why it is limited."""

    availability: RepoAvailability
    set_at: int
    limited_availability_reason: str | None = None


class UpdateKind(IntEnum):
    """What an entry of the operations log records, with the format's numbers."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    REPO_STATUS_CHANGED = 16


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of the operations log.

    `values` has exactly the fields the format gives this kind, such as `branch` and
    `new_snap_id` for a commit. `backup_path` names the file in which this entry is the newest.
    """

    kind: UpdateKind
    updated_at: int
    values: Mapping[str, Any] = field(default_factory=dict)
    backup_path: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RepoInfo:
    """A decoded repo object.

    `config` stays a flexbuffer; feature flags are None until one is first set.
    """

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str]
    snapshots: SnapshotTable
    status: RepoStatus
    metadata: Mapping[str, Any]
    latest_updates: Sequence[Update]
    repo_before_updates: str | None = None
    config: bytes | None = None
    enabled_feature_flags: tuple[int, ...] | None = None
    disabled_feature_flags: tuple[int, ...] | None = None
    extra: bytes | None = None

    def equals(self, other: RepoInfo) -> bool:
        """Same contents."""
        plain = (name for name in RepoInfo.__slots__ if name != "snapshots")
        return all(
            getattr(self, name) == getattr(other, name) for name in plain
        ) and self.snapshots.equals(other.snapshots)


def decode_repo_info(data: bytes | memoryview, name: str = "repo object") -> RepoInfo:
    """Decode a repo object. `name` is what errors call it.

    Raises:
        FormatError: the bytes are not a whole, consistent repo object.
    """
    header, payload, size = decode_envelope(data, FileType.REPO_INFO, name)
    buffer = FlatBuffer(payload, size, name)
    root = buffer.root(REPO)
    version = root.scalar("spec_version")
    if version > SPEC_VERSION:
        raise FormatError(
            f"{name}: repository of spec version {version}, this icefloe reads versions 1 to "
            f"{SPEC_VERSION}; upgrade icefloe to open it",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if version != SPEC_VERSION:
        buffer.fail(f"spec version is {version}, expected {SPEC_VERSION}")
    snapshots = decode_snapshot_table(root.rows("snapshots", SNAPSHOT_INFO))
    branches = _decode_refs(root.rows("branches", REF), snapshots)
    if "main" not in branches:
        buffer.fail(f"there is no branch 'main', only {sorted(branches)}")
    updates = _decode_updates(root.rows("latest_updates", UPDATE))
    if not updates:
        buffer.fail("the operations log is empty, expected at least the repository's creation")
    return RepoInfo(
        branches,
        _decode_refs(root.rows("tags", REF), snapshots),
        frozenset(_decode_strings(root, "deleted_tags")),
        snapshots,
        _decode_status(root.table("status", REPO_STATUS)),
        decode_metadata(
            read_items(root.rows("metadata", METADATA_ITEM)), header.spec_version, name
        ),
        updates,
        root.string("repo_before_updates"),
        root.bytes("config"),
        _decode_flags(root, "enabled_feature_flags"),
        _decode_flags(root, "disabled_feature_flags"),
        root.bytes("extra"),
    )


def _decode_refs(rows: Rows, snapshots: SnapshotTable) -> dict[str, SnapshotId]:
    index = rows.scalar("snapshot_index")
    if len(rows) and int(index.max()) >= len(snapshots):
        rows.buffer.fail(
            f"a ref points at snapshot {int(index.max())} of {len(snapshots)} listed snapshots"
        )
    names = rows.strings("name").to_pylist()
    tips = [SnapshotId(tip.tobytes()) for tip in snapshots.id[index]]
    refs = dict(zip(names, tips, strict=True))
    if len(refs) != len(names):
        rows.buffer.fail("a ref name appears twice")
    return refs


def _decode_strings(root: Table, field_name: str) -> list[str]:
    what = f"Repo.{field_name}"
    start, length = root.buffer.vectors_at(root.positions(field_name), 1, what)
    strings: list[str] = root.buffer.strings(start, length, None, what).to_pylist()
    return strings


def _decode_flags(root: Table, field_name: str) -> tuple[int, ...] | None:
    flags = root.array(field_name, "<u2")
    return None if flags is None else tuple(flags.tolist())


def _decode_status(table: Table) -> RepoStatus:
    availability = table.scalar("availability")
    if availability > max(RepoAvailability):
        table.buffer.fail(f"RepoStatus.availability is {availability}, expected 0, 1 or 2")
    reason = table.string("limited_availability_reason")
    return RepoStatus(RepoAvailability(availability), table.scalar("set_at"), reason)


def _decode_updates(rows: Rows) -> tuple[Update, ...]:
    tags = rows.scalar("update_type_type")
    values: list[dict[str, Any]] = [{} for _ in range(len(rows))]
    for tag in np.unique(tags).tolist():
        if tag not in UPDATE_TYPES:
            rows.buffer.fail(
                f"the operations log has an entry of type {tag}, types 1 to {max(UPDATE_TYPES)} "
                "are known; a newer version may have written it"
            )
        which = np.flatnonzero(tags == tag)
        tables = rows.take(which).children("update_type", UPDATE_TYPES[tag])
        for name in UPDATE_TYPES[tag].fields:
            for row, value in zip(which.tolist(), _update_column(tables, name), strict=True):
                values[row][name] = value
    return tuple(
        Update(UpdateKind(tag), updated_at, value, backup_path)
        for tag, updated_at, value, backup_path in zip(
            tags.tolist(),
            rows.scalar("updated_at").tolist(),
            values,
            rows.strings("backup_path").to_pylist(),
            strict=True,
        )
    )


def _update_column(tables: Rows, name: str) -> list[Any]:
    field_spec = tables.spec.fields[name]
    if name == "status":
        at = tables.buffer.targets(tables.field(name)[0])
        return [_decode_status(Table(tables.buffer, int(p), REPO_STATUS)) for p in at]
    if field_spec.is_offset:
        return list(tables.strings(name).to_pylist())
    if not field_spec.dtype:
        return [SnapshotId(item.tobytes()) for item in tables.struct(name)]
    column = tables.scalar(name).tolist()
    return [bool(value) for value in column] if name in ("new_value", "is_set") else column


_OPTIONAL = (
    "repo_before_updates",
    "config",
    "enabled_feature_flags",
    "disabled_feature_flags",
    "extra",
)


def encode_repo_info(info: RepoInfo, *, level: int = 3) -> bytes:
    """Encode a repo object; refs, tags and flags are sorted as readers search them."""
    writer = FlatWriter()
    required = [name for name, spec in REPO.fields.items() if spec.is_required]
    there = [name for name in _OPTIONAL if getattr(info, name) is not None]
    root = writer.table(REPO, ["spec_version", "metadata", *required, *there])
    root.set("spec_version", [SPEC_VERSION])
    root.point("tags", _add_refs(writer, info.tags, info.snapshots))
    root.point("branches", _add_refs(writer, info.branches, info.snapshots))
    deleted = writer.offsets(len(info.deleted_tags))
    root.point("deleted_tags", deleted.position)
    deleted.point(writer.blobs(pa.array(sorted(info.deleted_tags), pa.string())))
    root.point("snapshots", add_snapshot_table(writer, info.snapshots))
    root.point("status", _add_statuses(writer, [info.status]))
    items = encode_metadata(info.metadata, SPEC_VERSION)
    root.point("metadata", write_item_vector(writer, items))
    root.point("latest_updates", _add_updates(writer, info.latest_updates))
    if info.repo_before_updates is not None:
        root.point("repo_before_updates", writer.text(info.repo_before_updates))
    for name, data in (("config", info.config), ("extra", info.extra)):
        if data is not None:
            root.point(name, writer.blob(data))
    for name in ("enabled_feature_flags", "disabled_feature_flags"):
        if name in there:
            root.point(name, writer.vector(np.array(sorted(getattr(info, name)), "<u2")))
    return encode_envelope(writer.finish(root), SPEC_VERSION, FileType.REPO_INFO, level)


def _add_refs(writer: FlatWriter, refs: Mapping[str, SnapshotId], snapshots: SnapshotTable) -> Ints:
    names = sorted(refs)
    for name in names:
        if refs[name] not in snapshots:
            raise FormatError(
                f"ref {name!r} points at snapshot {refs[name]}, which is not listed",
                ErrorKind.SERIALIZATION,
            )
    vector = writer.offsets(len(names))
    tables = writer.tables(REF, len(names), {"name": None, "snapshot_index": None})
    vector.point(tables.position)
    tables.set("snapshot_index", [snapshots.row(refs[name]) for name in names])
    tables.point("name", writer.blobs(pa.array(names, pa.string())))
    return vector.position


def _add_statuses(writer: FlatWriter, statuses: Sequence[RepoStatus]) -> Ints:
    reasons = pa.array([status.limited_availability_reason for status in statuses], pa.string())
    tables = writer.tables(
        REPO_STATUS,
        len(statuses),
        {
            "availability": None,
            "set_at": None,
            "limited_availability_reason": reasons.is_valid().to_numpy(zero_copy_only=False),
        },
    )
    tables.set("availability", [status.availability for status in statuses])
    tables.set("set_at", [status.set_at for status in statuses])
    tables.point("limited_availability_reason", writer.blobs(reasons))
    return tables.position


def _add_updates(writer: FlatWriter, updates: Sequence[Update]) -> Ints:
    backups = pa.array([update.backup_path for update in updates], pa.string())
    vector = writer.offsets(len(updates))
    required = dict.fromkeys(("update_type_type", "update_type", "updated_at"))
    has_backup = backups.is_valid().to_numpy(zero_copy_only=False)
    tables = writer.tables(UPDATE, len(updates), {**required, "backup_path": has_backup})
    vector.point(tables.position)
    tags = np.array([update.kind for update in updates], np.int64)
    tables.set("update_type_type", tags)
    tables.set("updated_at", np.array([update.updated_at for update in updates], np.uint64))
    tables.point("backup_path", writer.blobs(backups))
    target = np.zeros(len(updates), np.int64)
    for tag in np.unique(tags).tolist():
        which = np.flatnonzero(tags == tag)
        chosen = [updates[row].values for row in which.tolist()]
        fields = writer.tables(
            UPDATE_TYPES[tag], len(chosen), dict.fromkeys(UPDATE_TYPES[tag].fields)
        )
        for name in UPDATE_TYPES[tag].fields:
            _set_update_column(writer, fields, name, [values[name] for values in chosen])
        target[which] = fields.position
    tables.point("update_type", target)
    return vector.position


def _set_update_column(
    writer: FlatWriter, tables: TableWriter, name: str, column: list[Any]
) -> None:
    field_spec = tables.spec.fields[name]
    if name == "status":
        tables.point(name, _add_statuses(writer, column))
    elif field_spec.is_offset:
        tables.point(name, writer.blobs(pa.array(column, pa.string())))
    elif not field_spec.dtype:
        tables.set(name, np.frombuffer(b"".join(column), np.uint8))
    else:
        tables.set(name, np.array(column, np.int64))
