"""The process behind `corpus.py`: reads lines of [path, mode], answers [outcome, reason]."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, VirtualChunkContainer
from icefloe.credentials import LocalFileSystemAccess
from icefloe.errors import IcefloeError
from icefloe.virtual import IngestReport, ingest_local

Outcome = tuple[str, str]
Datasets = dict[str, Any]
"""What xarray shows of each group."""

_MOST_GROUPS = 2000
_OF_XARRAY = frozenset({"coordinates", "_FillValue", "_ARRAY_DIMENSIONS"})


def compare(path: Path, mode: str, reader: str, done: Callable[[], None]) -> Outcome:
    """Ingest one file, say that it is `done`, and compare with what a reader shows."""
    repository = _repository(path)
    try:
        result = ingest_local(str(path), repository, mode=mode)  # type: ignore[arg-type]
    except IcefloeError as error:
        return _refused(path, mode, str(error))
    done()
    store = repository.readonly_session("main").store
    attempts: list[Callable[[], str | None]] = [
        lambda: _against_xarray(path, store, result, decode=True),
        lambda: _against_xarray(path, store, result, decode=False),
    ]
    if reader == "h5py":
        attempts = []
    if h5py.is_hdf5(path):
        attempts.append(lambda: _against_h5py(path, store))
    unreadable = ""
    for attempt in attempts:
        try:
            difference = attempt()
        except Unreadable as error:
            unreadable = str(error)
            continue
        if difference is None or _is_of_netcdf(path, store, difference):
            return "same", ""
        return "different", difference
    return "unreadable", unreadable


def _is_of_netcdf(path: Path, store: Any, difference: str) -> bool:
    """Whether values are those of HDF5: NetCDF shows memory where a file has no fill value."""
    if not h5py.is_hdf5(path) or not ("values differ" in difference or ": type " in difference):
        return False
    try:
        return _against_h5py(path, store) is None
    except Unreadable:
        return False


class Unreadable(Exception):  # noqa: N818 - it is no error of the program
    """The other reader cannot read the file."""


def _repository(path: Path) -> Repository:
    prefix = f"{path.parent.as_uri()}/"
    files = icefloe.local_filesystem_store(str(path.parent))
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, files))
    access = {prefix: LocalFileSystemAccess}
    return Repository.create(icefloe.in_memory_storage(), config, access)


def _refused(path: Path, mode: str, reason: str) -> Outcome:
    """A refusal names the file, and `skip` leaves the file out."""
    if path.as_uri() not in reason:
        return "traceback", f"the refusal does not name the file: {reason}"
    result = ingest_local(str(path), _repository(path), mode=mode, on_error="skip")  # type: ignore[arg-type]
    if result.files_added or not result.problems:
        return "different", f"refused ({reason}), but not left out by on_error='skip'"
    return "refused", result.problems[0].reason


# -- xarray


def _against_xarray(path: Path, store: Any, result: IngestReport, *, decode: bool) -> str | None:
    compared = 0
    is_told = {note.split("'")[1] for note in result.notes if note.startswith("variable '")}
    has_more = False
    for group in _groups(path):
        wanted = _open(path, group, decode=decode)
        if not wanted.variables:
            continue
        try:
            found = xr.open_zarr(
                store,
                group=group or None,
                consolidated=False,
                chunks=None,
                zarr_format=3,
                decode_cf=decode,
            ).load()
        except Exception as error:  # noqa: BLE001 - whatever xarray raises is the finding
            return f"group {group!r} cannot be opened afterwards: {type(error).__name__}: {error}"
        compared += 1
        difference = _difference(found, wanted, group, is_told)
        if difference is not None:
            return difference
        has_more |= not set(found.variables) <= set(wanted.variables)
    if not compared:
        raise Unreadable("xarray shows no variables")
    # NetCDF leaves out what it has no type for.
    return _against_h5py(path, store) if has_more else None


def _groups(path: Path) -> Iterator[str]:
    yield ""
    if not h5py.is_hdf5(path):
        return
    found: list[str] = []
    seen: set[Any] = set()

    def walk(group: Any, name: str) -> None:
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            return
        seen.add(address)
        for child in group:
            link = group.get(child, getlink=True)
            if not isinstance(link, h5py.HardLink):
                continue
            item = group[child]
            if isinstance(item, h5py.Group) and h5py.h5o.get_info(item.id).addr not in seen:
                full = f"{name}/{child}" if name else child
                found.append(full)
                walk(item, full)

    try:
        with h5py.File(path, "r", locking=False) as file:
            walk(file, "")
    except Exception as error:
        raise Unreadable(f"h5py: {error}") from error
    if len(found) > _MOST_GROUPS:
        raise Unreadable(f"{len(found)} groups")
    yield from found


def _open(path: Path, group: str, *, decode: bool) -> Any:
    with path.open("rb") as stream:
        is_grib = stream.read(4) == b"GRIB"
    options: dict[str, Any] = {"engine": "netcdf4", "group": group or None}
    if is_grib:
        options = {"engine": "cfgrib", "backend_kwargs": {"indexpath": "", "errors": "raise"}}
    try:
        with xr.open_dataset(path, decode_cf=decode, **options) as dataset:
            loaded = dataset.load()
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return loaded


def _difference(found: Any, wanted: Any, group: str, is_told: set[str]) -> str | None:
    if missing := set(map(str, wanted.variables)) - set(map(str, found.variables)):
        return f"group {group!r} lacks {sorted(missing)}"
    if trouble := _attributes(found.attrs, wanted.attrs):
        return f"group {group!r}: {trouble}"
    for name in wanted.variables:
        mine, theirs = found.variables[name], wanted.variables[name]
        path = f"{group}/{name}" if group else str(name)
        if len(set(theirs.dims)) < len(theirs.dims):
            continue  # xarray does not support it, and NetCDF shows memory
        if mine.dims == ("time", *theirs.dims) and mine.shape[0] == 1:
            mine = mine[0]  # an ingest of GRIB makes a dimension of a single time
        if _named(mine.dims) != _named(theirs.dims) or mine.shape != theirs.shape:
            return f"{path!r}: {mine.dims} {mine.shape}, xarray {theirs.dims} {theirs.shape}"
        offset = theirs.encoding.get("add_offset", 0)
        if trouble := _values(mine.values, theirs.values, path in is_told, offset):
            return f"{path!r}: {trouble}"
        if trouble := _attributes(mine.attrs, theirs.attrs):
            return f"{path!r}: {trouble}"
    if lost := set(wanted.coords) - set(found.coords):
        return f"group {group!r}: {lost} are no coordinates"
    return None


def _named(dimensions: Sequence[Any]) -> list[str]:
    """Dimensions without names get one with a number, which depends on the reader."""
    return ["phony" if str(name).startswith("phony_dim_") else str(name) for name in dimensions]


def _values(mine: Any, theirs: Any, is_told: bool = False, offset: float = 0) -> str | None:
    """What differs. Where a note tells of it, float32 may have become float64, and text that is a
    fill value may not be missing. Then `offset` is what values near 0 are rounded by in float32.
    """
    if theirs.dtype.kind in "OTU" or mine.dtype.kind in "OTU":
        return _objects(mine, theirs, is_told)
    if mine.dtype != theirs.dtype.newbyteorder("="):
        if not (is_told and theirs.dtype == np.float32 and mine.dtype == np.float64):
            return f"type {mine.dtype}, expected {theirs.dtype}"
        is_close = np.allclose(mine, theirs, rtol=1e-6, atol=1e-6 * abs(offset), equal_nan=True)
        return None if is_close else "other values"
    bits = mine.dtype.kind in "fc"
    same = np.array_equal(mine, theirs, equal_nan=bits)
    if not same and mine.dtype.kind in "mM":
        same = bool(((mine == theirs) | (np.isnat(mine) & np.isnat(theirs))).all())
    if same:
        return None
    where = ~((mine == theirs) | (bits and np.isnan(mine) & np.isnan(theirs)))
    at = tuple(int(axis[0]) for axis in np.nonzero(where))
    return f"{int(where.sum())} of {mine.size} values differ, first {mine[at]!r} for {theirs[at]!r}"


def _objects(mine: Any, theirs: Any, is_told: bool) -> str | None:
    for found, wanted in zip(mine.ravel().tolist(), theirs.ravel().tolist(), strict=True):
        one, other = _stripped(found), _stripped(wanted)
        if one != other and not (is_told and other == "NaN"):
            return f"{one!r} for {other!r}"
    return None


def _stripped(text: Any) -> Any:
    """Text without what it is filled up with: h5py strips spaces, and what follows a zero byte."""
    plain = _plain(text)
    if isinstance(plain, list):
        return [_stripped(item) for item in plain]
    return plain.partition("\0")[0].rstrip(" ") if isinstance(plain, str) else plain


def _attributes(mine: dict[Any, Any], theirs: dict[Any, Any]) -> str | None:
    for name in {*map(str, mine), *map(str, theirs)} - _OF_XARRAY - {"history"}:
        if name.lower().startswith("_nc"):
            continue  # xarray does not show these beside Zarr
        one, other = _stripped(mine.get(name)), _stripped(theirs.get(name))
        if other is None:
            continue  # NetCDF leaves out attributes it has no type for
        if isinstance(one, str) and isinstance(other, str) and not other.isprintable():
            other = other[: len(one)]  # NetCDF shows what lies behind the end of a text
        if one != other:
            return f"attribute {name!r} is {one!r:.80}, expected {other!r:.80}"
    return None


def _plain(value: Any) -> Any:
    """A value as JSON keeps it, comparable also where it is NaN."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return items[0] if len(items) == 1 else items
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, complex):
        return [value.real, value.imag]
    return _plain(value) if isinstance(value, bytes) else value


