"""What a dataset of blocks looks like: an xarray template, and the borders of its blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.geometry import Slices

Edges = NDArray[np.int64]
"""Where the blocks of one dimension begin, and the end of the last one."""
Grid = dict[str, Edges]
"""The edges of every dimension, in the order of the dataset's dimensions."""
Index = tuple[int, ...]
"""The position of a block in a grid."""


def stand_in(
    like: xr.Variable, sizes: Mapping[Any, int], dims: Sequence[Hashable] | None = None
) -> xr.Variable:
    """A variable of another length that repeats one cell, and so takes no memory."""
    dims = like.dims if dims is None else dims
    data = np.broadcast_to(_cell(like), [sizes[dim] for dim in dims])
    return xr.Variable(dims, data, dict(like.attrs), dict(like.encoding))


def _cell(like: xr.Variable) -> Any:
    """One cell of a type. An object is one that was there, because xarray treats dates apart."""
    cell = np.zeros((), like.dtype)
    if cell.dtype.kind == "O" and isinstance(like._data, np.ndarray) and like.size:
        cell[()] = like._data.flat[0]
    elif cell.dtype.kind == "O" and "calendar" in like.encoding:
        calendar = like.encoding["calendar"]
        cell[()] = xr.date_range("2000-01-01", periods=1, calendar=calendar, use_cftime=True)[0]
    return cell


def new_template(
    variables: Mapping[Hashable, xr.Variable], coords: Collection[Hashable], attrs: Any
) -> xr.Dataset:
    """A dataset of these variables, some of which are coordinates."""
    return xr.Dataset(
        {name: variable for name, variable in variables.items() if name not in coords},
        {name: variable for name, variable in variables.items() if name in coords},
        dict(attrs),
    )


def template_of(
    like: xr.Dataset, known: Mapping[Any, xr.Variable], sizes: Mapping[Any, int]
) -> xr.Dataset:
    """The variables of a dataset, as they are known or else as stand-ins of other lengths."""
    variables = {
        name: known[name] if name in known else stand_in(variable, sizes)
        for name, variable in like.variables.items()
    }
    return new_template(variables, set(like.coords), like.attrs)


