"""The operations log of a version-2 repository: adding an entry to a repo object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icefloe.format.repo_info import RepoInfo
from icefloe.format.updates import Update, UpdateKind, UpdateTable


def with_entry(
    info: RepoInfo,
    kind: UpdateKind,
    values: Mapping[str, Any],
    *,
    now: int,
    backup: str,
    page_size: int,
) -> RepoInfo:
    """`info` with a new first entry; `backup` is where the object as it was has been copied.

    The former first entry learns in which file it is the newest. Entries beyond `page_size` are
    left to the backup that holds them, which has to be one with a name.
    """
    older = UpdateTable.from_updates(info.latest_updates)
    entry = Update(kind, now, values)
    first = max(page_size - 1, 0)
    names = older.backup_path[first:].to_pylist()
    if first == 0 and names:
        names[0] = backup  # entry 0 of the old ones goes on there, so it can be cut at as well
    for at, name in enumerate(names, first):
        if name is not None:
            return replace(
                info,
                latest_updates=older.with_first(entry, backup, at),
                repo_before_updates=name,
            )
    return replace(info, latest_updates=older.with_first(entry, backup, len(older)))