# -- h5py


def _against_h5py(path: Path, store: Any) -> str | None:
    """Every dataset that the ingest found has the values that h5py reads."""
    root = zarr.open_group(store, mode="r")
    try:
        file = h5py.File(path, "r", locking=False)
    except Exception as error:
        raise Unreadable(f"h5py: {error}") from error
    with file:
        compared = 0
        for name, node in root.members(max_depth=None):
            if isinstance(node, zarr.Group) or name.startswith(".icefloe"):
                continue
            try:
                dataset: Any = file[name]
                if dataset.shape is None:
                    continue  # it has no value at all
                wanted = np.asarray(dataset[()])
            except Exception as error:
                raise Unreadable(f"h5py: {name}: {error}") from error
            found: Any = np.asarray(node[...])
            compared += 1
            if found.shape != wanted.shape:
                return f"{name!r}: shape {found.shape}, expected {wanted.shape}"
            if trouble := _values(found, wanted):
                return f"{name!r}: {trouble} (h5py)"
    if not compared:
        raise Unreadable("no datasets")
    return None


def main() -> None:
    """Answer until the input ends. Everything else that is printed goes to nowhere."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def answer(outcome: str, reason: str) -> None:
        answers.write(json.dumps([outcome, reason]) + "\n")
        answers.flush()

    for line in sys.stdin:
        path, mode, reader = json.loads(line)
        try:
            outcome, reason = compare(Path(path), mode, reader, lambda: answer("ingested", ""))
        except BaseException as error:  # noqa: BLE001 - the finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            outcome = "traceback"
        answer(outcome, reason)


if __name__ == "__main__":
    main()
