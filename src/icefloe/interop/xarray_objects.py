"""Writing xarray objects. Values in memory are written at once, dask arrays through a fork."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, Literal

import numpy as np
import zarr
from xarray import DataArray, Dataset, DataTree, Variable
from xarray.backends import ZarrStore
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE
from xarray.backends.common import ArrayWriter
from xarray.backends.writers import _validate_dataset_names, dump_to_store

from icefloe.api.session import Session

Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None
ZarrWriteModes = Literal["w", "w-", "a", "a-", "r+", "r"]


def to_icechunk(
    obj: DataArray | Dataset | DataTree,
    session: Session,
    *,
    group: str | None = None,
    mode: ZarrWriteModes | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region = None,
    encoding: Mapping[Any, Any] | None = None,
    write_inherited_coords: bool = False,
    chunkmanager_store_kwargs: MutableMapping[Any, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write a dataset, data array or tree to a group of a session; commit the session afterwards.

    Like `Dataset.to_zarr`, whose arguments have the same meaning here. Dask arrays are computed
    wherever dask is set up to, threads, processes or a cluster: tasks write to a fork of the
    session, and the forks are merged into it. Arrays of all groups of a tree are computed together.

    Args:
        obj: what to write. Virtual datasets of VirtualiZarr go to `virtual_to_icechunk`.
        session: a writable session, or a fork of one.
        group: where in the hierarchy.
        mode: "w" replaces what is there, "w-" refuses to, "a" adds and overwrites variables,
            "a-" only those with `append_dim`, "r+" changes values only. The default is "a" with
            `append_dim`, "r+" with `region`, and otherwise "w-".
        safe_chunks: refuse dask chunks that do not consist of whole Zarr chunks.
        align_chunks: rechunk dask arrays so that they do.
        append_dim: the dimension to append along.
        region: which part of existing arrays to write.
        encoding: for each variable; of a tree, for each variable of each group, by path.
        write_inherited_coords: write the coordinates that groups of a tree inherit there too.
        chunkmanager_store_kwargs: further arguments of `dask.array.store`.
        split_every: how many forks one task merges.

    >>> dataset = xr.Dataset({"rain": (("y", "x"), np.zeros((8, 8)))})
    >>> icefloe.xarray.to_icechunk(dataset, session, group="rain")
    >>> snapshot_id = session.commit("Add rain")
    """
    if not isinstance(session, Session):
        raise TypeError(
            f"to_icechunk(): session is a {type(session).__name__}, expected a Session; pass "
            "repository.writable_session(...), not its store"
        )
    session.workspace.state.require_open()
    writer = ArrayWriter()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {
        "mode": _mode(mode, append_dim, region),
        "append_dim": append_dim,
        "write_region": region,
        "safe_chunks": safe_chunks,
        "align_chunks": align_chunks,
    }
    for path, dataset, its_encoding in datasets_of(obj, encoding, write_inherited_coords):
        _dump(dataset, session, writer, its_encoding, join_path(group, path), options)
        # The first group has replaced or refused what was there. The others are below it.
        options["mode"] = "a" if options["mode"] in ("w", "w-") else options["mode"]
    if not writer.sources:
        return
    fork = session.fork()
    writer.targets = [
        zarr.open_array(fork.store, path=array.path, mode="r+") for array in writer.targets
    ]
    storing = {**(chunkmanager_store_kwargs or {}), "load_stored": False, "return_stored": True}
    stored = writer.sync(compute=False, chunkmanager_store_kwargs=storing)  # type: ignore[no-untyped-call]
    # Not at the top: who has nothing chunked needs no dask.
    dask_arrays = import_module("icefloe.interop.dask_arrays")
    session.merge(dask_arrays.session_merge_reduction(stored, split_every=split_every))


def create_arrays(
    dataset: Dataset,
    session: Session,
    absent: Collection[Hashable],
    *,
    group: str | None = None,
    mode: ZarrWriteModes | None = None,
    append_dim: Hashable | None = None,
    region: Region = None,
    encoding: Mapping[Any, Any] | None = None,
) -> None:
    """Write a dataset as `to_icechunk` does, without the values of the variables in `absent`.

    Their arrays are created or resized. Values in memory that are not wanted should repeat one cell
    (`numpy.broadcast_to`), because they are encoded before they are left out.
    """
    options = {
        "mode": _mode(mode, append_dim, region),
        "append_dim": append_dim,
        "write_region": region,
        "safe_chunks": False,  # who writes the values sees to it
    }
    writer = _WriterOfOthers(frozenset(absent))
    _dump(dataset, session, writer, dict(encoding or {}), join_path(group), options)


