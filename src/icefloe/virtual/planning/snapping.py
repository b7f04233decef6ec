"""Coordinates that differ between files by rounding only are taken for the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.model.description import SourceDescription, VariableDescription
from icefloe.virtual.model.shared_variables import digest_in, form_of, has_values

TOLERANCE = 1e-10
"""Of the largest value, and far below the steps between values."""
_MAX_FORMS = 16
"""A coordinate with more different values than this is one that files are joined along."""


def snap_coordinates(sources: Sequence[SourceDescription]) -> list[SourceDescription]:
    """Give coordinates that are almost those of an earlier file the values of that file."""
    forms: dict[str, dict[bytes, VariableDescription]] = {}
    result = []
    for source in sources:
        changed: dict[str, VariableDescription] = {}
        variables = source.variables
        for path in variables:
            digest = digest_in(variables, path)
            if digest is None or not has_values(variables, path):
                continue
            known = forms.setdefault(path, {})
            if not form_of(variables, path).shape or (
                digest not in known and len(known) >= _MAX_FORMS
            ):
                continue
            variable = variables[path]
            if digest in known:
                same = known[digest]
            else:
                same = next((one for one in known.values() if _is_close(one, variable)), variable)
                known[digest] = same
            if same.digest != variable.digest:
                changed[path] = replace(variable, values=same.values, digest=same.digest)
        result.append(
            source if not changed else replace(source, variables={**variables, **changed})
        )
    return result


def _is_close(one: VariableDescription, other: VariableDescription) -> bool:
    mine, theirs = one.values, other.values
    assert mine is not None
    assert theirs is not None
    if mine.shape != theirs.shape or mine.dtype.kind != "f" or mine.dtype != theirs.dtype:
        return False
    if one.attributes.get("units") != other.attributes.get("units"):
        return False
    allowed = TOLERANCE * _largest(mine)
    steps = np.abs(np.diff(mine))
    if steps.size and allowed > steps.min() / 1000:
        return False
    return bool((np.abs(mine - theirs) <= allowed).all())


def _largest(values: NDArray[Any]) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0
