"""The history of a migrated repository, decided before anything is written.

Ids are derived from those of the source, so an interrupted migration can continue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from icefloe.errors import FormatError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import FIRST_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.records import record

FIRST_MESSAGE = "Repository initialized"
FIRST_METADATA = {"__icechunk": {"is_root": True}}
MIGRATED_FROM = "icefloe.migrated_from"
"""The metadata key for the old id of a snapshot whose id had to change."""


@record(frozen=True)
class MovedSnapshot:
    """A snapshot of the source, and its entry in the target."""

    source_id: SnapshotId
    info: SnapshotInfo


@record(frozen=True)
class NewHistory:
    """All snapshots of a migrated repository, each after its parent."""

    first: SnapshotInfo
    """The empty first snapshot of every repository."""
    is_first_new: bool
    """Whether an empty snapshot was added before the first one of the source, which has nodes."""
    moved: tuple[MovedSnapshot, ...]
    new_ids: Mapping[SnapshotId, SnapshotId]
    """Keyed by the id in the source."""

    def infos(self) -> list[SnapshotInfo]:
        return [self.first, *(each.info for each in self.moved)]


def derived_id(source: bytes, *parts: bytes) -> bytes:
    """A 12-byte replacement for an id of the source that cannot be kept."""
    digest = hashlib.blake2b(source, digest_size=SnapshotId.size, person=b"icefloe.migrate")
    for part in parts:
        digest.update(part)
    return digest.digest()


def manifest_id(source: ManifestId, node_id: NodeId) -> ManifestId:
    """The new manifest of one array, from a source manifest that may hold several arrays."""
    return ManifestId(derived_id(bytes(source), bytes(node_id)))


def plan_history(
    snapshots: Iterable[SnapshotInfo], is_empty: Mapping[SnapshotId, bool], *, renames: bool
) -> NewHistory:
    """Order the snapshots, choose ids, and make times ascend along every history.

    `is_empty` says for every readable snapshot whether it has no nodes. Snapshots whose files are
    gone are left out; their children get the nearest readable ancestor as parent. With `renames`,
    all snapshots get new ids, because files with the old names exist.
    """
    known = {info.id: info for info in snapshots}
    ordered = _parents_first(known)
    readable = [info for info in ordered if info.id in is_empty]
    if not readable:
        raise FormatError("no snapshot of this repository can be read: there is nothing to migrate")
    roots = [info for info in readable if _kept_parent(info, known, is_empty) is None]
    replaced = next((info for info in roots if is_empty[info.id]), None)
    first = SnapshotInfo(
        FIRST_SNAPSHOT_ID,
        None,
        min(info.flushed_at for info in roots) - 1 if replaced is None else replaced.flushed_at,
        FIRST_MESSAGE,
        FIRST_METADATA,
    )
    new_ids: dict[SnapshotId, SnapshotId] = {}
    times = {first.id: first.flushed_at}
    moved: list[MovedSnapshot] = []
    for info in readable:
        if replaced is not None and info.id == replaced.id:
            new_ids[info.id] = first.id
            continue
        parent = _kept_parent(info, known, is_empty)
        parent_id = first.id if parent is None else new_ids[parent]
        new_id = SnapshotId(derived_id(bytes(info.id)) if renames else bytes(info.id))
        flushed_at = max(info.flushed_at, times[parent_id] + 1)
        metadata = dict(info.metadata)
        if new_id.text != info.id.text:
            metadata[MIGRATED_FROM] = info.id.text
        new_ids[info.id], times[new_id] = new_id, flushed_at
        listed = SnapshotInfo(new_id, parent_id, flushed_at, info.message, metadata)
        moved.append(MovedSnapshot(info.id, listed))
    return NewHistory(first, replaced is None, tuple(moved), new_ids)


def _kept_parent(
    info: SnapshotInfo,
    known: Mapping[SnapshotId, SnapshotInfo],
    is_empty: Mapping[SnapshotId, bool],
) -> SnapshotId | None:
    """The nearest readable ancestor."""
    current = info.parent_id
    while current is not None and current not in is_empty:
        ancestor = known.get(current)
        current = None if ancestor is None else ancestor.parent_id
    return current


def _parents_first(known: Mapping[SnapshotId, SnapshotInfo]) -> list[SnapshotInfo]:
    """Each snapshot after its parent, older ones first, so that the order is deterministic."""
    ordered: dict[SnapshotId, SnapshotInfo] = {}
    for tip in sorted(known.values(), key=lambda info: (info.flushed_at, bytes(info.id))):
        line: dict[SnapshotId, SnapshotInfo] = {}
        current: SnapshotInfo | None = tip
        while current is not None and current.id not in ordered:
            if current.id in line:
                raise FormatError(f"snapshot {current.id} is its own ancestor")
            line[current.id] = current
            current = None if current.parent_id is None else known.get(current.parent_id)
        ordered.update(reversed(line.items()))
    return list(ordered.values())
