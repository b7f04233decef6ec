"""Files as a function of the user makes them: a dataset is changed before it is brought over.

The function gets an xarray Dataset of what the file stores, nothing decoded and nothing read, and
returns one. It runs where files are read, once for the scan and once for each task that copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.virtual.model.cf_attributes import FILL, MISSING, zarr_attributes
from icefloe.virtual.model.data_types import attribute_json, data_type_of, fill_value_json
from icefloe.virtual.model.description import (
    GroupDescription,
    SourceDescription,
    SourceError,
    VariableDescription,
    wants_values,
    with_values,
)
from icefloe.virtual.model.missing import missing_value_of

try:
    import xarray as xr
    from xarray.backends import BackendArray
    from xarray.core import indexing
except ModuleNotFoundError as error:
    raise InvalidInputError("preprocess needs xarray: pip install 'icefloe[xarray]'") from error

Hook = Callable[[Any], Any]
_DECODED = "mMO"
"""Kinds of values that a file does not store: times, and objects such as those of cftime."""


class PreprocessedSource:
    """A source behind the hook: it is described and read as the hook returns it."""

    def __init__(self, source: SourceDescription, reader: Any, hook: Hook) -> None:
        self._source = source
        self._dataset = _called(hook, _dataset(source, reader), source.location)

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        """Part of a variable as it is stored in the end."""
        values: NDArray[Any] = np.asarray(self._dataset.variables[path][region].values)
        return values

    def describe(self, concat_dims: tuple[str, ...] | None) -> SourceDescription:
        """The description of what the hook returned; it cannot be referred to."""
        dataset = self._dataset
        variables = {}
        for name, variable in dataset.variables.items():
            described = _described(str(name), variable, self._source.location)
            if wants_values(described, concat_dims):
                described = with_values(described, np.asarray(variable.values))
            variables[str(name)] = described
        attributes = {str(name): attribute_json(value) for name, value in dataset.attrs.items()}
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
                start, stop, step = at.indices(size)
                count = len(range(start, stop, step))
                low = start if step > 0 else start + (count - 1) * step
                high = low + (count - 1) * abs(step) + 1 if count else low
                region.append(slice(low, high))
                after.append(slice(None, None, step))
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
    variables = {
        path: xr.Variable(
            variable.dimensions,
            indexing.LazilyIndexedArray(_Lazy(reader, variable)),
            _raw_attributes(variable),
        )
        for path, variable in source.variables.items()
    }
    names = {
        name
        for variable in source.variables.values()
        for name in str(variable.attributes.get("coordinates", "")).split()
    }
    coords = {
        path: variable
        for path, variable in variables.items()
        if source.variables[path].is_coordinate or path in names
    }
    data = {path: variable for path, variable in variables.items() if path not in coords}
    root = source.groups.get("", GroupDescription())
    made = xr.Dataset(data, xr.Coordinates(coords, indexes={}), root.attributes)
    made.encoding["source"] = source.location
    return made


def _raw_attributes(variable: VariableDescription) -> dict[str, Any]:
    """Attributes as a file has them: `_FillValue` is a value of the variable's type."""
    found: dict[str, Any] = dict(variable.attributes)
    if FILL in found:
        own = {name: given for name, given in found.items() if name != MISSING}
        value = missing_value_of(own, variable.dtype)
        if value is None:
            del found[FILL]
        else:
            found[FILL] = np.dtype(variable.dtype).type(value)
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
    return xr.Dataset(
        {name: _encoded(name, variable) for name, variable in kept.data_vars.variables.items()},
        xr.Coordinates(
            {name: _encoded(name, variable) for name, variable in kept.coords.variables.items()},
            indexes={},
        ),
        made.attrs,
    )


def _encoded(name: Any, variable: Any) -> Any:
    """A variable as a file stores it: times become numbers, truth values bytes."""
    kind = variable.dtype.kind
    if kind == "b" or (kind in _DECODED and not _is_text(variable)):
        return xr.conventions.encode_cf_variable(variable.to_base_variable(), name=name)
    return variable.to_base_variable()


def _is_text(variable: Any) -> bool:
    if variable.dtype.kind != "O":
        return False
    first = next(iter(np.asarray(variable.values).ravel()[:1]), "")
    return isinstance(first, str)


def _described(name: str, variable: Any, location: str) -> VariableDescription:
    kind = variable.dtype
    is_text = kind.kind in "OUT"
    dtype = "string" if is_text else kind.str
    given: Mapping[str, Any] = {str(key): value for key, value in variable.attrs.items()}
    found = zarr_attributes(given, np.dtype(object) if is_text else kind)
    shape = tuple(int(size) for size in variable.shape)
    try:
        data_type = "string" if is_text else data_type_of(kind)
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
        "" if is_text else fill_value_json(None, kind),
        None,
        "a function of the user has changed it",
        is_contiguous=True,
        notes=found.notes,
    )
