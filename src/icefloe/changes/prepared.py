"""Prepared manifests: written by the tasks of a large job, before the commit that lists them.

The session receives a reference to each manifest and the indices of the chunks that were touched,
not every chunk reference. The prepared manifests then count as manifests of the array, as if they
were in its snapshot. Further edits are laid over them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from icefloe.changes.split_grid import Box
from icefloe.format.columns.packed_index import PackedIndex
from icefloe.format.snapshot.file import ManifestFileInfo
from icefloe.format.snapshot.manifest_refs import ManifestRef
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.ids import ManifestId
from icefloe.records import NamedTuple, record


class NewManifest(NamedTuple):
    """A new manifest: the reference of its node, and the entry in the snapshot."""

    ref: ManifestRef
    info: ManifestFileInfo


@record(frozen=True)
class PreparedPiece:
    """Neighbouring splits whose manifests one task wrote."""

    boxes: tuple[Box, ...]
    """The splits that were written. Other splits are unchanged."""
    replaced: tuple[ManifestId, ...]
    """The old manifests of these splits. The new manifests contain their references."""
    new: tuple[NewManifest, ...]
    touched: PackedIndex
    """The chunks that were set or deleted."""


@record(frozen=True, eq=False)
class PreparedArray:
    """All prepared manifests of one array."""

    base: tuple[ManifestId, ...]
    """The array's manifests in the snapshot that the job started from."""
    boxes: frozenset[Box]
    """The splits that were written."""
    manifests: Sequence[ManifestRef]
    """The array's manifests now: the prepared ones, and those of the snapshot that are kept."""
    files: tuple[ManifestFileInfo, ...]
    """The files of the prepared manifests, which the snapshot does not list."""
    touched: PackedIndex

    def rebased(self, array: ArrayData | None) -> PreparedArray | None:
        """The same on top of a later state of the array.

        None if one of the prepared splits has changed since, because its manifest lacks that
        change.
        """
        base = manifest_ids(array)
        if base == self.base:
            return self
        before = set(self.base)
        replaced = before - {ref.id for ref in self.manifests}
        now = () if array is None else array.manifests
        came = [ref.extents for ref in now if ref.id not in before]
        if not replaced <= set(base) or _overlap(self.boxes, came):
            return None
        stayed = [ref for ref in now if ref.id not in replaced]
        files = {info.id for info in self.files}
        ahead = [ref for ref in self.manifests if ref.id in files]
        return replace(self, base=base, manifests=_ordered([*stayed, *ahead]))


def manifest_ids(array: ArrayData | None) -> tuple[ManifestId, ...]:
    """The ids of the manifests of an array; empty when there is no array."""
    return () if array is None else tuple(ref.id for ref in array.manifests)


def prepare_array(
    base: ArrayData | None,
    before: PreparedArray | None,
    pieces: Sequence[PreparedPiece],
    ndim: int,
) -> PreparedArray:
    """Replace manifests of an array, from the snapshot or prepared earlier, with those of
    pieces."""
    if before is None:
        manifests = () if base is None else base.manifests
        nothing = PackedIndex(ndim)
        before = PreparedArray(manifest_ids(base), frozenset(), manifests, (), nothing)
    gone = {key for piece in pieces for key in piece.replaced}
    new = [made for piece in pieces for made in piece.new]
    refs = [ref for ref in before.manifests if ref.id not in gone]
    files = [info for info in before.files if info.id not in gone]
    touched = [before.touched, *(piece.touched for piece in pieces)]
    return PreparedArray(
        before.base,
        before.boxes | {box for piece in pieces for box in piece.boxes},
        _ordered([*refs, *(made.ref for made in new)]),
        (*files, *(made.info for made in new)),
        PackedIndex.union(touched, ndim),
    )


def _ordered(refs: Sequence[ManifestRef]) -> tuple[ManifestRef, ...]:
    return tuple(sorted(refs, key=lambda ref: ref.extents))


def _overlap(ours: Collection[Box], theirs: Collection[Box]) -> bool:
    """Whether any box of one collection intersects a box of the other."""
    if not ours or not theirs:
        return False
    left = np.array(list(ours), np.int64).reshape(len(ours), -1, 2)
    for box in theirs:
        right = np.array(box, np.int64).reshape(-1, 2)
        common = (left[:, :, 0] < right[:, 1]) & (right[:, 0] < left[:, :, 1])
        if bool(common.all(axis=1).any()):
            return True
    return False
