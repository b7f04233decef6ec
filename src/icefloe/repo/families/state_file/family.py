"""The family of datasets with a state file, as document 003 describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from icefloe.assets.assets import Assets
from icefloe.assets.state_file import StateFileAssets, StateFileCaches, StateObject
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.zarr_metadata import parse_zarr_json
from icefloe.config import RepositoryConfig
from icefloe.config.resolved import ResolvedConfig
from icefloe.errors import ErrorKind, InvalidInputError, RefNotFoundError, branch_moved
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import ArrayData, NodeTable
from icefloe.ids import ChunkId, SnapshotId
from icefloe.legacy.generation import Generation
from icefloe.legacy.state_file import names
from icefloe.legacy.state_file.schema import Profile
from icefloe.legacy.state_file.state import (
    MAIN,
    Entry,
    Ref,
    RefType,
    State,
    decode_state,
    line,
    properties_of,
)
from icefloe.legacy.state_file.zarr_json import readable_document
from icefloe.repo.families.state_file import refs
from icefloe.repo.families.state_file.apart import apart
from icefloe.repo.families.state_file.collected import Collected, collected_in
from icefloe.repo.families.state_file.update import assets_of, create_state, update_state
from icefloe.repo.handle import Family, FoundRepository, LineCommit, NewCommit, RepoHandle, SeenTip
from icefloe.repo.own_objects import require_own_objects
from icefloe.storage.constructors.urls import storage_beside
from icefloe.storage.driver import Driver, Version, find_object
from icefloe.storage.keys import PROBE_DIRECTORY
from icefloe.storage.spec import Storage

_FIRST_MESSAGE = "Repository initialized"


class FoundState(FoundRepository):
    """A state file. It has no field for a configuration."""

    def __init__(self, data: bytes, version: Version) -> None:
        self._state, self._version = decode_state(data), version
        self.family = StateFile(store_root=self._state.store_root)

    async def saved_config(self) -> RepositoryConfig | None:
        return None

    def remember(self, handle: RepoHandle) -> None:
        assets_of(handle).keep_state(self._state, self._version)


class StateFile(Family):
    """Datasets with a state file, which every change replaces by compare-and-swap."""

    name = Generation.STATE_FILE.value
    spec_version = 0
    lists_lost_snapshots = True
    looks_before_upload = True

    def __init__(self, profile: Profile = Profile.strict, store_root: str | None = None) -> None:
        self.profile = profile
        """Of datasets to be created."""
        self.store_root = store_root
        """Where everything but the state file is, if it is not in the same place."""
        self._root: Storage | None = None
        """The same, bound when the first driver is made."""

    # -- recognising and creating

    async def find(self, driver: Driver) -> FoundRepository | None:
        found = await find_object(driver, names.STATE, needs_bucket=False)
        return None if found is None else FoundState(*found)

    def missing(self) -> str:
        return names.STATE

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        return StateFileAssets(driver, settings, StateFileCaches(settings))

    def data_driver(self, storage: Storage, driver: Driver) -> Driver:
        if self.store_root is None:
            return driver
        if self._root is None:
            self._root = storage_beside(storage, self.store_root).bound()
        return apart(driver, self._root)

    async def is_unfinished(self, driver: Driver) -> bool:
        """Whether there are only structure files, which are written before the state file."""
        listed = [entry.key for entry in await driver.list("")]
        own = (names.STRUCTURES, PROBE_DIRECTORY)
        return all(key.startswith(own) for key in listed)

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """Section "Initialize New Store": a snapshot without nodes, and a state file."""
        assets = assets_of(handle)
        snapshot = Snapshot(
            handle.new_id(SnapshotId),
            NodeTable.from_nodes([]),
            handle.clock.now_us(),
            _FIRST_MESSAGE,
            {},
            ManifestFiles.from_infos([]),
        )
        snapshot, files = assets.encode_structure(snapshot, 0, self.profile)
        await assets.put_metadata_files(files)
        await handle.driver.sync()
        entry = _entry(snapshot, None)
        state = State(
            handle.new_id(ChunkId).text,
            0,
            (entry,),
            {MAIN: Ref(entry.snapshot, RefType.branch)},
            self.store_root,
        )
        await create_state(handle, state)

    # -- refs

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        return set((await _current(handle)).state.named(RefType.branch))

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        return set((await _current(handle)).state.named(RefType.tag))

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return refs.find_ref(await _current(handle), RefType.branch, name)

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        return refs.find_ref(await _current(handle), RefType.tag, name)

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await refs.create_ref(handle, RefType.branch, name, at)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        await refs.reset_branch(handle, name, to, expected)

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        await refs.delete_ref(handle, RefType.branch, name)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await refs.create_ref(handle, RefType.tag, name, at)

    async def touch_branch(self, handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
        found: list[SnapshotId] = []

        def change(current: StateObject) -> State | None:
            found[:] = [refs.find_ref(current, RefType.branch, name)]
            return current.state if found == [expected] else None

        await update_state(handle, change, is_migrating=True)
        return found == [expected]

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        await refs.delete_ref(handle, RefType.tag, name)

    # -- history: all of it is in the state file

    def parse_snapshot_id(self, text: str) -> SnapshotId:
        return names.snapshot_id(text)

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        return _info(refs.require_entry(await _current(handle), snapshot_id))

    async def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        current = await _current(handle)
        refs.require_entry(current, tip)
        for entry in line(current.entries, tip):
            yield _info(entry)

    async def all_snapshots(self, handle: RepoHandle) -> list[SnapshotInfo]:
        return [_info(entry) for entry in (await _current(handle)).state.snapshots]

    # -- sessions and commits

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        properties_of("", values)

    def parse_array(self, document: bytes, path: str) -> ArrayData | None:
        return parse_zarr_json(document, path, has_rectilinear_grids=False)

    def stored_document(self, document: bytes, path: str) -> bytes:
        return readable_document(document, path)

    def with_node_ids(self, handle: RepoHandle, base: Snapshot, changes: ChangeSet) -> ChangeSet:
        first, _ = assets_of(handle).notes(base)
        new = [changes.new[path].id for path in sorted(changes.new)]
        if not changes.prepared.keys().isdisjoint(new):
            raise InvalidInputError(
                f"{self.noun} takes the chunks of a new array with its commit, and not written "
                "ahead: commit the array before its chunks, or migrate the repository",
                ErrorKind.UNIMPLEMENTED,
            )
        return changes.with_ids(
            {found: names.node_id(first + row, "a commit") for row, found in enumerate(new)}
        )

    def require_moves(self) -> None:
        """Nodes keep their numbers, so moves can be found by comparing snapshots."""

    def require_ingest(self, mode: str) -> None:
        """Refuse references: they would have to say which version of a file they are in."""
        if mode != "native":
            self._refuse(
                f"an ingest with mode={mode!r}, whose references name a version of their file,"
            )

    async def line_since(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> tuple[SnapshotId | None, list[LineCommit] | None]:
        current = await _current(handle)
        try:
            tip = refs.find_ref(current, RefType.branch, branch)
        except RefNotFoundError:
            return None, None
        commits: list[LineCommit] = []
        for entry in line(current.entries, tip):
            if entry.id == base:
                return tip, commits[::-1]
            commits.append(LineCommit(entry.id))
        return tip, None

    async def require_tip(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> SeenTip | None:
        _require_tip(await _current(handle), branch, base)
        return None

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        """Section "Write Snapshot": the state file that records the snapshot replaces the old."""

        def change(current: StateObject) -> State:
            _require_tip(current, branch, commit.base)
            entry = _entry(commit.snapshot, refs.require_entry(current, commit.base))
            listed = replace(current.state, snapshots=(*current.state.snapshots, entry))
            return refs.with_ref(listed, branch, Ref(entry.snapshot, RefType.branch))

        await _publish(handle, commit, change)

    def opened_at(self, handle: RepoHandle) -> int:
        """The generation of the state file that was last seen."""
        state = assets_of(handle).caches.state
        return 0 if state is None else state.state.generation

    async def require_listed(self, handle: RepoHandle, base: SnapshotId) -> None:
        refs.require_entry(await _current(handle), base)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        """List a snapshot that no branch points at."""

        def change(current: StateObject) -> State:
            entry = _entry(commit.snapshot, refs.require_entry(current, commit.base))
            state = refs.with_ref(current.state, "", None)
            return replace(state, snapshots=(*state.snapshots, entry))

        await _publish(handle, commit, change)


class _CollectedError(Exception):
    """A collection ran since the session was opened."""

    def __init__(self, latest: Collected) -> None:
        self.latest = latest


async def _publish(
    handle: RepoHandle, commit: NewCommit, change: Callable[[StateObject], State]
) -> None:
    """List a snapshot, if no collection took its objects."""
    opened_at = commit.opened_at

    def checked(current: StateObject) -> State | None:
        if commit.snapshot.id in current.entries:
            return None  # an earlier attempt of this request succeeded
        changed = change(current)
        latest = collected_in(current.state)
        if latest.generation > opened_at:
            raise _CollectedError(latest)
        return changed

    while True:
        try:
            await update_state(handle, checked)
        except _CollectedError as found:
            await require_own_objects(handle, commit, found.latest.before)
            opened_at = found.latest.generation  # up to this one, the objects were not deleted
            continue
        return


async def _current(handle: RepoHandle) -> StateObject:
    return await assets_of(handle).state_object()


def _require_tip(current: StateObject, branch: str, base: SnapshotId) -> None:
    tip = refs.find_ref(current, RefType.branch, branch)
    if tip != base:
        raise branch_moved(branch, base.text, tip.text)


def _entry(snapshot: Snapshot, parent: Entry | None) -> Entry:
    return Entry(
        snapshot.id.text,
        None if parent is None else parent.snapshot,
        snapshot.flushed_at // 1000,
        names.parquet_name(snapshot.id),
        properties_of(snapshot.message, snapshot.metadata),
    )


def _info(entry: Entry) -> SnapshotInfo:
    return SnapshotInfo(
        entry.id, entry.parent_id, entry.timestamp_ms * 1000, entry.message, entry.metadata
    )
