"""One small chunk, or a few: read and written one after the other, without tasks or threads.

Zarr's pipelines make several tasks for each chunk and hand each codec to a thread. For a small
chunk that takes longer than the work itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from icefloe.repo.workspace import Workspace
from icefloe.store import operations
from icefloe.store.chunk_codecs import ChunkCodecs, is_empty, merged, scatter
from icefloe.store.zarr_store import IcechunkStore

MOST_BYTES = 64 << 10
"""Of a decoded chunk. Larger ones are decoded and encoded by threads."""


class FewChunks:
    """A selection as Zarr hands it over: one item per chunk, all of one array."""

    def __init__(
        self,
        store: IcechunkStore,
        items: Sequence[Any],
        values: np.ndarray[Any, Any],
        drop_axes: tuple[int, ...],
        codecs: ChunkCodecs,
    ) -> None:
        self._store = store
        self._workspace = Workspace(store._eventloop, store._state)
        self._items = items
        self._values = values
        self._drop_axes = drop_axes
        self._codecs = codecs

    @property
    def is_small(self) -> bool:
        """Whether nothing is gained by tasks or threads."""
        spec = self._items[0][1]
        is_here = len(self._items) == 1 or self._store._eventloop.driver.is_local
        return is_here and prod(spec.shape) * spec.dtype.to_native_dtype().itemsize < MOST_BYTES

    async def read(self) -> tuple[Any, ...]:
        """Read every chunk into the values. Returns Zarr's status of each chunk."""
        found = []
        for item in self._items:
            raw = await operations.get(self._workspace, item[0].path)
            if raw is None:
                self._values[item[3]] = item[1].fill_value
            else:
                chunk = self._codecs.decoder(item[1])(raw)
                scatter(chunk, item, self._values, self._drop_axes)
            found.append({"status": "missing" if raw is None else "present"})
        return tuple(found)

    async def write(self) -> None:
        """Write the values."""
        self._store._check_writable()
        codecs = self._codecs
        for item in self._items:
            key, spec = item[0].path, item[1]
            existing = None if item[4] else await operations.get(self._workspace, key)
            chunk = merged(codecs, self._values, item, self._drop_axes, existing)
            encoded = None if is_empty(chunk, spec) else codecs.encode(chunk, spec)
            if encoded is None:
                await operations.delete(self._workspace, key)
            else:
                await operations.set_key(self._workspace, key, encoded)
