"""GRIB files, by way of cfgrib: messages that form a hypercube become arrays.

They are always copied. Simple packing is a run of big-endian integers, which Zarr could read in
place, but every message has a reference value of its own, where an array has one `add_offset`; and
xarray unpacks to float64, whose values are not the float32 of cfgrib. IEEE packing of 32 bits is
what cfgrib reads, except where a value is equal to the missing one, which only reading it tells.

What cfgrib calls `time` is a dimension here even if a file has only one: files follow each other
along it. A remote file is copied to the local disk while it is open, because cfgrib reads paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cfgrib
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from icefloe.storage.run import RenewedLock
from icefloe.virtual.model.data_types import attribute_json, data_type_of, fill_value_json
from icefloe.virtual.model.description import (
    GroupDescription,
    SourceDescription,
    SourceError,
    VariableDescription,
    wants_values,
    with_values,
)
from icefloe.virtual.sources import SourceFile

_TIME = "time"
_FOLLOWS_TIME = "valid_time"
_OF_A_MESSAGE = frozenset({"latitude", "longitude", "y", "x", "values"})
"""Dimensions within a message; there is a message for every step along the others."""
_COPY_BYTES = 8 << 20
_ECCODES = RenewedLock()
"""Held while messages are decoded: scans of remote files run in threads, eccodes need not."""
_REASON = "GRIB messages are not in a form that Zarr reads"


class GribFile:
    """An open file: its variables as stored, by name."""

    def __init__(self, file: SourceFile) -> None:
        """Index the messages of a file.

        Raises:
            SourceError: they form no hypercube, or cannot be read.
        """
        self._location = file.location
        self._files = ExitStack()
        try:
            path = self._files.enter_context(_copied(file)) if file.path is None else file.path
            with _ECCODES:
                self._dataset = _open(path, file.location)
        except BaseException:
            self._files.close()
            raise
        found = self._dataset.variables
        self._has_one_time = _TIME in found and _TIME not in self._dataset.sizes
        self.attributes = {
            name: attribute_json(value)
            for name, value in self._dataset.attrs.items()
            if name != "history"  # which tells when this program opened it
        }

    def describe(self) -> dict[str, VariableDescription]:
        return {str(name): self._describe(str(name)) for name in self._dataset.variables}

    def _describe(self, name: str) -> VariableDescription:
        variable = self._dataset.variables[name]
        shape, dimensions = variable.shape, tuple(map(str, variable.dims))
        if self._is_expanded(name):
            shape, dimensions = (1, *shape), (_TIME, *dimensions)
        inside = [dimension in _OF_A_MESSAGE for dimension in dimensions]
        fill = np.nan if variable.dtype.kind == "f" else None
        return VariableDescription(
            path=name,
            dtype=variable.dtype.str,
            shape=shape,
            chunks=tuple(
                max(1, length) if whole else 1 for length, whole in zip(shape, inside, strict=True)
            ),
            dimensions=dimensions,
            attributes={key: attribute_json(value) for key, value in variable.attrs.items()},
            data_type=data_type_of(variable.dtype),
            fill_value=fill_value_json(fill, variable.dtype),
            codecs=None,
            reason=_REASON,
        )

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        variable = self._dataset.variables[path]
        is_expanded = self._is_expanded(path)
        inner = region[1:] if is_expanded else region
        try:
            with _ECCODES:
                values = np.asarray(variable[inner].values if inner else variable.values)
        except (OSError, ValueError, EOFError, cfgrib.messages.eccodes.CodesInternalError) as error:
            raise SourceError(f"{self._location}: variable {path!r}: {error}") from error
        return values[np.newaxis][region[:1]] if is_expanded else values

    def _is_expanded(self, name: str) -> bool:
        """Whether a variable gets the dimension of time that its file has only one step of."""
        if not self._has_one_time:
            return False
        # Only variables of messages list their coordinates.
        has_messages = "coordinates" in self._dataset.variables[name].attrs
        return has_messages or name in (_TIME, _FOLLOWS_TIME)

    def close(self) -> None:
        self._dataset.close()
        self._files.close()


def scan_grib(
    file: SourceFile, *, references: bool, concat_dims: tuple[str, ...] | None
) -> SourceDescription:
    """Describe a file. There are no references to its chunks."""
    with closing(GribFile(file)) as opened:
        variables = opened.describe()
        for name, variable in variables.items():
            if wants_values(variable, concat_dims):
                variables[name] = with_values(variable, opened.read(name, ()))
        dimensions = {
            dimension: length
            for variable in variables.values()
            for dimension, length in zip(variable.dimensions, variable.shape, strict=True)
        }
        group = GroupDescription(opened.attributes, dimensions)
    return SourceDescription(
        file.location, "grib", file.version, {"": group}, variables, {} if references else None
    )


@contextmanager
def _copied(file: SourceFile) -> Iterator[Path]:
    """A remote file on the local disk, where cfgrib can read it."""
    assert file.reader is not None
    with TemporaryDirectory(prefix="icefloe-") as folder:
        path = Path(folder) / "copy.grib"
        with path.open("wb") as copy:
            for start in range(0, file.reader.size, _COPY_BYTES):
                copy.write(file.reader.read_at(start, _COPY_BYTES))
        yield path


def _open(path: Path, location: str) -> xr.Dataset:
    # cfgrib then raises for messages that do not fit; by default it leaves them out.
    options = {"indexpath": "", "errors": "raise"}
    try:
        return xr.open_dataset(path, engine="cfgrib", decode_cf=False, backend_kwargs=options)
    except Exception as error:
        kind = type(error).__name__
        said = str(error).partition("\n")[0] or kind
        raise SourceError(
            f"{location}: its messages cannot be read as one set of arrays ({said}); split it, for "
            "example by level and step type, and ingest the parts into groups of their own"
        ) from error
