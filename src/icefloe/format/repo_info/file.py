"""The `repo` object of version 2: refs, snapshots, status, settings and the operations log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import find_ids, find_rows
from icefloe.format.envelope import FileType, decode_envelope, encode_envelope
from icefloe.format.flatbuffer.read import FlatBuffer, Rows, Table
from icefloe.format.flatbuffer.schema import (
    METADATA_ITEM,
    REF,
    REPO,
    REPO_STATUS,
    SNAPSHOT_INFO,
    UPDATE,
)
from icefloe.format.metadata.items import (
    decode_metadata,
    encode_metadata,
    read_items,
    write_item_vector,
)
from icefloe.format.repo_info.refs import MANY, RefTable, read_refs
from icefloe.format.repo_info.snapshots import (
    SnapshotTable,
    add_snapshot_table,
    decode_snapshot_table,
)
from icefloe.format.repo_info.updates import (
    RepoAvailability,
    RepoStatus,
    Update,
    UpdateKind,
    UpdateLog,
    add_status,
    add_updates,
    decode_status,
    decode_updates,
)
from icefloe.ids import SnapshotId
from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    from icefloe.format.flatbuffer import write as flat_write
    from icefloe.format.flatbuffer.write import FlatWriter
else:
    flat_write = on_demand("icefloe.format.flatbuffer.write")

__all__ = [
    "RepoAvailability",
    "RepoInfo",
    "RepoStatus",
    "Update",
    "UpdateKind",
    "decode_operations",
    "decode_repo_info",
    "encode_repo_info",
]

SPEC_VERSION = 2


@record(frozen=True, eq=False)
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

    @property
    def newest_update_at(self) -> int:
        """The time of the newest operation; 0 if another program has emptied the log."""
        return self.latest_updates[0].updated_at if len(self.latest_updates) else 0

    def equals(self, other: RepoInfo) -> bool:
        """Same contents."""
        tables = ("snapshots", "latest_updates")
        plain = (each.name for each in fields(self) if each.name not in tables)
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
            and list(self.latest_updates) == list(other.latest_updates)
            and self.snapshots.equals(other.snapshots)
        )


def decode_repo_info(data: bytes | memoryview, name: str = "repo object") -> RepoInfo:
    """Decode a repo object. `name` is what errors call it.

    Raises:
        FormatError: the bytes are not a whole, consistent repo object.
    """
    root = _root(data, name)
    snapshots = decode_snapshot_table(root.rows("snapshots", SNAPSHOT_INFO))
    branches = _decode_refs(root.rows("branches", REF), snapshots)
    if "main" not in branches:
        root.buffer.fail(f"there is no branch 'main', only {sorted(branches)}")
    updates = decode_updates(root.rows("latest_updates", UPDATE))
    return RepoInfo(
        branches,
        _decode_refs(root.rows("tags", REF), snapshots),
        frozenset(_decode_strings(root, "deleted_tags")),
        snapshots,
        decode_status(root.table("status", REPO_STATUS)),
        decode_metadata(read_items(root.rows("metadata", METADATA_ITEM)), SPEC_VERSION, name),
        updates,
        root.string("repo_before_updates"),
        root.bytes("config"),
        _decode_flags(root, "enabled_feature_flags"),
        _decode_flags(root, "disabled_feature_flags"),
        root.bytes("extra"),
    )


def decode_operations(
    data: bytes | memoryview, name: str = "repo object"
) -> tuple[Sequence[Update], str | None]:
    """Only the operations log of a repo object, and the name of the backup that continues it."""
    root = _root(data, name)
    updates = decode_updates(root.rows("latest_updates", UPDATE))
    return updates, root.string("repo_before_updates")


def _root(data: bytes | memoryview, name: str) -> Table:
    header, payload, size = decode_envelope(data, FileType.REPO_INFO, name)
    buffer = FlatBuffer(payload, size, name)
    if header.spec_version != SPEC_VERSION:
        buffer.fail(f"a file of spec version {header.spec_version}, expected {SPEC_VERSION}")
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
    return root


def _decode_refs(rows: Rows, snapshots: SnapshotTable) -> Mapping[str, SnapshotId]:
    index = rows.scalar("snapshot_index")
    if len(rows) and int(index.max()) >= len(snapshots):
        rows.buffer.fail(
            f"a ref points at snapshot {int(index.max())} of {len(snapshots)} listed snapshots"
        )
    refs = read_refs(rows.strings("name"), snapshots.id[index])
    if len(refs) != len(rows):
        rows.buffer.fail("a ref name appears twice")
    return refs


def _decode_strings(root: Table, field_name: str) -> list[str]:
    what = f"Repo.{field_name}"
    start, length = root.buffer.vectors_at(root.positions(field_name), 1, what)
    strings: list[str] = root.buffer.strings(start, length, None, what).to_list()
    return strings


def _decode_flags(root: Table, field_name: str) -> tuple[int, ...] | None:
    flags = root.array(field_name, "<u2")
    return None if flags is None else tuple(flags.tolist())


_OPTIONAL = (
    "repo_before_updates",
    "config",
    "enabled_feature_flags",
    "disabled_feature_flags",
    "extra",
)


def encode_repo_info(info: RepoInfo, *, level: int = 3) -> bytes:
    """Encode a repo object; refs, tags and flags are sorted as readers search them."""
    writer = flat_write.FlatWriter()
    required = [name for name, spec in REPO.fields.items() if spec.is_required]
    there = [name for name in _OPTIONAL if getattr(info, name) is not None]
    root = writer.table(REPO, ["spec_version", "metadata", *required, *there])
    root.set("spec_version", SPEC_VERSION)
    root.point("tags", _add_refs(writer, info.tags, info.snapshots))
    root.point("branches", _add_refs(writer, info.branches, info.snapshots))
    deleted = writer.offsets(len(info.deleted_tags))
    root.point("deleted_tags", deleted.position)
    deleted.point(writer.blobs(sorted(info.deleted_tags)))
    root.point("snapshots", add_snapshot_table(writer, info.snapshots))
    root.point("status", add_status(writer, info.status))
    items = encode_metadata(info.metadata, SPEC_VERSION)
    root.point("metadata", write_item_vector(writer, items))
    root.point("latest_updates", add_updates(writer, UpdateLog.of(info.latest_updates)))
    if info.repo_before_updates is not None:
        root.point("repo_before_updates", writer.text(info.repo_before_updates))
    for name, data in (("config", info.config), ("extra", info.extra)):
        if data is not None:
            root.point(name, writer.blob(data))
    for name in ("enabled_feature_flags", "disabled_feature_flags"):
        if name in there:
            root.point(name, writer.vector(np.array(sorted(getattr(info, name)), "<u2")))
    return encode_envelope(writer.finish(root), SPEC_VERSION, FileType.REPO_INFO, level)


def _add_refs(writer: FlatWriter, refs: Mapping[str, SnapshotId], snapshots: SnapshotTable) -> int:
    names: Any
    if isinstance(refs, RefTable) and len(snapshots):
        names, rows = refs.name, find_rows(snapshots.id, refs.id)
    else:
        names = sorted(refs)
        rows = find_ids(snapshots.id, [refs[name] for name in names])
    if -1 in rows:
        name = names[rows.tolist().index(-1)]
        raise FormatError(
            f"ref {name!r} points at snapshot {refs[name]}, which is not listed",
            ErrorKind.SERIALIZATION,
        )
    vector = writer.offsets(len(names))
    if len(names) >= MANY:
        if not isinstance(names, BlobColumn):
            names = BlobColumn.from_values(names, is_text=True)
        vector.point(writer.tables_with_text(REF, "name", names, {"snapshot_index": rows}))
        return vector.position
    tables = writer.tables(REF, len(names), {"name": None, "snapshot_index": None})
    vector.point(tables.position)
    tables.set("snapshot_index", rows)
    tables.point("name", writer.blobs(names))
    return vector.position
