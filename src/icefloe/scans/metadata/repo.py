"""Tables about a repository as a whole: `snapshots`, `history`, `refs`, `ops`.

They are made when a query is planned, so that a DataFrame stays as it was. Names of columns follow
Iceberg's metadata tables where these have the same thing.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from icefloe.api.repository import Repository
from icefloe.api.values import SnapshotInfo, to_datetime
from icefloe.format.repo_info.file import UpdateKind
from icefloe.ids import ObjectId
from icefloe.repo import queries
from icefloe.scans.arrow_types import INSTANT, TEXT_MAP, TEXTS, required, table_of
from icefloe.storage.run import run_blocking

SNAPSHOTS = pa.schema(
    [
        required("committed_at", INSTANT),
        required("snapshot_id", pa.string()),
        pa.field("parent_id", pa.string()),
        required("message", pa.string()),
        required("metadata", TEXT_MAP),
        required("branches", TEXTS),
        required("tags", TEXTS),
    ]
)
HISTORY = pa.schema(
    [
        required("made_current_at", INSTANT),
        required("snapshot_id", pa.string()),
        pa.field("parent_id", pa.string()),
        required("is_current_ancestor", pa.bool_()),
        required("message", pa.string()),
    ]
)
REFS = pa.schema(
    [
        required("name", pa.string()),
        required("type", pa.string()),
        required("snapshot_id", pa.string()),
    ]
)
OPS = pa.schema(
    [
        required("updated_at", INSTANT),
        required("operation", pa.string()),
        pa.field("ref", pa.string()),
        pa.field("previous_snapshot_id", pa.string()),
        pa.field("new_snapshot_id", pa.string()),
        required("details", TEXT_MAP),
        pa.field("backup_path", pa.string()),
    ]
)


def snapshots(repository: Repository) -> pa.Table:
    """Every snapshot the repository lists, newest first, with the refs that point at it."""
    branches = named_snapshots(repository, "branch")
    tags = named_snapshots(repository, "tag")
    rows = [
        (
            info.written_at,
            info.id,
            info.parent_id,
            info.message,
            _text_items(info.metadata),
            sorted(name for name, tip in branches.items() if tip == info.id),
            sorted(name for name, tip in tags.items() if tip == info.id),
        )
        for info in all_snapshots(repository)
    ]
    return table_of(SNAPSHOTS, sorted(rows, key=lambda row: row[0], reverse=True))


def refs(repository: Repository) -> pa.Table:
    """Branches, then tags."""
    rows = [
        (name, kind.upper(), tip)
        for kind in ("branch", "tag")
        for name, tip in sorted(named_snapshots(repository, kind).items())
    ]
    return table_of(REFS, rows)


def history_of(repository: Repository, tip: str, branch: str | None) -> pa.Table:
    """The ancestors of a snapshot, newest first.

    For a branch of a version-2 repository also what was committed to it and left behind by a reset
    or an amendment; `is_current_ancestor` tells them apart.
    """
    chain = list(repository.ancestry(snapshot_id=tip))
    rows = [(info.written_at, info.id, info.parent_id, True, info.message) for info in chain]
    if branch is not None and repository.handle.family.has_repo_object:
        known = {info.id: info for info in all_snapshots(repository)}
        current = {info.id for info in chain}
        for entry in run_blocking(queries.all_operations(repository.handle)):
            new = entry.values.get("new_snap_id")
            if entry.values.get("branch") != branch or new is None or new.text in current:
                continue
            info = known.get(new.text)
            rows.append(
                (
                    to_datetime(entry.updated_at),
                    new.text,
                    None if info is None else info.parent_id,
                    False,
                    "" if info is None else info.message,
                )
            )
    return table_of(HISTORY, sorted(rows, key=lambda row: row[0], reverse=True))


def ops(repository: Repository) -> pa.Table:
    """The operations log, newest first."""
    rows = []
    for entry in run_blocking(queries.all_operations(repository.handle)):
        values = dict(entry.values)
        ref = values.pop("branch", None) or values.pop("name", None)
        previous, new = (values.pop(name, None) for name in ("previous_snap_id", "new_snap_id"))
        rows.append(
            (
                to_datetime(entry.updated_at),
                _kind_name(entry.kind),
                ref,
                None if previous is None else previous.text,
                None if new is None else new.text,
                _text_items({name: str(value) for name, value in values.items()}),
                entry.backup_path,
            )
        )
    return table_of(OPS, rows)


def _kind_name(kind: int) -> str:
    is_known = kind in UpdateKind._value2member_map_
    return UpdateKind(kind).name.lower() if is_known else f"unknown {kind}"


def named_snapshots(repository: Repository, kind: str) -> dict[str, str]:
    """Branches or tags, and the snapshots they point at."""
    family = repository.handle.family
    found = family.branches if kind == "branch" else family.tags
    return {name: tip.text for name, tip in run_blocking(found(repository.handle)).items()}


def all_snapshots(repository: Repository) -> list[SnapshotInfo]:
    """Every snapshot that is listed or, where there is no list, that a ref leads to."""
    handle = repository.handle
    return [SnapshotInfo.of(info) for info in run_blocking(handle.family.all_snapshots(handle))]


def _text_items(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Values as JSON, text as it is."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=_shown))
        for name, value in values.items()
    ]


def _shown(value: Any) -> str:
    return value.text if isinstance(value, ObjectId) else str(value)
