"""The family of spec version 1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icefloe.assets.assets import Assets, Caches
from icefloe.changes.zarr_metadata import parse_zarr_json
from icefloe.config import RepositoryConfig
from icefloe.config.resolved import ResolvedConfig
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.format import layout
from icefloe.format.metadata.items import encode_metadata
from icefloe.format.ref_files import encode_ref_file
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.on_demand import on_demand
from icefloe.repo.clock_checks import MOST_CLOCK_SKEW_US
from icefloe.repo.commit_notes import expired_before
from icefloe.repo.families.spec1 import kept, refs
from icefloe.repo.fence import require_open
from icefloe.repo.handle import Family, FoundRepository, LineCommit, NewCommit, RepoHandle, SeenTip
from icefloe.repo.own_objects import require_own_objects
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import Driver, Version, find_object

if TYPE_CHECKING:
    from icefloe.format.config import file as config_file
    from icefloe.repo.families import creation
    from icefloe.repo.families.spec1 import config_yaml
else:
    config_file = on_demand("icefloe.format.config.file")
    creation = on_demand("icefloe.repo.families.creation")
    config_yaml = on_demand("icefloe.repo.families.spec1.config_yaml")


_MOST_ANCESTORS_CACHED = 1000
"""More of a long history are read again when they are wanted again."""


class _FoundBranch(FoundRepository):
    """A file of branch `main`; the configuration is in another file."""

    def __init__(self, driver: Driver) -> None:
        self.family = Spec1()
        self._driver = driver
        self._config_version: Version | None = None

    async def saved_config(self) -> RepositoryConfig | None:
        found = await find_object(self._driver, layout.CONFIG_YAML)
        if found is None:
            return None
        data, self._config_version = found
        return config_file.decode_config_yaml(data)

    def remember(self, handle: RepoHandle) -> None:
        handle.shared.config_version = self._config_version


class Spec1(Family):
    """Repositories with one small file per ref, replaced by conditional writes."""

    name = "spec-1"
    spec_version = 1

    # -- recognising and creating

    async def find(self, driver: Driver) -> FoundRepository | None:
        found = await find_object(driver, layout.branch_key(MAIN), needs_bucket=False)
        return None if found is None else _FoundBranch(driver)

    def missing(self) -> str:
        return layout.branch_key(MAIN)

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        return Assets(driver, settings, Caches(settings), spec_version=1)

    async def is_unfinished(self, driver: Driver) -> bool:
        return await creation.is_unfinished(driver)

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """The branch is written last: its file makes the repository visible, with its
        configuration."""
        await creation.put_first_snapshot(handle, has_log=False)
        if config is not None:
            await config_yaml.create(handle, config)
        await refs.put_ref(
            handle, layout.branch_key(MAIN), encode_ref_file(FIRST_SNAPSHOT_ID), None
        )

    # -- refs

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        return await refs.list_branches(handle)

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        return await refs.list_tags(handle)

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return await refs.lookup_branch(handle, name)

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        return await refs.lookup_tag(handle, name)

    def require_ref_name(self, name: str) -> None:
        super().require_ref_name(name)
        if "/" in name:
            raise InvalidInputError(
                f"ref name {name!r}: repositories of spec version 1 allow no '/'",
                ErrorKind.INVALID_REF_NAME,
            )

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await refs.create_branch(handle, name, at)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        async def check(fence: int) -> None:
            await kept.require_kept(handle, to, fence)

        await refs.move_branch(handle, name, to, expected, check)

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        await refs.delete_branch(handle, name)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await refs.create_tag(handle, name, at)

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        await refs.delete_tag(handle, name)

    # -- history: one request per snapshot

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        return _info(await handle.assets.snapshot(snapshot_id))

    async def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        """Only a snapshot file says what comes before it, so nothing is fetched ahead."""
        seen: set[SnapshotId] = set()
        current: SnapshotId | None = tip
        while current is not None and current not in seen:
            info = _info(await handle.assets.snapshot(current))
            seen.add(current)
            if len(seen) > _MOST_ANCESTORS_CACHED:
                handle.assets.caches.snapshots.drop([current])
            yield info
            current = info.parent_id

    # -- sessions and commits

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        encode_metadata(values, self.spec_version)

    def parse_array(self, document: bytes, path: str) -> ArrayData | None:
        return parse_zarr_json(document, path, has_rectilinear_grids=False)

    def opened_at(self, handle: RepoHandle) -> int:
        """The time of this machine's clock, which is compared with the storage's."""
        return handle.clock.now_us()

    async def line_since(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> tuple[SnapshotId | None, list[LineCommit] | None]:
        try:
            tip = await refs.lookup_branch(handle, branch)
        except RefNotFoundError:
            return None, None
        return tip, await _line_since(handle, tip, base)

    async def require_tip(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> SeenTip | None:
        tip = await refs.lookup_branch(handle, branch)
        if tip != base:
            raise branch_moved(branch, base.text, tip.text)
        return None

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        await _move_branch(handle, branch, [commit])

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        """No file lists the snapshot. It is worth nothing if its objects were collected."""
        fence = await require_open(handle)
        if fence > commit.opened_at - MOST_CLOCK_SKEW_US:
            await kept.require_kept(handle, commit.base, fence)
            await require_own_objects(handle, commit, fence)

    async def publish_squashed(
        self,
        handle: RepoHandle,
        commits: Sequence[NewCommit],
        branch: str,
        since: SnapshotId,
        pruned: Sequence[tuple[SnapshotId, ...]],
    ) -> None:
        """The snapshot files have the parents. So only the branch has to be moved."""
        await _move_branch(handle, branch, commits, since)

    # -- settings

    async def save_config(self, handle: RepoHandle) -> None:
        await config_yaml.save(handle)


def _info(snapshot: Snapshot) -> SnapshotInfo:
    info = SnapshotInfo(
        snapshot.id, snapshot.parent_id, snapshot.flushed_at, snapshot.message, snapshot.metadata
    )
    expired = expired_before(info)
    return replace(info, pruned_ancestor_tx_logs=expired) if expired else info


async def _move_branch(
    handle: RepoHandle,
    branch: str,
    commits: Sequence[NewCommit],
    since: SnapshotId | None = None,
) -> None:
    """Move a branch from the base of the last commit to the commit.

    If the commits replace those after `since`, all of these are still in the history.
    """

    async def check(fence: int) -> None:
        if commits[-1].source is not None:
            await kept.require_kept(handle, commits[-1].source, fence)
        # A collection never deletes an object that was stored after its listing.
        if fence > commits[-1].opened_at - MOST_CLOCK_SKEW_US:
            if since is not None:
                await _require_line(handle, [commit.base for commit in commits], since)
            for commit in commits:
                await require_own_objects(handle, commit, fence)

    base = commits[-1].base
    try:
        await refs.move_branch(handle, branch, commits[-1].snapshot.id, base, check)
    except ConflictError as conflict:
        raise branch_moved(branch, base.text, conflict.actual_parent) from None


async def _require_line(
    handle: RepoHandle, wanted: Sequence[SnapshotId], since: SnapshotId
) -> None:
    """Refuse if snapshots have expired that the last one led to. Their manifests may be deleted.

    Expiration writes snapshot files again, so they are read past the caches.
    """
    stored = handle.assets.past_disk_cache()
    reached = set()
    current: SnapshotId | None = wanted[-1]
    while current is not None and current not in reached:
        reached.add(current)
        current = None if current == since else (await stored.load_snapshot(current)).parent_id
    if not reached >= {since, *wanted}:
        handle.assets.caches.snapshots.drop(wanted)  # they were read before they were cut
        raise SnapshotNotFoundError(
            "snapshots that were to be squashed have expired in the meantime; nothing has changed: "
            "try again"
        )


async def _line_since(
    handle: RepoHandle, tip: SnapshotId, base: SnapshotId
) -> list[LineCommit] | None:
    line: dict[SnapshotId, LineCommit] = {}
    current: SnapshotId | None = tip
    while current is not None and current not in line:
        if current == base:
            return list(line.values())[::-1]
        try:
            info = _info(await handle.assets.snapshot(current))
        except SnapshotNotFoundError:
            if current == tip:
                raise
            return None  # expiration has cut the history
        pruned = info.pruned_ancestor_tx_logs
        if base in pruned:
            line[current] = LineCommit(current, pruned[pruned.index(base) + 1 :])
            return list(line.values())[::-1]
        line[current] = LineCommit(current, pruned)
        current = info.parent_id
    return None
