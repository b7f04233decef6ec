"""Stored objects and the extent of references to them, as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes, find_id
from icefloe.ids import encode_base32_rows
from icefloe.maintenance.check_manifest import distinct_ids
from icefloe.maintenance.findings import FindingKind, FindingLog
from icefloe.maintenance.listing import StoredObjects

_TEXTS_AT_ONCE = 4096
_NOBODY = -1


class ObjectTable:
    """The objects of one folder, ascending by id, with their size and the end of their last use."""

    def __init__(self, found: StoredObjects, spell: Callable[[bytes], str] | None = None) -> None:
        """`spell` has the names of objects that are not in the listing, if they are not the text
        of their ids."""
        keys = np.ascontiguousarray(found.id).view("S12").reshape(-1)
        order = np.argsort(keys, kind="stable")
        self.folder = found.folder
        self._name = None if found.name is None else found.name[order]
        self._spell = spell
        self.id: Bytes = found.id[order]
        self.size_bytes = found.size_bytes[order]
        self.is_used = np.zeros(len(order), np.bool_)
        self._keys = keys[order]
        self._end = np.zeros(len(order), np.int64)
        self._user = np.full(len(order), _NOBODY, np.int32)
        self._paths: dict[str, int] = {}
        self._lost: list[tuple[Bytes, NDArray[np.int64], str]] = []

    def __len__(self) -> int:
        return len(self.id)

    def mark(self, object_id: bytes) -> bool:
        """Record a reference to an object. Returns whether the object exists."""
        row = find_id(self.id, object_id)
        if row >= 0:
            self.is_used[row] = True
        return row >= 0

    def size_of(self, object_id: bytes) -> int:
        """The size of an object, 0 if it does not exist."""
        row = find_id(self.id, object_id)
        return int(self.size_bytes[row]) if row >= 0 else 0

    def refer(self, native: pa.RecordBatch) -> None:
        """Record the references of a manifest: rows of `check_manifest.NATIVE`.

        Manifests come in ascending order, so the path reported for an object is deterministic.
        """
        if not native.num_rows:
            return
        for path in pc.unique(native["path"]).to_pylist():
            rows = native.filter(pc.equal(native["path"], path))
            ids = np.frombuffer(b"".join(rows["chunk_id"].to_pylist()), np.uint8).reshape(-1, 12)
            self._refer(ids, np.asarray(rows["end"]), path)

    def _refer(self, ids: Bytes, end: NDArray[np.int64], path: str) -> None:
        keys = np.ascontiguousarray(ids).view("S12").reshape(-1)
        rows = np.searchsorted(self._keys, keys)
        is_there = np.zeros(len(keys), np.bool_)
        inside = rows < len(self._keys)
        is_there[inside] = self._keys[rows[inside]] == keys[inside]
        if not is_there.all():
            self._lost.append((ids[~is_there], end[~is_there], path))
        found = rows[is_there]
        self.is_used[found] = True
        self._end[found] = np.maximum(self._end[found], end[is_there])
        number = self._paths.setdefault(path, len(self._paths))
        new = found[self._user[found] == _NOBODY]
        self._user[new] = number

    def is_whole(self, ids: Bytes, end: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which objects exist and are long enough."""
        keys = np.ascontiguousarray(ids).view("S12").reshape(-1)
        rows = np.minimum(np.searchsorted(self._keys, keys), max(len(self._keys) - 1, 0))
        if not len(self._keys):
            return np.zeros(len(keys), np.bool_)
        whole: NDArray[np.bool_] = (self._keys[rows] == keys) & (self.size_bytes[rows] >= end)
        return whole

    # -- findings

    def note_problems(self, log: FindingLog) -> None:
        """Findings for missing and short objects, and for bytes that nothing refers to."""
        self._note_lost(log)
        names = list(self._paths) or [""]

        def note(kind: FindingKind, rows: NDArray[np.int64]) -> None:
            log.add_many(
                kind,
                len(rows),
                (
                    (key, length_detail(size, end), names[user])
                    for key, size, end, user in zip(
                        self._keys_of(rows),
                        self.size_bytes[rows].tolist(),
                        self._end[rows].tolist(),
                        self._user[rows].tolist(),
                        strict=False,
                    )
                ),
            )

        is_referred = self._user != _NOBODY
        note(FindingKind.SHORT_CHUNK, np.flatnonzero(self._end > self.size_bytes))
        is_long = is_referred & (self._end < self.size_bytes)
        note(FindingKind.LONG_CHUNK, np.flatnonzero(is_long))

    def _note_lost(self, log: FindingLog) -> None:
        if not self._lost:
            return
        ids = np.concatenate([ids for ids, _, _ in self._lost])
        end = np.concatenate([end for _, end, _ in self._lost])
        part = np.repeat(np.arange(len(self._lost)), [len(ids) for ids, _, _ in self._lost])
        keys = np.ascontiguousarray(ids).view("S12").reshape(-1)
        first = np.unique(keys, return_index=True)[1]
        distinct, farthest = distinct_ids(ids, end)
        log.add_many(
            FindingKind.MISSING_CHUNK,
            len(distinct),
            (
                (key, missing_detail(reach), self._lost[int(part[row])][2])
                for key, reach, row in zip(
                    self._lost_keys(distinct), farthest.tolist(), first.tolist(), strict=True
                )
            ),
        )

    def note_orphans(self, log: FindingLog) -> None:
        """Objects that nothing refers to."""
        rows = np.flatnonzero(~self.is_used)
        log.add_many(
            FindingKind.ORPHAN,
            len(rows),
            (
                (key, orphan_detail(size), "")
                for key, size in zip(
                    self._keys_of(rows), self.size_bytes[rows].tolist(), strict=True
                )
            ),
        )

    def _keys_of(self, rows: NDArray[np.int64]) -> Iterator[str]:
        if self._name is None:
            return _texts(self.folder, self.id[rows])
        listed = (name.decode("utf-8", "replace") for name in self._name[rows].tolist())
        return (self.folder + name for name in listed)

    def _lost_keys(self, ids: Bytes) -> Iterator[str]:
        spell = self._spell
        if spell is None:
            return _texts(self.folder, ids)
        return (self.folder + spell(row.tobytes()) for row in ids)


def length_detail(size: int, end: int) -> str:
    """The actual and the expected size of an object."""
    return f"the object has {size:,} bytes, references reach byte {end:,}"


def missing_detail(end: int) -> str:
    """The expected size of a missing object."""
    return f"the object does not exist, references reach byte {end:,}"


def orphan_detail(size: int) -> str:
    """The size of an unreferenced object."""
    return f"nothing refers to its {size:,} bytes"


def _texts(folder: str, ids: Bytes) -> Iterator[str]:
    """Keys, created lazily."""
    for first in range(0, len(ids), _TEXTS_AT_ONCE):
        for text in encode_base32_rows(ids[first : first + _TEXTS_AT_ONCE]):
            yield folder + text
