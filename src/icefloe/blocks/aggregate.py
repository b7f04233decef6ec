"""Reductions in two steps: partial results of blocks, and their combination.

Sums are kept in double precision. Variance is combined from counts, means and squared distances,
which does not cancel digits as the difference of two large sums would.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

Parts = dict[str, xr.Variable]
"""The partial result of one variable, by what it is: sum, count, mean, squares, extreme."""

NAMES = ("mean", "sum", "min", "max", "count", "std", "var")


class Partials(NamedTuple):
    """Partial results by group and variable; and coordinates that pass through."""

    groups: dict[int, dict[str, Parts]]
    carried: dict[str, xr.Variable]


@dataclass(frozen=True)
class Aggregation:
    """One of the reductions of xarray, with its arguments."""

    name: str
    skipna: bool | None = None
    ddof: int = 0

    def partial(
        self,
        code: int,
        variables: Mapping[str, xr.Variable],
        dims: Sequence[str],
        carried: Mapping[str, xr.Variable],
    ) -> Partials:
        """Reduce the variables of a block, for one group."""
        reduced = {
            name: self._parts(variable, [dim for dim in variable.dims if dim in dims])
            for name, variable in variables.items()
        }
        return Partials({code: reduced}, dict(carried))

    def _parts(self, variable: xr.Variable, dims: Sequence[Any]) -> Parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN slices, as xarray does
            if self.name == "count":
                return {"count": variable.count(dims)}
            if self.name in ("min", "max"):
                return {"extreme": getattr(variable, self.name)(dims, skipna=self.skipna)}
            total = variable.sum(dims, skipna=self.skipna, dtype=_wide(variable.dtype))
            if self.name == "sum":
                return {"sum": total}
            count = self._count(variable, dims)
            if self.name == "mean":
                return {"sum": total, "count": count}
            mean = total / count
            squares = ((variable - mean) ** 2).sum(dims, skipna=self.skipna)
            return {"count": count, "mean": mean, "squares": squares}

    def _count(self, variable: xr.Variable, dims: Sequence[Any]) -> xr.Variable:
        if self.skipna is not False:
            return variable.count(dims)
        rest = [dim for dim in variable.dims if dim not in dims]
        cells = int(np.prod([variable.sizes[dim] for dim in dims], dtype=np.int64))
        return xr.Variable(rest, np.full([variable.sizes[dim] for dim in rest], cells))

    def combine(self, first: Partials, second: Partials) -> Partials:
        """The partial result of two sets of cells."""
        groups = dict(first.groups)
        for code, variables in second.groups.items():
            known = dict(groups.get(code, {}))
            for name, parts in variables.items():
                known[name] = self._combined(known[name], parts) if name in known else parts
            groups[code] = known
        return Partials(groups, {**first.carried, **second.carried})

    def _combined(self, first: Parts, second: Parts) -> Parts:
        if self.name in ("min", "max"):
            return {"extreme": self._extreme(first["extreme"], second["extreme"])}
        if self.name not in ("std", "var"):
            return {part: value + second[part] for part, value in first.items()}
        a, b = first["count"], second["count"]
        total = a + b
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = second["mean"] - first["mean"]
            mean = first["mean"] + gap * b / total
            squares = first["squares"] + second["squares"] + gap * gap * a * b / total
        # Without any cell a mean is not a number.
        mean = mean.copy(
            data=np.where(a == 0, second["mean"], np.where(b == 0, first["mean"], mean))
        )
        only = np.where(a == 0, second["squares"], first["squares"])
        squares = squares.copy(data=np.where((a == 0) | (b == 0), only, squares))
        return {"count": total, "mean": mean, "squares": squares}

    def _extreme(self, first: xr.Variable, second: xr.Variable) -> xr.Variable:
        a, b = first.values, np.asarray(second.transpose(*first.dims).values)
        if a.dtype.kind == "O":
            is_better = b < a if self.name == "min" else b > a
            return first.copy(data=np.where(is_better, b, a))
        if self.skipna is False:
            choose: Any = np.minimum if self.name == "min" else np.maximum
        else:
            choose = np.fmin if self.name == "min" else np.fmax
        return first.copy(data=choose(a, b))

    def finish(self, parts: Parts, dims: Sequence[Any], dtype: Any) -> NDArray[Any]:
        """The result, as xarray's type."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.name in ("min", "max"):
                made = parts["extreme"]
            elif self.name in ("sum", "count"):
                made = parts[self.name]
            elif self.name == "mean":
                made = parts["sum"] / parts["count"]
            else:
                freedom = parts["count"] - self.ddof
                made = parts["squares"] / freedom.where(freedom > 0)  # type: ignore[no-untyped-call]
                if self.name == "std":
                    made = made.copy(data=np.sqrt(made.values))
        values = made.transpose(*dims).values
        return np.asarray(values).astype(dtype, copy=False)

    def nothing(self, dtype: Any) -> Any:
        """The result of no cells at all, in a group that none belongs to."""
        kind = np.dtype(dtype).kind
        if kind in "mM":
            return np.array("NaT", dtype)
        return np.nan if kind in "fcO" else 0


def _wide(dtype: Any) -> Any:
    """The type in which sums are kept; None for that of numpy."""
    kind = np.dtype(dtype).kind
    return {"f": np.float64, "c": np.complex128}.get(kind)