def as_template(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with stand-ins; only coordinates with at most one dimension keep their values."""
    unknown = unknown_coords(dataset)
    known = {
        name: coord.variable.load() for name, coord in dataset.coords.items() if name not in unknown
    }
    return template_of(dataset, known, dataset.sizes)


def unknown_coords(dataset: xr.Dataset, inherited: Collection[str] = ()) -> frozenset[str]:
    """The coordinates whose values only tasks know: stand-ins, and what was made of such."""
    return frozenset(
        str(name)
        for name, coord in dataset.coords.items()
        if coord.ndim > 1 or str(name) in inherited
    )


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A template and a grid. Block `i` along a dimension is `edges[i]` to `edges[i + 1]`."""

    template: xr.Dataset
    grid: Grid
    unknown: frozenset[str] = frozenset()
    """Coordinates whose values are stand-ins."""

    def __reduce__(self) -> Any:
        # Pickled as they are, stand-ins would become as large as what they stand for.
        template = self.template
        variables = {
            name: (each[(0,) * each.ndim] if is_stand_in(each) else each, each.dims)
            for name, each in template.variables.items()
        }
        about = dict(template.sizes), set(template.coords), template.attrs
        return _unpickled, (variables, *about, self.grid, self.unknown)

    @classmethod
    def of(cls, template: xr.Dataset, grid: Grid, inherited: Collection[str] = ()) -> Layout:
        """A layout, with the grid in the order of the dimensions."""
        ordered = {str(dim): grid[str(dim)] for dim in template.sizes}
        return cls(template, ordered, unknown_coords(template, inherited))

    @property
    def computed(self) -> list[str]:
        """The variables that tasks compute: all but the coordinates that the driver knows."""
        return [
            str(name)
            for name in self.template.variables
            if name not in self.template.coords or name in self.unknown
        ]

    @property
    def known(self) -> xr.Dataset:
        """The coordinates whose values the driver knows."""
        return self.template.coords.to_dataset().drop_vars([*self.unknown])

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions, in the order of block indices."""
        return tuple(self.grid)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many blocks there are along each dimension."""
        return shape_of(self.grid)

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return math.prod(self.shape)

    def index(self, number: int) -> Index:
        """The block that has a number; the last dimension varies fastest."""
        return index_of(self.grid, number)

    def number(self, index: Sequence[int]) -> int:
        """The number of a block."""
        return number_of(self.grid, index)

    def region(self, index: Sequence[int]) -> dict[str, slice]:
        """The cells of a block."""
        return region_of(self.grid, index)

    def owned(self, index: Sequence[int]) -> list[str]:
        """The variables that a block stands for, without those that every block repeats.

        A variable without a dimension is in all blocks along it and belongs to the first.
        """
        beyond = {dim for dim, at in zip(self.grid, index, strict=True) if at > 0}
        return [
            str(name)
            for name, variable in self.template.variables.items()
            if not beyond - set(variable.dims)
        ]

    def labelled(self, region: Mapping[str, slice], values: Mapping[str, Any]) -> xr.Dataset:
        """A block: these values under the names, coordinates and attributes of the template."""
        like = self.template.variables
        block = self.known.isel(region, missing_dims="ignore").assign(
            {
                name: (like[name].dims, values[name], like[name].attrs, like[name].encoding)
                for name in self.computed
            }
        )
        block.attrs = dict(self.template.attrs)
        return block.set_coords(self.unknown)

    @property
    def total_bytes(self) -> int:
        """Bytes of all variables."""
        return self.bytes_of({str(dim): int(n) for dim, n in self.template.sizes.items()})

    def bytes_of(self, lengths: Mapping[str, int] | None = None) -> int:
        """Bytes of a box with these lengths, or of the largest block."""
        most = lengths or {dim: longest(edges) for dim, edges in self.grid.items()}
        return sum(
            variable.dtype.itemsize * math.prod(most[str(dim)] for dim in variable.dims)
            for variable in self.template.variables.values()
        )


def is_stand_in(variable: xr.Variable) -> bool:
    """Whether a variable repeats one cell in memory."""
    data = variable._data
    return isinstance(data, np.ndarray) and data.size > 1 and not any(data.strides)


def _unpickled(
    variables: Mapping[Hashable, tuple[xr.Variable, Sequence[Hashable]]],
    sizes: Mapping[Hashable, int],
    coords: Collection[Hashable],
    attrs: Any,
    *rest: Any,
) -> Layout:
    whole = {
        name: variable if variable.dims == dims else stand_in(variable, sizes, dims)
        for name, (variable, dims) in variables.items()
    }
    return Layout(new_template(whole, coords, attrs), *rest)


def as_type(name: str, values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Values as the type of the template, unless they would be cut."""
    is_fitting = values.dtype == dtype or values.dtype.kind == "O" or dtype.kind in "OT"
    if is_fitting or np.can_cast(values.dtype, dtype, "same_kind"):
        made = values.astype(dtype, copy=False)
        if dtype.kind not in "US" or bool((made == values).all()):
            return made
    raise InvalidInputError(
        f"the function returned {name!r} as {values.dtype}, expected {dtype} as in the template or "
        "as it returned for empty blocks; give template= with a type that holds all values"
    )


def shape_of(grid: Grid) -> tuple[int, ...]:
    """How many blocks a grid has along each dimension."""
    return tuple(len(edges) - 1 for edges in grid.values())


def index_of(grid: Grid, number: int) -> Index:
    """The block that has a number; the last dimension varies fastest."""
    return tuple(int(part) for part in np.unravel_index(number, shape_of(grid)))


def number_of(grid: Grid, index: Sequence[int]) -> int:
    """The number of a block."""
    return int(np.ravel_multi_index(tuple(index), shape_of(grid))) if grid else 0


def region_of(grid: Grid, index: Sequence[int]) -> dict[str, slice]:
    """The cells of a block."""
    return {
        dim: slice(int(edges[at]), int(edges[at + 1]))
        for (dim, edges), at in zip(grid.items(), index, strict=True)
    }


def box_of(region: Mapping[str, slice], dims: Sequence[Hashable]) -> Slices:
    """The cells of a region along some dimensions."""
    return tuple(region[str(dim)] for dim in dims)


def longest(edges: Edges) -> int:
    """The length of the longest block."""
    return int(np.diff(edges).max(initial=0))


def regular_edges(size: int, step: int) -> Edges:
    """Blocks of one length; the last may be shorter. An empty dimension has one empty block."""
    if size == 0:
        return np.zeros(2, np.int64)
    return np.append(np.arange(0, size, max(step, 1), dtype=np.int64), size)


def chunk_edges(size: int, chunks: Any) -> Edges:
    """The borders of stored chunks: of one length, or of the lengths of a rectilinear grid."""
    if np.ndim(chunks) == 0 or not size:
        return regular_edges(size, int(np.max(chunks, initial=1)))
    return np.unique(np.minimum(np.cumsum([0, *chunks]), size))


def array_edges(array: Any) -> list[Edges]:
    """The borders of what is stored of a Zarr array, shards or chunks, along each dimension."""
    try:
        steps = array.shards or array.chunks
    except NotImplementedError:  # a rectilinear grid
        steps = array.write_chunk_sizes
    return [chunk_edges(size, step) for size, step in zip(array.shape, steps, strict=True)]


def is_aligned(edges: Edges, borders: Edges) -> bool:
    """Whether every edge is one of the borders."""
    return bool(np.isin(edges, borders).all())


def step_of(edges: Edges) -> int | None:
    """The length of the blocks if all but the last, which may be shorter, have the same."""
    lengths = np.diff(edges)
    if len(lengths) < 2:
        return int(lengths.max(initial=0))
    step = int(lengths[0])
    return step if bool((lengths[:-1] == step).all()) and lengths[-1] <= step else None


def edges_text(edges: Edges) -> str:
    """The blocks of a dimension, for people."""
    count, step = len(edges) - 1, step_of(edges)
    if count == 1:
        return "1 block"
    return f"{count} blocks of {step}" if step else f"{count} blocks of up to {longest(edges)}"


def edges_from(dim: str, size: int, given: Any, default: Edges) -> Edges:
    """The blocks that a user named: a length, lengths, -1 for one block, None for the default."""
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int | np.integer | tuple | list):
        raise InvalidInputError(
            f"chunks has {given!r} for {dim!r}, expected a length, -1 for all, or None"
        )
    if isinstance(given, tuple | list):
        edges = np.concatenate([[0], np.cumsum(given, dtype=np.int64)]).astype(np.int64)
        if int(edges[-1]) != size or min(given, default=0) < 1:
            raise InvalidInputError(
                f"chunks has {given!r:.80} for {dim!r}, expected lengths that add up to {size}"
            )
        return edges
    if given == -1:
        return regular_edges(size, size)
    if given < 1:
        raise InvalidInputError(f"chunks has {given} for {dim!r}, expected 1 or more, or -1")
    return regular_edges(size, int(given))


def grid_from(sizes: Mapping[str, int], chunks: Any, default: Mapping[str, Edges]) -> Grid:
    """The grid that a user described by `chunks`: a mapping, -1 for one block, or None."""
    if chunks is None:
        return {dim: default[dim] for dim in sizes}
    if chunks == -1:
        return {dim: regular_edges(size, size) for dim, size in sizes.items()}
    if not isinstance(chunks, Mapping):
        raise InvalidInputError(
            f"chunks is {chunks!r:.80}, expected a mapping from dimensions to lengths, -1 or None"
        )
    unknown = sorted(str(dim) for dim in chunks if dim not in sizes)
    if unknown:
        raise InvalidInputError(f"chunks has {unknown}, expected dimensions: {list(sizes)}")
    return {
        dim: edges_from(dim, size, chunks.get(dim), default[dim]) for dim, size in sizes.items()
    }


def edges_of_result(dim: str, size: int, edges: Edges | None) -> Edges:
    """The blocks of a result: those of the input, longer or shorter in proportion."""
    if edges is None or len(edges) == 2:
        return regular_edges(size, size)
    if size == int(edges[-1]):
        return edges
    scaled = edges * size
    if int(edges[-1]) == 0 or (scaled % int(edges[-1])).any():
        raise InvalidInputError(
            f"the template has {size} along {dim!r}, which {len(edges) - 1} blocks of at most "
            f"{longest(edges)} cells cannot share: rechunk({{{dim!r}: -1}}) first"
        )
    return scaled // int(edges[-1])


def as_slice(part: Any) -> Any:
    """Positions as a slice where they are a range, which reads without copying."""
    if isinstance(part, int) or len(part) == 0:
        return part
    step = int(part[1] - part[0]) if len(part) > 1 else 1
    if step > 0 and bool((np.diff(part) == step).all()):
        return slice(int(part[0]), int(part[-1]) + 1, step)
    return part
