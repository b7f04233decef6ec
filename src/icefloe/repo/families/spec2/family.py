"""The family of spec version 2. Reads are in this module, writes in the modules beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.assets.assets import Assets, Caches, RepoObject
from icefloe.config import RepositoryConfig
from icefloe.config.resolved import ResolvedConfig
from icefloe.errors import ErrorKind, RefNotFoundError
from icefloe.format import layout
from icefloe.format.repo_info.file import RepoInfo, decode_repo_info
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.on_demand import on_demand
from icefloe.repo.families.spec2.checks import (
    require_branch,
    require_online,
    require_snapshot,
    require_tag,
)
from icefloe.repo.handle import Family, FoundRepository, LineCommit, NewCommit, RepoHandle, SeenTip
from icefloe.storage.driver import Driver, find_object

if TYPE_CHECKING:
    from icefloe.format.columns.blobs import Ints
    from icefloe.format.config import file as config_file
    from icefloe.format.metadata import items
    from icefloe.repo.families import creation
    from icefloe.repo.families.spec2 import create, flags, publish, refs, update
    from icefloe.repo.handle import Line
else:
    config_file = on_demand("icefloe.format.config.file")
    items = on_demand("icefloe.format.metadata.items")
    creation = on_demand("icefloe.repo.families.creation")
    create = on_demand("icefloe.repo.families.spec2.create")
    flags = on_demand("icefloe.repo.families.spec2.flags")
    publish = on_demand("icefloe.repo.families.spec2.publish")
    refs = on_demand("icefloe.repo.families.spec2.refs")
    update = on_demand("icefloe.repo.families.spec2.update")


class _FoundRepo(FoundRepository):
    """A `repo` object: everything that opening needs."""

    def __init__(self, repo: RepoObject) -> None:
        self.family = Spec2()
        self.repo = repo

    async def saved_config(self) -> RepositoryConfig | None:
        data = self.repo.info.config
        return None if data is None else config_file.decode_config_flexbuffer(data)

    def remember(self, handle: RepoHandle) -> None:
        handle.assets.caches.repo = self.repo


class Spec2(Family):
    """Repositories with a `repo` object, which every change replaces by compare-and-swap."""

    name = "spec-2"
    spec_version = 2
    stores_parents = False
    has_repo_object = True
    can_amend = True
    # This saves a round trip: the copy of `repo` is stored with the other files.
    looks_before_upload = True

    # -- recognising and creating

    async def find(self, driver: Driver) -> FoundRepository | None:
        found = await find_object(driver, layout.REPO, needs_bucket=False)
        if found is None:
            return None
        data, version = found
        return _FoundRepo(RepoObject(decode_repo_info(data, layout.REPO), data, version))

    def missing(self) -> str:
        return layout.REPO

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        return Assets(driver, settings, Caches(settings), spec_version=2)

    async def is_unfinished(self, driver: Driver) -> bool:
        return await creation.is_unfinished(driver)

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        first = await creation.put_first_snapshot(handle, has_log=True)
        await create.publish_first(handle, first, config)

    # -- refs

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
        await refs.create_branch(handle, name, at)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        await refs.reset_branch(handle, name, to, expected)

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        await refs.delete_branch(handle, name)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await refs.create_tag(handle, name, at)

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        await refs.delete_tag(handle, name)

    # -- history

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

    # -- sessions and commits

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        items.encode_metadata(values, self.spec_version)

    async def writable_tip(self, handle: RepoHandle, branch: str) -> SnapshotId:
        info = await _info(handle)
        require_online(info)
        return require_branch(info, branch)

    def require_moves(self) -> None:
        """The logs of this family can record moves; a feature flag may forbid them."""

    async def movable_tip(self, handle: RepoHandle, branch: str) -> SnapshotId:
        info = await _info(handle)
        require_online(info)
        tip = require_branch(info, branch)
        flags.require_flag(info, "move_node")
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

    def seen_tip(self, handle: RepoHandle) -> SeenTip | None:
        current = handle.assets.caches.repo
        return None if current is None else update.seen_now(handle, current)

    async def require_tip(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> SeenTip | None:
        current = await handle.assets.repo_object()
        publish.require_tip(current.info, branch, base)
        return update.seen_now(handle, current)

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        await publish.publish(handle, commit, branch, seen)

    async def require_listed(self, handle: RepoHandle, base: SnapshotId) -> None:
        publish.require_base(await _info(handle), base)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        await publish.publish_detached(handle, commit)

    async def require_amendable(self, handle: RepoHandle, base: SnapshotId) -> SnapshotId:
        return publish.require_amendable(await _info(handle), base)

    async def publish_amended(self, handle: RepoHandle, commit: NewCommit, branch: str) -> None:
        await publish.publish_amended(handle, commit, branch)

    async def publish_squashed(
        self,
        handle: RepoHandle,
        commits: Sequence[NewCommit],
        branch: str,
        since: SnapshotId,
        pruned: Sequence[tuple[SnapshotId, ...]],
    ) -> None:
        await publish.publish_squashed(handle, commits, branch, since, pruned)

    # -- settings

    async def save_config(self, handle: RepoHandle) -> None:
        await update.save_config(handle, config_file.encode_config_flexbuffer(handle.config))

    def require_repo_object(self, what: str) -> None:
        """Every repository of this family has one."""


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
