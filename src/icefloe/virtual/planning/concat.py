"""Finds the dimensions that files are joined along, and the variables that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Generic, TypeVar

from icefloe.errors import InvalidInputError
from icefloe.records import record
from icefloe.virtual.model.description import SourceDescription
from icefloe.virtual.model.shared_variables import digest_in, form_of, forms_of
from icefloe.virtual.planning.axes import Axis, AxisKey
from icefloe.virtual.planning.plan import IngestOptions

Key = TypeVar("Key")


def find_dimensions(
    sources: Sequence[SourceDescription], options: IngestOptions
) -> tuple[str, ...]:
    """The dimensions that sources are joined along: those given, else those that differ."""
    return options.concat_dims or options.ranked_dims or detect_concat_dims(sources)


def detect_concat_dims(sources: Sequence[SourceDescription]) -> tuple[str, ...]:
    """Dimensions whose coordinates (or sizes, without coordinates) differ between files.

    Failing that, scalar coordinates that differ: they become dimensions. Files that share no
    variable but coordinates need none.

    Raises:
        InvalidInputError: files hold the same variables at the same coordinates.
    """
    if len(sources) < 2:
        return ()
    axes: _Differing[AxisKey] = _Differing()
    scalars: _Differing[str] = _Differing()
    for source in sources:
        variables = source.variables
        for scope, group in source.groups.items():
            for name, size in group.dimensions.items():
                path = f"{scope}/{name}" if scope else name
                units = ""
                if path in variables:
                    units = str(form_of(variables, path).attributes.get("units"))
                axes.see((scope, name), (size, digest_in(variables, path), units))
        named = _named_coordinates(source)
        for path in variables if named else ():
            if path in named and not form_of(variables, path).shape:
                scalars.see(path, digest_in(variables, path))
    differ = [name for _, name in axes.found()] or scalars.found()
    if not differ and _share_variables(sources):
        raise InvalidInputError(
            f"the {len(sources)} files have the same coordinates everywhere, so it is not known "
            "how they follow each other: name the dimension with concat_dim"
        )
    return tuple(dict.fromkeys(differ))


@record()
class _Differing(Generic[Key]):
    """Finds out what is not the same in all files, in memory that does not grow with them."""

    first: dict[Key, object] = field(default_factory=dict)
    differing: set[Key] = field(default_factory=set)

    def see(self, key: Key, value: object) -> None:
        if self.first.setdefault(key, value) != value:
            self.differing.add(key)

    def found(self) -> list[Key]:
        """Those that differ, in the order they were seen first."""
        return [key for key in self.first if key in self.differing]


def _named_coordinates(source: SourceDescription) -> set[str]:
    """Variables that others call their coordinates."""
    return {
        name
        for variable in forms_of(source.variables)
        for name in str(variable.attributes.get("coordinates", "")).split()
    }


def _share_variables(sources: Sequence[SourceDescription]) -> bool:
    seen: set[str] = set()
    for source in sources:
        for path in source.variables:
            is_coordinate = form_of(source.variables, path).is_coordinate
            if is_coordinate or digest_in(source.variables, path) is not None:
                continue
            if path in seen:
                return True
            seen.add(path)
    return False


def find_keys(name: str, sources: Sequence[SourceDescription | None]) -> list[AxisKey]:
    """The dimensions called `name`: in each group that defines it, or as a scalar at the root."""
    keys: dict[AxisKey, None] = {}
    for source in sources:
        if source is None:
            continue
        for scope, group in source.groups.items():
            if name in group.dimensions:
                keys[scope, name] = None
        if name in source.variables and not form_of(source.variables, name).shape:
            keys["", name] = None
    return list(keys)


def place_new(name: str, sources: Sequence[SourceDescription | None], num_old: int) -> Axis:
    """A dimension that no file has: one step for each file, in the order listed."""
    starts: dict[int, int] = {}
    first = 0
    for number, source in enumerate(sources):
        if source is None:
            continue
        if number < num_old:
            first = source.groups[""].dimensions.get(name, 0)
        else:
            starts[number] = first + len(starts)
    sizes = dict.fromkeys(starts, 1)
    return Axis(first + len(starts), starts, sizes, frozenset(starts))


def find_static(sources: Sequence[SourceDescription | None]) -> frozenset[str]:
    """Scalars, and variables that others call coordinates, that are the same in every file."""
    digests: _Differing[str] = _Differing()
    chosen: set[str] = set()
    for source in sources:
        if source is None:
            continue
        named = _named_coordinates(source)
        for path in source.variables:
            digests.see(path, digest_in(source.variables, path))
            if path in named or not form_of(source.variables, path).shape:
                chosen.add(path)
    unlike = digests.differing
    return frozenset(
        path for path in chosen if path not in unlike and digests.first[path] is not None
    )
