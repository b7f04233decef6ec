"""The family of repositories with numbered branches: document 000, and Icechunk to 0.1.3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, cast

from icefloe.assets.assets import Assets
from icefloe.assets.numbered_assets import NumberedAssets, NumberedCaches
from icefloe.assets.parquet_prototype import ParquetPrototypeAssets
from icefloe.changes.zarr_metadata import parse_zarr_json
from icefloe.config import RepositoryConfig
from icefloe.config.resolved import ResolvedConfig
from icefloe.errors import ErrorKind, RefNotFoundError, branch_moved
from icefloe.format.metadata.items import encode_metadata
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.ids import NodeId, SnapshotId
from icefloe.legacy.generation import Generation
from icefloe.legacy.numbered.files import Form
from icefloe.legacy.numbered.model import node_id
from icefloe.legacy.numbered.names import DOCUMENT, Names, ref_name
from icefloe.legacy.numbered.wide_ids import SHORT, IdMap, new_id
from icefloe.legacy.numbered.zarr_documents import stored_document
from icefloe.repo.clock_checks import MOST_CLOCK_SKEW_US
from icefloe.repo.families.numbered import creation, history, refs
from icefloe.repo.fence import require_open
from icefloe.repo.handle import (
    Family,
    FoundRepository,
    Id,
    LineCommit,
    NewCommit,
    RepoHandle,
    SeenTip,
)
from icefloe.repo.own_objects import require_own_objects
from icefloe.storage.driver import Driver


class Numbered(Family):
    """Repositories with one file per commit of a branch. Only those of document 000 are
    writable."""

    spec_version = 0
    lists_lost_snapshots = True

    def __init__(
        self,
        names: Names = DOCUMENT,
        generation: Generation = Generation.NUMBERED,
        form: Form = Form.JSON,
        id_size: int = 16,
        inline_attributes_bytes: int | None = None,
    ) -> None:
        self.names = names
        self.form = form
        self.id_size = id_size
        self.inline_attributes_bytes = inline_attributes_bytes
        self.name = generation.value
        # That early program named refs differently, and its files had no schema.
        self.is_writable = generation is Generation.NUMBERED and names == DOCUMENT
        self.numbers_nodes = generation is Generation.NUMBERED

    # -- recognising and creating

    async def find(self, driver: Driver) -> FoundRepository | None:
        """Not available: `older` recognises all older generations together."""
        self._refuse("recognising it by itself")

    def missing(self) -> str:
        return self.names.branch_key("main", 0)

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        caches = NumberedCaches(
            settings,
            self.names,
            self.generation,
            self.form,
            self.id_size,
            self.inline_attributes_bytes,
        )
        kind = ParquetPrototypeAssets if self.names.is_parquet else NumberedAssets
        return kind(driver, settings, caches, spec_version=1)

    def new_id(self, kind: type[Id], random: bytes) -> Id:
        if issubclass(kind, NodeId):
            return cast(Id, node_id(int.from_bytes(random[:4], "big")))
        if self.id_size == SHORT:
            return kind(random)
        return cast(Id, new_id(kind, random, IdMap(self.id_size)))

    def parse_snapshot_id(self, text: str) -> SnapshotId:
        return IdMap(self.id_size).parse_snapshot_id(text)

    async def is_unfinished(self, driver: Driver) -> bool:
        return await creation.is_unfinished(driver, self.names)

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        await creation.create(handle)

    # -- refs

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        return await refs.list_branches(handle)

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        return await refs.list_tags(handle)

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return (await refs.find_tip(handle, name)).snapshot_id

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        return await refs.lookup_tag(handle, name)

    def require_ref_name(self, name: str) -> None:
        ref_name(name)

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        handle.require_writable()
        await refs.create_branch(handle, name, at)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        handle.require_writable()
        await refs.require_stored(handle, to)
        await refs.move_branch(handle, name, to, expected, ErrorKind.BRANCH_UPDATE_CONFLICT)

    async def touch_branch(self, handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
        return await refs.touch_branch(handle, name, expected)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        handle.require_writable()
        await refs.create_tag(handle, name, at)

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        """Refused: a sequence number must never be reused, because an open session may rely on
        it."""
        self._refuse("deleting a branch")

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        """000, Tags: "Tags cannot be deleted once created"."""
        self._refuse("deleting a tag")

    # -- history

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        return history.info_of(await handle.assets.snapshot(snapshot_id))

    def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        return history.reachable(handle, [tip])

    async def all_snapshots(self, handle: RepoHandle) -> list[SnapshotInfo]:
        refs = [*(await self.branches(handle)).values(), *(await self.tags(handle)).values()]
        return [info async for info in history.reachable(handle, refs)]

    async def stored_history(
        self, handle: RepoHandle, tips: Iterable[SnapshotId]
    ) -> list[SnapshotInfo]:
        return await history.stored_history(handle, tips)

    # -- sessions and commits

    def opened_at(self, handle: RepoHandle) -> int:
        """The time of this machine's clock, which is compared with the storage's."""
        return handle.clock.now_us()

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        encode_metadata(values, 1)

    def stored_document(self, document: bytes, path: str) -> bytes:
        return stored_document(document, path)

    def parse_array(self, document: bytes, path: str) -> ArrayData | None:
        return parse_zarr_json(document, path, has_rectilinear_grids=False)

    def require_moves(self) -> None:
        """000, Goals: nodes can be renamed; their numbers stay."""
        self.require_writable()

    def require_ingest(self, mode: str) -> None:
        """Refuse: an ingest keeps a list of its files, and document 000 has no type for text."""
        self.require_writable()
        self._refuse("an ingest, which stores the names of its files as text,")

    async def line_since(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> tuple[SnapshotId | None, list[LineCommit] | None]:
        try:
            tip = await self.lookup_branch(handle, branch)
        except RefNotFoundError:
            return None, None
        return tip, await history.line_since(handle, tip, base)

    async def require_tip(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> SeenTip | None:
        tip = await self.lookup_branch(handle, branch)
        if tip != base:
            raise branch_moved(branch, base.text, tip.text)
        return None

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        async def check(fence: int) -> None:
            await _require_objects(handle, commit, fence)

        kind = ErrorKind.COMMIT_CONFLICT
        await refs.move_branch(handle, branch, commit.snapshot.id, commit.base, kind, check)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        await refs.require_stored(handle, commit.base)
        await _require_objects(handle, commit, await require_open(handle))


async def _require_objects(handle: RepoHandle, commit: NewCommit, fence: int) -> None:
    # A collection never deletes an object that was stored after its listing.
    if fence > commit.opened_at - MOST_CLOCK_SKEW_US:
        await require_own_objects(handle, commit, fence)
