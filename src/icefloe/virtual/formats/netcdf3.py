"""The classic NetCDF formats (CDF-1, CDF-2 with 64-bit offsets, CDF-5): header and places of data.

The header is a list of dimensions, attributes and variables, all big-endian. Variables without the
record dimension are one run of bytes each; those with it are interleaved, one record after another.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.model import data_types
from icefloe.virtual.model.description import (
    GroupDescription,
    SourceDescription,
    SourceError,
    VariableDescription,
    make_references,
    wants_values,
    with_values,
)
from icefloe.virtual.sources import SourceFile

_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_STREAMING = (2**32 - 1, 2**64 - 1)
_TYPES = {
    1: np.dtype("i1"),
    2: np.dtype("S1"),
    3: np.dtype(">i2"),
    4: np.dtype(">i4"),
    5: np.dtype(">f4"),
    6: np.dtype(">f8"),
    7: np.dtype("u1"),
    8: np.dtype(">u2"),
    9: np.dtype(">u4"),
    10: np.dtype(">i8"),
    11: np.dtype(">u8"),
}
_MAX_ITEMS = 10_000_000
"""More dimensions, attributes or variables than any file has: the header is not one."""


class Netcdf3Variable(NamedTuple):
    """One entry of the header. `record_stride` is the distance of records, None without them."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    dimensions: tuple[str, ...]
    attributes: dict[str, Any]
    begin: int
    record_stride: int | None

    @property
    def record_bytes(self) -> int:
        """Bytes of one record, or of everything where there are none."""
        shape = self.shape[1:] if self.record_stride is not None else self.shape
        return prod(shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The byte after the last one."""
        if self.record_stride is None:
            return self.begin + self.record_bytes
        if not self.shape[0]:
            return 0
        return self.begin + (self.shape[0] - 1) * self.record_stride + self.record_bytes


class Netcdf3Header(NamedTuple):
    """The whole header."""

    dimensions: dict[str, int]
    record_dimension: str | None
    attributes: dict[str, Any]
    variables: dict[str, Netcdf3Variable]


def read_header(file: SourceFile) -> Netcdf3Header:
    """Parse the header of a classic file.

    Raises:
        SourceError: it is not one, or the file ends before its data does.
    """
    stream = file.open()
    try:
        return _Parser(stream, file).header()
    finally:
        if file.path is not None:
            stream.close()


def scan_netcdf3(
    file: SourceFile, *, references: bool, concat_dims: tuple[str, ...] | None
) -> SourceDescription:
    """Describe a file; with `references`, also say where every chunk is."""
    header = read_header(file)
    variables, tables = {}, {}
    for entry in header.variables.values():
        variable = _describe(entry)
        if wants_values(variable, concat_dims):
            variable = with_values(variable, read_region(file, entry, ()))
        variables[entry.name] = variable
        if references:
            tables[entry.name] = _references(entry, file.location)
    attributes = {key: data_types.attribute_json(value) for key, value in header.attributes.items()}
    record = header.record_dimension
    unlimited = frozenset[str]() if record is None else frozenset({record})
    return SourceDescription(
        file.location,
        "netcdf3",
        file.version,
        {"": GroupDescription(attributes, dict(header.dimensions), unlimited)},
        variables,
        tables if references else None,
    )


def _describe(entry: Netcdf3Variable) -> VariableDescription:
    said = data_types.zarr_attributes(entry.attributes, entry.dtype)
    chunks = entry.shape if entry.record_stride is None else (1, *entry.shape[1:])
    return VariableDescription(
        path=entry.name,
        dtype=entry.dtype.str,
        shape=entry.shape,
        chunks=tuple(max(1, length) for length in chunks),
        dimensions=entry.dimensions,
        attributes=said.attributes,
        data_type=data_types.data_type_of(entry.dtype),
        fill_value=data_types.fill_value_json(_fill_value(entry), entry.dtype),
        codecs=(data_types.bytes_codec(entry.dtype),),
        is_contiguous=entry.record_stride is None,
        notes=said.notes,
    )


def _fill_value(entry: Netcdf3Variable) -> Any:
    """The `_FillValue` of a variable, if it is one of its type."""
    given = entry.attributes.get("_FillValue")
    if given is None:
        return None
    if entry.dtype.kind == "S":
        return given.encode()[:1] if isinstance(given, str) else None
    found = np.asarray(given).reshape(-1)
    if not found.size or found.dtype.kind not in "iuf":
        return None
    if entry.dtype.kind in "iu":
        limits = np.iinfo(entry.dtype)
        is_inside = float(found[0]).is_integer() and limits.min <= found[0] <= limits.max
        return int(found[0]) if is_inside else None
    return found[0]


def _references(entry: Netcdf3Variable, location: str) -> Any:
    count = 1 if entry.record_stride is None else entry.shape[0]
    if not entry.record_bytes or not count:
        count = 0
    index = np.zeros((count, len(entry.shape)), np.uint32)
    if entry.record_stride is not None:
        index[:, 0] = np.arange(count)
    offset = entry.begin + np.arange(count, dtype=np.uint64) * np.uint64(entry.record_stride or 0)
    return make_references(index, location, offset, np.full(count, entry.record_bytes, np.uint64))


def read_region(
    file: SourceFile, entry: Netcdf3Variable, region: tuple[slice, ...]
) -> NDArray[Any]:
    """Part of a variable as stored; only the bytes between its first and last row are read."""
    item = entry.dtype.itemsize
    strides = [item * prod(entry.shape[axis + 1 :]) for axis in range(len(entry.shape))]
    if entry.record_stride is not None:
        strides[0] = entry.record_stride
    first, stop = 0, entry.shape[0] if entry.shape else 1
    if region:
        first, stop, _ = region[0].indices(entry.shape[0])
    if stop <= first or not prod(entry.shape):
        return np.empty(entry.shape, entry.dtype)[region]
    row = strides[0] if strides else item
    length = (stop - first - 1) * row + (item * prod(entry.shape[1:]) if entry.shape else item)
    data = _read_at(file, entry.begin + first * row, length)
    shape = (stop - first, *entry.shape[1:]) if entry.shape else ()
    values = np.ndarray(shape, entry.dtype, data, strides=tuple(strides))
    return values[(slice(None), *region[1:])].copy() if region else values.copy()


def _read_at(file: SourceFile, start: int, length: int) -> bytes:
    if file.reader is not None:
        return file.reader.read_at(start, length)
    with file.open() as stream:
        stream.seek(start)
        data = stream.read(length)
    assert isinstance(data, bytes)
    if len(data) != length:
        raise SourceError(f"{file.location}: it ends at byte {start + len(data):,}: it was cut off")
    return data


class _Parser:
    """Reads the header item by item; the stream behind it is buffered."""

    def __init__(self, stream: Any, file: SourceFile) -> None:
        self._stream = stream
        self._file = file
        magic = self._take(4)
        if magic[:3] != b"CDF" or magic[3] not in (1, 2, 5):
            raise self._wrong("it does not start as a classic NetCDF file does")
        self._count_format = ">Q" if magic[3] == 5 else ">I"
        self._offset_format = ">I" if magic[3] == 1 else ">Q"

    def header(self) -> Netcdf3Header:
        records = self._count()
        dimensions = [(self._name(), self._count()) for _ in range(self._list(_DIMENSIONS))]
        attributes = self._attribute_list()
        listed = self._variable_list(dimensions)
        names = [name for name, _ in dimensions]
        of_records = [number for number, (_, size) in enumerate(dimensions) if size == 0]
        record = names[of_records[0]] if of_records else None
        is_record = [bool(ids) and dimensions[ids[0]][1] == 0 for _, ids, *_ in listed]
        of_record = [entry for entry, yes in zip(listed, is_record, strict=True) if yes]
        sizes = [
            prod(dimensions[at][1] for at in ids[1:]) * dtype.itemsize
            for _, ids, _, dtype, _ in of_record
        ]
        # A single record variable is not padded; several are, each to four bytes.
        stride = sizes[0] if len(sizes) == 1 else sum(-(-size // 4) * 4 for size in sizes)
        if records in _STREAMING:
            first = min((begin for *_, begin in of_record), default=0)
            records = (self._file.version.size_bytes - first) // stride if stride else 0
        variables = {}
        for (name, ids, more, dtype, begin), has_records in zip(listed, is_record, strict=True):
            shape = [dimensions[at][1] for at in ids]
            if has_records:
                shape[0] = records
            known = tuple(names[at] for at in ids)
            step = stride if has_records else None
            entry = Netcdf3Variable(name, dtype, tuple(shape), known, more, begin, step)
            if entry.end > self._file.version.size_bytes:
                raise self._wrong(
                    f"variable {name!r} reaches to byte {entry.end:,}, the file has "
                    f"{self._file.version.size_bytes:,}: it was cut off"
                )
            variables[name] = entry
        sizes_by_name = {
            name: size or (records if name == record else 0) for name, size in dimensions
        }
        return Netcdf3Header(sizes_by_name, record, attributes, variables)

    def _attribute_list(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self._list(_ATTRIBUTES)):
            name = self._name()
            dtype, count = self._dtype(), self._count()
            data = self._padded(count * dtype.itemsize)
            if dtype.kind == "S":
                found[name] = data.decode("utf-8", "replace").rstrip("\0")
            else:
                found[name] = np.frombuffer(data, dtype)
        return found

    def _variable_list(self, dimensions: list[tuple[str, int]]) -> list[Any]:
        found = []
        for _ in range(self._list(_VARIABLES)):
            name = self._name()
            ids = [self._count() for _ in range(self._bounded())]
            if any(at >= len(dimensions) for at in ids):
                raise self._wrong(f"variable {name!r} names a dimension that is not listed")
            attributes, dtype = self._attribute_list(), self._dtype()
            self._count()  # its size, which overflows in large files and is not needed
            found.append((name, ids, attributes, dtype, self._number(self._offset_format)))
        return found

    def _list(self, tag: int) -> int:
        found = self._number(">I")
        count = self._bounded()
        if found != tag and (found or count):
            raise self._wrong(f"the header has {found} where a list starts with {tag}")
        return count

    def _bounded(self) -> int:
        count = self._count()
        if count > _MAX_ITEMS:
            raise self._wrong(f"the header lists {count:,} items")
        return count

    def _dtype(self) -> np.dtype[Any]:
        code = self._number(">I")
        if code not in _TYPES:
            raise self._wrong(f"type {code} is not one of NetCDF's")
        return _TYPES[code]

    def _name(self) -> str:
        # Some old programs counted the zero byte behind a name.
        return self._padded(self._count()).decode("utf-8", "replace").rstrip("\0")

    def _count(self) -> int:
        return self._number(self._count_format)

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _padded(self, length: int) -> bytes:
        return self._take(-(-length // 4) * 4)[:length]

    def _take(self, length: int) -> bytes:
        if length > self._file.version.size_bytes:
            raise self._wrong(f"the header wants {length:,} bytes, more than the file has")
        data: bytes = self._stream.read(length)
        if len(data) != length:
            raise self._wrong("it ends inside its header")
        return data

    def _wrong(self, problem: str) -> SourceError:
        return SourceError(f"{self._file.location}: {problem}")
