"""A Zarr codec pipeline that reads and writes all chunks of a selection together.

Zarr's own pipelines ask the store for one chunk at a time. This one looks the references of a
selection up over columns, reads them in few requests, and decodes in threads. Codecs that need an
event loop are served by Zarr's default pipeline, which this one extends.

Zarr has one configured class of pipelines for all stores, and asks it for the pipeline of an array
and a store. This class answers with itself for stores of ours, and with Zarr's default for others.
The first store of ours puts it into the configuration, unless something else was chosen there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.abc.codec import Codec
from zarr.abc.store import ByteGetter, ByteSetter, Store
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core import array as zarr_array
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.on_demand import on_demand
from icefloe.store.zarr_store import IcechunkStore

if TYPE_CHECKING:
    from icefloe.store import bulk_batch, bulk_read, bulk_write, chunk_codecs, few_chunks
else:
    bulk_batch = on_demand("icefloe.store.bulk_batch")
    bulk_read = on_demand("icefloe.store.bulk_read")
    bulk_write = on_demand("icefloe.store.bulk_write")
    chunk_codecs = on_demand("icefloe.store.chunk_codecs")
    few_chunks = on_demand("icefloe.store.few_chunks")

Item = tuple[Any, ArraySpec, Any, Any, bool]

_BATCH_SIZE = "codec_pipeline.batch_size"
_PLAIN = {BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec}
"""Codecs that are equal only if they do the same."""
_MOST_KEPT = 256
_made_before: dict[Any, BulkCodecPipeline] = {}

FEWEST_CHUNKS = 4
"""Fewer are read one after the other."""


class BulkCodecPipeline(BatchedCodecPipeline):
    """See the module."""

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> Any:
        """The pipeline of an array: this one for our stores, Zarr's default for others."""
        if not isinstance(store, IcechunkStore):
            return zarr_array.create_codec_pipeline(array_metadata)
        codecs = getattr(array_metadata, "codecs", ())
        if not codecs or not all(type(codec) in _PLAIN for codec in codecs):
            return cls._made(array_metadata)
        # Groups with thousands of arrays are opened faster if arrays alike share their pipeline.
        grid, dtype = array_metadata.chunk_grid, array_metadata.data_type
        alike = (codecs, grid, dtype, repr(array_metadata.fill_value), zarr.config.get(_BATCH_SIZE))
        found = _made_before.get(alike)
        if found is None:
            if len(_made_before) >= _MOST_KEPT:
                _made_before.clear()
            found = _made_before[alike] = cls._made(array_metadata)
        return found

    @classmethod
    def _made(cls, array_metadata: Any) -> BulkCodecPipeline:
        made: Any = zarr_array.create_codec_pipeline(array_metadata)
        return cls(
            made.array_array_codecs,
            made.array_bytes_codec,
            made.bytes_bytes_codecs,
            made.batch_size,
        )

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec], *, batch_size: int | None = None) -> Any:
        """Zarr's default, because the store is not known. Shards ask so for their inner chunks."""
        return BatchedCodecPipeline.from_codecs(codecs, batch_size=batch_size)

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, Any, Any, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Read a selection into `out`. Returns whether each chunk was present, as Zarr wants it."""
        items = list(batch_info)
        selection = self._selection(items, out, drop_axes)
        if selection is not None and self._is_few(selection):
            return await few_chunks.read(selection)
        is_part = selection is not None and any(map(selection.codecs.is_part_enough, items))
        batch = self._batch(selection, 1 if is_part else FEWEST_CHUNKS)
        # Of a shard that is read in part, only the wanted inner chunks are fetched.
        is_partial = self.supports_partial_decode and not all(item[4] for item in items)
        if batch is None or (is_partial and batch.codecs.sharding is None):
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
        selection = self._selection(items, value, drop_axes)
        if selection is not None and self._is_few(selection):
            await few_chunks.write(selection)
            return
        batch = self._batch(selection, FEWEST_CHUNKS)
        if batch is None or (self.supports_partial_encode and not all(item[4] for item in items)):
            await super().write(items, value, drop_axes)
            return
        if self.supports_partial_encode and items[0][1].config.write_empty_chunks:
            # Inner chunks outside of the array are not written, as Zarr's default leaves them out.
            inside = [at for at, item in enumerate(items) if chunk_codecs.is_whole(item)]
            if len(inside) < len(items):
                edge = [item for item in items if not chunk_codecs.is_whole(item)]
                await super().write(edge, value, drop_axes)
                batch = batch.part(inside)
        if batch.items:
            await bulk_write.write(batch)

    def _is_few(self, selection: chunk_codecs.Selection) -> bool:
        """Whether chunks are few and small, and parts of a shard are not enough."""
        is_few = len(selection.items) < FEWEST_CHUNKS and not self.supports_partial_decode
        return is_few and few_chunks.are_small(selection)

    def _batch(
        self, selection: chunk_codecs.Selection | None, fewest: int
    ) -> bulk_batch.Batch | None:
        """The batch, or None if Zarr's default does it as well."""
        if selection is None or len(selection.items) < fewest:
            return None
        return bulk_batch.Batch.of(selection)

    def _selection(
        self, items: list[Item], values: NDBuffer, drop_axes: tuple[int, ...]
    ) -> chunk_codecs.Selection | None:
        """The selection, or None if something is of a kind that only Zarr's default knows."""
        if not items or not isinstance(items[0][0], StorePath):
            return None
        store = items[0][0].store
        array = values.as_ndarray_like()
        if not isinstance(store, IcechunkStore) or not isinstance(array, np.ndarray):
            return None
        if items[0][1].fill_value is None:
            return None
        codecs = chunk_codecs.ChunkCodecs.of(
            self.array_array_codecs, self.array_bytes_codec, self.bytes_bytes_codecs
        )
        if codecs is None:
            return None
        return chunk_codecs.Selection(store, items, array, drop_axes, codecs)


register_pipeline(BulkCodecPipeline)


_PATH = "codec_pipeline.path"
_ZARRS = f"{BatchedCodecPipeline.__module__}.{BatchedCodecPipeline.__qualname__}"
_OURS = f"{BulkCodecPipeline.__module__}.{BulkCodecPipeline.__qualname__}"


class _Choice:
    """Whether stores of ours choose the pipeline."""

    is_automatic = True


def choose_pipeline() -> None:
    """Choose the pipeline for arrays of our stores. Any other than Zarr's default is left alone."""
    if _Choice.is_automatic and zarr.config.get(_PATH) == _ZARRS:
        zarr.config.set({_PATH: _OURS})


def use_bulk_pipeline(enabled: bool = True) -> None:
    """Whether arrays of our stores read and write whole selections at once, if opened from here on.

    They do unless Zarr is configured to use another pipeline. Arrays of other stores always have
    the pipelines of Zarr.

    Args:
        enabled: False returns to Zarr's default pipeline, True chooses this one instead of any.
    """
    _Choice.is_automatic = enabled
    zarr.config.set({_PATH: _OURS if enabled else _ZARRS})
