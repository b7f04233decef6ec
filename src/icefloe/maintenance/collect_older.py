"""Collections in the writable generations before spec version 1.

They differ in how the decision becomes final. In a dataset with a state file (document 003) it is
one replacement of `state.json`, which also records the fence. In a repository with numbered
branches (document 000) every branch gets another file with its tip, so that a commit that has not
seen the fence finds its number taken.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.state_file import StateObject
from icefloe.errors import ErrorKind, FormatError, SnapshotNotFoundError, StorageError
from icefloe.format.columns.id_set import IdSet
from icefloe.format.repo_info.snapshots import SnapshotTable
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import SnapshotId
from icefloe.legacy.state_file import names
from icefloe.legacy.state_file.state import State
from icefloe.maintenance import live
from icefloe.maintenance.collect import (
    TRIES,
    Collection,
    NotWalkedError,
    Options,
    moved_too_often,
)
from icefloe.maintenance.expire_older import lines_of_state, state_without
from icefloe.maintenance.garbage import InUse
from icefloe.maintenance.live import GrowingIdSet
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.retention import Expiration, plan_collection
from icefloe.repo.families.numbered import refs as numbered_refs
from icefloe.repo.families.numbered.family import Numbered
from icefloe.repo.families.state_file.collected import Collected, with_collected
from icefloe.repo.families.state_file.family import StateFile
from icefloe.repo.families.state_file.update import assets_of, update_state
from icefloe.repo.handle import RepoHandle


def collection_of(handle: RepoHandle, options: Options, report: Reporter) -> Collection:
    """The collection for the family of a repository."""
    kinds = {Numbered: NumberedCollection, StateFile: StateFileCollection}
    kind = kinds.get(type(handle.family))
    if kind is None:
        raise FormatError(
            f"garbage collection is not possible in {handle.family.noun}; migrate it first",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
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
        await self._walk_refs()
        return self.in_use(), 0

    async def _walk_refs(self) -> dict[str, SnapshotId]:
        """Walk from all refs, which are returned. An expiration may delete files meanwhile."""
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
            return tips
        raise moved_too_often()

    async def publish(self) -> InUse:
        """Give every branch another file. A branch that has moved is walked and tried again."""
        touched: dict[str, SnapshotId] = {}
        for _ in range(TRIES):
            tips = await self._walk_refs()
            moved = {name: tip for name, tip in tips.items() if touched.get(name) != tip}
            if not moved:
                return self.in_use()
            for name, tip in moved.items():
                kind, _, bare = name.partition(".")
                # Tags never move, so no writer has to be stopped.
                if kind == "tag" or await numbered_refs.touch_branch(self.handle, bare, tip):
                    touched[name] = tip
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
            files = self.stored["snapshots"]
            old = IdSet.of(files.id[files.created_at < self.options.older_than])
            entries = [current.entries[SnapshotId(row.tobytes())] for row in table.id]
            ids = b"".join(names.file_id(names.STRUCTURES, one.structure_file) for one in entries)
            rows = np.frombuffer(ids, np.uint8).reshape(-1, SnapshotId.size)
            young: NDArray[np.bool_] = ~old.contains(rows)
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
