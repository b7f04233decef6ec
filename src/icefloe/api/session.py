"""`Session`: reading one snapshot, or changing it and committing the change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from icefloe import paths
from icefloe.api import enums
from icefloe.api.arguments import check_arguments, shortcut
from icefloe.api.generated.session_async import SessionAsync
from icefloe.api.handles import Handles
from icefloe.config import RepositoryConfig
from icefloe.display import Picture, Shown
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError
from icefloe.ids import FIRST_SNAPSHOT_ID
from icefloe.repo import session
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionMode, SessionState, Workspace, all_chunks, known_kind
from icefloe.storage.run import RenewedLock, run_blocking
from icefloe.store import operations

if TYPE_CHECKING:
    from icefloe.api.chunk_map import ChunkMap
    from icefloe.api.enums import ChunkType
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.changes.diff import Diff
    from icefloe.repo.forks import ForkChanges
    from icefloe.store.zarr_store import IcechunkStore


def _known_chunk_type(
    session: Session, array_path: Any = None, chunk_coordinates: Any = None, *more: Any
) -> ChunkType | None:
    """What `Session.chunk_type` returns, if nothing has to be loaded for it."""
    kind = known_kind(session._handles.blocking, session._state.view, array_path, chunk_coordinates)
    return None if kind is None or more else enums.CHUNK_TYPES[kind]


@check_arguments
class Session(SessionAsync, Shown):
    """A view of a repository at one snapshot; made by a `Repository`.

    `message` and `metadata` of its methods become part of the snapshot. `array_path` and `path` are
    paths of nodes, such as `/group/array`.

    >>> session = repo.writable_session("main")
    >>> zarr.open_array(session.store, path="t2m")[0] = 273.15
    >>> snapshot_id = session.commit("Correct the first day")
    """

    def __init__(self, handles: Handles, state: SessionState) -> None:
        self._handles = handles
        self._state = state
        self._store: ref[IcechunkStore] | None = None

    shown_in = "session"

    def _picture_(self) -> Picture:
        fields = {"read_only": str(self.read_only), "snapshot_id": self.snapshot_id}
        if not self.read_only:
            fields["branch"] = str(self.branch)
            fields["has_uncommitted_changes"] = str(self.has_uncommitted_changes)
        return Picture(self._title_(), list(fields.items()))

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Session):
            return NotImplemented
        if self._state is value._state:
            return True
        # A session that can write, or could before it was committed, is equal to itself only.
        return (
            self._state.branch is None
            and value._state.branch is None
            and self.read_only
            and value.read_only
            and self._handles.storage == value._handles.storage
            and self.snapshot_id == value.snapshot_id
        )

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise ValueError(
                "a writable session cannot be pickled: its changes would be split in two; commit "
                "it, or fork it to write from several processes"
            )
        return {"handles": self._handles, "snapshot_id": self._state.snapshot_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handles: Handles = state["handles"]
        opened = run_blocking(session.open_readonly(handles.blocking, state["snapshot_id"]))
        self.__init__(handles, opened)  # type: ignore[misc]

    @property
    def read_only(self) -> bool:
        """Whether the session cannot change anything."""
        return self._state.is_read_only

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return self._state.mode

    @property
    def snapshot_id(self) -> str:
        """The snapshot the session started from."""
        return self._state.snapshot_id.text

    @property
    def branch(self) -> str | None:
        """The branch a commit goes to; None in a read-only session."""
        return None if self.read_only else self._state.branch

    @property
    def config(self) -> RepositoryConfig:
        """The configuration of the repository."""
        return self._handles.config

    @property
    def store(self) -> IcechunkStore:
        """The session as a Zarr store."""
        store = None if self._store is None else self._store()
        if store is None or store.read_only != self.read_only:
            store = self.make_store(read_only=self.read_only)
            # A cycle would keep the columns of a session in memory until Python looks for cycles.
            self._store = ref(store)
        return store

    def make_store(self, *, read_only: bool) -> IcechunkStore:
        """Another Zarr store on the same session, which refuses writes if it is `read_only`.

        >>> store = session.make_store(read_only=True)
        """
        from icefloe.store import pipeline, zarr_store

        pipeline.install_pipeline()
        handles = self._handles
        is_local = handles.blocking.driver.is_local
        kind = zarr_store.LocalIcechunkStore if is_local else zarr_store.IcechunkStore
        return kind(self, self._state, handles.blocking, handles.eventloop, read_only=read_only)

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is anything to commit."""
        return not self._state.changes.is_empty

    def status(self) -> Diff:
        """The uncommitted changes.

        >>> zarr.open_array(session.store, path="t2m")[0] = 273.15
        >>> session.status().updated_chunks
        {'/t2m': [[0, 0, 0]]}
        """
        view = self._state.view
        from icefloe.changes import diff

        with view.lock:
            log = view.changes.log(FIRST_SNAPSHOT_ID)
            known = diff.paths_by_id(view.snapshot.nodes)
            known.update((node.id, path) for path, node in view.changes.new.items())
        return diff.make_diff([log], known)

    def discard_changes(self) -> None:
        """Discard all uncommitted changes.

        >>> session.discard_changes()
        """
        if self.read_only:
            raise ReadOnlyError(self._state.why_read_only("there are no changes to discard"))
        self._state.discard()

    def commit(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        allow_empty: bool = False,
    ) -> str:
        """Make the changes the new tip of the branch, and return the new snapshot's id.

        Afterwards the session is read-only, at that snapshot. With `rebase_with`, a session whose
        branch has moved is rebased with this solver, up to `rebase_tries` times. With
        `allow_empty` it is also committed if nothing was changed.

        Raises:
            ConflictError: the branch has moved since the session was opened. The session keeps its
                changes.
            RebaseFailedError: newer commits conflict with the changes of the session.

        >>> zarr.open_array(session.store, path="t2m")[0] = 273.15
        >>> snapshot_id = session.commit("Correct the first day", {"author": "the night run"})
        """
        from icefloe.repo import commit

        if rebase_tries < 0:
            raise InvalidInputError(
                f"rebase_tries is {rebase_tries}, expected at least 0",
                ErrorKind.INVALID_COMMIT_CONFIGURATION,
            )
        return run_blocking(
            commit.commit(
                self.workspace,
                message,
                metadata,
                allow_empty=allow_empty,
                rebase_with=rebase_with,
                rebase_tries=rebase_tries,
            )
        ).text

    def rebase(self, solver: ConflictSolver) -> None:
        """Move the session to the tip of its branch and keep its changes.

        The newer commits are replayed one by one. The `solver` settles conflicts with the session's
        changes.

        Raises:
            RebaseFailedError: a conflict was not settled. The session is at the last commit before
                it, and can be rebased again with another solver.

        >>> session.rebase(icefloe.ConflictDetector())
        """
        from icefloe.repo import rebase

        run_blocking(rebase.rebase(self.workspace, solver))

    def amend(
        self,
        message: str,
        *,
        metadata: dict[str, Any] | None = None,
        allow_empty: bool = False,
    ) -> str:
        """Replace the tip of the branch with a snapshot that also has these changes.

        With `allow_empty` also if nothing was changed.

        >>> zarr.open_array(session.store, path="t2m")[0] = 273.15
        >>> snapshot_id = session.amend("Correct the first two days")
        """
        from icefloe.repo import commit

        return run_blocking(
            commit.amend(self.workspace, message, metadata, allow_empty=allow_empty)
        ).text

    def flush(self, message: str, *, metadata: dict[str, Any] | None = None) -> str:
        """Store the changes as a snapshot that no branch points at, and return its id.

        >>> zarr.open_array(session.store, path="t2m")[0] = 273.15
        >>> snapshot_id = session.flush("Not yet on any branch")
        """
        from icefloe.repo import commit

        return run_blocking(commit.flush(self.workspace, message, metadata)).text

    def fork(self) -> ForkSession:
        """A session for a worker: it can be pickled, written to, sent back and merged.

        It starts from the current state of this session. Uncommitted changes are stored for it as
        an unlisted snapshot and its manifests. One fork can be sent to many workers.

        >>> fork = session.fork()
        >>> zarr.open_array(fork.store, path="t2m")[0] = 273.15  # in a worker
        >>> session.merge(fork)
        """
        from icefloe.repo import forks

        return ForkSession(self._handles, run_blocking(forks.fork_session(self.workspace)))

    async def fork_async(self) -> ForkSession:
        """Like `fork`, inside an event loop."""
        from icefloe.repo import forks

        return ForkSession(self._handles, await forks.fork_session(self._aio_workspace))

    def merge(self, *others: Session) -> None:
        """Merge the changes of forks into this session. Either all forks are merged, or none.

        Forks may change different nodes, and different chunks of one array. If two forks wrote the
        same chunk, the one merged last wins.

        Raises:
            SessionStateError: a fork changed a node that another one or this session changed
                differently since (kind `merge-failed`), or comes from another repository or
                another snapshot (kind `merge-not-allowed`).

        >>> forks = [session.fork(), session.fork()]
        >>> for day, fork in enumerate(forks):  # in two workers
        ...     zarr.open_array(fork.store, path="t2m")[day] = 273.15
        >>> session.merge(*forks)
        """
        brought = [run_blocking(other._bring(other.handle)) for other in others]
        from icefloe.repo import forks

        return run_blocking(forks.merge_forks(self.workspace, brought))

    async def merge_async(self, *others: Session) -> None:
        """Like `merge`, inside an event loop."""
        brought = [await other._bring(other._aio_handle) for other in others]
        from icefloe.repo import forks

        return await forks.merge_forks(self._aio_workspace, brought)

    async def _bring(self, handle: RepoHandle) -> ForkChanges:
        from icefloe.repo import forks

        return await forks.fork_changes(Workspace(handle, self._state))

    def move(self, from_path: str, to_path: str) -> None:
        """Move or rename a group or an array, with everything below it.

        Needs a session made by `Repository.rearrange_session`. Nothing is copied. Moves are applied
        in order, so two nodes swap places by way of a third name.

        Raises:
            NodeNotFoundError: there is no node at `from_path`.
            AlreadyExistsError: there is one at `to_path`.
            SessionStateError: `to_path` is inside `from_path`, or not in an existing group.

        >>> session = repo.rearrange_session("main")
        >>> session.move("/t2m", "/temperature")
        """
        from icefloe.repo import rearrange

        return run_blocking(rearrange.move_node(self.workspace, from_path, to_path))

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks of an array by `chunk_offset`: a number of chunks for each dimension.

        No bytes are copied. Chunks that leave the array are dropped; resize the array first to keep
        them. Vacated chunks read as the fill value. The chunk grid has to be regular.

        >>> session.shift_array("/t2m", (-1, 0, 0))
        """
        from icefloe.repo import rearrange

        return run_blocking(rearrange.shift_array(self.workspace, array_path, chunk_offset))

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Move the chunks of an array to other indices. No bytes are copied.

        `forward` is called with the index of every existing chunk. It returns the new index, or
        None to leave the chunk in place. An old index to which no chunk is moved keeps its chunk,
        unless `backward`, the inverse of `forward`, returns None or an index without a chunk for
        it. Then it is cleared. If a function raises an exception, nothing changes.

        >>> session.reindex_array("/t2m", lambda index: (3 - index[0], *index[1:]))
        """
        from icefloe.repo import rearrange

        return run_blocking(rearrange.reindex_array(self.workspace, array_path, forward, backward))

    def get_node_id(self, path: str) -> str:
        """The id of a node. Moving or renaming does not change it.

        >>> node_id = session.get_node_id("/t2m")
        """
        return run_blocking(operations.node_id(self.workspace, path)).text

    @shortcut(_known_chunk_type)
    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Where the bytes of a chunk are; uninitialized if it was never written.

        `chunk_coordinates` is the index of the chunk in the grid.

        >>> session.chunk_type("/t2m", (0, 0, 0))
        ChunkType.native
        """
        return enums.ChunkType(
            run_blocking(operations.chunk_kind(self.workspace, array_path, chunk_coordinates))
        )

    def chunk_map(
        self,
        array_path: str,
        *,
        axes: Sequence[int | str] | None = None,
        at: Mapping[int | str, int] | None = None,
        by: str = "kind",
        max_commits: int = 1000,
    ) -> ChunkMap:
        """Where the chunks of an array are, along two dimensions; notebooks draw it as a map.

        Args:
            array_path: the array.
            axes: the two dimensions of the map by name or number; by default the last two that
                have several chunks.
            at: the number of the chunk along other dimensions; 0 by default.
            by: "kind" tells native, inline, virtual and missing chunks apart; "commit" tells
                which commit wrote each chunk last.
            max_commits: how far back in the history to look for that commit.

        >>> session.chunk_map("/t2m", axes=["time", "y"]).grid
        (4, 1)
        """
        from icefloe.api import chunk_map as chunk_maps

        return run_blocking(
            chunk_maps.read_chunk_map(self.workspace, array_path, axes, at, by, max_commits)
        )

    def all_virtual_chunk_locations(self) -> list[str]:
        """The location of every virtual chunk, one entry per chunk.

        >>> session.all_virtual_chunk_locations()
        []
        """
        return run_blocking(operations.virtual_locations(self.workspace))

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """The index of every existing chunk of an array, in ascending order.

        They come in batches of `batch_size`.

        >>> async def first_chunk():
        ...     return await anext(session.chunk_coordinates("/t2m"))
        >>> asyncio.run(first_chunk())
        (0, 0, 0)
        """
        if batch_size < 1:
            raise InvalidInputError(f"batch_size is {batch_size}, expected at least 1")
        view = self._state.view
        node, _ = view.array(paths.validate(array_path, view.find_node))
        refs = await all_chunks(self._aio_handle, view, node)
        for first in range(0, len(refs), batch_size):
            for row in refs.index[first : first + batch_size].tolist():
                yield tuple(row)


class ForkSession(Session):
    """A session that can be pickled with its changes. Made by `Session.fork`.

    It cannot be committed; `Session.merge` merges its changes into the original session. Pickling
    waits until every chunk it wrote is durably stored. An unpickled fork reads its snapshot on
    first use, so a fork that is only merged makes no request.

    >>> fork = pickle.loads(pickle.dumps(session.fork()))  # in a worker
    >>> zarr.open_array(fork.store, path="t2m")[0] = 273.15
    >>> session.merge(fork)
    """

    _arrived: ForkChanges | None = None

    def __getstate__(self) -> dict[str, Any]:
        brought = self._arrived or run_blocking(self._bring(self.handle))
        return {"handles": self._handles, "brought": brought}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._handles = state["handles"]
        self._arrived = state["brought"]
        self._store = None
        self._opening = RenewedLock()

    def __getattr__(self, name: str) -> Any:
        if name != "_state" or "_opening" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        from icefloe.repo import forks

        with self._opening:
            if self._arrived is not None:
                self._state = run_blocking(forks.open_fork(self.handle, self._arrived))
                self._arrived = None
        return self._state

    async def _bring(self, handle: RepoHandle) -> ForkChanges:
        return self._arrived or await super()._bring(handle)