class _WriterOfOthers(ArrayWriter):
    """Writes the variables that are not absent."""

    def __init__(self, absent: frozenset[Hashable]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.absent = absent

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        if target.basename not in self.absent:
            super().add(source, target, region)  # type: ignore[no-untyped-call]


class _Target(ZarrStore):
    """Encodes an array that repeats one cell as that cell, and repeats the result."""

    def encode_variable(self, variable: Variable, name: Any = None) -> Variable:
        data = variable._data
        if not isinstance(data, np.ndarray) or data.size < 2 or any(data.strides):
            return super().encode_variable(variable, name)  # type: ignore[no-any-return, no-untyped-call]
        cell = super().encode_variable(variable[(slice(0, 1),) * data.ndim], name)  # type: ignore[no-untyped-call]
        values = np.broadcast_to(cell.values, data.shape)
        return Variable(cell.dims, values, cell.attrs, cell.encoding)


def _dump(
    dataset: Dataset,
    session: Session,
    writer: ArrayWriter,
    encoding: dict[Any, Any],
    group: str,
    options: dict[str, Any],
) -> None:
    """Create and resize arrays, and let the writer have the values."""
    _validate_dataset_names(dataset)
    _refuse_virtual(dataset)
    target = _Target.open_group(
        session.store,
        group=group or None,
        consolidated=False,
        consolidate_on_close=False,
        zarr_format=3,
        **options,
    )
    dataset = target._validate_and_autodetect_region(_with_empty_loaded(dataset))
    target._validate_encoding(encoding)
    dump_to_store(dataset, target, writer, encoding=encoding)  # type: ignore[no-untyped-call]


def datasets_of(
    obj: DataArray | Dataset | DataTree,
    encoding: Mapping[Any, Any] | None,
    write_inherited_coords: bool,
) -> Iterator[tuple[str, Dataset, dict[Any, Any]]]:
    """What to write, with its path below the group and its encoding."""
    if not isinstance(obj, DataTree):
        yield "", obj if isinstance(obj, Dataset) else _as_dataset(obj), dict(encoding or {})
        return
    by_group = dict(encoding or {})
    if unknown := set(by_group) - set(obj.groups):
        raise ValueError(
            f"encoding has {', '.join(sorted(map(str, unknown)))}, expected paths of groups: "
            f"{', '.join(obj.groups)}"
        )
    for path, node in obj.subtree_with_keys:
        dataset = node.to_dataset(inherit=write_inherited_coords or node is obj)
        yield "" if node is obj else path, dataset, dict(by_group.get(node.path) or {})


def join_path(group: str | None, path: str = "") -> str:
    """The path of a group below another one, as xarray has it: without slashes at its ends."""
    return "/".join(part for part in ((group or "").strip("/"), path) if part)


def _with_empty_loaded(dataset: Dataset) -> Dataset:
    """The dataset with arrays without values in memory: chunks of length 0 cannot be stored."""
    twin = dataset.copy(deep=False)
    for variable in twin.variables.values():
        if variable.size == 0:
            variable.load()
    return twin


def is_virtual(variable: Variable) -> bool:
    """Whether a variable is made of references to chunks. VirtualiZarr need not be installed."""
    data = variable._data
    return type(data).__name__ == "ManifestArray" and type(data).__module__.startswith(
        "virtualizarr."
    )


def _refuse_virtual(dataset: Dataset) -> None:
    virtual = [str(name) for name, each in dataset.variables.items() if is_virtual(each)]
    if virtual:
        raise TypeError(
            f"{', '.join(virtual)}: a virtual variable has references instead of values; write the "
            "dataset with icefloe.xarray.virtual_to_icechunk"
        )


def _mode(mode: str | None, append_dim: Hashable | None, region: Region) -> Any:
    if mode is None:
        if append_dim is not None:
            return "a"
        return "w-" if region is None else "r+"
    allowed, reason = ["w", "w-", "a", "a-", "r+"], ""
    if append_dim is not None:
        allowed, reason = ["a", "a-"], "with append_dim "
    elif region is not None:
        allowed, reason = ["a", "a-", "r+"], "with region "
    if mode not in allowed:
        raise ValueError(f"mode is {mode!r}, {reason}expected None or one of {allowed}")
    return mode


def _as_dataset(array: DataArray) -> Dataset:
    """A dataset of one variable, from which xarray finds the array's name again."""
    if array.name is None:
        return array.to_dataset(name=DATAARRAY_VARIABLE)
    if array.name in array.coords or array.name in array.dims:
        dataset = array.to_dataset(name=DATAARRAY_VARIABLE)
        dataset.attrs[DATAARRAY_NAME] = array.name
        return dataset
    return array.to_dataset()
