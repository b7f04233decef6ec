"""`BlockDataset`: a lazy dataset with xarray's names, whose blocks are computed by an engine."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import EllipsisType
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pandas.errors import InvalidIndexError

from icefloe.blocks import plan
from icefloe.blocks.aggregate import Aggregation
from icefloe.blocks.expressions import (
    Apply,
    Expression,
    apply_blocks,
    as_dataset,
    choose_variables,
    combine_groups,
    result_template,
    select,
    tried,
)
from icefloe.blocks.layout import (
    Grid,
    Layout,
    edges_text,
    grid_from,
    longest,
    regular_edges,
    template_of,
)
from icefloe.blocks.places import Place
from icefloe.blocks.stages import DEFAULT_MEMORY, Groups, rechunk, reduce_blocks
from icefloe.display import counted, size_text
from icefloe.errors import InvalidInputError

D = TypeVar("D", bound="BlockDataset[Any]")
Dims = str | Iterable[Hashable] | EllipsisType | None


class Reductions(Generic[D]):
    """The reductions of a dataset, of its groups or of its windows, with xarray's arguments.

    Args:
        dim: the dimensions to reduce; all, or the one that is grouped, unless given.
        skipna: whether missing values are left out; unless given, where a type has them.
        keep_attrs: whether attributes are kept.
        ddof: the divisor of `std` and `var` is the number of values less this.
    """

    def _reduced(self, name: str, dim: Dims, **options: Any) -> D:
        raise NotImplementedError

    def mean(self, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: Any = None) -> D:
        """Mean.

        >>> dataset.mean("time").sizes
        {'y': 8, 'x': 8}
        """
        return self._reduced("mean", dim, skipna=skipna, keep_attrs=keep_attrs)

    def sum(self, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: Any = None) -> D:
        """Sum; 0 where there are no values.

        >>> totals = dataset.sum(["y", "x"])
        """
        return self._reduced("sum", dim, skipna=skipna, keep_attrs=keep_attrs)

    def min(self, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: Any = None) -> D:
        """Minimum.

        >>> coldest = dataset.min("time")
        """
        return self._reduced("min", dim, skipna=skipna, keep_attrs=keep_attrs)

    def max(self, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: Any = None) -> D:
        """Maximum.

        >>> warmest = dataset.max("time")
        """
        return self._reduced("max", dim, skipna=skipna, keep_attrs=keep_attrs)

    def count(self, dim: Dims = None, *, keep_attrs: Any = None) -> D:
        """Number of values that are not missing.

        >>> measured = dataset.count("time")
        """
        return self._reduced("count", dim, keep_attrs=keep_attrs)

    def std(
        self,
        dim: Dims = None,
        *,
        skipna: bool | None = None,
        ddof: int = 0,
        keep_attrs: Any = None,
    ) -> D:
        """Standard deviation.

        >>> spread = dataset.std("time", ddof=1)
        """
        return self._reduced("std", dim, skipna=skipna, ddof=ddof, keep_attrs=keep_attrs)

    def var(
        self,
        dim: Dims = None,
        *,
        skipna: bool | None = None,
        ddof: int = 0,
        keep_attrs: Any = None,
    ) -> D:
        """Variance.

        >>> variance = dataset.var("time", skipna=False)
        """
        return self._reduced("var", dim, skipna=skipna, ddof=ddof, keep_attrs=keep_attrs)


class BlockDataset(Reductions[D]):
    """A lazy dataset, cut into blocks that are xarray Datasets with coordinates.

    Every method returns a new dataset; nothing is read before a result is wanted. Names, arguments
    and results are xarray's.
    """

    def __init__(
        self, expression: Expression, engine: plan.Engine, memory: int = DEFAULT_MEMORY
    ) -> None:
        self.expression = expression
        self.engine = engine
        self.memory = memory

    def _with(self, expression: Expression) -> Self:
        return type(self)(expression, self.engine, self.memory)

    # -- what it looks like

    @property
    def template(self) -> xr.Dataset:
        """Names, dimensions, types, coordinates and attributes; the values are stand-ins."""
        return self.expression.layout.template

    @property
    def sizes(self) -> dict[str, int]:
        """The length of every dimension."""
        return {str(dim): int(size) for dim, size in self.template.sizes.items()}

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions."""
        return tuple(self.sizes)

    @property
    def coords(self) -> Any:
        """The coordinates; those with two or more dimensions are stand-ins."""
        return self.template.coords

    @property
    def data_vars(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(map(str, self.template.data_vars))

    @property
    def attrs(self) -> dict[Any, Any]:
        """The attributes of the dataset."""
        return self.template.attrs

    @property
    def chunks(self) -> dict[str, tuple[int, ...]]:
        """The lengths of the blocks along every dimension."""
        grid = self.expression.layout.grid
        return {dim: tuple(map(int, np.diff(edges))) for dim, edges in grid.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.expression.layout.total_bytes

    def __repr__(self) -> str:
        layout = self.expression.layout
        blocks = counted(layout.num_blocks, "block")
        lines = [f"<{type(self).__name__}> {size_text(self.nbytes)} in {blocks}"]
        lines.append("Dimensions:")
        for dim, edges in layout.grid.items():
            lines.append(f"    {dim}: {int(edges[-1])} in {edges_text(edges)}")
        for title, names in (("Coordinates", self.coords), ("Data variables", self.data_vars)):
            lines.append(f"{title}:")
            for name in names:
                variable = self.template[name]
                lines.append(f"    {name} ({', '.join(map(str, variable.dims))}) {variable.dtype}")
        return "\n".join(lines)

    # -- selections

    def __getitem__(self, names: str | Sequence[str]) -> Self:
        return self._with(choose_variables(self.expression, self.template[self._named(names)]))

    def _named(self, names: str | Iterable[str]) -> list[str]:
        """The names, which must all be variables."""
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list | tuple | set | frozenset):
            raise InvalidInputError(f"{names!r:.80} is no name of a variable and no list of names")
        unknown = [name for name in names if name not in map(str, self.template.variables)]
        if unknown:
            raise InvalidInputError(f"no variables {unknown}; there are {list(self.data_vars)}")
        return list(names)

    def drop_vars(self, names: str | Iterable[str]) -> Self:
        """The dataset without the variables `names`.

        >>> dataset.drop_vars("time").coords
        Coordinates:
            *empty*
        """
        rest = self.template.drop_vars(self._named(names))
        return self._with(choose_variables(self.expression, rest))

    def isel(self, indexers: Mapping[Any, Any] | None = None, **indexers_kwargs: Any) -> Self:
        """Select by position: `indexers`, or keyword arguments, are one per dimension.

        >>> dataset.isel(time=-1, y=slice(0, 4)).sizes
        {'y': 4, 'x': 8}
        """
        chosen = _either("isel", indexers, indexers_kwargs)
        return self._with(select(self.expression, chosen, ["isel", chosen]))

    def sel(
        self,
        indexers: Mapping[Any, Any] | None = None,
        method: str | None = None,
        tolerance: Any = None,
        **indexers_kwargs: Any,
    ) -> Self:
        """Select by label.

        Args:
            indexers: labels, slices or lists of labels by dimension; or keyword arguments.
            method: how labels that are missing are matched: nearest, pad or backfill.
            tolerance: the largest distance of a match.

        >>> dataset.sel(time=slice("2024-01-02", "2024-01-03")).sizes["time"]
        2
        """
        chosen = _either("sel", indexers, indexers_kwargs)
        positions = {}
        for dim, label in chosen.items():
            if dim not in self.template.sizes:
                raise InvalidInputError(
                    f"{dim!r} is not a dimension of the dataset: {list(self.sizes)}"
                )
            cells = self._numbered(dim)
            try:
                at = cells.sel({dim: label}, method=method, tolerance=tolerance)
            except (InvalidIndexError, NotImplementedError, TypeError, ValueError) as error:
                is_unique = dim not in cells.indexes or cells.indexes[dim].is_unique
                raise InvalidInputError(
                    f"sel has {label!r:.80} for {dim!r}: {error}"
                    if is_unique
                    else f"{dim!r} has labels that occur more than once, which sel finds by one "
                    "label or a slice, not by a list and not by the nearest; use isel"
                ) from error
            if at.dims not in ((), (dim,)):
                raise InvalidInputError(f"the labels for {dim!r} have the dimensions {at.dims}")
            positions[dim] = at.values if at.ndim else int(at)
        asked = ["sel", chosen, method, tolerance]
        return self._with(select(self.expression, positions, asked))

    def _numbered(self, dim: Hashable) -> xr.DataArray:
        """The positions of a dimension, with its coordinates."""
        known = self.expression.layout.known.coords
        coords = {name: coord for name, coord in known.items() if coord.dims == (dim,)}
        return xr.DataArray(np.arange(self.template.sizes[dim]), coords, (dim,), "position")

    # -- functions of blocks

    def map_blocks(
        self,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        template: BlockDataset[Any] | xr.Dataset | xr.DataArray | None = None,
    ) -> Self:
        """Apply a function to every block.

        Without a template the function is first called with empty blocks, to find out what it
        returns; no data is read. It then keeps lengths, or drops dimensions that are one block.

        Args:
            func: gets a Dataset with coordinates, and returns a Dataset or DataArray.
            args: further arguments of `func`. Datasets come first; `func` gets their blocks. They
                have the same blocks as this one along dimensions they share, and are gathered
                along others.
            kwargs: keyword arguments of `func`.
            template: a Dataset with the dimensions, types and coordinates of the whole result. With
                it, lengths and variables may differ.

        >>> celsius = dataset.map_blocks(lambda block: block - 273.15)
        """
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise InvalidInputError(f"args is {args!r}, expected a list of arguments")
        others = [part for part in args if isinstance(part, BlockDataset)]
        rest = tuple(part for part in args if not isinstance(part, BlockDataset))
        if others != list(args[: len(others)]):
            raise InvalidInputError("args has datasets behind other values; put the datasets first")
        gathered = [
            other.rechunk({dim: -1 for dim in other.sizes if dim not in self.sizes})
            for other in others
        ]
        datasets = [self.expression, *(other.expression for other in gathered)]
        given = None if template is None else _as_dataset(template)
        arguments = (rest, dict(kwargs or {}))
        return self._with(apply_blocks(func, datasets, given, arguments, ("map_blocks",)))

    def rechunk(self, chunks: Mapping[str, Any] | int) -> Self:
        """Cut into other blocks.

        Args:
            chunks: a length, or lengths, by dimension; -1 for one block. Others stay as they are.

        >>> dataset.rechunk({"time": -1, "y": 2}).chunks
        {'time': (4,), 'y': (2, 2, 2, 2), 'x': (8,)}
        """
        layout = self.expression.layout
        grid = grid_from(self.sizes, chunks, layout.grid)
        return self._with(rechunk(self.expression, grid, self.memory))

    # -- reductions

    def _reduced(self, name: str, dim: Dims, **options: Any) -> D:
        dims = self._dims(dim)
        call, asked = partial(_call, name, (dims,), options), [name, dims, options]
        return cast(D, self._aggregated(name, dims, None, options, call, asked))

    def _aggregated(
        self,
        name: str,
        dims: Sequence[str],
        groups: Groups | None,
        options: Mapping[str, Any],
        call: Callable[..., Any],
        asked: Any,
    ) -> Self:
        how = Aggregation(name, options.get("skipna"), options.get("ddof", 0))
        return self._with(
            reduce_blocks(self.expression, how, dims, groups, call, asked, self.memory)
        )

    def _dims(self, dim: Dims) -> list[str]:
        if dim is None or dim is ...:
            return list(self.sizes)
        dims = _dim_list(dim)
        unknown = [each for each in dims if each not in self.sizes]
        if unknown:
            raise InvalidInputError(f"no dimensions {unknown}; there are {list(self.sizes)}")
        return dims

    def quantile(
        self,
        q: Any,
        dim: Dims = None,
        *,
        method: str = "linear",
        skipna: bool | None = None,
        keep_attrs: Any = None,
    ) -> Self:
        """Exact quantiles along dimensions; the dataset is rechunked to whole series first.

        Args:
            q: the quantile, or several, between 0 and 1.
            dim: as in `mean`.
            method: how values between two cells are interpolated, as in `numpy.quantile`.
            skipna: as in `mean`.
            keep_attrs: as in `mean`.

        >>> dataset.quantile([0.1, 0.9], "time").sizes
        {'quantile': 2, 'y': 8, 'x': 8}
        """
        dims = self._dims(dim)
        options = {"method": method, "skipna": skipna, "keep_attrs": keep_attrs}
        call = partial(_call, "quantile", (q, dims), options)
        whole = self._whole_along(dims)
        return self._with(_applied(whole.expression, call, dims, ("quantile",)))

    def _whole_along(self, dims: Sequence[str]) -> Self:
        """The dataset with one block along some dimensions, cut along the others to fit memory."""
        layout = self.expression.layout
        sizes = self.sizes
        lengths = {dim: sizes[dim] if dim in dims else longest(layout.grid[dim]) for dim in sizes}
        others = [dim for dim in sizes if dim not in dims]
        room = self.memory // 4
        while layout.bytes_of(lengths) > room and any(lengths[dim] > 1 for dim in others):
            dim = max(others, key=lambda dim: lengths[dim])
            lengths[dim] = -(-lengths[dim] // 2)
        kept = {dim: longest(layout.grid[dim]) == lengths[dim] for dim in others}
        grid = {
            dim: layout.grid[dim] if kept.get(dim) else regular_edges(size, lengths[dim])
            for dim, size in sizes.items()
        }
        return self._with(rechunk(self.expression, grid, self.memory))

    def groupby(self, group: str) -> GroupedBlocks[Self]:
        """Group by `group`: a coordinate, or a component of a time such as `time.month`.

        >>> climatology = dataset.groupby("time.month").mean()
        >>> anomalies = dataset.groupby("time.month") - climatology
        """
        if not isinstance(group, str):
            raise InvalidInputError(f"group is {group!r:.80}, expected text such as 'time.month'")
        name, _, part = (group, "", "") if group in self.coords else group.partition(".")
        if name not in self.template.coords or self.template[name].ndim != 1:
            raise InvalidInputError(
                f"group is {group!r}, expected a coordinate with one dimension, or a component of "
                f"one such as 'time.month'; there are {sorted(map(str, self.template.coords))}"
            )
        if name in self.expression.layout.unknown:
            raise InvalidInputError(
                f"group is {group!r}, whose values only tasks know, because it was selected from a "
                "coordinate of two dimensions: group by a stored coordinate of one dimension"
            )
        dim = self.template[name].dims[0]
        return GroupedBlocks(self, str(dim), part or name, "groupby", {"group": group})

    def resample(self, **indexer: str) -> GroupedBlocks[Self]:
        """Group by longer spans of time, such as `resample(time="1D")`.

        >>> dataset.resample(time="2D").mean().sizes["time"]
        2
        """
        if len(indexer) != 1:
            raise InvalidInputError(
                f"resample has {indexer}, expected one dimension and nothing else, as time='1D'"
            )
        ((dim, _),) = indexer.items()
        if dim not in self.template.sizes or dim not in self.template.coords:
            raise InvalidInputError(f"{dim!r} is not a dimension with times: {list(self.sizes)}")
        return GroupedBlocks(self, dim, dim, "resample", dict(indexer))

    def coarsen(
        self,
        dim: Mapping[str, int] | None = None,
        boundary: str = "exact",
        side: str = "left",
        coord_func: str = "mean",
        **window: int,
    ) -> CoarseBlocks[Self]:
        """Group by windows of a fixed length.

        Args:
            dim: the lengths of windows by dimension; or keyword arguments.
            boundary: for lengths that are no multiple: `exact` refuses, `trim` drops cells, `pad`
                adds missing ones.
            side: the side that windows begin from.
            coord_func: how coordinates are reduced.

        >>> dataset.coarsen(y=2, x=2).mean().sizes
        {'time': 4, 'y': 4, 'x': 4}
        """
        windows = _either("coarsen", dim, window)
        self._dims(list(windows))
        for name, length in windows.items():
            if isinstance(length, bool) or not isinstance(length, int) or length < 1:
                raise InvalidInputError(f"the window of {name!r} is {length!r}, expected 1 or more")
        if boundary not in ("exact", "trim", "pad"):
            raise InvalidInputError(f"boundary is {boundary!r}, expected exact, trim or pad")
        if side not in ("left", "right"):
            raise InvalidInputError(f"side is {side!r}, expected left or right")
        return CoarseBlocks(self, windows, boundary, side, coord_func)

    # -- results

    def to_xarray(self) -> xr.Dataset:
        """Compute everything, as a Dataset in memory; for results that fit there.

        >>> float(dataset.mean().to_xarray()["t2m"])
        280.25
        """
        layout = self.expression.layout
        rows = plan.run(self.engine, self.expression, partial(plan.collected, layout))
        return plan.put_together(layout, self.engine.pieces(rows))


def _call(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], block: Any) -> Any:
    """A method of xarray, called with a block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # series of missing values are no news
        return getattr(block, name)(*arguments, **options)


def _either(method: str, given: Any, keywords: dict[str, Any]) -> dict[Any, Any]:
    """What was said by dimension: in a mapping, or by keywords."""
    if given is None:
        return keywords
    if keywords or not isinstance(given, Mapping):
        raise InvalidInputError(
            f"{method} has {given!r:.80} and {keywords!r:.80}, expected a mapping or keywords"
        )
    return dict(given)


def _dim_list(dim: Any) -> list[str]:
    if not isinstance(dim, Iterable):
        raise InvalidInputError(f"dim is {dim!r}, expected a dimension or several")
    return [dim] if isinstance(dim, str) else [str(each) for each in dim]


def _as_dataset(given: Any) -> xr.Dataset:
    if isinstance(given, BlockDataset):
        return given.template
    if not isinstance(given, xr.Dataset | xr.DataArray):
        raise InvalidInputError(f"template is a {type(given).__name__}, expected a Dataset")
    return as_dataset(given)


def _applied(
    expression: Expression,
    call: Callable[..., Any],
    full: Sequence[str],
    names: tuple[str, ...],
    kept: Sequence[str] = (),
) -> Expression:
    """A method of xarray on every block; dimensions in `full` are one block."""
    template = result_template(expression.layout, call, kept)
    grid: Grid = {}
    for dim, size in ((str(dim), int(size)) for dim, size in template.sizes.items()):
        edges = expression.layout.grid.get(dim)
        grid[dim] = regular_edges(size, size) if edges is None or dim in full else edges
    layout = Layout.of(template, grid, expression.layout.unknown)
    return Apply(layout, (expression,), call, names=names)


def _only(dim: Dims, grouped: Sequence[str]) -> None:
    """Refuse other dimensions than those that are grouped."""
    if dim is None:
        return
    if dim is ... or sorted(_dim_list(dim)) != sorted(grouped):
        raise InvalidInputError(
            f"dim is {dim!r}, expected {grouped}: a reduction of groups is along the dimension "
            "that is grouped; reduce the others before or after it"
        )


class GroupedBlocks(Reductions[D]):
    """A dataset grouped along one dimension: a reduction gives one cell for each group.

    With `+`, `-`, `*` and `/` every cell meets its group in such a result.

    >>> months = dataset.groupby("time.month")
    >>> anomalies = months - months.mean()
    """

    def __init__(
        self, dataset: D, dim: str, name: str, method: str, arguments: dict[str, str]
    ) -> None:
        self._dataset = dataset
        self._dim, self._name = dim, name
        self._method, self._arguments = method, arguments

    def _call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return partial(_call_grouped, self._method, self._arguments, name, arguments, options)

    def _codes(self) -> NDArray[np.int64]:
        """The number of every cell's group; -1 where it has none."""
        cells = self._dataset._numbered(self._dim).to_dataset()
        grouped = getattr(cells, self._method)(**self._arguments)
        labels = grouped.count().indexes[self._name]
        codes = np.full(self._dataset.sizes[self._dim], -1, np.int64)
        for label, members in grouped.groups.items():
            codes[members] = labels.get_loc(label)
        return codes

    def __sub__(self, other: BlockDataset[Any]) -> D:
        return self._combined(other, operator.sub)

    def __add__(self, other: BlockDataset[Any]) -> D:
        return self._combined(other, operator.add)

    def __mul__(self, other: BlockDataset[Any]) -> D:
        return self._combined(other, operator.mul)

    def __truediv__(self, other: BlockDataset[Any]) -> D:
        return self._combined(other, operator.truediv)

    def _combined(self, other: BlockDataset[Any], operation: Callable[[Any, Any], Any]) -> D:
        if self._method != "groupby":
            raise InvalidInputError("resample has no arithmetic, as in xarray; use groupby")
        if not isinstance(other, BlockDataset):
            raise InvalidInputError(
                f"groups and a {type(other).__name__} cannot be combined, expected a reduction of "
                "the same groups, such as groups.mean()"
            )
        group, dataset = self._arguments["group"], self._dataset
        codes = self._codes()
        if (codes < 0).any():
            known = {self._dim: np.flatnonzero(codes >= 0)}
            dataset = dataset._with(select(dataset.expression, known, ["grouped", group]))
            dataset = dataset.map_blocks(partial(_known, self._dim))
        made = combine_groups(dataset.expression, other.expression, group, self._name, operation)
        return dataset._with(made)

    def _reduced(self, name: str, dim: Dims, **options: Any) -> D:
        _only(dim, [self._dim])
        groups = Groups(self._dim, self._name, self._codes())
        asked = [self._method, self._arguments, name, options]
        call = self._call(name, (), options)
        return self._dataset._aggregated(name, [self._dim], groups, options, call, asked)

    def quantile(
        self, q: Any, *, method: str = "linear", skipna: bool | None = None, keep_attrs: Any = None
    ) -> D:
        """Exact quantiles of each group, with the arguments of `BlockDataset.quantile`.

        >>> heat = dataset.groupby("time.month").quantile(0.9)
        """
        options = {"method": method, "skipna": skipna, "keep_attrs": keep_attrs}
        whole = self._dataset._whole_along([self._dim])
        call, names = self._call("quantile", (q,), options), ("quantile", self._method)
        return whole._with(_applied(whole.expression, call, [self._dim], names, [self._dim]))


def _known(dim: str, block: xr.Dataset) -> xr.Dataset:
    """A block of cells that have a group, as xarray makes it of a block with others as well."""
    return block.where(xr.DataArray(np.ones(block.sizes[dim], bool), dims=dim))


def _call_grouped(
    method: str,
    grouping: Mapping[str, str],
    name: str,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    block: xr.Dataset,
) -> Any:
    return _call(name, arguments, options, getattr(block, method)(**grouping))


def _padded_types(template: xr.Dataset, padded: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """The types that variables get by missing cells, which blocks without such cells get too."""
    cells = template.isel({dim: slice(0, 1) for dim in template.sizes}).data_vars
    return {
        str(name): cell.pad({dim: padded[str(dim)] for dim in cell.dims if dim in padded}).dtype
        for name, cell in cells.items()
    }


def _call_promoted(types: Mapping[str, Any], call: Callable[..., Any], block: xr.Dataset) -> Any:
    return call(block.assign({name: block[name].astype(dtype) for name, dtype in types.items()}))


class CoarseBlocks(Reductions[D]):
    """A dataset grouped by windows: a reduction gives one cell for each window.

    >>> coarse = dataset.coarsen(time=2).max()
    """

    def __init__(
        self, dataset: D, windows: dict[str, int], boundary: str, side: str, coord: str
    ) -> None:
        self._dataset, self._windows = dataset, windows
        self._boundary, self._side, self._coord = boundary, side, coord

    def _reduced(self, name: str, dim: Dims, **options: Any) -> D:
        _only(dim, list(self._windows))
        if options.pop("skipna", None) is not None or options.pop("ddof", 0):
            raise InvalidInputError("coarsen has no skipna and no ddof, as in xarray: leave it out")
        dataset = self._dataset
        sizes = dataset.sizes
        for dim, window in self._windows.items():
            rest = sizes[dim] % window
            if rest and self._boundary == "exact":
                raise InvalidInputError(
                    f"{dim!r} has {sizes[dim]} cells, not a multiple of the window {window}; pass "
                    "boundary='trim' or 'pad'"
                )
            if rest and self._boundary == "trim":
                keep = sizes[dim] - rest
                part = slice(0, keep) if self._side == "left" else slice(rest, None)
                asked = ["trim", dim, window, self._side]
                dataset = dataset._with(select(dataset.expression, {dim: part}, asked))
        # A window must not cross the border of a block. Padded on the left, the first is shorter.
        grid, out, borders = dict(dataset.expression.layout.grid), {}, []
        for dim, window in self._windows.items():
            missing = -dataset.sizes[dim] % window if self._side == "right" else 0
            inner = (grid[dim][1:-1] + missing) // window * window - missing
            ends = grid[dim][[0, -1]]
            if len(inner):
                ends = np.unique(np.concatenate([ends, inner.clip(0)]))
            grid[dim], out[dim] = ends, -(-(ends + missing) // window)
            out[dim][0] = 0
            borders.append(Place("", np.array([missing])))
        expression = rechunk(dataset.expression, grid, dataset.memory)
        call: Any = partial(_call_grouped, "coarsen", self._grouping(), name, (), options)
        padded = {d: (0, 1) for d, n in self._windows.items() if dataset.sizes[d] % n}
        if padded and self._boundary == "pad":
            call = partial(_call_promoted, _padded_types(dataset.template, padded), call)
        template = self._template(expression.layout, call)
        layout = Layout.of(template, {**grid, **out}, expression.layout.unknown)
        made = Apply(
            layout,
            (expression,),
            call,
            names=("coarsen",),
            asked=[name, self._grouping(), options],
            borders=tuple(borders),
        )
        return dataset._with(made)

    def _grouping(self) -> dict[str, Any]:
        return {
            "dim": self._windows,
            "boundary": "pad" if self._boundary == "pad" else "exact",
            "side": self._side,
            "coord_func": self._coord,
        }

    def _template(self, layout: Layout, call: Callable[..., Any]) -> xr.Dataset:
        template = layout.template
        lengths = {}
        for dim, size in template.sizes.items():
            window = self._windows.get(str(dim), 1)
            lengths[dim] = size % window or window  # an incomplete window changes types
        small = template.isel({dim: slice(0, length) for dim, length in lengths.items()})
        result = tried(call, small)
        known = layout.known
        windows = {dim: n for dim, n in self._windows.items() if dim in known.sizes}
        if windows:
            known = known.coarsen(**{**self._grouping(), "dim": windows}).mean()
        sizes = {
            str(dim): -(-int(size) // self._windows.get(str(dim), 1))
            for dim, size in template.sizes.items()
        }
        for name, variable in known.variables.items():
            variable.attrs = dict(result.variables[name].attrs)
        return template_of(result, known.variables, sizes)
