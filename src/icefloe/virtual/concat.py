"""Which dimensions files are joined along, when nobody says, and which variables they share."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.errors import InvalidInputError
from icefloe.virtual.axes import Axis, AxisKey, coordinate_of
from icefloe.virtual.description import SourceDescription
from icefloe.virtual.plan import IngestOptions


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
    seen: dict[AxisKey, set[object]] = {}
    scalars: dict[str, set[bytes | None]] = {}
    for source in sources:
        for scope, group in source.groups.items():
            for name, size in group.dimensions.items():
                coordinate = coordinate_of(source, scope, name)
                digest = None if coordinate is None else coordinate.digest
                units = "" if coordinate is None else str(coordinate.attributes.get("units"))
                seen.setdefault((scope, name), set()).add((size, digest, units))
        named = _named_coordinates(source)
        for path, variable in source.variables.items():
            if not variable.shape and path in named:
                scalars.setdefault(path, set()).add(variable.digest)
    differ = [name for (_, name), found in seen.items() if len(found) > 1]
    if not differ:
        differ = [path for path, found in scalars.items() if len(found) > 1]
    if not differ and _share_variables(sources):
        raise InvalidInputError(
            f"the {len(sources)} files have the same coordinates everywhere, so it is not known "
            "how they follow each other: name the dimension with concat_dim"
        )
    return tuple(dict.fromkeys(differ))


def _named_coordinates(source: SourceDescription) -> set[str]:
    """Variables that others call their coordinates."""
    return {
        name
        for variable in source.variables.values()
        for name in str(variable.attributes.get("coordinates", "")).split()
    }


def _share_variables(sources: Sequence[SourceDescription]) -> bool:
    seen: set[str] = set()
    for source in sources:
        for path, variable in source.variables.items():
            if variable.is_coordinate or variable.digest is not None:
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
        variable = source.variables.get(name)
        if variable is not None and not variable.shape:
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
    digests: dict[str, set[bytes | None]] = {}
    chosen: set[str] = set()
    for source in sources:
        if source is None:
            continue
        named = _named_coordinates(source)
        for path, variable in source.variables.items():
            digests.setdefault(path, set()).add(variable.digest)
            if path in named or not variable.shape:
                chosen.add(path)
    return frozenset(
        path for path in chosen if len(digests[path]) == 1 and None not in digests[path]
    )
