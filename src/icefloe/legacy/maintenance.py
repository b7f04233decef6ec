"""Collection, expiration and verification of older generations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcechunkError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.chunk_index import IdSet
from icefloe.format.chunk_refs import ChunkKind
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId, encode_base32
from icefloe.legacy.numbered_assets import NumberedAssets
from icefloe.legacy.state_assets import StateFileAssets, StateObject
from icefloe.legacy.state_file import state as names
from icefloe.legacy.state_file.state import RefType, State
from icefloe.legacy.state_format import (
    Collected,
    StateFile,
    assets_of,
    find_ref,
    update_state,
    with_collected,
)
from icefloe.maintenance import live
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.checks import (
    CheckedManifest,
    ManifestToCheck,
    check_decoded,
    check_decoded_manifest,
    uses_of,
)
from icefloe.maintenance.expire import (
    Expiration,
    Rules,
    SnapshotLines,
    plan_collection,
    plan_expiration,
)
from icefloe.maintenance.findings import FindingKind, VerifyReport
from icefloe.maintenance.gc import (
    TRIES,
    Collection,
    InUse,
    NotWalkedError,
    Options,
    moved_too_often,
)
from icefloe.maintenance.live import GrowingIdSet
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.verify import LocalVerifier, Verification, check_history
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN

# -- Expiration in the writable generations before spec version 1.
#
# Document 003: the state file without the expired snapshots replaces the old one. Snapshots that
# lose their parent get another one. Document 000: a snapshot file has its ancestors in it and
# never changes, so a snapshot expires by the deletion of its file. Later snapshots still name it.


_FILES_AT_ONCE = 1000


async def expire_older(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    """Remove snapshots from the history. Returns their ids."""
    if isinstance(handle.format, StateFile):
        return await _expire_in_state(handle, rules, dry_run=dry_run)
    return await _expire_files(handle, rules, dry_run=dry_run)


def lines_of_state(current: StateObject) -> SnapshotLines:
    """The history in a state file."""
    entries = current.entries
    infos = []
    for one in entries.values():
        parent = one.parent_id if one.parent_id in entries else None
        infos.append(SnapshotInfo(one.id, parent, one.timestamp_ms * 1000, ""))
    branches, tags = (
        {name: find_ref(current, kind, name) for name in current.state.named(kind)}
        for kind in (RefType.branch, RefType.tag)
    )
    return SnapshotLines(SnapshotTable.from_infos(infos), branches, tags)


def state_without(current: StateObject, table: SnapshotTable, plan: Expiration) -> State:
    """The state without the released snapshots and the deleted refs."""

    def text(row: int) -> str:
        return current.entries[SnapshotId(table.id[row].tobytes())].snapshot

    gone = {text(row) for row in plan.released.tolist()}
    parents = {text(row): text(parent) for row, parent in plan.parents.items()}
    deleted = plan.deleted_branches | plan.deleted_tags
    return replace(
        current.state,
        snapshots=tuple(
            entry._replace(parent=parents.get(entry.snapshot, entry.parent))
            for entry in current.state.snapshots
            if entry.snapshot not in gone
        ),
        refs={name: ref for name, ref in current.state.refs.items() if name not in deleted},
    )


async def _expire_in_state(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    released: list[SnapshotId] = []

    def change(current: StateObject) -> State | None:
        history = lines_of_state(current)
        plan = plan_expiration(history, rules)
        released[:] = [current.entries[one].id for one in plan.released_ids(history.snapshots)]
        if not released and not plan.deleted_branches and not plan.deleted_tags:
            return None
        return state_without(current, history.snapshots, plan)

    if dry_run:
        change(await assets_of(handle).state_object())
    else:
        await update_state(handle, change)
    return set(released)


async def _expire_files(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    """Delete snapshot files, oldest first. After a crash, another run deletes the others."""
    if rules.delete_expired_branches or rules.delete_expired_tags:
        raise FormatError(
            f"{handle.format.noun} has no way to delete branches and tags; leave "
            "delete_expired_branches and delete_expired_tags out, or migrate it",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    branches, tags = await handle.format.branches(handle), await handle.format.tags(handle)
    infos = await handle.format.stored_history(handle, [*branches.values(), *tags.values()])
    bare = [SnapshotInfo(one.id, one.parent_id, one.flushed_at, "") for one in infos]
    history = SnapshotLines(SnapshotTable.from_infos(bare), branches, tags)
    plan = plan_expiration(history, rules)
    known = {one.id: one for one in infos}
    released = [known[one] for one in plan.released_ids(history.snapshots)]
    released.sort(key=lambda one: one.flushed_at)
    if not dry_run:
        now = set((await live.ref_tips(handle)).values())  # refs may have come since
        released = [one for one in released if one.id not in now]
        keys = [handle.assets.snapshot_key(one.id) for one in released]
        for first in range(0, len(keys), _FILES_AT_ONCE):
            await handle.driver.delete_many(keys[first : first + _FILES_AT_ONCE])
        handle.assets.caches.snapshots.drop([one.id for one in released])
    return {one.id for one in released}


# -- Collections in the writable generations before spec version 1.
#
# They differ in how the decision becomes final. In a dataset with a state file (document 003) it
# is one replacement of `state.json`, which also records the fence. In a repository with numbered
# branches (document 000) every branch gets another file with its tip, so that a commit that has
# not seen the fence finds its number taken.


def collection_of(handle: RepoHandle, options: Options, report: Reporter) -> Collection:
    """The collection for the format version of a repository."""
    is_state_file = isinstance(handle.format, StateFile)
    kind = StateFileCollection if is_state_file else NumberedCollection
    return kind(handle, options, report)


class _OlderCollection(Collection):
    """Files of snapshots are recorded by name; logs have the ids of their snapshots."""

    def __init__(self, handle: RepoHandle, options: Options, report: Reporter) -> None:
        super().__init__(handle, options, report)
        self.files: dict[str, GrowingIdSet] = {}

    def note_files(self, snapshot: Snapshot) -> None:
        for kind, ids in self.handle.assets.files_of(snapshot).items():
            self.files.setdefault(kind, GrowingIdSet()).add(ids.rows)

    def in_use(self) -> InUse:
        """What all snapshots that were walked use."""
        none = GrowingIdSet()
        found = {
            kind: self.files.get(kind, none).finish()
            for kind in ("snapshots", "manifests", "attributes")
        }
        return InUse(transaction_logs=found["snapshots"], chunks=self.chunks.finish(), **found)


class NumberedCollection(_OlderCollection):
    """A collection in a repository of document 000."""

    async def decide(self) -> tuple[InUse, int]:
        await self.walk_refs()
        return self.in_use(), 0

    async def all_in_use(self) -> InUse:
        return self.in_use()

    async def walk_refs(self) -> tuple[dict[str, SnapshotId], IdSet]:
        """An expiration may delete files meanwhile."""
        for _ in range(TRIES):
            tips = await live.ref_tips(self.handle)
            reached = await live.reachable_snapshots(self.handle, tips.values())
            try:
                await self.walk(reached)
            except (StorageError, SnapshotNotFoundError) as error:
                if isinstance(error, StorageError) and error.kind != ErrorKind.OBJECT_NOT_FOUND:
                    raise
                now = await live.reachable_snapshots(self.handle, tips.values())
                if not reached.minus(now).size:
                    raise  # nothing has expired, so the file is really missing
                continue
            return tips, reached
        raise moved_too_often()


class StateFileCollection(_OlderCollection):
    """A collection in a dataset of document 003."""

    bound = 0

    async def raise_fence(self, bound: int) -> None:
        """The fence is in the state file, and is raised by the write that makes the decision
        final."""
        self.bound = bound

    def _decide_state(self, current: StateObject) -> tuple[SnapshotTable, Expiration]:
        history = lines_of_state(current)

        def is_young(table: SnapshotTable) -> NDArray[np.bool_]:
            """Its structure file is not listed, or not old."""
            entries = [current.entries[SnapshotId(row.tobytes())] for row in table.id]
            ids = b"".join(names.file_id(names.STRUCTURES, one.structure_file) for one in entries)
            rows = np.frombuffer(ids, np.uint8).reshape(-1, SnapshotId.size)
            young: NDArray[np.bool_] = ~self.old_snapshots().contains(rows)
            return young

        return history.snapshots, plan_collection(history, is_young)

    def _staying(self, table: SnapshotTable, plan: Expiration) -> IdSet:
        stays = np.ones(len(table), np.bool_)
        stays[plan.released] = False
        return IdSet.of(table.id[stays])

    async def decide(self) -> tuple[InUse, int]:
        table, plan = self._decide_state(await assets_of(self.handle).state_object())
        await self.walk(self._staying(table, plan))
        return self.in_use(), len(plan.released)

    async def publish(self) -> InUse:
        """Take snapshots out of the state file, after all remaining ones were walked."""

        def change(current: StateObject) -> State:
            table, plan = self._decide_state(current)
            if self._staying(table, plan).minus(self.walked).size:
                raise NotWalkedError
            state = state_without(current, table, plan)
            generation = current.state.generation + 1
            return with_collected(state, Collected(generation, self.bound))

        for _ in range(TRIES):
            await self.decide()
            try:
                await update_state(self.handle, change)
            except NotWalkedError:
                continue
            return self.in_use()
        raise moved_too_often()


# -- Verification of the generations before spec version 1.
#
# Their files are decoded to the types of today. The checks of those types are the same. What only
# spec versions 1 and 2 have is not checked: the listed sizes and counts of manifests, and logs.


async def verify_older(state: Verification) -> VerifyReport:
    """Check everything that is reachable from the refs of a repository."""
    verifier = _OlderVerifier(state)
    try:
        history = await _tips(state)
    except FormatError as error:  # the state file, without which nothing is known
        state.log.add(FindingKind.DAMAGED_REPO, names.STATE, error.message)
        return verifier.finish()
    return await check_history(verifier, history)


async def _tips(state: Verification) -> History:
    """The snapshots that refs point at, with the names of the refs."""
    handle, format_version = state.handle, state.handle.format
    found: dict[SnapshotId, list[str]] = {}
    branches = await format_version.list_branches(handle)
    refs = [("branch", name) for name in sorted(branches)]
    refs += [("tag", name) for name in sorted(await format_version.list_tags(handle))]
    for kind, name in refs:
        look = format_version.lookup_branch if kind == "branch" else format_version.lookup_tag
        try:
            found.setdefault(await look(handle, name), []).append(f"{kind} {name!r}")
        except FormatError as error:
            state.log.add(FindingKind.DAMAGED_REF, f"{kind} {name!r}", error.message)
    if MAIN not in branches:
        state.log.add(
            FindingKind.MISSING_MAIN, format_version.missing(), "there is no branch `main`"
        )
    return History(list(found), names=found)


class _OlderVerifier(LocalVerifier):
    """Checks in this process. Files that refer to others are decoded by the assets."""

    def __init__(self, state: Verification) -> None:
        super().__init__(state)
        self.handle = state.handle
        self._spelled: dict[bytes, str] = {}

    async def list_objects(self, history: History) -> None:
        """Other writers may have chosen any name in a state-file dataset."""
        for kind in self.handle.assets.folders:
            found = await self.handle.assets.list_objects(kind, with_foreign=True)
            self.add_listing(kind, found, self._name)

    def _spell(self, manifest: Manifest) -> None:
        """Remember the names of chunk files that are not named by an id."""
        for array in manifest.arrays:
            refs = array.refs
            if refs.location is None:
                continue
            codes = np.unique(refs.location.codes[refs.kind == ChunkKind.NATIVE])
            for code in codes[codes >= 0].tolist():
                name = refs.location.values.get(code).removeprefix(names.CHUNKS)
                self._spelled[names.file_id(names.CHUNKS, name)] = name

    def _name(self, object_id: bytes) -> str:
        assets = self.handle.assets
        if isinstance(assets, NumberedAssets):
            return encode_base32(assets.ids.wide(object_id))
        return self._spelled.get(object_id, encode_base32(object_id))

    async def check_snapshots(self, history: History) -> None:
        """Check the snapshots of all refs and their ancestors.

        Document 000 allows that files of ancestors are gone: they have expired.
        """
        tips, waiting = history.names, list(history.snapshots)
        if isinstance(self.handle.assets, StateFileAssets):
            listed = await self.handle.format.all_snapshots(self.handle)
            waiting += [one.id for one in listed if one.id not in tips]
        seen: dict[SnapshotId, Snapshot | None] = {}
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            is_needed = one in tips or isinstance(self.handle.assets, StateFileAssets)
            seen[one] = snapshot = await self._load_snapshot(one, tips.get(one), is_needed)
            if snapshot is None:
                continue
            self.state.checked["snapshots"] += 1
            self.state.report.tell("reading snapshots", self.state.checked["snapshots"])
            self.state.log.add_all(
                check_decoded(snapshot, self.handle.assets.snapshot_key(one), None)
            )
            for kind, ids in self.handle.assets.files_of(snapshot).items():
                for row in ids.rows:
                    self.listed[kind].mark(row.tobytes())
            if "transaction_logs" in self.listed:
                self.listed["transaction_logs"].mark(snapshot.id)
            self.said.add(uses_of(snapshot, with_forms=self.state.options.read_chunks))
            if snapshot.parent_id is not None:
                waiting.append(snapshot.parent_id)
            waiting += await self._listed_ancestors(one)
        self._check_times(seen)

    async def _load_snapshot(
        self, one: SnapshotId, refs: list[str] | None, is_needed: bool
    ) -> Snapshot | None:
        log, key = self.state.log, self.handle.assets.snapshot_key(one)
        try:
            return await self.handle.assets.load_snapshot(one)
        except SnapshotNotFoundError as error:
            if refs:
                log.add(FindingKind.DANGLING_REF, key, f"{error.message}; {refs[0]} points at it")
            elif is_needed:
                log.add(FindingKind.MISSING_SNAPSHOT, key, error.message)
        except (FormatError, StorageError) as error:  # also of its attributes files
            log.add(FindingKind.DAMAGED_SNAPSHOT, key, error.message)
        return None

    async def _listed_ancestors(self, one: SnapshotId) -> list[SnapshotId]:
        """The ancestors that a snapshot file names, beyond its parent."""
        assets = self.handle.assets
        if not isinstance(assets, NumberedAssets):
            return []
        lineage = await assets.history_after(one)
        return [assets.ids.snapshot_id(each.id) for each in lineage.history[1:]]

    def _check_times(self, seen: dict[SnapshotId, Snapshot | None]) -> None:
        for one, snapshot in seen.items():
            if snapshot is None or snapshot.parent_id is None:
                continue
            parent = seen.get(snapshot.parent_id)
            if parent is not None and parent.flushed_at > snapshot.flushed_at:
                detail = f"its parent {parent.id} was flushed after the time of the snapshot"
                self.state.log.add(
                    FindingKind.PARENT_IS_NEWER, self.handle.assets.snapshot_key(one), detail
                )

    async def checked_manifests(self) -> AsyncIterator[tuple[CheckedManifest, ManifestToCheck]]:
        assets = self.handle.assets
        for one in self.manifests():
            loaded = await self._load_manifest(one)
            if loaded is not None:
                self._spell(loaded)
                manifest, key = assets.with_chunk_ids(loaded), assets.manifest_file(one.id)
                yield check_decoded_manifest(manifest, key, one), one

    async def _load_manifest(self, one: ManifestToCheck) -> Manifest | None:
        """A decoded manifest; None if it cannot be decoded, which is noted."""
        key = self.handle.assets.manifest_file(one.id)
        path = min((use.path for use in one.uses), default="")
        try:
            (manifest,) = await self.handle.assets.load_manifests([(one.id, 0)])
            return manifest
        except StorageError as error:
            kind = FindingKind.DAMAGED_MANIFEST
            if error.kind == ErrorKind.OBJECT_NOT_FOUND:
                kind = FindingKind.MISSING_MANIFEST
            self.state.log.add(kind, key, error.message, path)
        except IcechunkError as error:
            self.state.log.add(FindingKind.DAMAGED_MANIFEST, key, error.message, path)
        return None
