"""The bytes of the chunks of all snapshots that are reachable from branches and tags."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.maintenance import live
from icefloe.maintenance.live import DEFAULT_LIMITS, Limits
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import ChunkStorageStats
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.handle import RepoHandle

_ROWS_AT_ONCE = 1 << 20


@observed("chunk_storage_stats", MAINTENANCE)
async def chunk_storage_stats(
    handle: RepoHandle, limits: Limits = DEFAULT_LIMITS, report: Reporter | None = None
) -> ChunkStorageStats:
    """Bytes of chunks by where they are.

    A native chunk counts once, however many manifests refer to it, and so does a virtual one;
    chunks of a packed object count each. Inline bytes count in every manifest that holds them.
    """
    tips = await live.ref_tips(handle)
    snapshots = await live.reachable_snapshots(handle, tips.values())
    files = await live.manifest_files(handle, snapshots, limits)
    native, virtual, inlined = DistinctRows(28), DistinctRows(24), 0
    places: dict[str, int] = {}
    done = 0
    async for manifest in live.each_manifest(handle, files, limits):
        for array in manifest.arrays:
            table = array.refs
            native.add(native_rows(table))
            virtual.add(_virtual_rows(table, places))
            inlined += int(table.length[table.kind == ChunkKind.INLINE].sum())
        done += 1
        if report is not None:
            report.tell("reading manifests", done, len(files))
    return ChunkStorageStats(_total_length(native), _total_length(virtual), inlined)


def native_rows(table: ChunkRefs) -> Bytes:
    """Id, offset and length of every native chunk."""
    rows = np.flatnonzero(table.kind == ChunkKind.NATIVE)
    if table.chunk_id is None:
        return np.empty((0, 28), np.uint8)
    return np.concatenate([table.chunk_id[rows], _place(table, rows)], axis=1)


def _virtual_rows(table: ChunkRefs, places: dict[str, int]) -> Bytes:
    """Location number, offset and length of every virtual chunk."""
    rows = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
    if table.location is None or not len(rows):
        return np.empty((0, 24), np.uint8)
    locations = table.location.values.strings().to_list()
    numbers = np.array([places.setdefault(text, len(places)) for text in locations], "<u8")
    codes = numbers[table.location.codes[rows]].view(np.uint8).reshape(-1, 8)
    return np.concatenate([codes, _place(table, rows)], axis=1)


def _place(table: ChunkRefs, rows: NDArray[np.int64]) -> Bytes:
    columns = np.stack([table.offset[rows], table.length[rows]], axis=1).astype("<u8")
    return np.ascontiguousarray(columns).view(np.uint8).reshape(-1, 16)


def _total_length(rows: DistinctRows) -> int:
    length = np.ascontiguousarray(rows.finish()[:, -8:]).view("<u8")
    return int(length.sum(dtype=np.uint64))


class DistinctRows:
    """Distinct rows of bytes, deduplicated regularly, so that repetitions take no memory."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = np.empty((0, width), np.uint8)
        self._waiting: list[Bytes] = []
        self._num_waiting = 0

    def add(self, rows: Bytes) -> None:
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        if self._num_waiting > max(_ROWS_AT_ONCE, len(self._rows)):
            self.finish()

    def finish(self) -> Bytes:
        everything = np.concatenate([self._rows, *self._waiting])
        keys = np.unique(everything.view(f"S{self._width}").reshape(-1))
        self._rows = keys.view(np.uint8).reshape(-1, self._width)
        self._waiting, self._num_waiting = [], 0
        return self._rows
