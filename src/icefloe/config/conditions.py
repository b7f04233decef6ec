"""The conditions of manifest rules: which arrays, which axes, which manifests.

Regular expressions are searched for, not anchored; one that does not compile matches nothing,
because a rule another writer put into the repository must not make it unreadable. The rules
themselves are in `manifest.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

from icefloe import paths
from icefloe.config.section import U32, U64
from icefloe.display.shown import qualified
from icefloe.records import record


class SplitKind(StrEnum):
    """The forms of an array condition, spelled as in config files."""

    OR = "or"
    AND = "and"
    PATH_MATCHES = "path_matches"
    NAME_MATCHES = "name_matches"
    ANY_ARRAY = "any_array"


@record(frozen=True, repr=False)
class ManifestSplitCondition:
    """Which arrays a splitting rule is about; made by the static methods, joined by `|` and `&`.

    >>> hourly = ManifestSplitCondition.name_matches("^hourly_")
    >>> (hourly | ManifestSplitCondition.path_matches("^/model/")).matches("/obs/hourly_wind")
    True
    """

    kind: SplitKind
    regex: str = ""
    conditions: tuple[ManifestSplitCondition, ...] = ()

    @staticmethod
    def or_conditions(conditions: Iterable[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Arrays for which at least one of `conditions` holds."""
        return ManifestSplitCondition(SplitKind.OR, conditions=_all_split(conditions))

    @staticmethod
    def and_conditions(conditions: Iterable[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Arrays for which all of `conditions` hold."""
        return ManifestSplitCondition(SplitKind.AND, conditions=_all_split(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestSplitCondition:
        """Arrays whose path, such as `/group/array`, contains a match.

        Args:
            regex: a regular expression, searched in it.
        """
        return ManifestSplitCondition(SplitKind.PATH_MATCHES, _text("regex", regex))

    @staticmethod
    def name_matches(regex: str) -> ManifestSplitCondition:
        """Arrays whose name, the last part of the path, contains a match.

        Args:
            regex: a regular expression, searched in it.
        """
        return ManifestSplitCondition(SplitKind.NAME_MATCHES, _text("regex", regex))

    @staticmethod
    def any_array() -> ManifestSplitCondition:
        """Every array."""
        return ManifestSplitCondition(SplitKind.ANY_ARRAY)

    @staticmethod
    def AnyArray() -> ManifestSplitCondition:  # noqa: N802 (Icechunk's spelling)
        """Every array; Icechunk's name for `any_array`."""
        return ManifestSplitCondition.any_array()

    def __repr__(self) -> str:
        title = qualified("ManifestSplitCondition", "config")
        if self.kind in (SplitKind.OR, SplitKind.AND):
            return f"{title}.{self.kind}_conditions({list(self.conditions)})"
        argument = "" if self.kind is SplitKind.ANY_ARRAY else json.dumps(self.regex)
        return f"{title}.{self.kind}({argument})"

    def __or__(self, other: ManifestSplitCondition) -> ManifestSplitCondition:
        if not isinstance(other, ManifestSplitCondition):
            return NotImplemented
        return ManifestSplitCondition.or_conditions((self, other))

    def __and__(self, other: ManifestSplitCondition) -> ManifestSplitCondition:
        if not isinstance(other, ManifestSplitCondition):
            return NotImplemented
        return ManifestSplitCondition.and_conditions((self, other))

    def matches(self, path: str) -> bool:
        """Whether the rule is about the array at `path`."""
        match self.kind:
            case SplitKind.OR:
                return any(condition.matches(path) for condition in self.conditions)
            case SplitKind.AND:
                return all(condition.matches(path) for condition in self.conditions)
            case SplitKind.PATH_MATCHES:
                return _contains_match(self.regex, path)
            case SplitKind.NAME_MATCHES:
                return _contains_match(self.regex, paths.name(path))
            case SplitKind.ANY_ARRAY:
                return True


class DimensionKind(StrEnum):
    """The forms of a dimension condition, spelled as in config files."""

    AXIS = "Axis"
    DIMENSION_NAME = "DimensionName"
    ANY = "Any"


@record(frozen=True, repr=False)
class ManifestSplitDimCondition:
    """Which axis of an array a split size is about."""

    kind: DimensionKind
    axis: int = 0
    regex: str = ""

    @staticmethod
    def Axis(axis: int) -> ManifestSplitDimCondition:  # noqa: N802 (Icechunk's spelling)
        """The axis at this position: `axis`."""
        return ManifestSplitDimCondition(DimensionKind.AXIS, U64.check("axis", axis))

    @staticmethod
    def DimensionName(regex: str) -> ManifestSplitDimCondition:  # noqa: N802
        """Axes whose dimension name contains a match of `regex`; never an unnamed one."""
        return ManifestSplitDimCondition(
            DimensionKind.DIMENSION_NAME, regex=_text("dimension name", regex)
        )

    @staticmethod
    def Any() -> ManifestSplitDimCondition:  # noqa: N802
        """Every axis no earlier rule decided."""
        return ManifestSplitDimCondition(DimensionKind.ANY)

    def __repr__(self) -> str:
        arguments = {DimensionKind.AXIS: f"{self.axis}", DimensionKind.ANY: ""}
        argument = arguments.get(self.kind, json.dumps(self.regex))
        return f"{qualified('ManifestSplitDimCondition', 'config')}.{self.kind}({argument})"

    def matches(self, axis: int, dimension_name: str | None) -> bool:
        """Whether the size is about this axis.

        Args:
            axis: its number.
            dimension_name: its name, if it has one.
        """
        match self.kind:
            case DimensionKind.AXIS:
                return axis == self.axis
            case DimensionKind.DIMENSION_NAME:
                return dimension_name is not None and _contains_match(self.regex, dimension_name)
            case DimensionKind.ANY:
                return True


class PreloadKind(StrEnum):
    """The forms of a preload condition, spelled as in config files."""

    OR = "or"
    AND = "and"
    PATH_MATCHES = "path_matches"
    NAME_MATCHES = "name_matches"
    NUM_REFS = "num_refs"
    TRUE = "true"
    FALSE = "false"


@record(frozen=True, repr=False)
class ManifestPreloadCondition:
    """Which manifests are fetched when a session opens; joined by `|` and `&`.

    >>> small = ManifestPreloadCondition.num_refs(None, 1000)
    >>> (small & ManifestPreloadCondition.name_matches("^lat")).matches("/lat", num_refs=999)
    True
    """

    kind: PreloadKind
    regex: str = ""
    conditions: tuple[ManifestPreloadCondition, ...] = ()
    from_refs: int | None = None
    to_refs: int | None = None

    @staticmethod
    def or_conditions(conditions: Iterable[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Manifests for which at least one of `conditions` holds."""
        return ManifestPreloadCondition(PreloadKind.OR, conditions=_all_preload(conditions))

    @staticmethod
    def and_conditions(conditions: Iterable[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Manifests for which all of `conditions` hold."""
        return ManifestPreloadCondition(PreloadKind.AND, conditions=_all_preload(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestPreloadCondition:
        """Manifests of arrays whose path contains a match.

        Args:
            regex: a regular expression, searched in it.
        """
        return ManifestPreloadCondition(PreloadKind.PATH_MATCHES, _text("regex", regex))

    @staticmethod
    def name_matches(regex: str) -> ManifestPreloadCondition:
        """Manifests of arrays whose name contains a match.

        Args:
            regex: a regular expression, searched in it.
        """
        return ManifestPreloadCondition(PreloadKind.NAME_MATCHES, _text("regex", regex))

    @staticmethod
    def num_refs(from_refs: int | None, to_refs: int | None) -> ManifestPreloadCondition:
        """Manifests with at least `from_refs` and fewer than `to_refs` chunk references."""
        return ManifestPreloadCondition(
            PreloadKind.NUM_REFS,
            from_refs=None if from_refs is None else U32.check("from_refs", from_refs),
            to_refs=None if to_refs is None else U32.check("to_refs", to_refs),
        )

    @staticmethod
    def true() -> ManifestPreloadCondition:
        """Every manifest."""
        return ManifestPreloadCondition(PreloadKind.TRUE)

    @staticmethod
    def false() -> ManifestPreloadCondition:
        """No manifest."""
        return ManifestPreloadCondition(PreloadKind.FALSE)

    def __repr__(self) -> str:
        title = qualified("ManifestPreloadCondition", "config")
        match self.kind:
            case PreloadKind.OR | PreloadKind.AND:
                return f"{title}.{self.kind}_conditions({list(self.conditions)})"
            case PreloadKind.NUM_REFS:
                argument = f"{self.from_refs}, {self.to_refs}"
            case PreloadKind.TRUE | PreloadKind.FALSE:
                argument = ""
            case _:
                argument = json.dumps(self.regex)
        return f"{title}.{self.kind}({argument})"

    def __or__(self, other: ManifestPreloadCondition) -> ManifestPreloadCondition:
        if not isinstance(other, ManifestPreloadCondition):
            return NotImplemented
        return ManifestPreloadCondition.or_conditions((self, other))

    def __and__(self, other: ManifestPreloadCondition) -> ManifestPreloadCondition:
        if not isinstance(other, ManifestPreloadCondition):
            return NotImplemented
        return ManifestPreloadCondition.and_conditions((self, other))

    def matches(self, path: str, num_refs: int | None) -> bool:
        """Whether to preload a manifest of `num_refs` references of the array at `path`.

        Args:
            path: of the array.
            num_refs: None asks whether there is a number for which the answer is yes.
        """
        match self.kind:
            case PreloadKind.OR:
                return any(condition.matches(path, num_refs) for condition in self.conditions)
            case PreloadKind.AND:
                return all(condition.matches(path, num_refs) for condition in self.conditions)
            case PreloadKind.PATH_MATCHES:
                return _contains_match(self.regex, path)
            case PreloadKind.NAME_MATCHES:
                return _contains_match(self.regex, paths.name(path))
            case PreloadKind.NUM_REFS:
                if num_refs is None:
                    return True
                is_enough = self.from_refs is None or self.from_refs <= num_refs
                return is_enough and (self.to_refs is None or num_refs < self.to_refs)
            case PreloadKind.TRUE:
                return True
            case PreloadKind.FALSE:
                return False


def _all_split(conditions: Iterable[object]) -> tuple[ManifestSplitCondition, ...]:
    found = []
    for condition in conditions:
        if not isinstance(condition, ManifestSplitCondition):
            raise TypeError(f"expected a ManifestSplitCondition, found {condition!r}")
        found.append(condition)
    return tuple(found)


def _all_preload(conditions: Iterable[object]) -> tuple[ManifestPreloadCondition, ...]:
    found = []
    for condition in conditions:
        if not isinstance(condition, ManifestPreloadCondition):
            raise TypeError(f"expected a ManifestPreloadCondition, found {condition!r}")
        found.append(condition)
    return tuple(found)


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
