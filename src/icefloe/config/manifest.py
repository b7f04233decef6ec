"""How manifests are split, preloaded and fetched, and how their locations are compressed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from typing import Any, Self, TypeAlias

from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.section import (
    NONZERO_U32,
    OptionalI32,
    OptionalU16,
    OptionalU32,
    Section,
)
from icefloe.records import record

SplitSize: TypeAlias = tuple[ManifestSplitDimCondition, int]
SplitRule: TypeAlias = tuple[ManifestSplitCondition, tuple[SplitSize, ...]]


@record()
class ManifestPreloadConfig(Section):
    """Which manifests are fetched in the background when a session opens."""

    max_total_refs: OptionalU32 = None
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: OptionalU32 = None

    def merge(self, other: Self) -> Self:
        """`other`: the three options only make sense together, so they are taken whole."""
        return copy.deepcopy(other)


@record()
class ManifestSplittingConfig(Section):
    """How many chunks go into one manifest, as an ordered list of rules.

    For each axis of an array, the first rule that is about both decides; an axis no rule is
    about is not split. Rules can be given as a dict of dicts or as pairs of pairs.

    >>> config = ManifestSplittingConfig.from_dict(
    ...     {ManifestSplitCondition.any_array(): {ManifestSplitDimCondition.Axis(0): 365}}
    ... )
    >>> config.split_sizes[0][1][0][1]
    365
    """

    split_sizes: tuple[SplitRule, ...] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if name == "split_sizes" and value is not None:
            value = _rules(value)
        Section.__setattr__(self, name, value)

    @staticmethod
    def from_dict(
        split_sizes: Mapping[ManifestSplitCondition, Mapping[ManifestSplitDimCondition, int]],
    ) -> ManifestSplittingConfig:
        """Rules in the order of the dict.

        Args:
            split_sizes: conditions on arrays, with conditions on dimensions and chunks per
                manifest.
        """
        return ManifestSplittingConfig(_rules(split_sizes))

    def to_dict(self) -> dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]]:
        """The rules as nested dicts; empty when none are set.

        A condition that occurs twice keeps its first sizes, which are the ones that decide.
        """
        rules: dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]] = {}
        for arrays, sizes in self.split_sizes or ():
            axes = rules.setdefault(arrays, {})
            for axis, size in sizes:
                axes.setdefault(axis, size)
        return rules

    def merge(self, other: Self) -> Self:
        """`other`: the order of rules matters, so two lists are not mixed."""
        return copy.deepcopy(other)


@record()
class ManifestVirtualChunkLocationCompressionConfig(Section):
    """When and how the locations of virtual chunks are compressed inside a manifest.

    They are not unless a configuration has this section: a manifest is compressed as a whole, and
    is smaller with plain locations.
    """

    min_num_chunks: OptionalU16 = None
    _: KW_ONLY
    dictionary_max_training_samples: OptionalU16 = None
    dictionary_max_size_bytes: OptionalU32 = None
    compression_level: OptionalI32 = None


@record()
class ManifestConfig(Section):
    """Everything about manifests.

    `max_refs_per_manifest` is icefloe's own: arrays that no rule of `splitting` is about are cut
    along their first axis into manifests of at most so many references (131072 unless set); 0
    keeps one manifest per array, as Icechunk does. Icechunk ignores the option when it reads a
    saved configuration, and does not write it back.
    """

    preload: ManifestPreloadConfig | None = None
    splitting: ManifestSplittingConfig | None = None
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = None
    max_concurrent_manifest_fetches_during_commit: OptionalU16 = None
    max_refs_per_manifest: OptionalU32 = None


def _pairs(value: Any, name: str) -> Iterable[tuple[Any, Any]]:
    """Two-element items of a mapping or sequence; TypeError for anything else."""
    items = value.items() if isinstance(value, Mapping) else value
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise TypeError(f"{name} must be a dict or a sequence of pairs, found {value!r}")
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"{name} must hold pairs, found {item!r}")
        yield item[0], item[1]


def _rules(value: object) -> tuple[SplitRule, ...]:
    rules = []
    for arrays, sizes in _pairs(value, "split_sizes"):
        if not isinstance(arrays, ManifestSplitCondition):
            raise TypeError(f"split_sizes needs ManifestSplitConditions, found {arrays!r}")
        checked = []
        for axis, size in _pairs(sizes, "split sizes of an array condition"):
            if not isinstance(axis, ManifestSplitDimCondition):
                raise TypeError(f"split_sizes needs ManifestSplitDimConditions, found {axis!r}")
            checked.append((axis, NONZERO_U32.check("split size", size)))
        rules.append((arrays, tuple(checked)))
    return tuple(rules)
