"""`write_regions`: a user's function computes an array, region by region, on the executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import zarr
from pyspark.sql import SparkSession

from icefloe import paths
from icefloe.api.session import ForkSession, Session
from icefloe.errors import InvalidInputError
from icefloe.geometry import Region, region_of
from icefloe.spark.writes.regions import Grid, check_given, chunks_in, cut
from icefloe.spark.writes.write_items import WriteReport, require_writable, write_items

Compute = Callable[[Region], Any]


def write_regions(
    spark: SparkSession,
    session: Session,
    array_or_group: str,
    fn: Compute,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[Any] | None = None,
    region_shape: Sequence[int] | None = None,
    num_tasks: int | None = None,
) -> WriteReport:
    """Fill an array, or arrays of a group that have the same axes, from many tasks at once.

    `fn` is called with a `Region` and returns its values: a numpy array for an array, and for a
    group a mapping from names to numpy arrays; in both cases values as they are stored. An xarray
    `DataArray` or `Dataset` is encoded the way the arrays say (scale, offset, units of time).

    The arrays have to exist in the session. Without `regions` they are cut into boxes of about
    64 MB at the borders of their chunks, or into boxes of `region_shape`. With `regions` (slices
    in order, slices by name, or `Region`s) only those are written; two that share a chunk are
    refused. Chunks that a region covers in part keep their other cells.

    Nothing is visible before `session.commit(...)`. A task that fails is tried again by Spark; if
    it fails for good the error reaches the caller, and the session is as it was before.

    Args:
        array_or_group: path of an array, or of a group.
        variables: which arrays of the group; those with the most axes when not given.
        num_tasks: how many tasks the regions are spread over.
        spark: the session; `icefloe.spark.session()` makes one.
    """
    require_writable(session)
    if not callable(fn):
        raise InvalidInputError(f"fn is {fn!r}, expected a function of a Region")
    arrays = _open_targets(session, array_or_group, variables)
    grid = common_grid(arrays)
    if regions is None:
        boxes = list(cut(grid, region_shape))
    else:
        boxes = [region_of(grid.dims, grid.shape, given) for given in regions]
        check_given(grid, boxes)
    group = _group_of(session, array_or_group)
    work = partial(_compute_and_write, fn, group, tuple(arrays))
    chunks = {
        f"{group}/{name}": chunks_in(boxes, stored_chunks(name, array))
        for name, array in arrays.items()
    }
    return write_items(spark, session, boxes, work, num_tasks=num_tasks, chunks=chunks)


def _open_targets(
    session: Session, path: str, variables: Sequence[str] | None
) -> dict[str, zarr.Array[Any]]:
    """The arrays to be written, by their path relative to the group (an array: by its name)."""
    node = session.workspace.state.node(paths.validate(_absolute(path)))
    if node.array is not None:
        if variables is not None:
            raise InvalidInputError(
                f"{path!r} is an array; `variables` chooses among the arrays of a group"
            )
        return {paths.segments(node.path)[-1] if node.path != "/" else "": _open(session, path)}
    group = zarr.open_group(session.store, path=path.strip("/"), mode="r")
    if variables is None:
        found = dict(group.arrays())
        if not found:
            raise InvalidInputError(f"group {path!r} has no arrays; create them first")
        most = max(array.ndim for array in found.values())
        return {name: array for name, array in found.items() if array.ndim == most}
    missing = [name for name in variables if not isinstance(group.get(name), zarr.Array)]
    if missing or not variables:
        raise InvalidInputError(
            f"group {path!r} has no arrays {missing}; it has {sorted(dict(group.arrays()))}"
        )
    return {name: group[name] for name in variables}  # type: ignore[misc]


def common_grid(arrays: Mapping[str, zarr.Array[Any]]) -> Grid:
    """The grid of arrays that have equal axes; refuses others."""
    first_name, first = next(iter(arrays.items()))
    dims = dimension_names(first)
    for name, array in arrays.items():
        if array.shape != first.shape or dimension_names(array) != dims:
            raise InvalidInputError(
                f"{name!r} has axes {dimension_names(array)} of {array.shape}, {first_name!r} has "
                f"{dims} of {first.shape}: arrays written together need the same axes; name those "
                "that have them with `variables`"
            )
    itemsize = sum(max(array.dtype.itemsize, 1) for array in arrays.values())
    chunks = [stored_chunks(name, array) for name, array in arrays.items()]
    return Grid.common(dims, first.shape, chunks, itemsize)


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the axes; `axis_0` and so on where an axis has none."""
    names = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    return tuple(name or f"axis_{at}" for at, name in enumerate(names))


