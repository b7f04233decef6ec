"""`IcechunkStore`: a session as a Zarr store.

Every method calls `operations`. For local storage, the store also offers Zarr's synchronous
protocol, which avoids the event loop. For remote storage it does not, because a few synchronous
workers would be slower than many requests in flight.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from functools import wraps
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import SyncMixin

from icefloe import paths
from icefloe.display import Picture, Shown, qualified
from icefloe.errors import ErrorKind, ReadOnlyError, SessionStateError
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.storage.driver import Readable
from icefloe.storage.run import run_blocking
from icefloe.store import operations

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.store import virtual
    from icefloe.store.virtual import Failed, VirtualChunkSpec

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

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


def _awaited(
    method: Callable[Arguments, Result],
) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    """The form for event loops of a method that makes no requests."""

    @wraps(method)
    async def awaited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return method(*args, **kwargs)

    awaited.__name__ = f"{method.__name__}_async"
    awaited.__qualname__ = f"{method.__qualname__}_async"
    awaited.__doc__ = f"Like `{method.__name__}`, inside an event loop."
    return awaited


class IcechunkStore(Store, SyncMixin, Shown):
    """A Zarr store that reads from a session's snapshot and collects its changes.

    The first store of a process changes `zarr.config`: its arrays read and write whole selections
    through icefloe's codec pipeline, and arrays of other stores keep Zarr's own. See
    `icefloe.store.pipeline.install_pipeline`; `icefloe.use_bulk_pipeline(False)` switches it off.

    >>> root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    >>> root["t2m"].shape
    (4, 8, 8)
    """

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
        self._workspace = Workspace(blocking, state)
        self._aio_workspace = Workspace(eventloop, state)
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

    def __reduce__(self) -> tuple[Any, ...]:
        return methodcaller("make_store", read_only=self.read_only), (self._session,)

    def with_read_only(self, read_only: bool = False) -> Store:
        if not read_only and self._state.is_read_only:
            raise ReadOnlyError(self._state.why_read_only(), ErrorKind.READ_ONLY_SESSION)
        store: Store = self._session.make_store(read_only=read_only)
        store._is_open = False  # Zarr or the caller opens it
        return store

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
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
        limit = asyncio.Semaphore(self._eventloop.settings.get_partial_values_concurrency)

        async def one(key: str, byte_range: ByteRequest | None) -> Buffer | None:
            async with limit:
                return await self.get(key, prototype, byte_range)

        return list(await asyncio.gather(*(one(key, span) for key, span in key_ranges)))

    async def exists(self, key: str) -> bool:
        return await operations.exists(self._aio_workspace, key)

    async def getsize(self, key: str) -> int:
        return await operations.getsize(self._aio_workspace, key)

    async def getsize_prefix(self, prefix: str) -> int:
        return await operations.getsize_prefix(self._aio_workspace, prefix)

    async def is_empty(self, prefix: str) -> bool:
        return not await operations.list_dir(self._aio_workspace, prefix)

    async def list(self) -> AsyncIterator[str]:
        for key in await operations.list_prefix(self._aio_workspace, ""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await operations.list_prefix(self._aio_workspace, prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await operations.list_dir(self._aio_workspace, prefix):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await operations.set_key(self._aio_workspace, key, _bytes_of(value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await operations.set_if_not_exists(self._aio_workspace, key, _bytes_of(value))

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Not possible: chunks are immutable objects."""
        raise SessionStateError(
            "parts of a chunk cannot be written, chunks are immutable objects",
            ErrorKind.UNIMPLEMENTED,
        )

    async def delete(self, key: str) -> None:
        self._check_writable(is_delete=True)
        await operations.delete(self._aio_workspace, key)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await operations.delete_dir(self._aio_workspace, prefix)

    async def clear(self) -> None:
        self._check_writable(is_delete=True)
        await operations.delete_dir(self._aio_workspace, "")

    def sync_clear(self) -> None:
        """Delete every node of the session, from code that has no event loop.

        >>> session.store.sync_clear()
        """
        self._check_writable(is_delete=True)
        run_blocking(operations.delete_dir(self._workspace, ""))

    # -- references instead of values
    #
    # No method makes a request to the referenced objects, so the asynchronous twins do not wait.
    # `array_path` is the path of an array. `validate_containers` refuses locations that no virtual
    # chunk container covers.

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Set a chunk to `length` bytes at `offset` of the object at the URL `location`.

        `key` is the chunk as Zarr names it, such as `array/c/0/0`. The object's key is the path of
        the URL; `?`, `#` and `%` in it have to be percent-encoded. With a `checksum` (an ETag, or
        the time of the last modification), reads fail once the object has changed.

        Raises:
            InvalidInputError: no container covers the location (unless `validate_container` is
                off), the key is outside the array, or the length is 0.

        >>> session.store.set_virtual_ref(
        ...     "t2m/c/0/0/0", "s3://a/a.nc", offset=4096, length=256, validate_container=False
        ... )
        """
        from icefloe.store import virtual

        self._check_writable()
        virtual.set_virtual_ref(
            self._workspace,
            key,
            location,
            offset,
            length,
            checksum,
            validate_container=validate_container,
        )

    set_virtual_ref_async = _awaited(set_virtual_ref)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Set many virtual chunks of one array: `chunks` has a `VirtualChunkSpec` for each.

        Returns None, or the indices of the chunks whose location no container covers; those
        are left out.

        >>> chunk = icefloe.VirtualChunkSpec([0, 0, 0], "s3://a/a.nc", offset=4096, length=256)
        >>> session.store.set_virtual_refs("t2m", [chunk], validate_containers=False)
        """
        from icefloe.store import virtual

        return self._set_columns(array_path, virtual.columns_of_specs(chunks), validate_containers)

    set_virtual_refs_async = _awaited(set_virtual_refs)

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: Sequence[int],
        locations: Sequence[str],
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        *,
        validate_containers: bool = True,
        arr_offset: Sequence[int] | None = None,
        checksum: datetime | str | None = None,
    ) -> Failed:
        """Set the virtual chunks of a whole grid, or of a box in it that starts at `arr_offset`.

        Values are in C order of the grid. An empty location does not change its chunk.
        `locations` may also be an Arrow array. Returns what `set_virtual_refs` returns.

        Args:
            chunk_grid_shape: the shape of the grid of chunks that the columns fill.
            offsets: where each chunk begins in its file.
            lengths: how long it is.
            checksum: the state of the files: an ETag or a time, for all of them.

        >>> session.store.set_virtual_refs_arr(
        ...     "t2m", (4, 1, 1), ["s3://archive/a.nc"] * 4, np.arange(4, dtype="u8") * 256,
        ...     np.full(4, 256, "u8"), validate_containers=False,
        ... )
        """
        from icefloe.store import virtual

        columns = virtual.columns_of_grid(
            chunk_grid_shape, locations, offsets, lengths, arr_offset, checksum
        )
        return self._set_columns(array_path, columns, validate_containers)

    set_virtual_refs_arr_async = _awaited(set_virtual_refs_arr)

    def set_virtual_refs_table(
        self,
        array_path: str,
        table: pa.Table | pa.RecordBatch,
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Set virtual chunks from an Arrow `table`, one row per chunk, in any order.

        Columns: `index` with a list of chunk numbers, or instead of it one column of numbers for
        each dimension, `i0`, `i1` and so on; `location`, text or (best for many chunks of few
        files) a dictionary of text; `offset` and `length`; and optionally `etag`, text, and
        `last_modified`, a timestamp or whole seconds, where null means that nothing is checked.
        Returns what `set_virtual_refs` returns.

        >>> table = pa.table(
        ...     {"index": [[0, 0, 0]], "location": ["s3://a/a.nc"], "offset": [0], "length": [256]}
        ... )
        >>> session.store.set_virtual_refs_table("t2m", table, validate_containers=False)
        """
        from icefloe.store import virtual

        _, array = self._state.array(paths.validate("/" + array_path.strip("/")))

        columns = virtual.columns_of_table(table, len(array.shape))
        return self._set_columns(array_path, columns, validate_containers)

    set_virtual_refs_table_async = _awaited(set_virtual_refs_table)

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[operations.ChunkBatch]:
        """The references of an array in batches of `batch_size` rows, in ascending order.

        A batch is columns: coordinates (one row per chunk), kinds (as in `ChunkType`), paths (a
        URL for virtual chunks, a chunk id for native ones, nothing for inline ones), offsets,
        lengths, and the bytes of inline chunks by row.

        >>> async def locations():
        ...     return [batch async for batch in session.store.array_chunk_iterator("t2m")]
        >>> [batch] = asyncio.run(locations())
        """
        async for batch in operations.chunk_batches(self._aio_workspace, array_path, batch_size):
            yield batch

    def _set_columns(
        self, array_path: str, columns: virtual.RefColumns, validate_containers: bool
    ) -> Failed:
        from icefloe.store import virtual

        self._check_writable()
        return virtual.set_virtual_refs(
            self._workspace,
            array_path,
            columns,
            validate_containers=validate_containers,
        )

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
        data = run_blocking(operations.get(self._workspace, key, wanted))
        return _buffer(data, prototype)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a key without an event loop."""
        self._check_writable()
        run_blocking(operations.set_key(self._workspace, key, _bytes_of(value)))

    def delete_sync(self, key: str) -> None:
        """Delete a key without an event loop."""
        self._check_writable(is_delete=True)
        run_blocking(operations.delete(self._workspace, key))


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
