"""Which format a source has, and the two things done with it: scanning and reading."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.virtual.formats import kerchunk, kerchunk_json, netcdf3, zarr_source
from icefloe.virtual.model.description import SourceDescription, SourceError
from icefloe.virtual.sources import Place, SourceAccess, SourceFile, absolute_location, local_path

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_HDF5_STARTS = (0, 512, 1024, 2048, 4096, 8192)
"""The signature comes after a block of the user's own, whose size is 0 or a power of two."""


class NativeReader(Protocol):
    """An open source whose variables can be read."""

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        """Part of a variable exactly as stored: packed values stay packed."""


def scan(
    source: str | os.PathLike[str],
    *,
    references: bool = False,
    concat_dims: tuple[str, ...] | None = None,
    access: SourceAccess | None = None,
) -> SourceDescription:
    """Describe one source: a NetCDF 4, HDF5, NetCDF 3 or GRIB file, a Zarr store (2 or 3), or a
    set of references as kerchunk writes it (JSON or Parquet).

    Args:
        source: a path, or a URL of a file, of S3, GCS, Azure or a web server.
        references: also find where every chunk is.
        concat_dims: dimensions along which files will be joined, if known. Small variables
            without them are read, to be compared between files.
        access: how remote sources are reached.

    Raises:
        SourceError: it is none of these, or damaged.
        StorageError: it is not there or cannot be read.
    """
    location, reach = absolute_location(source), access or SourceAccess()
    if reach.preprocess is not None:
        with _preprocessed(location, reach) as made:
            return made.describe(concat_dims)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"references": references, "concat_dims": concat_dims}
    kind, opened = _detect(location, reach)
    found: SourceDescription
    match kind:
        case "kerchunk":
            found = kerchunk.scan_kerchunk(opened, reach, **options)
        case "zarr":
            found = zarr_source.scan_zarr(location, reach, **options)
        case "netcdf3":
            found = netcdf3.scan_netcdf3(opened, **options)
        case "grib":
            found = _parser("grib", location).scan_grib(opened, **options)
        case _:
            found = _parser("hdf5", location).scan_hdf5(opened, **options)
    return found


def look_at(
    source: str | os.PathLike[str], access: SourceAccess | None = None
) -> SourceDescription | None:
    """What a file is called and which version it has, without anything that is in it.

    Enough to tell whether a file that was ingested before has changed. None for a folder, whose
    version follows from all of its objects.

    Raises:
        StorageError: it is not there or cannot be read.
    """
    location = absolute_location(source)
    file = _open(location, access or SourceAccess())
    return None if file is None else SourceDescription(location, "", file.version, {}, {})


@contextlib.contextmanager
def open_native(
    source: str | os.PathLike[str], access: SourceAccess | None = None
) -> Iterator[NativeReader]:
    """Open a source to read values as they are stored."""
    location, reach = absolute_location(source), access or SourceAccess()
    if reach.preprocess is not None:
        with _preprocessed(location, reach) as made:
            yield made
        return
    kind, opened = _detect(location, reach)
    match kind:
        case "kerchunk":
            arrays = kerchunk.KerchunkReader(opened, reach)
            yield _Reader(arrays.open_array, zarr_source.read_region)
        case "zarr":
            yield _Reader(opened.open_zarr, zarr_source.read_region)
        case "netcdf3":
            header = netcdf3.read_header(opened)
            yield _Reader(header.variables.__getitem__, partial(netcdf3.read_region, opened))
        case "grib":
            with contextlib.closing(_parser(kind, location).GribFile(opened)) as file:
                yield file
        case _:
            hdf5 = _parser(kind, location)
            with hdf5.opened(opened) as fid:
                yield _Reader(partial(hdf5.open_dataset, fid), hdf5.read_region)


@contextlib.contextmanager
def _preprocessed(location: str, access: SourceAccess) -> Iterator[Any]:
    try:
        from icefloe.virtual.formats.preprocessing import PreprocessedSource
    except ModuleNotFoundError as error:
        raise InvalidInputError("preprocess needs xarray: pip install 'icefloe[xarray]'") from error
    assert access.preprocess is not None
    plain = replace(access, preprocess=None)
    source = scan(location, concat_dims=(), access=plain)
    with open_native(location, plain) as reader:
        yield PreprocessedSource(source, reader, access.preprocess)


class _Reader:
    """Opens each variable once."""

    def __init__(self, open_one: Callable[[str], Any], read_one: Callable[[Any, Any], Any]) -> None:
        self._open, self._read = open_one, read_one
        self._opened: dict[str, Any] = {}

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        if path not in self._opened:
            self._opened[path] = self._open(path)
        return np.asarray(self._read(self._opened[path], region))


def _open(location: str, access: SourceAccess) -> SourceFile | None:
    """The file at a location; None when there is a folder: a Zarr store or a set of references."""
    path = local_path(location)
    if path is not None and path.is_dir():
        if _is_store(Place(location, access)):
            return None
        raise SourceError(
            f"{location}: a folder that is not a Zarr store, and no set of references"
        )
    if path is None and location.endswith((".zarr", "/")):
        return None
    try:
        return access.open(location)
    except StorageError as error:
        is_missing = error.kind == ErrorKind.OBJECT_NOT_FOUND
        if path is None and is_missing and _is_store(Place(location, access)):
            return None
        raise


def _is_store(place: Place) -> bool:
    return zarr_source.is_zarr(place) or kerchunk.is_parquet_set(place)


def _detect(location: str, access: SourceAccess) -> tuple[str, Any]:
    """The format of a source, and the source opened for it."""
    file = _open(location, access)
    if file is None:
        place = Place(location, access)
        if not location.rstrip("/").endswith(".zarr") and kerchunk.is_parquet_set(place):
            return "kerchunk", kerchunk.ParquetReferences(place)
        return "zarr", place
    stream = file.open()
    try:
        start = stream.read(64)
        if start[:4] == b"GRIB":
            return "grib", file
        if start[:4] in (b"CDF\x01", b"CDF\x02", b"CDF\x05"):
            return "netcdf3", file
        for offset in _HDF5_STARTS:
            stream.seek(offset)
            if stream.read(8) == HDF5_MAGIC:
                return "hdf5", file
    finally:
        if file.path is not None:
            stream.close()
        else:
            stream.seek(0)
    if kerchunk_json.may_be_json(start):
        return "kerchunk", kerchunk_json.JsonReferences(file)
    what = "it is empty" if not file.version.size_bytes else f"it starts with {start[:8]!r}"
    raise SourceError(
        f"{location}: {what}, which is not NetCDF, HDF5, GRIB, Zarr or a set of references"
    )


_NEEDED = {
    "hdf5": ("HDF5 and NetCDF 4 files need h5py", {"h5py"}),
    "grib": ("GRIB files need cfgrib", {"cfgrib", "eccodes", "xarray"}),
}


def _parser(name: str, location: str) -> Any:
    """The module for a format whose packages are optional."""
    problem, packages = _NEEDED[name]
    try:
        return importlib.import_module(f"icefloe.virtual.formats.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise InvalidInputError(
            f"{location}: {problem}: pip install 'icefloe[{name}]'", ErrorKind.UNIMPLEMENTED
        ) from error
