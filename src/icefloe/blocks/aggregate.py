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

_UNCHANGED = ("mean", "sum", "min", "max")


class Partials(NamedTuple):
    """Partial results by group and variable; and coordinates that pass through."""

    groups: dict[int, dict[str, Parts]]
    carried: dict[str, xr.Variable]


@dataclass(frozen=True, slots=True)
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

    def _parts(self, variable: xr.Variable, reduced: Sequence[Any]) -> Parts:
        # Means, sums and extremes leave alone what has dimensions and none that is reduced.
        if self.name in _UNCHANGED and variable.dims and not reduced:
            return {"same": variable}
        dims: Any = reduced if variable.dims else None
        is_skipping = self._is_skipping(variable.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN slices, as xarray does
            if self.name == "count":
                return {"count": variable.count(dims)}
            if self.name in ("min", "max"):
                return {"extreme": getattr(variable, self.name)(dims, skipna=self.skipna)}
            if self.name == "mean" and variable.dtype.kind in "mMO":
                return self._times(variable, reduced)
            wide = _wide(variable.dtype, self.name == "sum")
            total = variable.sum(dims, skipna=self.skipna, dtype=wide)
            if self.name == "sum":
                return {"sum": total}
            count = variable.count(dims) if is_skipping else _cells(variable, reduced)
            if self.name == "mean":
                return {"sum": total, "count": count}
            mean = total / count
            # Not by skipna, which leaves out what infinite values make of a distance as well.
            squares = abs(variable - mean) ** 2
            if is_skipping:
                squares = squares.where(variable.notnull(), 0)  # type: ignore[no-untyped-call]
            squares = squares.sum(dims, skipna=False)
            # By what numpy divides without degrees of freedom, where values may miss or not.
            least = xr.Variable([], np.nan if is_skipping else 0.0)
            return {"count": count, "mean": mean, "squares": squares, "least": least}

    def _is_skipping(self, dtype: Any) -> bool:
        """Whether missing values are left out; unless given, where xarray does it."""
        kind = np.dtype(dtype).kind
        return kind in "fcO" if self.skipna is None else self.skipna and kind not in "biu"

    def _times(self, variable: xr.Variable, dims: Sequence[Any]) -> Parts:
        """Sums of whole seconds and of the rests in nanoseconds, which are exact."""
        epoch = {}
        if variable.dtype.kind == "O":  # dates of another calendar
            first = variable.values.flat[0].replace(month=1, day=1)
            first = first.replace(year=2000, hour=0, minute=0, second=0, microsecond=0)
            gaps = np.asarray(variable.values - first, "m8[us]")
            variable, epoch = xr.Variable(variable.dims, gaps), {"epoch": xr.Variable([], first)}
        there = variable.notnull()
        known = variable.where(there, np.zeros((), variable.dtype))  # type: ignore[no-untyped-call]
        seconds = known.astype(f"{variable.dtype.kind}8[s]")
        rests = (known - seconds).astype("m8[ns]")
        count = there.sum(dims) if self.skipna is not False else _cells(variable, dims)
        return {
            "seconds": seconds.astype(np.int64).sum(dims),
            "rests": rests.astype(np.int64).sum(dims),
            "count": count,
            "missing": count - there.sum(dims),
            **epoch,
        }

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
        if "same" in first:
            return first
        if self.name in ("min", "max"):
            return {"extreme": self._extreme(first["extreme"], second["extreme"])}
        if self.name not in ("std", "var"):
            return {
                part: value if part == "epoch" else value + second[part]
                for part, value in first.items()
            }
        a, b = first["count"], second["count"]
        total = a + b
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = second["mean"] - first["mean"]
            mean = first["mean"] + gap * b / total
            squares = first["squares"] + second["squares"] + abs(gap) ** 2 * a * b / total
        # Without any cell a mean is not a number.
        mean = mean.copy(
            data=np.where(a == 0, second["mean"], np.where(b == 0, first["mean"], mean))
        )
        only = np.where(a == 0, second["squares"], first["squares"])
        squares = squares.copy(data=np.where((a == 0) | (b == 0), only, squares))
        return {"count": total, "mean": mean, "squares": squares, "least": first["least"]}

    def _extreme(self, first: xr.Variable, second: xr.Variable) -> xr.Variable:
        a, b = first.values, np.asarray(second.transpose(*first.dims).values)
        if a.dtype.kind == "O":
            is_better = b < a if self.name == "min" else b > a
            return first.copy(data=np.where(is_better, b, a))
        if not self._is_skipping(a.dtype):
            choose: Any = np.minimum if self.name == "min" else np.maximum
        else:
            choose = np.fmin if self.name == "min" else np.fmax
        return first.copy(data=choose(a, b))

    def finish(self, parts: Parts, dims: Sequence[Any], dtype: Any) -> NDArray[Any]:
        """The result, as xarray's type."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if "same" in parts:
                made = parts["same"]
            elif self.name in ("min", "max"):
                made = parts["extreme"]
            elif self.name in ("sum", "count"):
                made = parts[self.name]
            elif self.name == "mean":
                made = (
                    _mean_time(parts, dtype) if "rests" in parts else parts["sum"] / parts["count"]
                )
            else:
                freedom = parts["count"] - self.ddof
                made = parts["squares"] / freedom.where(freedom > 0, parts["least"])  # type: ignore[no-untyped-call]
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


def _wide(dtype: Any, is_sum: bool) -> Any:
    """The type in which sums are kept, so that means do not overflow; None for that of numpy."""
    kind = np.dtype(dtype).kind
    if kind in "iub" and not is_sum:
        return np.float64
    return {"f": np.float64, "c": np.complex128}.get(kind)


def _cells(variable: xr.Variable, dims: Sequence[Any]) -> xr.Variable:
    """The number of cells along some dimensions, missing or not."""
    rest = [dim for dim in variable.dims if dim not in dims]
    cells = int(np.prod([variable.sizes[dim] for dim in dims], dtype=np.int64))
    return xr.Variable(rest, np.full([variable.sizes[dim] for dim in rest], cells))


def _mean_time(parts: Parts, dtype: Any) -> xr.Variable:
    seconds, count = parts["seconds"], parts["count"]
    whole, left = seconds // count, seconds % count
    rests = ((left * 10**9 + parts["rests"]) // count).astype("m8[ns]")
    dtype = np.dtype("m8[us]" if "epoch" in parts else dtype)
    step = np.datetime_data(dtype)[0]
    mean = whole.astype(f"{dtype.kind}8[s]").astype(dtype) + rests.astype(f"m8[{step}]")
    is_known = (count > 0) & (parts["missing"] == 0)
    mean = mean.where(is_known)  # type: ignore[no-untyped-call]
    if "epoch" in parts:
        mean = xr.Variable(mean.dims, mean.values.astype(object) + parts["epoch"].values[()])
    return mean
