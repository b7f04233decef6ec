"""Sessions: a view of a repository and, if writable, the rules for changing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

from icefloe import paths
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.packs import Packs
from icefloe.display.shown import NamedNumber
from icefloe.errors import COMMITTED, ErrorKind, ReadOnlyError, SessionStateError
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import ArrayData, Node
from icefloe.ids import NodeId, SnapshotId
from icefloe.observe import observed
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session_view import SessionView
from icefloe.storage.process_forks import repair_after_fork

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import ChunkEdits


class SessionMode(NamedNumber):
    """What a session may do."""

    readonly = 0
    writable = 1
    rearrange = 2


class SessionState:
    """The state behind a `Session` and its store. Operations take it and a handle.

    The lock guards dictionaries only and is never held across an await: Zarr calls from its
    event-loop thread while the user calls from another one. An operation that reads and awaits
    takes the `view` once. The shortcuts below are for a single query.
    """

    def __init__(self, snapshot: Snapshot, branch: str | None, mode: SessionMode) -> None:
        self.lock = RLock()
        self.view = SessionView(snapshot, ChangeSet(), Packs(), self.lock)
        self.branch = branch
        self.mode = mode
        self.fork_root: SnapshotId | None = None
        """In a fork: the snapshot of the session that was forked first."""
        self.opened_at = 0
        """See `Family.opened_at`. The earliest one, including the forks that were merged."""
        self._is_sealed = False
        self._is_committed = False
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        # A thread of the parent process may have held the lock, committed or stored a pack. That
        # thread does not exist here, so it cannot finish.
        self.lock = self.view.lock = RLock()
        self._is_sealed = False
        self.packs.give_back_all()

    @property
    def snapshot(self) -> Snapshot:
        return self.view.snapshot

    @property
    def snapshot_id(self) -> SnapshotId:
        return self.view.snapshot.id

    @property
    def changes(self) -> ChangeSet:
        return self.view.changes

    @property
    def packs(self) -> Packs:
        return self.view.packs

    @property
    def manifest_files(self) -> ManifestFiles:
        return self.view.manifest_files

    def find_node(self, path: str) -> Node | None:
        return self.view.find_node(path)

    def node(self, path: str) -> Node:
        return self.view.node(path)

    def array(self, path: str) -> tuple[Node, ArrayData]:
        return self.view.array(path)

    def all_paths(self, below: str = paths.ROOT) -> list[str]:
        return self.view.all_paths(below)

    def forget_nodes(self) -> None:
        self.view.forget_nodes()

    @property
    def is_read_only(self) -> bool:
        return self.mode == SessionMode.readonly

    @property
    def is_fork(self) -> bool:
        return self.fork_root is not None

    def edits(self, node: Node) -> ChunkEdits | None:
        """The chunk edits of an array that was just found; None if another thread deleted it.

        For callers that hold the lock. Raises if the session was committed in the meantime.
        """
        self.require_writable()
        found = self.find_node(node.path)
        if found is None or found.id != node.id or found.array is None or node.array is None:
            return None
        if len(found.array.shape) != len(node.array.shape):
            return None  # replaced by another array, for which these chunk indices are meaningless
        return self.changes.edits(found)

    def require_writable(self) -> None:
        if self.mode == SessionMode.rearrange:
            raise SessionStateError(
                "this session only moves nodes; open a writable_session to change data",
                ErrorKind.REARRANGE_SESSION_ONLY,
            )
        self.require_open()

    def require_open(self) -> None:
        """Refuse changes to a session that is read-only or being committed."""
        if self.mode == SessionMode.readonly:
            raise ReadOnlyError(self.why_read_only())
        if self._is_sealed:
            raise ReadOnlyError(
                "the session is being committed and takes no more changes; open another "
                "writable_session when that is done"
            )

    def why_read_only(self, advice: str = "open a writable_session to change data") -> str:
        """What to do about a session that only reads; one that was committed says so."""
        if not self._is_committed:
            return advice
        branch = "" if self.branch is None else f": repo.writable_session({self.branch!r})"
        return f"{COMMITTED} {self.snapshot_id}; open a new one{branch}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock for a change. A change made under it is part of the session's commit."""
        with self.lock:
            self.require_open()
            yield

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Refuse changes while a commit is written: they would be lost."""
        with self.lock:
            self.require_no_commit()
            self._is_sealed = True
        try:
            yield
        finally:
            self._is_sealed = False

    def require_no_commit(self) -> None:
        """Refuse operations that cannot run during a commit of the same session."""
        if self._is_sealed:
            raise SessionStateError(
                "another commit of this session is under way", ErrorKind.COMMIT_NOT_ALLOWED
            )

    def show(self, snapshot: Snapshot, changes: ChangeSet, packs: Packs | None = None) -> None:
        """Replace the view of the session. For callers that hold the lock.

        Readers that took the old view keep using it, so it is not modified.
        """
        view = SessionView(snapshot, changes, packs or self.packs, self.lock)
        view.has_read = self.view.has_read
        self.view = view

    def finish(self, snapshot: Snapshot) -> None:
        """Become a read-only session at the snapshot just written."""
        with self.lock:
            self.show(snapshot, ChangeSet(), Packs())
            self.mode = SessionMode.readonly
            self._is_committed = True

    def discard(self) -> None:
        """Forget all changes."""
        with self.writing():
            self.show(self.snapshot, ChangeSet(), Packs())


def new_node_id(handle: RepoHandle, state: SessionState) -> NodeId:
    """An id for a new node. For callers that hold the lock of the session."""
    new_id = handle.new_id(NodeId)
    if handle.family.numbers_nodes:
        taken = {node.id for node in state.changes.new.values()}
        while new_id in taken or state.snapshot.nodes.has_id(new_id):
            new_id = handle.new_id(NodeId)
    return new_id


@observed("readonly_session")
async def open_readonly(handle: RepoHandle, snapshot_id: SnapshotId) -> SessionState:
    """A session that reads one snapshot."""
    snapshot = await handle.assets.snapshot(snapshot_id)
    return SessionState(snapshot, None, SessionMode.readonly)


@observed("writable_session")
async def open_writable(handle: RepoHandle, branch: str) -> SessionState:
    """A session that can commit to `branch`. Refused if the repository is read-only."""
    handle.require_writable()
    tip = await handle.family.writable_tip(handle, branch)
    return await open_at_tip(handle, tip, branch, SessionMode.writable)


async def open_at_tip(
    handle: RepoHandle, tip: SnapshotId, branch: str, mode: SessionMode
) -> SessionState:
    """A session that starts from the current tip of its branch."""
    state = SessionState(await handle.assets.snapshot(tip), branch, mode)
    state.opened_at = handle.family.opened_at(handle)
    return state
