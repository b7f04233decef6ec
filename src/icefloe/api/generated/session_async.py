"""Asynchronous twins of `Session`. Made by tools/make_async_twins.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icefloe.api import enums
from icefloe.api.arguments import check_arguments
from icefloe.api.handles import Handles
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.store import operations

if TYPE_CHECKING:
    from icefloe.api.chunk_map import ChunkMap
    from icefloe.api.enums import ChunkType
    from icefloe.changes.conflicts import ConflictSolver


@check_arguments
class SessionAsync:
    """What `Session` inherits: its methods that touch storage, to be awaited."""

    _handles: Handles

    @property
    def handle(self) -> RepoHandle:
        """The repository as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return self._handles.blocking

    @property
    def _aio_handle(self) -> RepoHandle:
        return self._handles.eventloop

    _state: SessionState

    @property
    def workspace(self) -> Workspace:
        """The session as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return Workspace(self._handles.blocking, self._state)

    @property
    def _aio_workspace(self) -> Workspace:
        return Workspace(self._handles.eventloop, self._state)

    async def commit_async(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Like `commit`, inside an event loop.

        Make the changes the new tip of the branch, and return the new snapshot's id.
        """
        from icefloe.repo import commit

        if rebase_tries < 0:
            raise InvalidInputError(
                f"rebase_tries is {rebase_tries}, expected at least 0",
                ErrorKind.INVALID_COMMIT_CONFIGURATION,
            )
        return (
            await commit.commit(
                self._aio_workspace,
                message,
                metadata,
                allow_empty=allow_empty,
                rebase_with=rebase_with,
                rebase_tries=rebase_tries,
            )
        ).text

    async def rebase_async(self, solver: ConflictSolver) -> None:
        """Like `rebase`, inside an event loop.

        Move the session to the tip of its branch and keep its changes.
        """
        from icefloe.repo import rebase

        await rebase.rebase(self._aio_workspace, solver)

    async def amend_async(
        self, message: str, *, metadata: dict[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Like `amend`, inside an event loop.

        Replace the tip of the branch with a snapshot that also has these changes.
        """
        from icefloe.repo import commit

        return (
            await commit.amend(self._aio_workspace, message, metadata, allow_empty=allow_empty)
        ).text

    async def flush_async(self, message: str, *, metadata: dict[str, Any] | None = None) -> str:
        """Like `flush`, inside an event loop.

        Store the changes as a snapshot that no branch points at, and return its id.
        """
        from icefloe.repo import commit

        return (await commit.flush(self._aio_workspace, message, metadata)).text

    async def move_async(self, from_path: str, to_path: str) -> None:
        """Like `move`, inside an event loop.

        Move or rename a group or an array, with everything below it.
        """
        from icefloe.repo import rearrange

        return await rearrange.move_node(self._aio_workspace, from_path, to_path)

    async def shift_array_async(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Like `shift_array`, inside an event loop.

        Move all chunks of an array by `chunk_offset`: a number of chunks for each dimension.
        """
        from icefloe.repo import rearrange

        return await rearrange.shift_array(self._aio_workspace, array_path, chunk_offset)

    async def reindex_array_async(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Like `reindex_array`, inside an event loop.

        Move the chunks of an array to other indices. No bytes are copied.
        """
        from icefloe.repo import rearrange

        return await rearrange.reindex_array(self._aio_workspace, array_path, forward, backward)

    async def get_node_id_async(self, path: str) -> str:
        """Like `get_node_id`, inside an event loop.

        The id of a node. Moving or renaming does not change it.
        """
        return (await operations.node_id(self._aio_workspace, path)).text

    async def chunk_type_async(
        self, array_path: str, chunk_coordinates: Sequence[int]
    ) -> ChunkType:
        """Like `chunk_type`, inside an event loop.

        Where the bytes of a chunk are; uninitialized if it was never written.
        """
        return enums.ChunkType(
            await operations.chunk_kind(self._aio_workspace, array_path, chunk_coordinates)
        )

    async def chunk_map_async(
        self,
        array_path: str,
        *,
        axes: Sequence[int | str] | None = None,
        at: Mapping[int | str, int] | None = None,
        by: str = "kind",
        max_commits: int = 1000,
    ) -> ChunkMap:
        """Like `chunk_map`, inside an event loop.

        Where the chunks of an array are, along two dimensions; notebooks draw it as a map.
        """
        from icefloe.api import chunk_map as chunk_maps

        return await chunk_maps.read_chunk_map(
            self._aio_workspace, array_path, axes, at, by, max_commits
        )

    async def all_virtual_chunk_locations_async(self) -> list[str]:
        """Like `all_virtual_chunk_locations`, inside an event loop.

        The location of every virtual chunk, one entry per chunk.
        """
        return await operations.virtual_locations(self._aio_workspace)
