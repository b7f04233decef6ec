"""Methods of `IcechunkStore` beyond Zarr's protocol: references instead of values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.on_demand import on_demand
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionState
from icefloe.repo.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.store import session_queries, virtual_refs
    from icefloe.store.virtual_refs import Failed, VirtualChunkSpec
else:
    session_queries = on_demand("icefloe.store.session_queries")
    virtual_refs = on_demand("icefloe.store.virtual_refs")

ChunkBatch = tuple[
    NDArray[np.uint32],
    NDArray[np.uint8],
    list[str],
    NDArray[np.uint64],
    NDArray[np.uint64],
    dict[int, bytes],
]


class VirtualRefsMixin:
    """Setting and listing references. No method makes a request to the referenced objects, so
    the asynchronous twins do not wait.

    `array_path` is the path of an array. `validate_containers` refuses locations that no virtual
    chunk container covers.
    """

    _state: SessionState
    _blocking: RepoHandle
    _eventloop: RepoHandle

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

        The object's key is the path of the URL; `?`, `#` and `%` in it have to be
        percent-encoded. With a `checksum` (an ETag, or the time of the last modification), reads
        fail once the object has changed.

        Args:
            key: the chunk as Zarr names it, such as `array/c/0/0`.

        Raises:
            InvalidInputError: no container covers the location (unless `validate_container` is
                off), the key is outside the array, or the length is 0.
        """
        etag, modified = _either(checksum)
        spec = virtual_refs.VirtualChunkSpec((), location, offset, length, etag, modified)
        self._check_writable()
        virtual_refs.set_virtual_ref(
            Workspace(self._blocking, self._state), key, spec, validate_container=validate_container
        )

    async def set_virtual_ref_async(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Like `set_virtual_ref`, inside an event loop."""
        self.set_virtual_ref(
            key,
            location,
            offset=offset,
            length=length,
            checksum=checksum,
            validate_container=validate_container,
        )

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Set many virtual chunks of one array.

        Returns None, or the indices of the chunks whose location no container covers; those
        are left out.

        Args:
            chunks: one `VirtualChunkSpec` for each chunk.
        """
        return self._set_columns(
            array_path, virtual_refs.columns_of_specs(chunks), validate_containers
        )

    async def set_virtual_refs_async(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Like `set_virtual_refs`, inside an event loop."""
        return self.set_virtual_refs(array_path, chunks, validate_containers=validate_containers)

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
        """
        columns = virtual_refs.columns_of_grid(
            chunk_grid_shape, locations, offsets, lengths, arr_offset, checksum
        )
        return self._set_columns(array_path, columns, validate_containers)

    async def set_virtual_refs_arr_async(
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
        """Like `set_virtual_refs_arr`, inside an event loop."""
        return self.set_virtual_refs_arr(
            array_path,
            chunk_grid_shape,
            locations,
            offsets,
            lengths,
            validate_containers=validate_containers,
            arr_offset=arr_offset,
            checksum=checksum,
        )

    def set_virtual_refs_table(
        self,
        array_path: str,
        table: pa.Table | pa.RecordBatch,
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Set virtual chunks from an Arrow table, one row per chunk, in any order.

        Columns: `index` with a list of chunk numbers, or instead of it one column of numbers for
        each dimension, `i0`, `i1` and so on; `location`, text or (best for many chunks of few
        files) a dictionary of text; `offset` and `length`; and optionally `etag`, text, and
        `last_modified`, a timestamp or whole seconds, where null means that nothing is checked.
        Returns what `set_virtual_refs` returns.

        Args:
            table: an Arrow table, one row for each chunk.
        """
        path = paths.validate("/" + array_path.strip("/"))
        _, array = self._state.array(path)
        columns = virtual_refs.columns_of_table(table, len(array.shape))
        return self._set_columns(array_path, columns, validate_containers)

    async def set_virtual_refs_table_async(
        self,
        array_path: str,
        table: pa.Table | pa.RecordBatch,
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Like `set_virtual_refs_table`, inside an event loop."""
        return self.set_virtual_refs_table(
            array_path, table, validate_containers=validate_containers
        )

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[ChunkBatch]:
        """The references of an array in batches of columns, in ascending order.

        A batch is coordinates (one row per chunk), kinds (as in `ChunkType`), paths (a URL for
        virtual chunks, a chunk id for native ones, nothing for inline ones), offsets, lengths,
        and the bytes of inline chunks by row.

        Args:
            batch_size: rows of each batch.
        """
        batches = session_queries.chunk_batches(
            Workspace(self._eventloop, self._state), array_path, batch_size
        )
        async for batch in batches:
            yield batch

    def _set_columns(
        self, array_path: str, columns: virtual_refs.RefColumns, validate_containers: bool
    ) -> Failed:
        self._check_writable()
        return virtual_refs.set_virtual_refs(
            Workspace(self._blocking, self._state),
            array_path,
            columns,
            validate_containers=validate_containers,
        )

    def _check_writable(self, *, is_delete: bool = False) -> None:
        raise NotImplementedError


def _either(checksum: Any) -> tuple[str | None, datetime | None]:
    if checksum is None or isinstance(checksum, str):
        return checksum, None
    if isinstance(checksum, datetime):
        return None, checksum
    raise TypeError(f"checksum is {checksum!r}, expected an ETag (str) or a datetime")
