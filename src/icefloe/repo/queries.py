"""Queries that take a branch, a tag or a snapshot id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.format.repo_info.file import Update
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.snapshot.file import ManifestFileInfo
from icefloe.ids import SnapshotId
from icefloe.records import NamedTuple
from icefloe.repo import history
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionState, open_readonly
from icefloe.storage.keys import instant

if TYPE_CHECKING:
    from icefloe.changes.diff import Diff
    from icefloe.format.columns.blobs import Ints
    from icefloe.repo.handle import Line

_SHOWN = 10
"""Names of branches and tags that a repository shows."""


async def line_of(
    handle: RepoHandle, *, branch: str | None, tag: str | None, snapshot_id: str | None
) -> Line:
    """The history of a ref, newest first, as rows of a table if the family has one."""
    tip = await history.resolve(handle, branch=branch, tag=tag, snapshot_id=snapshot_id)
    return await handle.family.line(handle, tip)


async def diff_of(
    handle: RepoHandle, start: Mapping[str, str | None], end: Mapping[str, str | None]
) -> Diff:
    """What changed between two refs."""
    first = await history.resolve(handle, **start, prefix="from_")
    return await history.diff(handle, first, await history.resolve(handle, **end, prefix="to_"))


async def open_at(
    handle: RepoHandle,
    *,
    branch: str | None,
    tag: str | None,
    snapshot_id: str | None,
    as_of: int | None,
) -> SessionState:
    """A read-only session; `as_of` (microseconds) picks from the history of `branch`."""
    if as_of is None:
        found = await history.resolve(handle, branch=branch, tag=tag, snapshot_id=snapshot_id)
        if snapshot_id is not None:
            await handle.family.require_snapshot(handle, found)
    elif branch is None or tag is not None or snapshot_id is not None:
        raise InvalidInputError(
            "as_of needs a branch, and neither a tag nor a snapshot_id", ErrorKind.INVALID_REF_TYPE
        )
    else:
        found = await history.snapshot_as_of(handle, branch, as_of)
    return await open_readonly(handle, found)


async def manifest_files(handle: RepoHandle, snapshot_id: SnapshotId) -> list[ManifestFileInfo]:
    """The manifest files a snapshot uses."""
    return list((await handle.assets.snapshot(snapshot_id)).manifest_files.values())


async def all_operations(handle: RepoHandle) -> list[Update]:
    """The whole operations log, newest first."""
    return [entry async for entry in history.ops_log(handle)]


class GraphLines(NamedTuple):
    """Lines of history for a graph, and the names of refs by snapshot."""

    lines: list[list[SnapshotInfo] | tuple[SnapshotTable, Ints]]
    names: dict[SnapshotId, list[str]]

    def infos(self) -> list[SnapshotInfo]:
        """Every snapshot once."""
        found: dict[SnapshotId, SnapshotInfo] = {}
        for line in self.lines:
            infos = line if isinstance(line, list) else line[0].infos(line[1])
            found.update((info.id, info) for info in infos)
        return list(found.values())


async def graph_lines(
    handle: RepoHandle, *, branch: str | None, tag: str | None, snapshot_id: str | None
) -> GraphLines:
    """The history of one ref, or of all branches, with ref names."""
    names: dict[SnapshotId, list[str]] = {}
    branches, tags = await handle.family.branches(handle), await handle.family.tags(handle)
    tips = [branches[name] for name in sorted(branches)]
    for name in sorted(branches):
        names.setdefault(branches[name], []).append(name)
    for name in sorted(tags):
        names.setdefault(tags[name], []).append(f"tag: {name}")
    if branch is not None or tag is not None or snapshot_id is not None:
        tips = [await history.resolve(handle, branch=branch, tag=tag, snapshot_id=snapshot_id)]
    lines = [await handle.family.line(handle, tip) for tip in tips]
    whole = [line if isinstance(line, tuple) else [info async for info in line] for line in lines]
    return GraphLines(whole, names)


async def shown_refs(handle: RepoHandle) -> list[tuple[str, str]]:
    """Branches, tags and the last commit of main, for people. A storage that fails says so."""
    from icefloe.repo.refs import MAIN  # noqa: PLC0415 - opening a repository does without

    try:
        branches = await handle.family.list_branches(handle)
        tags = await handle.family.list_tags(handle)
        fields = [("branches", _named(branches)), ("tags", _named(tags))]
        tip = await handle.family.lookup_branch(handle, MAIN)
        last = await handle.family.lookup_snapshot(handle, tip)
    except IcechunkError as error:
        return [("branches", f"not known: {error}")]
    at = instant(last.flushed_at).strftime("%Y-%m-%d %H:%M:%S UTC")
    message = last.message.partition("\n")[0]
    return [*fields, ("last commit to main", f"{last.id}, {at}: {message:.80}")]


def _named(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[:_SHOWN]) or "none") + more