def stored_chunks(name: str, array: zarr.Array[Any]) -> tuple[int, ...]:
    """The shape of what is stored as one object: the shard, where chunks are in shards."""
    grid: Any = array.metadata.to_dict()["chunk_grid"]
    if grid["name"] != "regular":
        raise InvalidInputError(
            f"{name!r} has chunks of unequal length; only regular grids can be written by region"
        )
    return tuple(max(int(length), 1) for length in grid["configuration"]["chunk_shape"])


def _compute_and_write(
    fn: Compute, group: str, names: tuple[str, ...], fork: ForkSession, region: Region
) -> None:
    values = fn(region)
    if hasattr(values, "to_dataset") or hasattr(values, "to_zarr"):
        write_dataset_region(fork, group, names, values, region)
        return
    if not isinstance(values, Mapping):
        if len(names) != 1:
            raise InvalidInputError(
                f"the function returned a {type(values).__name__} for {len(names)} arrays, "
                f"expected a mapping with {sorted(names)}"
            )
        values = {names[0]: values}
    if set(values) != set(names):
        raise InvalidInputError(
            f"the function returned {sorted(values)} for region {region.indexers}, expected "
            f"{sorted(names)}"
        )
    for name, part in values.items():
        block = np.asarray(part)
        if block.shape != region.shape:
            raise InvalidInputError(
                f"the function returned {name!r} of shape {block.shape} for region "
                f"{region.indexers}, expected {region.shape}"
            )
        path = f"{group}/{name}".strip("/")
        array = zarr.open_array(fork.store, path=path, mode="r+")
        if not np.can_cast(block.dtype, array.dtype, "same_kind"):
            raise InvalidInputError(
                f"the function returned {name!r} as {block.dtype}, the array holds {array.dtype}"
            )
        array[region.slices] = block


def write_dataset_region(
    fork: ForkSession, group: str, names: Sequence[str], values: Any, region: Region
) -> None:
    """Write xarray values, encoded as the stored arrays say."""
    if not hasattr(values, "data_vars"):
        if len(names) != 1:
            raise InvalidInputError(
                f"the function returned a DataArray for {len(names)} arrays, expected a Dataset "
                f"with {sorted(names)}"
            )
        values = values.to_dataset(name=names[0])
    found = values[list(names)].reset_coords(drop=True)
    sizes = {dim: found.sizes.get(dim, 1) for dim in region.dims}
    wanted = dict(zip(region.dims, region.shape, strict=True))
    if sizes != wanted:
        raise InvalidInputError(
            f"the dataset for region {region.indexers} has sizes {dict(found.sizes)}, expected "
            f"{wanted}"
        )
    found = found.drop_vars(list(found.coords))
    found.to_zarr(
        fork.store,
        group=group.strip("/") or None,
        region=region.indexers if region.dims else None,
        mode="r+",
        consolidated=False,
        safe_chunks=False,  # regions share no chunk, so a part of one has a single writer
    )


def _group_of(session: Session, path: str) -> str:
    node = session.workspace.state.node(paths.validate(_absolute(path)))
    if node.array is None:
        return node.path
    return "/" + "/".join(paths.segments(node.path)[:-1])


def _open(session: Session, path: str) -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path.strip("/"), mode="r")


def _absolute(path: str) -> str:
    return "/" + path.strip("/")
