"""Coordinates that differ between files by rounding only are taken for the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.description import SourceDescription, VariableDescription

TOLERANCE = 1e-10
"""Of the largest value, and far below the steps between values."""
_MOST_FORMS = 16
"""A coordinate with more different values than this is one that files are joined along."""


def snap_coordinates(sources: Sequence[SourceDescription]) -> list[SourceDescription]:
    """Give coordinates that are almost those of an earlier file the values of that file."""
    forms: dict[str, dict[bytes, VariableDescription]] = {}
    result = []
    for source in sources:
        changed: dict[str, VariableDescription] = {}
        for path, variable in source.variables.items():
            if variable.values is None or variable.digest is None or not variable.shape:
                continue
            known = forms.setdefault(path, {})
            if variable.digest in known or len(known) >= _MOST_FORMS:
                same = known.get(variable.digest, variable)
            else:
                same = next((one for one in known.values() if _is_close(one, variable)), variable)
                known[variable.digest] = same
            if same.digest != variable.digest:
                changed[path] = replace(variable, values=same.values, digest=same.digest)
        result.append(
            source if not changed else replace(source, variables={**source.variables, **changed})
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
