"""One small chunk, or a few: read and written one after the other, without tasks or threads.

Zarr's pipelines make several tasks for each chunk and hand each codec to a thread. For a small
chunk that takes longer than the work itself.
"""

from __future__ import annotations

from typing import Any

from icefloe.repo.workspace import Workspace
from icefloe.store import operations
from icefloe.store.chunk_codecs import Selection, is_empty, merged, scatter

MOST_BYTES = 64 << 10
"""Of a decoded chunk. Larger ones are decoded and encoded by threads."""


def are_small(selection: Selection) -> bool:
    """Whether nothing is gained by tasks or threads."""
    is_here = len(selection.items) == 1 or selection.store._eventloop.driver.is_local
    return is_here and selection.chunk_bytes < MOST_BYTES


async def read(selection: Selection) -> tuple[Any, ...]:
    """Read every chunk into the values. Returns Zarr's status of each chunk."""
    workspace, values = _workspace(selection), selection.values
    found = []
    for item in selection.items:
        raw = await operations.get(workspace, item[0].path)
        if raw is None:
            values[item[3]] = item[1].fill_value
        else:
            chunk = selection.codecs.decoder(item[1])(raw)
            scatter(chunk, item, values, selection.drop_axes)
        found.append({"status": "missing" if raw is None else "present"})
    return tuple(found)


async def write(selection: Selection) -> None:
    """Write the values."""
    selection.store._check_writable()
    workspace, codecs = _workspace(selection), selection.codecs
    for item in selection.items:
        key, spec = item[0].path, item[1]
        existing = None if item[4] else await operations.get(workspace, key)
        chunk = merged(codecs, selection.values, item, selection.drop_axes, existing)
        encoded = None if is_empty(chunk, spec) else codecs.encode(chunk, spec)
        if encoded is None:
            await operations.delete(workspace, key)
        else:
            await operations.set_key(workspace, key, encoded)


def _workspace(selection: Selection) -> Workspace:
    store = selection.store
    return Workspace(store._eventloop, store._state)
