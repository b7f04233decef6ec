"""`IcechunkStore`: a session as a Zarr store.

Every method calls `operations`. For local storage, the store also offers Zarr's synchronous
protocol, which avoids the event loop. For remote storage it does not, because a few synchronous
workers would be slower than many requests in flight.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import SyncMixin

from icefloe.display.shown import Picture, Shown, qualified
from icefloe.errors import ErrorKind, ReadOnlyError, SessionStateError
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionState
from icefloe.repo.workspace import Workspace
from icefloe.storage.driver import Readable
from icefloe.storage.run import run_blocking
from icefloe.store import operations
from icefloe.store.virtual_store import VirtualRefsMixin

# From this size on, a local read runs in its own thread, in parallel with decoding.
_LARGE_READ_BYTES = 1 << 20

# Zarr before 3.2, which is all that Python 3.11 can have, warns about every array with a codec of
# numcodecs and every new array of fixed-length text. Later releases withdrew both warnings. The
# codecs are those of HDF5's filters, so readers of ingested arrays cannot avoid them.
# The filters are appended, so that the user's own come first.
for _category, _start in (
    (UserWarning, "Numcodecs codecs are not in the Zarr version 3"),
    (FutureWarning, r"The data type \(FixedLengthUTF32"),
):
    warnings.filterwarnings("ignore", _start, _category, append=True)


class IcechunkStore(VirtualRefsMixin, Store, SyncMixin, Shown):
    """A Zarr store that reads from a session's snapshot and collects its changes."""

    def __init__(
        self,
        session: Any,
        state: SessionState,
        blocking: RepoHandle,
        eventloop: RepoHandle,
        *,
        read_only: bool,
    ) -> None:
        super().__init__(read_only=read_only)
        self._session = session
        self._state = state
        self._blocking = blocking
        self._eventloop = eventloop
        self._is_open = True
        self._text: tuple[Any, str] | None = None

    @property
    def session(self) -> Any:
        """The session this store belongs to."""
        return self._session

    def __eq__(self, value: object) -> bool:
        return isinstance(value, IcechunkStore) and self._session == value._session

    __hash__ = None  # type: ignore[assignment]

    def _picture_(self) -> Picture:
        state = self._state
        fields = {"read_only": str(self.read_only), "snapshot_id": state.snapshot_id.text}
        if not state.is_read_only:
            fields["branch"] = str(state.branch)
        return Picture(qualified("IcechunkStore"), list(fields.items()))

    __repr__ = Shown.__repr__

    def __str__(self) -> str:
        # Zarr asks for it twice for every node that it opens.
        state = self._state
        now = (self.read_only, state.is_read_only, state.snapshot_id, state.branch)
        if self._text is None or self._text[0] != now:
            self._text = now, Shown.__str__(self)
        return self._text[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"session": self._session, "read_only": self.read_only}

    def __setstate__(self, state: dict[str, Any]) -> None:
        twin = state["session"].make_store(read_only=state["read_only"])
        self.__dict__.update(twin.__dict__)

    def with_read_only(self, read_only: bool = False) -> Store:
        # docstring inherited
        if not read_only and self._state.is_read_only:
            raise ReadOnlyError(self._state.why_read_only(), ErrorKind.READ_ONLY_SESSION)
        store: Store = self._session.make_store(read_only=read_only)
        store._is_open = False  # Zarr or the caller opens it
        return store

    # -- what a store can do

    @property
    def supports_writes(self) -> bool:
        return True

    @property
    def supports_deletes(self) -> bool:
        return True

    @property
    def supports_listing(self) -> bool:
        return True

    @property
    def supports_partial_writes(self) -> Literal[False]:
        return False

    @property
    def supports_consolidated_metadata(self) -> bool:
        """False: one request opens a snapshot with all its metadata, so none is consolidated."""
        return False

    # -- reading

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        # docstring inherited
        handle = self._eventloop
        found = await operations.locate(
            Workspace(handle, self._state), key, _byte_range(byte_range)
        )
        if isinstance(found, operations.Located):
            if handle.driver.is_local and found.ref.length >= _LARGE_READ_BYTES:
                reading = operations.fetch(self._blocking, found)
                return _buffer(await asyncio.to_thread(run_blocking, reading), prototype)
            return _buffer(await operations.fetch(handle, found), prototype)
        return _buffer(found, prototype)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        # docstring inherited
        limit = asyncio.Semaphore(self._eventloop.settings.get_partial_values_concurrency)

        async def one(key: str, byte_range: ByteRequest | None) -> Buffer | None:
            async with limit:
                return await self.get(key, prototype, byte_range)

        return list(await asyncio.gather(*(one(key, span) for key, span in key_ranges)))

    async def exists(self, key: str) -> bool:
        # docstring inherited
        return await operations.exists(Workspace(self._eventloop, self._state), key)

    async def getsize(self, key: str) -> int:
        # docstring inherited
        return await operations.getsize(Workspace(self._eventloop, self._state), key)

    async def getsize_prefix(self, prefix: str) -> int:
        # docstring inherited
        return await operations.getsize_prefix(Workspace(self._eventloop, self._state), prefix)

    async def is_empty(self, prefix: str) -> bool:
        # docstring inherited
        return not await operations.list_dir(Workspace(self._eventloop, self._state), prefix)

    # -- listing

    async def list(self) -> AsyncIterator[str]:
        # docstring inherited
        for key in await operations.list_prefix(Workspace(self._eventloop, self._state), ""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        # docstring inherited
        for key in await operations.list_prefix(Workspace(self._eventloop, self._state), prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        # docstring inherited
        for name in await operations.list_dir(Workspace(self._eventloop, self._state), prefix):
            yield name

    # -- writing

    async def set(self, key: str, value: Buffer) -> None:
        # docstring inherited
        self._check_writable()
        await operations.set_key(Workspace(self._eventloop, self._state), key, _bytes_of(value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        # docstring inherited
        self._check_writable()
        await operations.set_if_not_exists(
            Workspace(self._eventloop, self._state), key, _bytes_of(value)
        )

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Not possible: chunks are immutable objects."""
        raise SessionStateError(
            "parts of a chunk cannot be written, chunks are immutable objects",
            ErrorKind.UNIMPLEMENTED,
        )

    async def delete(self, key: str) -> None:
        # docstring inherited
        self._check_writable(is_delete=True)
        await operations.delete(Workspace(self._eventloop, self._state), key)

    async def delete_dir(self, prefix: str) -> None:
        # docstring inherited
        self._check_writable()
        await operations.delete_dir(Workspace(self._eventloop, self._state), prefix)

    async def clear(self) -> None:
        # docstring inherited
        self._check_writable(is_delete=True)
        await operations.delete_dir(Workspace(self._eventloop, self._state), "")

    def sync_clear(self) -> None:
        """Delete every node of the session, from code that has no event loop."""
        self._check_writable(is_delete=True)
        run_blocking(operations.delete_dir(Workspace(self._blocking, self._state), ""))

    def _check_writable(self, *, is_delete: bool = False) -> None:
        # Zarr has its own read-only error, a ValueError. Ours says what to do. Icechunk's error
        # names the session for deletes, and the store otherwise.
        if self.read_only:
            of_session = is_delete and self._state.is_read_only
            kind = ErrorKind.READ_ONLY_SESSION if of_session else ErrorKind.READ_ONLY_STORE
            why = "write through session.store"  # this one was made read-only
            raise ReadOnlyError(
                self._state.why_read_only() if self._state.is_read_only else why, kind
            )


class LocalIcechunkStore(IcechunkStore):
    """A store on local storage, which Zarr may call synchronously."""

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read a key without an event loop."""
        wanted = _byte_range(byte_range)
        data = run_blocking(operations.get(Workspace(self._blocking, self._state), key, wanted))
        return _buffer(data, prototype)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a key without an event loop."""
        self._check_writable()
        run_blocking(
            operations.set_key(Workspace(self._blocking, self._state), key, _bytes_of(value))
        )

    def delete_sync(self, key: str) -> None:
        """Delete a key without an event loop."""
        self._check_writable(is_delete=True)
        run_blocking(operations.delete(Workspace(self._blocking, self._state), key))


def _buffer(data: Readable | None, prototype: BufferPrototype | None) -> Buffer | None:
    if data is None:
        return None
    kind = (prototype or default_buffer_prototype()).buffer
    return kind.from_bytes(data)


def _bytes_of(value: Buffer) -> Any:
    if not isinstance(value, Buffer):
        raise TypeError(
            "IcechunkStore.set(): `value` must be a Buffer instance. "
            f"Got an instance of {type(value)} instead."
        )
    return value.as_numpy_array()


def _byte_range(request: ByteRequest | None) -> operations.ByteRange | None:
    if request is None:
        return None
    if isinstance(request, RangeByteRequest):
        return request.start, request.end
    if isinstance(request, OffsetByteRequest):
        return request.offset, None
    if isinstance(request, SuffixByteRequest):
        return None, request.suffix
    raise TypeError(
        f"Unexpected byte_range, got {request!r}, expected one of Zarr's ByteRequest kinds"
    )
