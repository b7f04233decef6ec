"""Manifests that are written before the commit that is going to list them.

The tasks of a big job write whole manifests. A session then takes over how they are referred to,
and which chunks were touched, instead of every reference: from then on they are the manifests of
the array, as if its snapshot had them, and further edits lie on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icefloe.format.nodes import ArrayData, ManifestRef
from icefloe.format.packed_index import PackedIndex
from icefloe.format.snapshot import ManifestFileInfo
from icefloe.ids import ManifestId


@dataclass(frozen=True, slots=True)
class NewManifest:
    """A manifest that was made: how nodes refer to it, and what the snapshot lists."""

    ref: ManifestRef
    info: ManifestFileInfo


@dataclass(frozen=True, slots=True)
class PreparedSplit:
    """One split that was written ahead."""

    replaced: tuple[ManifestId, ...]
    """The manifests it was in before; what they held is in the new one."""
    new: NewManifest | None
    """None when no chunk is left."""
    touched: PackedIndex
    """The chunks that were set or deleted."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedArray:
    """What was written ahead for one array."""

    base: tuple[ManifestId, ...]
    """The array's manifests in the snapshot that all this was laid over."""
    manifests: tuple[ManifestRef, ...]
    """Its manifests now, those of the snapshot that stayed included."""
    files: tuple[ManifestFileInfo, ...]
    """The files of those that the snapshot does not list."""
    touched: PackedIndex

    def fits(self, array: ArrayData | None) -> bool:
        """Whether an array of a snapshot has the very manifests that these were laid over."""
        return self.base == manifest_ids(array)


def manifest_ids(array: ArrayData | None) -> tuple[ManifestId, ...]:
    """What the manifests of an array are; none when there is no array."""
    return () if array is None else tuple(ref.id for ref in array.manifests)


def prepare_array(
    base: ArrayData | None,
    before: PreparedArray | None,
    splits: Sequence[PreparedSplit],
    ndim: int,
) -> PreparedArray:
    """Put splits in the place of manifests of an array, in the snapshot or written ahead before."""
    if before is None:
        manifests = () if base is None else base.manifests
        before = PreparedArray(manifest_ids(base), manifests, (), PackedIndex(ndim))
    gone = {key for split in splits for key in split.replaced}
    new = [split.new for split in splits if split.new is not None]
    refs = [ref for ref in before.manifests if ref.id not in gone]
    refs = sorted([*refs, *(made.ref for made in new)], key=lambda ref: ref.extents)
    files = [info for info in before.files if info.id not in gone]
    touched = [before.touched, *(split.touched for split in splits)]
    return PreparedArray(
        before.base,
        tuple(refs),
        (*files, *(made.info for made in new)),
        PackedIndex.union(touched, ndim),
    )
