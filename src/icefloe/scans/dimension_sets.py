"""Which arrays of a group share rows: those within one set of dimensions.

Bounds of coordinates (`bounds`, `climatology` of CF) have a dimension of their own that nobody
asks for. They are left out unless they are named.
"""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.scans.options import ReadOptions
from icefloe.scans.variables import Variable, find_variables

Dimensions = tuple[str, ...]


def choose_variables(session: Session, options: ReadOptions) -> list[Variable]:
    """The arrays that a read of cells is about.

    Raises:
        InvalidInputError: the group has no arrays, or several sets of dimensions to choose from.
    """
    names = options.variables
    if names is None:
        group = options.group
        known = find_variables(session, group, None, decode=options.decode, is_coded=False)
        if not known:
            raise InvalidInputError(
                f"group {group or '/'!r} has no arrays to read", ErrorKind.NODE_NOT_FOUND
            )
        dims = _only_set(group, known) if options.dims is None else options.dims
        names = names_within(known, dims)
        if not any(set(v.dimensions) == set(dims) for v in known):
            raise InvalidInputError(
                f"dims is {list(dims)}, but no array of group {group!r} has these dimensions; "
                f"there are {_described(known, _all_sets(known))}"
            )
    return find_variables(session, options.group, names, decode=options.decode, is_coded=True)


def dimension_sets(variables: Sequence[Variable]) -> list[Dimensions]:
    """The dimensions that rows can have so that every array is in some of them, widest first."""
    bounds = {v.bounds for v in variables}
    shown = [v for v in variables if v.name not in bounds]
    data = [v for v in shown if v.dimensions and not v.is_coordinate] or shown or list(variables)
    return [
        dims for dims in _all_sets(data) if not any(set(dims) < set(v.dimensions) for v in data)
    ]


def names_within(variables: Sequence[Variable], dims: Sequence[str]) -> tuple[str, ...]:
    """The arrays whose dimensions are among these."""
    return tuple(v.name for v in variables if set(v.dimensions) <= set(dims))


def _only_set(group: str, variables: Sequence[Variable]) -> Dimensions:
    sets = dimension_sets(variables)
    if len(sets) > 1:
        raise InvalidInputError(
            f"group {group!r} has arrays of {len(sets)} sets of dimensions: "
            f"{_described(variables, sets)}; say which to read, such as dims={list(sets[0])}, or "
            "name arrays with variables=[...]"
        )
    return sets[0]


def _all_sets(variables: Sequence[Variable]) -> list[Dimensions]:
    """Each set once, in the order that its first array has, widest first."""
    found: dict[frozenset[str], Dimensions] = {}
    for variable in variables:
        found.setdefault(frozenset(variable.dimensions), variable.dimensions)
    return sorted(found.values(), key=len, reverse=True)


def _described(variables: Sequence[Variable], sets: Sequence[Dimensions]) -> str:
    parts = []
    for dims in sets:
        names = [v.name for v in variables if set(v.dimensions) == set(dims)]
        more = ", ..." if len(names) > 3 else ""
        parts.append(f"({', '.join(dims)}) of {', '.join(names[:3])}{more}")
    return "; ".join(parts)
