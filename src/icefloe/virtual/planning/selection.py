"""The variables a user asks for, with the coordinates they cannot be read without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from icefloe.errors import InvalidInputError
from icefloe.virtual.model.description import SourceDescription, VariableDescription
from icefloe.virtual.model.shared_variables import form_of
from icefloe.virtual.planning.ledger import LEDGER_GROUP
from icefloe.virtual.planning.plan import IngestOptions

_NEAR = 0.75
"""How alike names are that one is taken for a misspelt form of the other."""


def check_names(
    sources: Sequence[SourceDescription],
    options: IngestOptions,
    existing: SourceDescription | None,
) -> None:
    """Refuse names that neither a file nor the group has; sources may be known by version only.

    A dimension to join along may be new, unless its name is almost that of another one.

    Raises:
        InvalidInputError: names it, and the nearest one that there is.
    """
    opened = [source for source in sources if source.groups]
    if not opened:
        return
    known = [*opened, *(() if existing is None else (existing,))]
    dimensions = {
        name for one in known for group in one.groups.values() for name in group.dimensions
    }
    joined = set(options.concat_dims or options.ranked_dims)
    for name in sorted(joined - dimensions):
        is_scalar = any(name in source.variables for source in known)
        near = get_close_matches(name.casefold(), [*map(str.casefold, dimensions)], 1, _NEAR)
        if near and not is_scalar:
            argument = "order" if options.concat_dims is None else "concat_dim"
            raise _unknown(argument, name, dimensions, "dimension")
    for name in options.chunks:
        if name not in dimensions | joined:
            raise _unknown("chunks", name, dimensions | joined, "dimension")
    for name in options.variables or ():
        is_known = any(
            name in source.variables or any(path.endswith(f"/{name}") for path in source.variables)
            for source in known
        )
        if not is_known:
            paths = {path for source in known[:100] for path in source.variables}
            raise _unknown("variables", name, paths, "variable")


def _unknown(argument: str, name: str, known: Iterable[str], what: str) -> InvalidInputError:
    by_folded = {each.casefold(): each for each in known}
    near = get_close_matches(name.casefold(), by_folded, 1)
    hint = f"did you mean {by_folded[near[0]]!r}? " if near else ""
    return InvalidInputError(
        f"{argument} names {name!r}, a {what} that no file has; {hint}They have "
        f"{', '.join(sorted(by_folded.values())) or 'none'}"
    )


def select_variables(
    source: SourceDescription, wanted: Sequence[str] | None
) -> tuple[SourceDescription, str | None]:
    """The source with only these variables, and why it cannot be used, if it cannot."""
    variables = source.variables
    if wanted is not None:
        chosen = {
            path: variable
            for path, variable in variables.items()
            if path in wanted or variable.name in wanted
        }
        variables = {**chosen, **_coordinates(source, chosen)}
        variables = {path: variables[path] for path in source.variables if path in variables}
    if not variables:
        if not source.variables:
            return source, "it has no variables"
        return source, f"it has none of {list(wanted or ())}; it has {sorted(source.variables)}"
    for path in variables:
        variable = form_of(variables, path)
        if not is_zarr_path(path):
            return source, f"the name {path!r} cannot be that of an array in Zarr"
        if variable.data_type is None:
            return source, (
                f"variable {path!r} cannot be stored: {variable.reason}; leave it out with "
                "variables=[...]"
            )
    return (source if wanted is None else replace(source, variables=variables)), None


def is_zarr_path(path: str) -> bool:
    """Whether Zarr leaves a path as it is; it takes backslashes for slashes."""
    names = path.split("/")
    is_plain = "\\" not in path and not {"", ".", "..", "zarr.json"} & set(names)
    return is_plain and names[0] != LEDGER_GROUP


def _coordinates(
    source: SourceDescription, chosen: dict[str, VariableDescription]
) -> dict[str, VariableDescription]:
    """Coordinates of the dimensions, those named in `coordinates`, bounds and grid mappings."""
    found: dict[str, VariableDescription] = {}
    todo = list(chosen.values())
    while todo:
        variable = todo.pop()
        attributes = variable.attributes
        names = [*variable.dimensions, str(attributes.get("bounds", ""))]
        names += str(attributes.get("coordinates", "")).split()
        names += str(attributes.get("grid_mapping", "")).split()
        for name in filter(None, names):
            other = _visible(source, variable.group, name)
            if other is not None and other.path not in found and other.path not in chosen:
                found[other.path] = other
                todo.append(other)
    return found


def _visible(source: SourceDescription, group: str, name: str) -> VariableDescription | None:
    """A variable of this name in the group or the nearest one above it."""
    while True:
        found = source.variables.get(f"{group}/{name}" if group else name)
        if found is not None or not group:
            return found
        group = group.rpartition("/")[0]
