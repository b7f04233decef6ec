"""Spec version 2: refs, history and settings in one `repo` object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.assets.assets import RepoObject
from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    RefNotFoundError,
    SessionStateError,
    branch_moved,
)
from icefloe.format import layout
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.repo.creation import SpecFormat, put_first_snapshot
from icefloe.repo.handle import FoundRepository, LineCommit, NewCommit, RepoHandle, SeenTip
from icefloe.repo.refs import MAIN
from icefloe.repo.spec2_publish import (
    Changed,
    SeenRepo,
    publish_commits,
    put_repo,
    replaced_tip,
    require_base,
    require_branch,
    require_flag,
    require_online,
    require_snapshot,
    require_tag,
    require_tip,
    seen_now,
    update_repo,
    with_snapshot,
)
from icefloe.storage.driver import Driver, find_object

if TYPE_CHECKING:
    from icefloe.format.columns import Ints
    from icefloe.repo.handle import Line


class _FoundRepo(FoundRepository):
    """A `repo` object: everything that opening needs."""

    def __init__(self, repo: RepoObject) -> None:
        self.format = Spec2()
        self.repo = repo

    async def saved_config(self) -> RepositoryConfig | None:
        data = self.repo.info.config
        if data is None:
            return None
        from icefloe.format import config as config_file

        return config_file.decode_config_flexbuffer(data)

    def remember(self, handle: RepoHandle) -> None:
        handle.assets.caches.repo = self.repo


class Spec2(SpecFormat):
    """Repositories with a `repo` object, which every change replaces by compare-and-swap."""

    name = "spec-2"
    spec_version = 2
    stores_parents = False
    has_repo_object = True
    can_amend = True
    # This saves a round trip: the copy of `repo` is stored with the other files.
    looks_before_upload = True

    async def find(self, driver: Driver) -> FoundRepository | None:
        found = await find_object(driver, layout.REPO, needs_bucket=False)
        if found is None:
            return None
        data, version = found
        return _FoundRepo(RepoObject(decode_repo_info(data, layout.REPO), data, version))

    def missing(self) -> str:
        return layout.REPO

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """Create the `repo` object with the first snapshot at `main`."""
        from icefloe.format import config as config_file

        first = await put_first_snapshot(handle, has_log=True)
        info = RepoInfo(
            branches={MAIN: first.id},
            snapshots=SnapshotTable.from_infos([SnapshotInfo.of(first)]),
            status=RepoStatus(RepoAvailability.ONLINE, first.flushed_at),
            latest_updates=(Update(UpdateKind.REPO_INITIALIZED, first.flushed_at),),
            config=None if config is None else config_file.encode_config_flexbuffer(config),
        )
        await put_repo(handle, info, previous=None)

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        return set((await _info(handle)).branches)

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        return set((await _info(handle)).tags)

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return require_branch(await _info(handle), name)

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        return require_tag(await _info(handle), name)

    async def branches(self, handle: RepoHandle) -> dict[str, SnapshotId]:
        return dict((await _info(handle)).branches)

    async def tags(self, handle: RepoHandle) -> dict[str, SnapshotId]:
        return dict((await _info(handle)).tags)

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        def change(info: RepoInfo) -> Changed:
            if name in info.branches:
                raise AlreadyExistsError(
                    f"{name!r} points at {info.branches[name]}; choose another name, or move it "
                    "with reset_branch",
                    ErrorKind.BRANCH_ALREADY_EXISTS,
                )
            require_snapshot(info, at)
            branches = {**info.branches, name: at}
            return replace(info, branches=branches), UpdateKind.BRANCH_CREATED, {"name": name}

        await update_repo(handle, change)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        def change(info: RepoInfo) -> Changed:
            tip = require_branch(info, name)
            if expected is not None and tip != expected:
                raise branch_moved(name, expected.text, tip.text, ErrorKind.BRANCH_UPDATE_CONFLICT)
            require_snapshot(info, to)
            values = {"name": name, "previous_snap_id": tip}
            changed = replace(info, branches={**info.branches, name: to})
            return changed, UpdateKind.BRANCH_RESET, values

        await update_repo(handle, change)

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        def change(info: RepoInfo) -> Changed:
            values = {"name": name, "previous_snap_id": require_branch(info, name)}
            branches = {key: value for key, value in info.branches.items() if key != name}
            return replace(info, branches=branches), UpdateKind.BRANCH_DELETED, values

        await update_repo(handle, change)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        def change(info: RepoInfo) -> Changed:
            require_flag(info, "create_tag")
            if name in info.tags:
                raise AlreadyExistsError(
                    f"{name!r} points at {info.tags[name]}; choose another name",
                    ErrorKind.TAG_ALREADY_EXISTS,
                )
            if name in info.deleted_tags:
                raise AlreadyExistsError(
                    f"{name!r}, whose name is never used again; choose another one",
                    ErrorKind.TAG_PREVIOUSLY_DELETED,
                )
            require_snapshot(info, at)
            tags = {**info.tags, name: at}
            return replace(info, tags=tags), UpdateKind.TAG_CREATED, {"name": name}

        await update_repo(handle, change)

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        def change(info: RepoInfo) -> Changed:
            require_flag(info, "delete_tag")
            values = {"name": name, "previous_snap_id": require_tag(info, name)}
            tags = {key: value for key, value in info.tags.items() if key != name}
            changed = replace(info, tags=tags, deleted_tags=info.deleted_tags | {name})
            return changed, UpdateKind.TAG_DELETED, values

        await update_repo(handle, change)

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        info = await _info(handle)
        return info.snapshots.info(require_snapshot(info, snapshot_id))

    async def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        table, rows = await self.line(handle, tip)
        for info in table.infos(rows):
            yield info

    async def line(self, handle: RepoHandle, tip: SnapshotId) -> tuple[SnapshotTable, Ints]:
        info = await _info(handle)
        require_snapshot(info, tip)
        return info.snapshots, info.snapshots.line(tip)

    async def branch_line(self, handle: RepoHandle, branch: str) -> Line:
        info = await _info(handle)
        try:
            tip = require_branch(info, branch)
        except RefNotFoundError as error:
            raise RefNotFoundError(error.message, ErrorKind.BRANCH_NOT_FOUND) from None
        return info.snapshots, info.snapshots.line(tip)

    async def all_snapshots(self, handle: RepoHandle) -> list[SnapshotInfo]:
        table = (await _info(handle)).snapshots
        return table.infos(np.arange(len(table)))

    async def writable_tip(self, handle: RepoHandle, branch: str) -> SnapshotId:
        info = await _info(handle)
        require_online(info)
        return require_branch(info, branch)

    def require_moves(self) -> None:
        """The logs of this format version can record moves; a feature flag may forbid them."""

    async def movable_tip(self, handle: RepoHandle, branch: str) -> SnapshotId:
        info = await _info(handle)
        require_online(info)
        tip = require_branch(info, branch)
        require_flag(info, "move_node")
        return tip

    def opened_at(self, handle: RepoHandle) -> int:
        """The newest entry of the operations log: a collection adds a later one."""
        current = handle.assets.caches.repo
        return 0 if current is None else current.info.newest_update_at

    async def line_since(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> tuple[SnapshotId | None, list[LineCommit] | None]:
        info = await _info(handle)
        tip = info.branches.get(branch)
        return tip, None if tip is None else _line_since(info, tip, base)

    def seen_tip(self, handle: RepoHandle, branch: str, base: SnapshotId) -> SeenTip | None:
        current = handle.assets.caches.repo
        return None if current is None else seen_now(handle, current)

    async def require_tip(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> SeenTip | None:
        current = await handle.assets.repo_object()
        require_tip(current.info, branch, base)
        return seen_now(handle, current)

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        """List the snapshot and make it the tip of its branch."""

        def change(info: RepoInfo) -> Changed:
            require_tip(info, branch, commit.base)
            changed = with_snapshot(info, commit.snapshot, commit.base, branch=branch)
            values = {"branch": branch, "new_snap_id": commit.snapshot.id}
            return changed, UpdateKind.NEW_COMMIT, values

        await publish_commits(
            handle, [commit], change, seen if isinstance(seen, SeenRepo) else None
        )

    async def require_listed(self, handle: RepoHandle, base: SnapshotId) -> None:
        require_base(await _info(handle), base)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        """List the snapshot."""

        def change(info: RepoInfo) -> Changed:
            require_base(info, commit.base)
            listed = with_snapshot(info, commit.snapshot, commit.base)
            return listed, UpdateKind.NEW_DETACHED_SNAPSHOT, {"new_snap_id": commit.snapshot.id}

        await publish_commits(handle, [commit], change)

    async def require_amendable(self, handle: RepoHandle, base: SnapshotId) -> SnapshotId:
        info = await _info(handle)
        require_base(info, base)
        parent = info.snapshots[base].parent_id
        if parent is None:
            raise SessionStateError(
                "the first snapshot of a repository cannot be amended; commit on top of it",
                ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        return parent

    async def publish_amended(self, handle: RepoHandle, commit: NewCommit, branch: str) -> None:
        """List the snapshot with the parent of its base, as the new tip."""
        from icefloe.repo.commit_notes import moved_expired

        def change(info: RepoInfo) -> Changed:
            require_tip(info, branch, commit.base)
            require_base(info, commit.base)
            amended = info.snapshots[commit.base]
            new, parent = commit.snapshot, amended.parent_id
            if parent is not None:
                metadata = moved_expired(amended, new.metadata, parent)
                new = replace(new, metadata=metadata)
            pruned = amended.pruned_ancestor_tx_logs
            return replaced_tip(info, commit._replace(snapshot=new), branch, parent, pruned)

        await publish_commits(handle, [commit], change)

    async def publish_squashed(
        self,
        handle: RepoHandle,
        commits: Sequence[NewCommit],
        branch: str,
        since: SnapshotId,
        pruned: Sequence[tuple[SnapshotId, ...]],
    ) -> None:
        """List the snapshots as a line that starts at `since`, and make the last one the tip."""

        def change(info: RepoInfo) -> Changed:
            require_tip(info, branch, commits[-1].base)
            require_base(info, since)
            parent = since
            for commit, expired in zip(commits[:-1], pruned, strict=False):
                # Collections keep the manifests of snapshots that are listed.
                require_base(info, commit.base)
                info = with_snapshot(info, commit.snapshot, parent, expired)
                parent = commit.snapshot.id
            return replaced_tip(info, commits[-1], branch, parent, pruned[-1])

        await publish_commits(handle, commits, change)

    async def save_config(self, handle: RepoHandle) -> None:
        from icefloe.format import config as config_file

        data = config_file.encode_config_flexbuffer(handle.config)

        def change(info: RepoInfo) -> Changed:
            return replace(info, config=data), UpdateKind.CONFIG_CHANGED, {}

        await update_repo(handle, change)

    def require_repo_object(self, what: str) -> None:
        """Every repository of this format version has one."""


async def _info(handle: RepoHandle) -> RepoInfo:
    return (await handle.assets.repo_object()).info


def _line_since(info: RepoInfo, tip: SnapshotId, base: SnapshotId) -> list[LineCommit] | None:
    line: list[LineCommit] = []
    for key in info.snapshots.ancestry(tip):
        if key == base:
            return line[::-1]
        pruned = info.snapshots[key].pruned_ancestor_tx_logs
        if base in pruned:  # the base expired, but its descendants are still listed
            line.append(LineCommit(key, pruned[pruned.index(base) + 1 :]))
            return line[::-1]
        line.append(LineCommit(key, pruned))
    return None
