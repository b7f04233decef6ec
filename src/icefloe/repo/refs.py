"""Branches, tags and snapshots by name; what a repository answers about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import (
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format.operations_log import Update
from icefloe.format.snapshot import ManifestFileInfo
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.observe import REPOSITORY
from icefloe.repo import history
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState, open_readonly
from icefloe.storage.driver import instant

if TYPE_CHECKING:
    from icefloe.changes.diff import Diff
    from icefloe.format.columns import Ints
    from icefloe.repo.handle import Line


# -- Branches and tags: the rules that all format versions share.


MAIN = "main"


async def create_branch(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create a branch at a snapshot."""
    handle.format.require_ref_name(name)
    await handle.format.create_branch(handle, name, snapshot_id)
    REPOSITORY.info("branch %r created at %s", name, snapshot_id)


async def reset_branch(
    handle: RepoHandle, name: str, snapshot_id: SnapshotId, expected: SnapshotId | None
) -> None:
    """Point a branch at another snapshot, if it is still at `expected` (None: always)."""
    await handle.format.reset_branch(handle, name, snapshot_id, expected)
    REPOSITORY.info("branch %r reset to %s", name, snapshot_id)


async def delete_branch(handle: RepoHandle, name: str) -> None:
    """Delete a branch other than `main`."""
    if name == MAIN:
        raise SessionStateError(
            "every repository has it; reset_branch moves it",
            ErrorKind.CANNOT_DELETE_MAIN,
        )
    await handle.format.delete_branch(handle, name)
    REPOSITORY.info("branch %r deleted", name)


async def create_tag(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create a tag. Tags never move."""
    handle.format.require_ref_name(name)
    await handle.format.create_tag(handle, name, snapshot_id)
    REPOSITORY.info("tag %r created at %s", name, snapshot_id)


async def delete_tag(handle: RepoHandle, name: str) -> None:
    """Delete a tag and retire its name."""
    await handle.format.delete_tag(handle, name)
    REPOSITORY.info("tag %r deleted", name)


# -- Snapshots by a text that may be a branch, a tag or an id, also the beginning of one.


_SHORTEST = 4
_LENIENT = str.maketrans("ILO", "110")
"""Letters that stand for digits in ids, as when whole ids are read."""


async def find_snapshot(handle: RepoHandle, name: str) -> SnapshotId:
    """The snapshot of a branch, else of a tag, else the one with this id.

    Raises:
        RefNotFoundError: it is none of them.
    """
    branches = await handle.format.list_branches(handle)
    if name in branches:
        return await handle.format.lookup_branch(handle, name)
    tags = await handle.format.list_tags(handle)
    if name in tags:
        return await handle.format.lookup_tag(handle, name)
    found = await find_by_id(handle, name)
    if found is None:
        names = ", ".join(sorted(branches | tags))
        raise RefNotFoundError(
            f"{name!r} is neither a branch, a tag nor the id of a snapshot; there are {names}"
        )
    return found


async def find_by_id(handle: RepoHandle, text: str) -> SnapshotId | None:
    """The snapshot with this id, or the one whose id begins so; None if there is none.

    Raises:
        InvalidInputError: several begin so.
    """
    try:
        return (await handle.format.lookup_snapshot(handle, handle.snapshot_id(text))).id
    except NotFoundError:
        return None
    except InvalidInputError:
        if len(text) < _SHORTEST:
            return None
    starts = text.upper(), text.upper().translate(_LENIENT)
    every = await handle.format.all_snapshots(handle)
    found = [info.id.text for info in every if info.id.text.upper().startswith(starts)]
    if len(found) > 1:
        raise InvalidInputError(
            f"{len(found)} snapshot ids begin with {text!r}: {', '.join(found[:3])}"
            f"{', ...' if len(found) > 3 else ''}; give more characters",
            ErrorKind.INVALID_SNAPSHOT_ID,
        )
    return handle.snapshot_id(found[0]) if found else None


# -- Queries that take a branch, a tag or a snapshot id.


_SHOWN = 10
"""Names of branches and tags that a repository shows."""


async def line_of(
    handle: RepoHandle, *, branch: str | None, tag: str | None, snapshot_id: str | None
) -> Line:
    """The history of a ref, newest first, as rows of a table if the format version has one."""
    tip = await history.resolve(handle, branch=branch, tag=tag, snapshot_id=snapshot_id)
    return await handle.format.line(handle, tip)


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
            await handle.format.require_snapshot(handle, found)
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
    branches, tags = await handle.format.branches(handle), await handle.format.tags(handle)
    tips = [branches[name] for name in sorted(branches)]
    for name in sorted(branches):
        names.setdefault(branches[name], []).append(name)
    for name in sorted(tags):
        names.setdefault(tags[name], []).append(f"tag: {name}")
    if branch is not None or tag is not None or snapshot_id is not None:
        tips = [await history.resolve(handle, branch=branch, tag=tag, snapshot_id=snapshot_id)]
    lines = [await handle.format.line(handle, tip) for tip in tips]
    whole = [line if isinstance(line, tuple) else [info async for info in line] for line in lines]
    return GraphLines(whole, names)


async def shown_refs(handle: RepoHandle) -> list[tuple[str, str]]:
    """Branches, tags and the last commit of main, for people. A storage that fails says so."""

    try:
        branches = await handle.format.list_branches(handle)
        tags = await handle.format.list_tags(handle)
        fields = [("branches", _named(branches)), ("tags", _named(tags))]
        tip = await handle.format.lookup_branch(handle, MAIN)
        last = await handle.format.lookup_snapshot(handle, tip)
    except IcechunkError as error:
        return [("branches", f"not known: {error}")]
    at = instant(last.flushed_at).strftime("%Y-%m-%d %H:%M:%S UTC")
    message = last.message.partition("\n")[0]
    return [*fields, ("last commit to main", f"{last.id}, {at}: {message:.80}")]


def _named(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[:_SHOWN]) or "none") + more
