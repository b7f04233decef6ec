"""Verification of the generations before spec version 1.

Their files are decoded to the types of today. The checks of those types are the same. What only
spec versions 1 and 2 have is not checked: the listed sizes and counts of manifests, and logs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icefloe.assets.numbered_assets import NumberedAssets
from icefloe.assets.state_file import StateFileAssets
from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcechunkError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import ManifestId, SnapshotId, encode_base32
from icefloe.legacy.state_file import names
from icefloe.maintenance.check_files import ManifestToCheck, manifests_to_check
from icefloe.maintenance.check_manifest import check_decoded_manifest
from icefloe.maintenance.check_snapshot import ENTRIES, USES, check_decoded, uses_of
from icefloe.maintenance.check_sources import SourceTable
from icefloe.maintenance.findings import FindingKind, VerifyReport
from icefloe.maintenance.growing_table import GrowingTable
from icefloe.maintenance.object_table import ObjectTable
from icefloe.maintenance.read_chunks import UnreadChunks
from icefloe.maintenance.verify import Verification, check_all_sources, note_strange, read_chunks
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN


async def verify_older(state: Verification) -> VerifyReport:
    """Check everything that is reachable from the refs of a repository."""
    files = _Files(state)
    try:
        tips = await _tips(state)
    except FormatError as error:  # the state file, without which nothing is known
        state.log.add(FindingKind.DAMAGED_REPO, names.STATE, error.message)
        return VerifyReport.of(state.log, state.checked)
    await files.list_all()
    uses = await files.check_snapshots(tips)
    sources, unread = SourceTable(), UnreadChunks()
    chunks = files.tables["chunks"]
    for one in manifests_to_check(uses, ENTRIES.empty_table()):
        loaded = await files.load_manifest(one)
        if loaded is None:
            continue
        files.spell(loaded)
        manifest = state.handle.assets.with_chunk_ids(loaded)
        checked = check_decoded_manifest(manifest, files.manifest_key(one.id), (), one.uses)
        state.log.add_all(checked.findings)
        chunks.refer(checked.native)
        sources.add(checked.sources)
        state.checked["manifests"] += 1
        state.checked["references"] += manifest.num_chunk_refs
        state.report.tell("reading manifests", state.checked["manifests"])
        if state.options.read_chunks:
            await read_chunks(state, manifest, one.uses, unread, chunks)
    chunks.note_problems(state.log)
    await check_all_sources(state, sources)
    if state.options.orphans:
        for table in files.tables.values():
            table.note_orphans(state.log)
    return VerifyReport.of(state.log, state.checked)


async def _tips(state: Verification) -> dict[SnapshotId, list[str]]:
    """The snapshots that refs point at, with the names of the refs."""
    handle, family = state.handle, state.handle.family
    found: dict[SnapshotId, list[str]] = {}
    branches = await family.list_branches(handle)
    refs = [("branch", name) for name in sorted(branches)]
    refs += [("tag", name) for name in sorted(await family.list_tags(handle))]
    for kind, name in refs:
        look = family.lookup_branch if kind == "branch" else family.lookup_tag
        try:
            found.setdefault(await look(handle, name), []).append(f"{kind} {name!r}")
        except FormatError as error:
            state.log.add(FindingKind.DAMAGED_REF, f"{kind} {name!r}", error.message)
    if MAIN not in branches:
        state.log.add(FindingKind.MISSING_MAIN, family.missing(), "there is no branch `main`")
    return found


class _Files:
    """The files of a repository: those listed, and those that refer to others."""

    def __init__(self, state: Verification) -> None:
        self.state = state
        self.handle: RepoHandle = state.handle
        self.tables: dict[str, ObjectTable] = {}
        self._spelled: dict[bytes, str] = {}

    async def list_all(self) -> None:
        """List every folder. Other writers may have chosen any name in a state-file dataset."""
        for kind in self.handle.assets.folders:
            found = await self.handle.assets.list_objects(kind, with_foreign=True)
            self.state.checked["objects"] += len(found)
            self.state.report.tell("listing", self.state.checked["objects"])
            note_strange(self.state.log, found)
            self.tables[kind] = ObjectTable(found, self._name)

    # -- names

    def spell(self, manifest: Manifest) -> None:
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

    def manifest_key(self, manifest_id: ManifestId) -> str:
        """The file of a manifest."""
        assets = self.handle.assets
        if isinstance(assets, StateFileAssets):
            inventory = assets.caches.inventories[manifest_id]
            return names.key(names.INVENTORIES, inventory.file, "a structure file")
        return assets.manifest_key(manifest_id)

    def _snapshot_key(self, snapshot_id: SnapshotId) -> str:
        assets = self.handle.assets
        if isinstance(assets, StateFileAssets) and assets.caches.state is not None:
            entry = assets.caches.state.entries.get(snapshot_id)
            if entry is not None:
                return names.key(names.STRUCTURES, entry.structure_file, names.STATE)
        return assets.snapshot_key(snapshot_id)

    # -- snapshots

    async def check_snapshots(self, tips: dict[SnapshotId, list[str]]) -> pa.Table:
        """Check the snapshots of all refs and their ancestors. Returns the manifests they use.

        Document 000 allows that files of ancestors are gone: they have expired.
        """
        uses = GrowingTable(USES)
        waiting = list(tips)
        if isinstance(self.handle.assets, StateFileAssets):
            listed = await self.handle.family.all_snapshots(self.handle)
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
            self.state.log.add_all(check_decoded(snapshot, self._snapshot_key(one), None))
            self._mark(snapshot)
            uses.add(uses_of(snapshot, with_forms=self.state.options.read_chunks))
            if snapshot.parent_id is not None:
                waiting.append(snapshot.parent_id)
            waiting += await self._listed_ancestors(one)
        self._check_times(seen)
        return uses.finish()

    async def _load_snapshot(
        self, one: SnapshotId, refs: list[str] | None, is_needed: bool
    ) -> Snapshot | None:
        log, key = self.state.log, self._snapshot_key(one)
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

    def _mark(self, snapshot: Snapshot) -> None:
        assets = self.handle.assets
        for kind, ids in assets.files_of(snapshot).items():
            for row in ids.rows:
                self.tables[kind].mark(row.tobytes())
        if "transaction_logs" in self.tables:
            self.tables["transaction_logs"].mark(snapshot.id)

    def _check_times(self, seen: dict[SnapshotId, Snapshot | None]) -> None:
        for one, snapshot in seen.items():
            if snapshot is None or snapshot.parent_id is None:
                continue
            parent = seen.get(snapshot.parent_id)
            if parent is not None and parent.flushed_at > snapshot.flushed_at:
                detail = f"its parent {parent.id} was flushed after the time of the snapshot"
                self.state.log.add(FindingKind.PARENT_IS_NEWER, self._snapshot_key(one), detail)

    # -- manifests

    async def load_manifest(self, one: ManifestToCheck) -> Manifest | None:
        """A decoded manifest; None if it cannot be decoded, which is noted."""
        key = self.manifest_key(one.id)
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
