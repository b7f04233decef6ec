"""Datasets of one state file: refs, history, commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from icefloe.assets.assets import Assets
from icefloe.changes.change_set import ChangeSet
from icefloe.config import RepositoryConfig
from icefloe.config.repository import ResolvedConfig
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.format.layout import Generation
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import ChunkId, SnapshotId
from icefloe.legacy.base import OlderFormat, first_snapshot
from icefloe.legacy.state_assets import StateFileAssets, StateFileCaches, StateObject
from icefloe.legacy.state_file import state as names
from icefloe.legacy.state_file.state import (
    MAIN,
    Entry,
    Ref,
    RefType,
    State,
    decode_state,
    encode_state,
    line,
    properties_of,
)
from icefloe.legacy.state_file.structure import readable_document
from icefloe.legacy.state_file.tables import Profile
from icefloe.repo.gc_guard import require_open, require_own_objects
from icefloe.repo.handle import FoundRepository, LineCommit, NewCommit, RepoHandle, SeenTip
from icefloe.repo.spec2_publish import update_attempts
from icefloe.storage.driver import ConditionFailed, Driver, Version
from icefloe.storage.spec import Storage
from icefloe.storage.urls import storage_beside

# -- A state file that is kept apart from the rest of its dataset (`store_root`).


def apart(state: Driver, root: Storage) -> Driver:
    """A driver for the files below `root` that takes the state file from `state`."""
    is_blocking = getattr(state, "is_blocking", True)
    data = root.driver(state.settings, blocking=is_blocking)
    return cast(Driver, _Apart(state, data))


class _Apart:
    """Sends requests for the state file to one driver and all others to a second driver."""

    def __init__(self, state: Driver, data: Driver) -> None:
        self._state, self._data = state, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    @property
    def can_write(self) -> bool:
        return self._state.can_write and self._data.can_write

    def _home(self, key: str) -> Driver:
        return self._state if key == names.STATE else self._data

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        return await self._home(key).get_versioned(key)

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        return await self._home(key).get_if_changed(key, version)

    async def put_if(self, key: str, data: bytes, **options: Any) -> Version:
        return await self._home(key).put_if(key, data, **options)


# -- The fence of a dataset with a state file: a member of `state.json`.
#
# Document 003 does not define it. Readers and writers of the document keep members that they do
# not know, and a commit that replaces the state file has read it anyway.


MEMBER = "icefloe.collected"


class Collected(NamedTuple):
    """The last garbage collection."""

    generation: int
    """The generation of the state file that recorded it."""
    before: int
    """No collection has deleted an object stored at or after this time (microseconds)."""


def collected_in(state: State) -> Collected:
    """The last collection that a state file records; zeros if there was none."""
    found = state.unknown.get(MEMBER)
    if not isinstance(found, Mapping):
        return Collected(0, 0)
    numbers = [found.get(name) for name in Collected._fields]
    if not all(isinstance(number, int) for number in numbers):
        return Collected(0, 0)
    return Collected(*numbers)  # type: ignore[arg-type]


def with_collected(state: State, latest: Collected) -> State:
    """The state after a collection. The fence never goes down."""
    before = max(latest.before, collected_in(state).before)
    member = {"generation": latest.generation, "before": before}
    return replace(state, unknown={**state.unknown, MEMBER: member})


# -- Replacing `state.json`: read, change, write if unchanged.
#
# Document 003: "in an atomic swap operation, it replaces the state file with a new state file
# recording the presence of the new snapshot". The swap is a conditional write. It fails when
# another writer has replaced the file since it was read.


Change = Callable[[StateObject], State | None]
"""From the current state to the new one, or None if nothing has to change."""

_JSON = "application/json"


def assets_of(handle: RepoHandle) -> StateFileAssets:
    """The files of a dataset with a state file."""
    assert isinstance(handle.assets, StateFileAssets)
    return handle.assets


async def update_state(handle: RepoHandle, change: Change, *, is_migrating: bool = False) -> None:
    """Apply `change` to the newest state, and retry while other writers replace it.

    Refuses during and after a migration in place, unless that is who calls.

    `change` checks the state it is given; an exception from it ends the update. Each update
    increments `generation`.

    Raises:
        ConflictError: every attempt lost to another writer, kind `update-attempts-exhausted`.
    """
    handle.require_writable()
    assets = assets_of(handle)
    async for _ in update_attempts(handle, names.STATE):
        current = await assets.state_object()
        changed = change(current)
        if changed is None:
            return
        if not is_migrating:
            await require_open(handle)
        state = replace(changed, generation=current.state.generation + 1)
        try:
            version = await handle.driver.put_if(
                names.STATE, encode_state(state), previous=current.version, content_type=_JSON
            )
        except ConditionFailed:
            continue
        assets.keep_state(state, version)
        return


# -- Branches and tags of a state file. A name is either a branch or a tag, never both.


def find_ref(current: StateObject, kind: RefType, name: str) -> SnapshotId:
    """The snapshot that a branch or tag points at."""
    found = current.state.named(kind)
    if name not in found:
        known = ", ".join(map(repr, sorted(found)[:10])) or "none"
        raise RefNotFoundError(f"{kind} {name!r}; there are: {known}")
    return names.snapshot_id(found[name])


def require_entry(current: StateObject, snapshot_id: SnapshotId) -> Entry:
    """The entry of a snapshot that the state file lists."""
    entry = current.entries.get(snapshot_id)
    if entry is None:
        raise SnapshotNotFoundError(f"{snapshot_id} in {names.STATE}")
    return entry


def with_ref(state: State, name: str, ref: Ref | None) -> State:
    """The state with a name that points elsewhere, or without the name (None)."""
    # The implied branch has to be written explicitly before any other reference exists.
    implied = {key: Ref(tip, RefType.branch) for key, tip in state.named(RefType.branch).items()}
    refs = {**implied, **state.refs}
    refs.pop(name, None)
    return replace(state, refs=refs if ref is None else {**refs, name: ref})


class FoundState(FoundRepository):
    """A state file. It has no field for a configuration."""

    def __init__(self, data: bytes, version: Version) -> None:
        self._state, self._version = decode_state(data), version
        self.format = StateFile(store_root=self._state.store_root)

    async def saved_config(self) -> RepositoryConfig | None:
        return None

    def remember(self, handle: RepoHandle) -> None:
        assets_of(handle).keep_state(self._state, self._version)


class StateFile(OlderFormat):
    """Datasets with a state file, which every change replaces by compare-and-swap."""

    name = Generation.STATE_FILE.value
    looks_before_upload = True
    first_folders = (names.STRUCTURES,)

    def __init__(self, profile: Profile = Profile.strict, store_root: str | None = None) -> None:
        self.profile = profile
        """Of datasets to be created."""
        self.store_root = store_root
        """Where everything but the state file is, if it is not in the same place."""
        self._root: Storage | None = None
        """The same, bound when the first driver is made."""

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

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """Section "Initialize New Store": a snapshot without nodes, and a state file."""
        assets = assets_of(handle)
        snapshot, files = assets.encode_structure(first_snapshot(handle), 0, self.profile)
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
        version = await handle.driver.put_if(
            names.STATE, encode_state(state), previous=None, content_type=_JSON
        )
        assets.keep_state(state, version)

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        return set((await _current(handle)).state.named(RefType.branch))

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        return set((await _current(handle)).state.named(RefType.tag))

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return find_ref(await _current(handle), RefType.branch, name)

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        return find_ref(await _current(handle), RefType.tag, name)

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await _create_ref(handle, RefType.branch, name, at)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        await _create_ref(handle, RefType.tag, name, at)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        def change(current: StateObject) -> State:
            tip = find_ref(current, RefType.branch, name)
            if expected is not None and tip != expected:
                raise branch_moved(name, expected.text, tip.text, ErrorKind.BRANCH_UPDATE_CONFLICT)
            ref = Ref(require_entry(current, to).snapshot, RefType.branch)
            return with_ref(current.state, name, ref)

        await update_state(handle, change)

    async def touch_branch(self, handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
        found: list[SnapshotId] = []

        def change(current: StateObject) -> State | None:
            found[:] = [find_ref(current, RefType.branch, name)]
            return current.state if found == [expected] else None

        await update_state(handle, change, is_migrating=True)
        return found == [expected]

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        await _delete_ref(handle, RefType.branch, name)

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        """The state file cannot record that the name was used."""
        await _delete_ref(handle, RefType.tag, name)

    def parse_snapshot_id(self, text: str) -> SnapshotId:
        return names.snapshot_id(text)

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        return _info(require_entry(await _current(handle), snapshot_id))

    async def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        current = await _current(handle)
        require_entry(current, tip)
        for entry in line(current.entries, tip):
            yield _info(entry)

    async def all_snapshots(self, handle: RepoHandle) -> list[SnapshotInfo]:
        return [_info(entry) for entry in (await _current(handle)).state.snapshots]

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        properties_of("", values)

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
            tip = find_ref(current, RefType.branch, branch)
        except RefNotFoundError:
            return None, None
        commits: list[LineCommit] = []
        for entry in line(current.entries, tip):
            if entry.id == base:
                return tip, commits[::-1]
            commits.append(LineCommit(entry.id))
        return tip, None

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        """Section "Write Snapshot": the state file that records the snapshot replaces the old."""

        def change(current: StateObject) -> State:
            tip = find_ref(current, RefType.branch, branch)
            if tip != commit.base:
                raise branch_moved(branch, commit.base.text, tip.text)
            entry = _entry(commit.snapshot, require_entry(current, commit.base))
            listed = replace(current.state, snapshots=(*current.state.snapshots, entry))
            return with_ref(listed, branch, Ref(entry.snapshot, RefType.branch))

        await _publish(handle, commit, change)

    def opened_at(self, handle: RepoHandle) -> int:
        """The generation of the state file that was last seen."""
        state = assets_of(handle).caches.state
        return 0 if state is None else state.state.generation

    async def require_listed(self, handle: RepoHandle, base: SnapshotId) -> None:
        require_entry(await _current(handle), base)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        """List a snapshot that no branch points at."""

        def change(current: StateObject) -> State:
            entry = _entry(commit.snapshot, require_entry(current, commit.base))
            state = with_ref(current.state, "", None)
            return replace(state, snapshots=(*state.snapshots, entry))

        await _publish(handle, commit, change)


async def _create_ref(handle: RepoHandle, kind: RefType, name: str, at: SnapshotId) -> None:
    is_branch = kind is RefType.branch
    taken = ErrorKind.BRANCH_ALREADY_EXISTS if is_branch else ErrorKind.TAG_ALREADY_EXISTS

    def change(current: StateObject) -> State:
        for other in RefType:
            found = current.state.named(other)
            if name in found:
                raise AlreadyExistsError(
                    f"{other} {name!r} points at {found[name]}; a name is a branch or a tag, "
                    "choose another one",
                    taken,
                )
        return with_ref(current.state, name, Ref(require_entry(current, at).snapshot, kind))

    await update_state(handle, change)


async def _delete_ref(handle: RepoHandle, kind: RefType, name: str) -> None:
    def change(current: StateObject) -> State:
        find_ref(current, kind, name)
        return with_ref(current.state, name, None)

    await update_state(handle, change)


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
