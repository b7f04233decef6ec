"""Manifests that are written before the commit that is going to list them.

The tasks of a big job write whole manifests. A session then takes over how they are referred to,
and which chunks were touched, instead of every reference: from then on they are the manifests of
the array, as if its snapshot had them, and further edits lie on top.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icefloe.changes.split_grid import Box
from icefloe.format.columns.packed_index import PackedIndex
from icefloe.format.snapshot.file import ManifestFileInfo
from icefloe.format.snapshot.nodes import ArrayData, ManifestRef
from icefloe.ids import ManifestId


@dataclass(frozen=True, slots=True)
class NewManifest:
    """A manifest that was made: how nodes refer to it, and what the snapshot lists."""

    ref: ManifestRef
    info: ManifestFileInfo


@dataclass(frozen=True, slots=True)
class PreparedPiece:
    """Some neighbouring splits that were written ahead."""

    boxes: tuple[Box, ...]
    """Those that were written; others are as before."""
    replaced: tuple[ManifestId, ...]
    """The manifests they were in before; what they held is in the new ones."""
    new: tuple[NewManifest, ...]
    touched: PackedIndex
    """The chunks that were set or deleted."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedArray:
    """What was written ahead for one array."""

    base: tuple[ManifestId, ...]
    """The array's manifests in the snapshot that all this was laid over."""
    boxes: frozenset[Box]
    """The splits that were written."""
    manifests: tuple[ManifestRef, ...]
    """Its manifests now, those of the snapshot that stayed included."""
    files: tuple[ManifestFileInfo, ...]
    """The files of those that the snapshot does not list."""
    touched: PackedIndex

    def rebased(self, array: ArrayData | None) -> PreparedArray | None:
        """The same for a later state of the array, in which other splits may have changed; None
        where it was one of these, so that their manifests do not hold what they should."""
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
    """What the manifests of an array are; none when there is no array."""
    return () if array is None else tuple(ref.id for ref in array.manifests)


def prepare_array(
    base: ArrayData | None,
    before: PreparedArray | None,
    pieces: Sequence[PreparedPiece],
    ndim: int,
) -> PreparedArray:
    """Put pieces in the place of manifests of an array, in the snapshot or written ahead before."""
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
    """Whether a box of one has chunks in common with a box of the other."""
    if not ours or not theirs:
        return False
    left = np.array(list(ours), np.int64).reshape(len(ours), -1, 2)
    for box in theirs:
        right = np.array(box, np.int64).reshape(-1, 2)
        common = (left[:, :, 0] < right[:, 1]) & (right[:, 0] < left[:, :, 1])
        if bool(common.all(axis=1).any()):
            return True
    return False
