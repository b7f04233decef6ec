"""A Zarr codec pipeline that reads and writes all chunks of a selection together.

Zarr's own pipelines ask the store for one chunk at a time. This one looks the references of a
selection up over columns, reads them in few requests, and decodes in threads. Other stores, and
codecs that need an event loop, are served by Zarr's default pipeline, which this one extends.

>>> import icefloe
>>> icefloe.use_bulk_pipeline()  # for arrays opened from here on
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import ByteGetter, ByteSetter
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.store import bulk_read, bulk_write
from icefloe.store.bulk_batch import Batch
from icefloe.store.chunk_codecs import ChunkCodecs
from icefloe.store.zarr_store import IcechunkStore

Item = tuple[Any, ArraySpec, Any, Any, bool]


class BulkCodecPipeline(BatchedCodecPipeline):
    """See the module. Chosen by `icefloe.use_bulk_pipeline()`."""

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, Any, Any, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Read a selection into `out`. Returns whether each chunk was present, as Zarr wants it."""
        items = list(batch_info)
        batch = self._batch(items, out, drop_axes)
        # Of a shard that is read in part, Zarr's codec fetches the parts it needs.
        if batch is None or (self.supports_partial_decode and not all(item[4] for item in items)):
            return await super().read(items, out, drop_axes)
        return await bulk_read.read(batch)

    async def write(
        self,
        batch_info: Iterable[tuple[ByteSetter, ArraySpec, Any, Any, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write `value` into a selection."""
        items = list(batch_info)
        batch = self._batch(items, value, drop_axes)
        if batch is None or (self.supports_partial_encode and not all(item[4] for item in items)):
            await super().write(items, value, drop_axes)
            return
        await bulk_write.write(batch)

    def _batch(
        self, items: list[Item], values: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Batch | None:
        """The batch, or None if it is not for this pipeline."""
        if not items or not isinstance(items[0][0], StorePath):
            return None
        store = items[0][0].store
        array = values.as_ndarray_like()
        if not isinstance(store, IcechunkStore) or not isinstance(array, np.ndarray):
            return None
        if items[0][1].fill_value is None:
            return None
        codecs = ChunkCodecs.of(
            self.array_array_codecs, self.array_bytes_codec, self.bytes_bytes_codecs
        )
        if codecs is None:
            return None
        return Batch.of(store, items, array, drop_axes, codecs)


register_pipeline(BulkCodecPipeline)


def use_bulk_pipeline(enabled: bool = True) -> None:
    """Read and write whole selections at once, in arrays that Zarr opens from here on.

    Zarr chooses the pipeline of an array when the array is opened, for all stores alike. Arrays of
    other stores work as before.

    Args:
        enabled: False returns to Zarr's default pipeline.
    """
    name = BulkCodecPipeline if enabled else BatchedCodecPipeline
    zarr.config.set({"codec_pipeline.path": f"{name.__module__}.{name.__qualname__}"})
