"""How manifests are split, preloaded and fetched, and how their locations are compressed.

Rules have conditions: which arrays, which axes, which manifests. Their regular expressions are
searched for, not anchored; one that does not compile matches nothing, because a rule another
writer put into the repository must not make it unreadable.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeAlias

from icefloe import paths
from icefloe.config.section import (
    I32,
    NONZERO_U32,
    U16,
    U32,
    U64,
    Number,
    NumberOrNone,
    Option,
    Resolved,
    Section,
    SectionOption,
)
from icefloe.display import qualified


class ConditionKind(StrEnum):
    """The forms of a condition on arrays or manifests, spelled as in config files."""

    OR = "or"
    AND = "and"
    PATH_MATCHES = "path_matches"
    NAME_MATCHES = "name_matches"
    ANY_ARRAY = "any_array"
    NUM_REFS = "num_refs"
    TRUE = "true"
    FALSE = "false"


class DimensionKind(StrEnum):
    """The forms of a dimension condition, spelled as in config files."""

    AXIS = "Axis"
    DIMENSION_NAME = "DimensionName"
    ANY = "Any"


@dataclass(frozen=True, slots=True, repr=False)
class Condition:
    """What conditions on arrays and on manifests have in common."""

    kinds: ClassVar[tuple[ConditionKind, ...]] = (
        ConditionKind.OR,
        ConditionKind.AND,
        ConditionKind.PATH_MATCHES,
        ConditionKind.NAME_MATCHES,
    )
    """The forms there are."""

    kind: ConditionKind
    regex: str = ""
    conditions: tuple[Self, ...] = ()

    @classmethod
    def or_conditions(cls, conditions: Iterable[Self]) -> Self:
        """What at least one of `conditions` holds for.

        >>> both = [icefloe.ManifestSplitCondition.name_matches(name) for name in ("^lat", "^lon")]
        >>> either = icefloe.ManifestSplitCondition.or_conditions(both)
        """
        return cls(ConditionKind.OR, conditions=cls._all(conditions))

    @classmethod
    def and_conditions(cls, conditions: Iterable[Self]) -> Self:
        """What all of `conditions` hold for.

        >>> both = [icefloe.ManifestSplitCondition.name_matches(name) for name in ("^t2m", "_max$")]
        >>> all_of_them = icefloe.ManifestSplitCondition.and_conditions(both)
        """
        return cls(ConditionKind.AND, conditions=cls._all(conditions))

    @classmethod
    def path_matches(cls, regex: str) -> Self:
        """Arrays whose path, such as `/group/array`, has a match of `regex`; or their manifests.

        >>> icefloe.ManifestSplitCondition.path_matches("^/era5/").matches("/era5/t2m")
        True
        """
        return cls(ConditionKind.PATH_MATCHES, _text("regex", regex))

    @classmethod
    def name_matches(cls, regex: str) -> Self:
        """Arrays whose name, the end of the path, has a match of `regex`; or their manifests.

        >>> icefloe.ManifestSplitCondition.name_matches("^t2m$").matches("/era5/t2m")
        True
        """
        return cls(ConditionKind.NAME_MATCHES, _text("regex", regex))

    @classmethod
    def _all(cls, conditions: Iterable[object]) -> tuple[Self, ...]:
        found = []
        for condition in conditions:
            if not isinstance(condition, cls):
                raise TypeError(f"expected a {cls.__name__}, found {condition!r}")
            found.append(condition)
        return tuple(found)

    def __repr__(self) -> str:
        title = qualified(type(self).__name__, "config")
        if self.kind in (ConditionKind.OR, ConditionKind.AND):
            return f"{title}.{self.kind}_conditions({list(self.conditions)})"
        return f"{title}.{self.kind}({self._argument()})"

    def _argument(self) -> str:
        has_regex = self.kind in (ConditionKind.PATH_MATCHES, ConditionKind.NAME_MATCHES)
        return json.dumps(self.regex) if has_regex else ""

    def __or__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.or_conditions((self, other))

    def __and__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.and_conditions((self, other))

    def _holds(self, path: str, num_refs: int | None = None) -> bool:
        match self.kind:
            case ConditionKind.OR:
                return any(condition._holds(path, num_refs) for condition in self.conditions)
            case ConditionKind.AND:
                return all(condition._holds(path, num_refs) for condition in self.conditions)
            case ConditionKind.PATH_MATCHES:
                return _contains_match(self.regex, path)
            case ConditionKind.NAME_MATCHES:
                return _contains_match(self.regex, paths.name(path))
            case _:
                return self.kind is not ConditionKind.FALSE


@dataclass(frozen=True, repr=False)
class ManifestSplitCondition(Condition):
    """Which arrays a splitting rule is about; made by the class methods, joined by `|` and `&`.

    >>> hourly = ManifestSplitCondition.name_matches("^hourly_")
    >>> (hourly | ManifestSplitCondition.path_matches("^/model/")).matches("/obs/hourly_wind")
    True
    """

    kinds = (*Condition.kinds, ConditionKind.ANY_ARRAY)

    @staticmethod
    def any_array() -> ManifestSplitCondition:
        """Every array.

        >>> every = icefloe.ManifestSplitCondition.any_array()
        """
        return ManifestSplitCondition(ConditionKind.ANY_ARRAY)

    @staticmethod
    def AnyArray() -> ManifestSplitCondition:  # noqa: N802 (Icechunk's spelling)
        """Every array; Icechunk's name for `any_array`.

        >>> icefloe.ManifestSplitCondition.AnyArray() == icefloe.ManifestSplitCondition.any_array()
        True
        """
        return ManifestSplitCondition.any_array()

    def matches(self, path: str) -> bool:
        """Whether the rule is about the array at `path`.

        >>> icefloe.ManifestSplitCondition.any_array().matches("/t2m")
        True
        """
        return self._holds(path)


@dataclass(frozen=True, slots=True, repr=False)
class ManifestSplitDimCondition:
    """Which axis of an array a split size is about.

    >>> time = icefloe.ManifestSplitDimCondition.DimensionName("^time$")
    >>> every = icefloe.ManifestSplitCondition.any_array()
    >>> config = icefloe.ManifestSplittingConfig.from_dict({every: {time: 10_000}})
    """

    kind: DimensionKind
    axis: int = 0
    regex: str = ""

    @staticmethod
    def Axis(axis: int) -> ManifestSplitDimCondition:  # noqa: N802 (Icechunk's spelling)
        """The axis at this position: `axis`.

        >>> first = icefloe.ManifestSplitDimCondition.Axis(0)
        """
        return ManifestSplitDimCondition(DimensionKind.AXIS, U64.check("axis", axis))

    @staticmethod
    def DimensionName(regex: str) -> ManifestSplitDimCondition:  # noqa: N802
        """Axes whose dimension name contains a match of `regex`; never an unnamed one.

        >>> time = icefloe.ManifestSplitDimCondition.DimensionName("^time$")
        """
        return ManifestSplitDimCondition(
            DimensionKind.DIMENSION_NAME, regex=_text("dimension name", regex)
        )

    @staticmethod
    def Any() -> ManifestSplitDimCondition:  # noqa: N802
        """Every axis no earlier rule decided.

        >>> others = icefloe.ManifestSplitDimCondition.Any()
        """
        return ManifestSplitDimCondition(DimensionKind.ANY)

    def __repr__(self) -> str:
        arguments = {DimensionKind.AXIS: f"{self.axis}", DimensionKind.ANY: ""}
        argument = arguments.get(self.kind, json.dumps(self.regex))
        return f"{qualified('ManifestSplitDimCondition', 'config')}.{self.kind}({argument})"

    def matches(self, axis: int, dimension_name: str | None) -> bool:
        """Whether the size is about the axis number `axis`, whose name is `dimension_name`.

        >>> icefloe.ManifestSplitDimCondition.Axis(0).matches(0, "time")
        True
        """
        match self.kind:
            case DimensionKind.AXIS:
                return axis == self.axis
            case DimensionKind.DIMENSION_NAME:
                return dimension_name is not None and _contains_match(self.regex, dimension_name)
            case DimensionKind.ANY:
                return True


@dataclass(frozen=True, repr=False)
class ManifestPreloadCondition(Condition):
    """Which manifests are fetched when a session opens; joined by `|` and `&`.

    >>> small = ManifestPreloadCondition.num_refs(None, 1000)
    >>> (small & ManifestPreloadCondition.name_matches("^lat")).matches("/lat", num_refs=999)
    True
    """

    kinds = (*Condition.kinds, ConditionKind.NUM_REFS, ConditionKind.TRUE, ConditionKind.FALSE)

    from_refs: int | None = None
    to_refs: int | None = None

    @staticmethod
    def num_refs(from_refs: int | None, to_refs: int | None) -> ManifestPreloadCondition:
        """Manifests with at least `from_refs` and fewer than `to_refs` chunk references.

        >>> small = icefloe.ManifestPreloadCondition.num_refs(None, 1_000)
        """
        return ManifestPreloadCondition(
            ConditionKind.NUM_REFS,
            from_refs=None if from_refs is None else U32.check("from_refs", from_refs),
            to_refs=None if to_refs is None else U32.check("to_refs", to_refs),
        )

    @staticmethod
    def true() -> ManifestPreloadCondition:
        """Every manifest.

        >>> every = icefloe.ManifestPreloadCondition.true()
        """
        return ManifestPreloadCondition(ConditionKind.TRUE)

    @staticmethod
    def false() -> ManifestPreloadCondition:
        """No manifest.

        >>> none = icefloe.ManifestPreloadCondition.false()
        """
        return ManifestPreloadCondition(ConditionKind.FALSE)

    def _argument(self) -> str:
        is_range = self.kind is ConditionKind.NUM_REFS
        return f"{self.from_refs}, {self.to_refs}" if is_range else super()._argument()

    def matches(self, path: str, num_refs: int | None) -> bool:
        """Whether to preload a manifest of `num_refs` references of the array at `path`.

        None asks whether there is a number for which the answer is yes.

        >>> icefloe.ManifestPreloadCondition.true().matches("/t2m", num_refs=4)
        True
        """
        return self._holds(path, num_refs)

    def _holds(self, path: str, num_refs: int | None = None) -> bool:
        if self.kind is not ConditionKind.NUM_REFS or num_refs is None:
            return super()._holds(path, num_refs)
        is_enough = self.from_refs is None or self.from_refs <= num_refs
        return is_enough and (self.to_refs is None or num_refs < self.to_refs)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, found {value!r}")
    return value


def _contains_match(regex: str, text: str) -> bool:
    pattern = _compiled(regex)
    return pattern is not None and pattern.search(text) is not None


@lru_cache(maxsize=256)
def _compiled(regex: str) -> re.Pattern[str] | None:
    try:
        return re.compile(regex)
    except (re.error, OverflowError, RecursionError):
        return None


SplitSize: TypeAlias = tuple[ManifestSplitDimCondition, int]
SplitRule: TypeAlias = tuple[ManifestSplitCondition, tuple[SplitSize, ...]]

# Names of coordinate variables after the CF conventions: small arrays that most readers want.
COORDINATE_NAMES = (
    r"^\bt\b$|^(time|min|hour|day|week|month|year)[0-9]*$",
    (
        r"^(z|nav_lev|gdep|lv_|[o]*lev|bottom_top|sigma|h(ei)?ght|altitude|depth|isobaric|pres|"
        r"isotherm)[a-z_]*[0-9]*$"
    ),
    r"^(y|j|nlat|rlat|nj)$",
    r"^y?(nav_lat|lat|gphi)[a-z0-9]*$",
    r"^x?(nav_lon|lon|glam)[a-z0-9]*$",
    r"^(x|i|nlon|rlon|ni)$",
)

SMALL_COORDINATES = ManifestPreloadCondition.and_conditions(
    (
        ManifestPreloadCondition.or_conditions(
            map(ManifestPreloadCondition.name_matches, COORDINATE_NAMES)
        ),
        ManifestPreloadCondition.num_refs(None, 1001),
    )
)
"""Coordinate variables whose manifest has at most 1000 references."""

ONE_MANIFEST_PER_ARRAY: tuple[SplitRule, ...] = (
    (
        ManifestSplitCondition.path_matches(".*"),
        ((ManifestSplitDimCondition.Any(), 2**32 - 1),),
    ),
)


@dataclass(repr=False)
class ManifestPreloadConfig(Section):
    """Which manifests are fetched in the background when a session opens.

    >>> lat = icefloe.ManifestPreloadCondition.name_matches("^lat")
    >>> preload = icefloe.ManifestPreloadConfig(preload_if=lat)
    """

    max_total_refs: Number = Option(
        U32, 10_000, "chunk references fetched ahead with the first manifest"
    )
    preload_if: Option[ManifestPreloadCondition | None, ManifestPreloadCondition] = Option(
        ManifestPreloadCondition,
        SMALL_COORDINATES,
        "which arrays: by default those named like coordinates, with at most 1000 references",
        default_in_words="coordinates",
    )
    max_arrays_to_scan: Number = Option(U32, 50, "arrays looked at for that")

    def merge(self, other: Self) -> Self:
        """`other`: the three options only make sense together, so they are taken whole.

        >>> preload = icefloe.ManifestPreloadConfig(max_total_refs=10_000)
        >>> preload.merge(icefloe.ManifestPreloadConfig()).max_total_refs is None
        True
        """
        return copy.deepcopy(other)


class ResolvedPreload(Resolved, ManifestPreloadConfig):
    """The preloading in force."""


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


@dataclass(repr=False)
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

    split_sizes: Option[tuple[SplitRule, ...] | None, tuple[SplitRule, ...]] = Option(
        tuple,
        (),
        convert=_rules,
        doc="rules that cut the manifests of arrays; without a rule, `max_refs_per_manifest` cuts",
    )

    @staticmethod
    def from_dict(
        split_sizes: Mapping[ManifestSplitCondition, Mapping[ManifestSplitDimCondition, int]],
    ) -> ManifestSplittingConfig:
        """Rules in the order of the dict.

        `split_sizes` has conditions on arrays, with conditions on dimensions and the chunks per
        manifest.

        >>> every, first = ManifestSplitCondition.any_array(), ManifestSplitDimCondition.Axis(0)
        >>> config = icefloe.ManifestSplittingConfig.from_dict({every: {first: 10_000}})
        """
        return ManifestSplittingConfig(_rules(split_sizes))

    def to_dict(self) -> dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]]:
        """The rules as nested dicts; empty when none are set.

        A condition that occurs twice keeps its first sizes, which are the ones that decide.

        >>> icefloe.ManifestSplittingConfig().to_dict()
        {}
        """
        rules: dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]] = {}
        for arrays, sizes in self.split_sizes or ():
            axes = rules.setdefault(arrays, {})
            for axis, size in sizes:
                axes.setdefault(axis, size)
        return rules

    def merge(self, other: Self) -> Self:
        """`other`: the order of rules matters, so two lists are not mixed.

        >>> config = icefloe.ManifestSplittingConfig().merge(icefloe.ManifestSplittingConfig())
        """
        return copy.deepcopy(other)


class ResolvedSplitting(Resolved, ManifestSplittingConfig):
    """The splitting in force; arrays no rule is about are split by their size."""


@dataclass(repr=False)
class ManifestVirtualChunkLocationCompressionConfig(Section):
    """When and how the locations of virtual chunks are compressed inside a manifest.

    They are not unless a configuration has this section: a manifest is compressed as a whole, and
    is smaller with plain locations.

    >>> small = icefloe.ManifestVirtualChunkLocationCompressionConfig(min_num_chunks=1_000)
    >>> config = icefloe.ManifestConfig(virtual_chunk_location_compression=small)
    """

    min_num_chunks: Number = Option(
        U16, 1000, "virtual chunks from which the locations of a manifest are compressed"
    )
    _: KW_ONLY
    dictionary_max_training_samples: Number = Option(
        U16, 100, "locations that the dictionary is trained with"
    )
    dictionary_max_size_bytes: Number = Option(U32, 2048, "bytes of the dictionary")
    compression_level: Number = Option(I32, 3, "of the locations")


class ResolvedLocationCompression(Resolved, ManifestVirtualChunkLocationCompressionConfig):
    """The compression of locations in force."""


@dataclass(repr=False)
class ManifestConfig(Section):
    """Everything about manifests.

    `max_refs_per_manifest` is icefloe's own: arrays that no rule of `splitting` is about are cut
    along their first axis; 0 keeps one manifest per array, as Icechunk does. So are the options of
    shared manifests: small arrays that a commit writes go together, but for those that a rule of
    `splitting` is about. Icechunk ignores these options when it reads a saved configuration, and
    does not write them back.

    >>> preload = icefloe.ManifestPreloadConfig(max_total_refs=10_000)
    >>> config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(preload=preload))
    """

    preload: Option[ManifestPreloadConfig | None, ResolvedPreload] = SectionOption(
        ManifestPreloadConfig, ResolvedPreload
    )
    splitting: Option[ManifestSplittingConfig | None, ResolvedSplitting] = SectionOption(
        ManifestSplittingConfig, ResolvedSplitting
    )
    virtual_chunk_location_compression: Option[
        ManifestVirtualChunkLocationCompressionConfig | None, ResolvedLocationCompression | None
    ] = SectionOption(
        ManifestVirtualChunkLocationCompressionConfig,
        ResolvedLocationCompression,
        absent=None,
        doc="of Icechunk 2: locations compressed inside manifests",
    )
    max_concurrent_manifest_fetches_during_commit: NumberOrNone = Option(
        U16, at_least=1, doc="manifests that a commit reads at once; as memory allows if not set"
    )
    # Measured: a commit then rewrites about a megabyte for each place it touches, and a reader
    # fetches as much for its first chunk.
    max_refs_per_manifest: Number = Option(
        U32, 2**17, "references of one manifest of a large array; 0 cuts none", is_own=True
    )
    max_shared_refs_per_array: Number = Option(
        U32,
        64,
        "arrays with at most so many references share manifests; 0 gives each array its own",
        is_own=True,
    )
    # So many that the default condition of preloading, also that of Icechunk, is met.
    max_refs_per_shared_manifest: Number = Option(
        U32, 1000, "references of one shared manifest", is_own=True
    )
    max_bytes_per_shared_manifest: Number = Option(
        NONZERO_U32,
        2**20,
        "bytes of one shared manifest, chunks kept inline included, before it is compressed",
        is_own=True,
    )


class ResolvedManifest(Resolved, ManifestConfig):
    """The settings of manifests in force."""
