"""The operations log of a version-2 repository: adding an entry to a repo object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.format.repo_info.file import RepoInfo
from icefloe.format.repo_info.updates import Update, UpdateKind, UpdateLog
from icefloe.records import changed


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
        return changed(info, latest_updates=older.with_first(entry, backup, len(older)))
    name = older[cut].backup_path if cut else backup
    return changed(
        info, latest_updates=older.with_first(entry, backup, cut), repo_before_updates=name
    )
