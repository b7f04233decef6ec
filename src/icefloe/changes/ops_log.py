"""The operations log of a version-2 repository: adding an entry to a repo object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from icefloe.format.repo_info.file import RepoInfo
from icefloe.format.repo_info.updates import Update, UpdateKind, UpdateTable


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
    older = UpdateTable.from_updates(info.latest_updates)
    entry = Update(kind, now, values)
    is_named = older.backup_path.is_valid()
    cuts = np.append(0, 1 + np.flatnonzero(is_named[1:]))  # entry 0 is the newest in `backup`
    beyond = cuts[cuts >= max(page_size - 1, 0)][:1]
    unknown = older.unknown()[:1]
    before_unknown = cuts[cuts <= unknown[0]][-1:] if len(unknown) else unknown
    cut = min([*beyond.tolist(), *before_unknown.tolist()], default=None)
    if cut is None:
        return replace(info, latest_updates=older.with_first(entry, backup, len(older)))
    name = older.backup_path[cut] if cut else backup
    return replace(
        info, latest_updates=older.with_first(entry, backup, cut), repo_before_updates=name
    )
