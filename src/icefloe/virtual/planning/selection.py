"""The variables a user asks for, with the coordinates they cannot be read without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icefloe.virtual.model.description import SourceDescription, VariableDescription
from icefloe.virtual.model.shared_variables import form_of
from icefloe.virtual.planning.ledger import LEDGER_GROUP


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
        what = "no variables" if wanted is None else f"none of the variables {list(wanted)}"
        return source, f"it has {what}; it has {sorted(source.variables)}"
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
