"""Checks on a `repo` object before an operation proceeds."""

from __future__ import annotations

from collections.abc import Iterable

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.format.repo_info.file import RepoAvailability, RepoInfo
from icefloe.ids import SnapshotId


def require_online(info: RepoInfo) -> None:
    """Refuse to write to a repository whose status is read-only."""
    if info.status.availability != RepoAvailability.ONLINE:
        reason = info.status.limited_availability_reason
        raise ReadOnlyError(
            "the repository status is read-only" + (f": {reason}" if reason else ""),
            ErrorKind.READ_ONLY_REPOSITORY,
        )


def require_branch(info: RepoInfo, name: str) -> SnapshotId:
    """The tip of a branch; raises if there is no such branch."""
    tip = info.branches.get(name)
    if tip is None:
        other = "it is a tag; " if name in info.tags else _is_id(info, name)
        raise RefNotFoundError(f"branch {name!r}; {other}{_known('branches', info.branches)}")
    return tip


def require_tag(info: RepoInfo, name: str) -> SnapshotId:
    """The snapshot of a tag; raises if there is no such tag."""
    found = info.tags.get(name)
    if found is None:
        other = "it is a branch; " if name in info.branches else _is_id(info, name)
        raise RefNotFoundError(f"tag {name!r}; {other}{_known('tags', info.tags)}")
    return found


def _is_id(info: RepoInfo, name: str) -> str:
    try:
        is_listed = SnapshotId.parse(name) in info.snapshots
    except InvalidInputError:
        return ""
    return f"it is a snapshot id (snapshot_id={name!r}); " if is_listed else ""


def require_snapshot(info: RepoInfo, snapshot_id: SnapshotId) -> int:
    """The row of a snapshot; raises if the repository does not list it."""
    row = info.snapshots.find(snapshot_id)
    if row < 0:
        raise SnapshotNotFoundError(f"{snapshot_id} in this repository")
    return row


def _known(noun: str, names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(repr(name) for name in listed[:10])
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return f"{noun} are {shown}{more}" if listed else f"there are no {noun}"
