"""Which format a source has, and the two things done with it: scanning and reading."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.on_demand import on_demand
from icefloe.virtual.formats import zarr_source
from icefloe.virtual.model.description import SourceDescription, SourceError
from icefloe.virtual.places.access import SourceAccess, SourceFile, absolute_location, local_path
from icefloe.virtual.places.list_objects import Place

if TYPE_CHECKING:
    from icefloe.virtual.formats import kerchunk as kerchunk_source
    from icefloe.virtual.formats import kerchunk_json, kerchunk_parquet, netcdf3
else:
    kerchunk_source = on_demand("icefloe.virtual.formats.kerchunk")
    kerchunk_json = on_demand("icefloe.virtual.formats.kerchunk_json")
    kerchunk_parquet = on_demand("icefloe.virtual.formats.kerchunk_parquet")
    netcdf3 = on_demand("icefloe.virtual.formats.netcdf3")

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_HDF5_STARTS = (0, 512, 1024, 2048, 4096, 8192)
"""The signature comes after a block of the user's own, whose size is 0 or a power of two."""


class NativeReader(Protocol):
    """An open source whose variables can be read."""

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        """Part of a variable exactly as stored: packed values stay packed."""
        ...


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
        with _preprocessed(location, reach, reach.preprocess) as made:
            return made.describe(concat_dims)  # type: ignore[no-any-return]
    file = _open(location, reach)
    options: dict[str, Any] = {"references": references, "concat_dims": concat_dims}
    if file is None:
        if (found_set := _parquet_set(location, reach)) is not None:
            return kerchunk_source.scan_kerchunk(found_set, reach, **options)
        return zarr_source.scan_zarr(location, reach, **options)
    found: SourceDescription
    match _detect(file):
        case "kerchunk":
            found = kerchunk_source.scan_kerchunk(
                kerchunk_json.JsonReferences(file), reach, **options
            )
        case "netcdf3":
            found = netcdf3.scan_netcdf3(file, **options)
        case "grib":
            found = _grib(location).scan_grib(file, **options)
        case _:
            found = _hdf5(location).scan_hdf5(file, **options)
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
        with _preprocessed(location, reach, reach.preprocess) as made:
            yield made
        return
    file = _open(location, reach)
    if file is None:
        found_set = _parquet_set(location, reach)
        if found_set is not None:
            yield kerchunk_source.KerchunkReader(found_set, reach)
        else:
            yield _ZarrReader(Place(location, reach))
        return
    match _detect(file):
        case "kerchunk":
            yield kerchunk_source.KerchunkReader(kerchunk_json.JsonReferences(file), reach)
        case "netcdf3":
            yield _Netcdf3Reader(file, netcdf3.read_header(file))
        case "grib":
            with contextlib.closing(_grib(location).GribFile(file)) as opened:
                yield opened
        case _:
            hdf5 = _hdf5(location)
            with hdf5.opened(file) as fid:
                yield _Hdf5Reader(hdf5, fid)


@contextlib.contextmanager
def _preprocessed(location: str, access: SourceAccess, hook: Callable[[Any], Any]) -> Iterator[Any]:
    from icefloe.virtual.formats.preprocessing import PreprocessedSource  # noqa: PLC0415 - needs xarray

    plain = replace(access, preprocess=None)
    source = scan(location, concat_dims=(), access=plain)
    with open_native(location, plain) as reader:
        yield PreprocessedSource(source, reader, hook)


class _ZarrReader:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._arrays: dict[str, Any] = {}

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        if path not in self._arrays:
            self._arrays[path] = self._place.open_zarr(path)
        return zarr_source.read_region(self._arrays[path], region)


class _Netcdf3Reader:
    def __init__(self, file: SourceFile, header: netcdf3.Netcdf3Header) -> None:
        self._file, self._header = file, header

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        return netcdf3.read_region(self._file, self._header, path, region)


class _Hdf5Reader:
    def __init__(self, hdf5: Any, fid: Any) -> None:
        self._hdf5, self._fid = hdf5, fid
        self._datasets: dict[str, Any] = {}

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        if path not in self._datasets:
            self._datasets[path] = self._hdf5.open_dataset(self._fid, path)
        return np.asarray(self._hdf5.read_region(self._datasets[path], region))


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
    return zarr_source.is_zarr(place) or kerchunk_parquet.is_parquet_set(place)


def _parquet_set(location: str, access: SourceAccess) -> kerchunk_parquet.ParquetReferences | None:
    """The set of references in a folder; None if it is a Zarr store."""
    if location.rstrip("/").endswith(".zarr"):
        return None
    place = Place(location, access)
    return (
        kerchunk_parquet.ParquetReferences(place)
        if kerchunk_parquet.is_parquet_set(place)
        else None
    )


def _detect(file: SourceFile) -> str:
    stream = file.open()
    try:
        start = stream.read(64)
        if start[:4] == b"GRIB":
            return "grib"
        if start[:4] in (b"CDF\x01", b"CDF\x02", b"CDF\x05"):
            return "netcdf3"
        for offset in _HDF5_STARTS:
            stream.seek(offset)
            if stream.read(8) == HDF5_MAGIC:
                return "hdf5"
        if kerchunk_json.may_be_json(start):
            return "kerchunk"
    finally:
        if file.path is not None:
            stream.close()
        else:
            stream.seek(0)
    size = file.version.size_bytes
    what = "it is empty" if not size else f"it starts with {start[:8]!r}"
    raise SourceError(
        f"{file.location}: {what}, which is not NetCDF, HDF5, GRIB, Zarr or a set of references"
    )


def _hdf5(location: str) -> Any:
    return _parser("hdf5", ("h5py",), f"{location}: HDF5 and NetCDF 4 files need h5py")


def _grib(location: str) -> Any:
    return _parser("grib", ("cfgrib", "eccodes", "xarray"), f"{location}: GRIB files need cfgrib")


def _parser(name: str, packages: tuple[str, ...], problem: str) -> Any:
    """The module for a format whose packages are optional."""
    try:
        return importlib.import_module(f"icefloe.virtual.formats.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise InvalidInputError(
            f"{problem}: pip install 'icefloe[{name}]'", ErrorKind.UNIMPLEMENTED
        ) from error
