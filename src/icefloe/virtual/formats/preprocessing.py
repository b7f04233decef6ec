"""Files as a function of the user makes them: a dataset is changed before it is brought over.

The function gets an xarray Dataset of what the file stores, nothing decoded and nothing read, and
returns one. It runs where files are read, once for the scan and once for each task that copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from icefloe.virtual.model import data_types
from icefloe.virtual.model.description import (
    GroupDescription,
    SourceDescription,
    SourceError,
    VariableDescription,
    wants_values,
    with_values,
)

Hook = Callable[[Any], Any]


class PreprocessedSource:
    """A source behind the hook: it is described and read as the hook returns it."""

    def __init__(self, source: SourceDescription, reader: Any, hook: Hook) -> None:
        self._source = source
        self._dataset = _called(hook, _dataset(source, reader), source.location)

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        return np.asarray(self._dataset.variables[path][region].values)

    def describe(self, concat_dims: tuple[str, ...] | None) -> SourceDescription:
        """The description of what the hook returned; it cannot be referred to."""
        dataset = self._dataset
        variables = {}
        for name, variable in dataset.variables.items():
            described = _described(str(name), variable, self._source.location)
            if wants_values(described, concat_dims):
                described = with_values(described, np.asarray(variable.values))
            variables[str(name)] = described
        attributes = {
            str(name): data_types.attribute_json(value) for name, value in dataset.attrs.items()
        }
        sizes = {str(name): int(size) for name, size in dataset.sizes.items()}
        groups = {"": GroupDescription(attributes, sizes)}
        return replace(self._source, groups=groups, variables=variables, references=None)


class _Lazy(BackendArray):
    """A variable of a source that is read when its values are used."""

    def __init__(self, reader: Any, variable: VariableDescription) -> None:
        self._reader, self._path = reader, variable.path
        self.shape = variable.shape
        text = variable.dtype
        self.dtype = np.dtype(object) if text == "string" else np.dtype(text)

    def __getitem__(self, key: Any) -> Any:
        support = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> NDArray[Any]:
        region, after = [], []
        for at, size in zip(key, self.shape, strict=True):
            if isinstance(at, slice):
                cells = range(size)[at]
                first, last = sorted((cells[0], cells[-1])) if cells else (0, -1)
                region.append(slice(first, last + 1))
                after.append(slice(None, None, cells.step))
            else:
                region.append(slice(int(at) % size, int(at) % size + 1))
                after.append(0)  # type: ignore[arg-type]
        values = self._reader.read(self._path, tuple(region))
        return np.asarray(values)[tuple(after)]


def _dataset(source: SourceDescription, reader: Any) -> Any:
    nested = sorted({variable.group for variable in source.variables.values()} - {""})
    if nested:
        raise SourceError(
            f"{source.location}: it has groups ({nested}); preprocess takes files without any"
        )
    names = {
        name
        for variable in source.variables.values()
        for name in str(variable.attributes.get("coordinates", "")).split()
    }
    data: dict[str, xr.Variable] = {}
    coords: dict[str, xr.Variable] = {}
    for path, variable in source.variables.items():
        lazy = indexing.LazilyIndexedArray(_Lazy(reader, variable))
        made = xr.Variable(variable.dimensions, lazy, _raw_attributes(variable))
        into = coords if variable.is_coordinate or path in names else data
        into[path] = made
    root = source.groups.get("", GroupDescription())
    dataset = xr.Dataset(data, xr.Coordinates(coords, indexes={}), root.attributes)
    dataset.encoding["source"] = source.location
    return dataset


def _raw_attributes(variable: VariableDescription) -> dict[str, Any]:
    """Attributes as a file has them: `_FillValue` is a value of the variable's type."""
    found: dict[str, Any] = dict(variable.attributes)
    if data_types.FILL in found:
        own = {name: given for name, given in found.items() if name != data_types.MISSING}
        value = data_types.missing_value_of(own, variable.dtype)
        if value is None:
            del found[data_types.FILL]
        else:
            found[data_types.FILL] = np.dtype(variable.dtype).type(value)
    return found


def _called(hook: Hook, dataset: Any, location: str) -> Any:
    try:
        made = hook(dataset)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise SourceError(f"{location}: preprocess failed: {reason}") from error
    if not isinstance(made, xr.Dataset):
        raise SourceError(
            f"{location}: preprocess returned a {type(made).__name__}, expected an xarray Dataset"
        )
    kept = made.drop_indexes(list(made.xindexes), errors="ignore")
    found = {name: _encoded(name, variable) for name, variable in kept.variables.items()}
    coords = {name: found.pop(name) for name in kept.coords}
    return xr.Dataset(found, xr.Coordinates(coords, indexes={}), made.attrs)


def _encoded(name: Any, variable: Any) -> Any:
    """A variable as a file stores it: times, also objects of cftime, become numbers, truth values
    bytes."""
    base, kind = variable.to_base_variable(), variable.dtype.kind
    if kind == "O":
        first = next(iter(np.asarray(variable.values).ravel()[:1]), "")
        is_decoded = not isinstance(first, str)
    else:
        is_decoded = kind in "bmM"
    return xr.conventions.encode_cf_variable(base, name=name) if is_decoded else base


def _described(name: str, variable: Any, location: str) -> VariableDescription:
    kind = variable.dtype
    is_text = kind.kind in "OUT"
    dtype = "string" if is_text else kind.str
    given = {str(key): value for key, value in variable.attrs.items()}
    found = data_types.zarr_attributes(given, np.dtype(object) if is_text else kind)
    shape = tuple(int(size) for size in variable.shape)
    try:
        data_type = "string" if is_text else data_types.data_type_of(kind)
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"{location}: preprocess made variable {name!r} of type {kind}, which cannot be stored"
        ) from error
    return VariableDescription(
        name,
        dtype,
        shape,
        tuple(max(1, size) for size in shape),
        tuple(str(dim) for dim in variable.dims),
        found.attributes,
        data_type,
        "" if is_text else data_types.fill_value_json(None, kind),
        None,
        "a function of the user has changed it",
        is_contiguous=True,
        notes=found.notes,
    )
