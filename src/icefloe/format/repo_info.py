"""The `repo` object of spec version 2: refs, settings, and where history is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns import BlobColumn, Bytes, find_ids, find_rows
from icefloe.format.envelope import FileType, decode_envelope, encode_envelope
from icefloe.format.flatbuffer import write as flat_write
from icefloe.format.flatbuffer.read import FlatBuffer, Rows, Table
from icefloe.format.flatbuffer.schema import (
    METADATA_ITEM,
    REF,
    REPO,
    REPO_STATUS,
    SNAPSHOT_INFO,
    UPDATE,
)
from icefloe.format.metadata import decode_metadata, encode_metadata, read_items, write_item_vector
from icefloe.format.operations_log import (
    RepoStatus,
    Update,
    UpdateKind,
    UpdateLog,
    add_status,
    add_updates,
    decode_status,
    decode_updates,
)
from icefloe.format.snapshot_table import SnapshotTable, add_snapshot_table, decode_snapshot_table
from icefloe.ids import SnapshotId

if TYPE_CHECKING:
    from icefloe.format.flatbuffer.write import FlatWriter


# -- Branches or tags as columns: names and the snapshots they point at.
#
# A commit moves one of them and writes all. With thousands of them, values for each would take
# longer than all else that a commit or an opening does.


_LONGEST_NAME = 256


def read_refs(name: BlobColumn, ids: Bytes) -> Mapping[str, SnapshotId]:
    """Refs that were read: columns, if they are in the order that readers search.

    Whoever reads them sees fewer refs than names if a name is there twice.
    """
    if _ascends(name):
        return RefTable(name, ids)
    return dict(zip(name.to_list(), SnapshotId.of_rows(ids), strict=True))


def with_ref(
    refs: Mapping[str, SnapshotId], name: str, tip: SnapshotId
) -> Mapping[str, SnapshotId]:
    """The refs with this one pointing at `tip`; it is added if it is not there."""
    return refs.moved(name, tip) if isinstance(refs, RefTable) else {**refs, name: tip}


def _ascends(name: BlobColumn) -> bool:
    """Whether each name comes after the one before, by their bytes; False if it is not known."""
    length, data = name.length, name.data[int(name.offsets[0]) : int(name.offsets[-1])]
    width = int(length.max(initial=0))
    if not 0 < width <= _LONGEST_NAME or not data.all():  # numpy takes zeros at the end for none
        return False
    padded = np.zeros((len(name), width), np.uint8)
    padded[np.arange(width) < length[:, None]] = data
    keys = padded.view(f"S{width}").reshape(-1)
    return bool((keys[:-1] < keys[1:]).all())


class RefTable(Mapping[str, SnapshotId]):
    """Refs, ascending by the bytes of their names. One is found without making the others."""

    __slots__ = ("_made", "id", "name")

    def __init__(self, name: BlobColumn, ids: Bytes) -> None:
        """Row i is the ref `name[i]`, which points at the snapshot `ids[i]`."""
        self.name = name
        self.id = ids
        self._made: dict[str, SnapshotId] | None = None

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, name: str) -> SnapshotId:
        if self._made is not None:
            return self._made[name]
        row = self._find(name)
        if row < 0:
            raise KeyError(name)
        return SnapshotId(self.id[row].tobytes())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) >= 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.name.to_list() if self._made is None else self._made)

    def keys(self) -> Any:
        """The names."""
        return self.as_dict().keys()

    def values(self) -> Any:
        """The snapshots that refs point at."""
        return self.as_dict().values()

    def items(self) -> Any:
        """Names with their snapshots."""
        return self.as_dict().items()

    def as_dict(self) -> dict[str, SnapshotId]:
        """All refs as values, made once."""
        if self._made is None:
            tips = SnapshotId.of_rows(self.id)
            self._made = dict(zip(self.name.to_list(), tips, strict=True))
        return self._made

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def moved(self, name: str, tip: SnapshotId) -> Mapping[str, SnapshotId]:
        """The refs with this one pointing at `tip`; it is added if it is not there."""
        row = self._find(name)
        if row < 0:
            return {**self.as_dict(), name: tip}
        ids = self.id.copy()
        ids[row] = np.frombuffer(tip, np.uint8)
        return RefTable(self.name, ids)

    def _find(self, name: str) -> int:
        """The row of a ref, -1 if there is none."""
        key = name.encode("utf-8", "surrogatepass")
        data, offsets = self.name.data, self.name.offsets
        low, high = 0, len(self.name)
        while low < high:
            middle = (low + high) // 2
            if data[offsets[middle] : offsets[middle + 1]].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        if low == len(self.name):
            return -1
        return low if data[offsets[low] : offsets[low + 1]].tobytes() == key else -1


# -- The `repo` object of version 2: refs, snapshots, status, settings and the operations log.


SPEC_VERSION = 2


@dataclass(frozen=True, slots=True, eq=False)
class RepoInfo:
    """A decoded repo object.

    `config` stays a flexbuffer; feature flags are None until one is first set.
    """

    branches: Mapping[str, SnapshotId]
    snapshots: SnapshotTable
    status: RepoStatus
    latest_updates: Sequence[Update]
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] = field(default_factory=dict)
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
        snapshots,
        decode_status(root.table("status", REPO_STATUS)),
        updates,
        _decode_refs(root.rows("tags", REF), snapshots),
        frozenset(_decode_strings(root, "deleted_tags")),
        decode_metadata(read_items(root.rows("metadata", METADATA_ITEM)), SPEC_VERSION, name),
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
    if not refs:
        return writer.offsets(0).position
    if isinstance(refs, RefTable):
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
    if not isinstance(names, BlobColumn):
        names = BlobColumn.from_values(names, is_text=True)
    vector.point(writer.tables_with_text(REF, "name", names, {"snapshot_index": rows}))
    return vector.position


def with_entry(
    info: RepoInfo,
    kind: UpdateKind,
    values: Mapping[str, Any],
    *,
    now: int,
    backup: str,
    page_size: int,
) -> RepoInfo:
    """`info` with a new first entry. `backup` is the name of the copy of the old object.

    The former first entry records that it is the newest one in `backup`. Entries beyond `page_size`
    are dropped; they remain in the backup, which has to be a named one. Entries of unknown kinds,
    and all older entries, are dropped as well, because only a newer version can encode them.
    """
    older = UpdateLog.of(info.latest_updates)
    entry = Update(kind, now, values)
    last, unknown = max(page_size - 1, 0), older.first_unknown()
    # Entry 0 is the newest in `backup`.
    cut = next((at for at in range(last, len(older)) if not at or older.has_backup(at)), None)
    if unknown is not None:
        before = next(at for at in range(unknown, -1, -1) if not at or older.has_backup(at))
        cut = before if cut is None else min(cut, before)
    if cut is None:
        return replace(info, latest_updates=older.with_first(entry, backup, len(older)))
    name = older[cut].backup_path if cut else backup
    return replace(
        info, latest_updates=older.with_first(entry, backup, cut), repo_before_updates=name
    )
