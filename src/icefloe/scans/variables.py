"""Variables as columns: their types, and decoding by the CF conventions."""

from __future__ import annotations

import base64
import binascii
import codecs
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from zarr.core.dtype import VariableLengthBytes
from zarr.core.metadata import ArrayV3Metadata

from icefloe import paths
from icefloe.api.session import Session
from icefloe.cf.times import TimeUnits, duration_ns, units_of
from icefloe.errors import ErrorKind, FormatError, InvalidInputError, NodeNotFoundError
from icefloe.format.columns import numbers_to_arrow
from icefloe.format.nodes import Node
from icefloe.geometry import Slices, shape_of
from icefloe.storage.run import run_blocking

_MIXED = ("standard", "gregorian")
_GREGORIAN_START_US = -12_219_292_800_000_000  # 1582-10-15


@dataclass(frozen=True, slots=True)
class TimestampUnits:
    """How a number becomes microseconds since 1970."""

    unit_ns: int
    reference_us: int
    is_mixed_calendar: bool

    def decode(self, values: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Datetimes in microseconds; what is masked may hold anything.

        Raises:
            FormatError: a time is too far away, or before 1582 in a calendar that was another
                one then.
        """
        if mask is not None:
            values = np.where(mask, values.dtype.type(0), values)
        if values.dtype.kind == "f":
            moved = values.astype(np.float64) * (self.unit_ns / 1000)
            if not bool((np.abs(moved) < 2.0**62).all()):
                raise _too_far()
            offset = np.rint(moved).astype(np.int64)
        elif self.unit_ns >= 1000:
            factor = self.unit_ns // 1000
            ends = (int(values.min()), int(values.max())) if values.size else (0,)
            if max(map(abs, ends)) > 2**62 // factor:
                raise _too_far()
            offset = values.astype(np.int64) * factor
        else:
            offset = values.astype(np.int64) // (1000 // self.unit_ns)
        found = offset + self.reference_us
        if self.is_mixed_calendar and found.size and int(found.min()) < _GREGORIAN_START_US:
            raise FormatError(
                "a time lies before 1582-10-15, where the standard calendar is the Julian one; "
                "read the numbers with decode=False"
            )
        return found.view("M8[us]")


def find_time_units(
    attributes: Mapping[str, Any], parent: Mapping[str, Any] | None = None
) -> TimestampUnits | None:
    """The units an array's attributes tell of, or None if they are none that a date follows from.

    `parent` are the attributes of the array whose bounds it holds. Calendars that are not those
    of real dates (`noleap`, `360_day`, ...) have none.
    """
    calendar = attributes.get("calendar", (parent or {}).get("calendar"))
    name = "standard" if calendar is None else str(calendar).lower()
    if name not in (*_MIXED, "proleptic_gregorian"):
        return None
    found = units_of(attributes, parent)
    if found is None:
        return None
    return TimestampUnits(found.unit_ns, found.reference_us, name in _MIXED)


def find_duration_units(attributes: Mapping[str, Any]) -> TimestampUnits | None:
    """The unit of durations, which xarray marks by their data type beside the unit."""
    said = attributes.get("dtype")
    if not isinstance(said, str) or not said.startswith("timedelta64"):
        return None
    unit_ns = duration_ns(attributes.get("units"))
    return None if unit_ns is None else TimestampUnits(unit_ns, 0, is_mixed_calendar=False)


def _too_far() -> FormatError:
    return FormatError(
        "a time is more than 100,000 years away from its reference; read the numbers with "
        "decode=False"
    )


# -- From the values an array stores to the values of a column.
#
# With decoding on, a column has what xarray would show: scale and offset applied, times as
# timestamps; where xarray has NaN for a missing value, there is null, and integers stay integers.


_WIDENED = {"u1": "i2", "u2": "i4", "u4": "i8", "f2": "f4"}
_UINT64 = pa.decimal128(20, 0)
_PLAIN = {
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "f4": pa.float32(),
    "f8": pa.float64(),
    "M8[us]": pa.timestamp("us"),
    "m8[us]": pa.duration("us"),
}
"""Numbers and times that Arrow keeps as numpy does."""
_COMPLEX_PARTS = {
    kind: pa.struct([pa.field("re", part), pa.field("im", part)])
    for kind, part in (("c8", pa.float32()), ("c16", pa.float64()))
}


@dataclass(frozen=True, slots=True)
class Values:
    """Part of an array, decoded: numbers (or objects), and which of them are missing."""

    data: NDArray[Any]
    mask: NDArray[np.bool_] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether numpy can repeat the values cheaply; text has to be repeated by Arrow."""
        return self.data.dtype.kind in "biufcmM"


@dataclass(frozen=True, slots=True)
class Coding:
    """How one array's values become a column of `arrow_type`."""

    arrow_type: pa.DataType
    dtype: str
    """Of the decoded values; `O` for objects."""
    fill_values: tuple[Any, ...] = ()
    view: str | None = None
    """Another dtype of the same size that the stored bytes really are."""
    scale: float | None = None
    offset: float | None = None
    scaled: str = "f8"
    """The dtype in which values are scaled and moved."""
    time: TimestampUnits | None = None
    """What one is; durations count from 0."""
    encoding: str | None = None
    """Of bytes that are text."""
    dates: TimeUnits | None = None
    """The units of dates that no timestamp has, such as 30 February: they become text."""

    def decode(self, raw: NDArray[Any]) -> Values:
        """Decode part of the array."""
        if self.view is not None:
            raw = raw.view(self.view)
        mask = None
        for fill in self.fill_values:
            is_nan = isinstance(fill, float) and np.isnan(fill)
            found = np.isnan(raw) if is_nan else np.asarray(raw == fill)
            mask = found if mask is None else mask | found
        if self.scale is not None or self.offset is not None:
            raw = raw.astype(self.scaled)
            with np.errstate(over="ignore", invalid="ignore"):  # missing values may be anything
                if self.scale is not None:
                    raw = raw * self.scale
                if self.offset is not None:
                    raw = raw + self.offset
        if self.time is not None or self.dates is not None:
            if raw.dtype.kind == "f":
                missing = ~np.isfinite(raw)
                mask = missing if mask is None else mask | missing
            if self.time is not None:
                return Values(self.time.decode(raw, mask).view(self.dtype), mask)
            return Values(self._date_texts(raw, mask), mask)
        if self.encoding is not None:
            texts = [item.decode(self.encoding, "replace") for item in raw.ravel().tolist()]
            return Values(np.array(texts, object).reshape(raw.shape), mask)
        if raw.dtype.kind in "mM":
            missing = np.isnat(raw)
            mask = missing if mask is None else mask | missing
        if self.dtype != "O":
            raw = raw.astype(self.dtype, copy=False)
        return Values(raw, mask)

    def _date_texts(self, raw: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        assert self.dates is not None
        known = raw if mask is None else np.where(mask, raw.dtype.type(0), raw)
        texts = self.dates.date_texts(known.reshape(-1))
        if texts is None:
            raise FormatError(
                f"a time of the calendar {self.dates.calendar} is not in the years 1 to 9999; read "
                "the numbers with decode=False"
            )
        return np.array(texts, object).reshape(raw.shape)

    def to_arrow(self, values: Values) -> pa.Array:
        """A column of flat values."""
        data, mask = values.data, values.mask
        if mask is not None and not mask.any():
            mask = None
        if pa.types.is_struct(self.arrow_type):
            parts = [pa.array(np.ascontiguousarray(part)) for part in (data.real, data.imag)]
            missing = None if mask is None else pa.array(mask)
            return pa.StructArray.from_arrays(parts, fields=list(self.arrow_type), mask=missing)
        if self.arrow_type == _UINT64:
            return pa.array(data, mask=mask).cast(_UINT64)
        plain = _PLAIN.get(data.dtype.str[1:])
        if data.dtype.isnative and plain == self.arrow_type:
            return numbers_to_arrow(data, mask)
        if data.dtype.kind == "V":
            data = np.array([item.tobytes() for item in data], object)
        elif data.dtype.kind in "SUT":
            data = data.astype(object)
        return pa.array(data, self.arrow_type, mask=mask)


def find_coding(
    name: str,
    dtype: Any,
    attributes: Mapping[str, Any],
    *,
    decode: bool,
    parent: Mapping[str, Any] | None = None,
    has_date_texts: bool = False,
) -> Coding:
    """How to decode an array of this dtype with these attributes.

    `parent` are the attributes of the array whose bounds it holds, if it holds bounds.
    With `has_date_texts`, times of calendars without real dates are text, otherwise numbers.

    Raises:
        InvalidInputError: there is no column type for the dtype.
    """
    stored = np.dtype(dtype)
    if not decode:
        return Coding(_arrow_type(name, stored), _column_dtype(stored))
    view = _unsigned_view(stored, attributes)
    fills = _fill_values(stored, view, attributes)
    stored = np.dtype(view) if view else stored
    scale, offset = (_number(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    packing = fills, view, scale, offset
    if stored.kind in "iuf" and attributes.get("dtype") == "bool":
        return Coding(pa.bool_(), "bool", *packing)
    encoding = _text_encoding(stored, attributes)
    if encoding is not None:
        return Coding(pa.string(), "O", fills, encoding=encoding)
    if stored.kind not in "iuf":
        return Coding(_arrow_type(name, stored), _column_dtype(stored), fills, view)
    time = find_time_units(attributes, parent)
    duration = find_duration_units(attributes)
    if time is not None:
        return Coding(pa.timestamp("us"), "M8[us]", *packing, time=time)
    if duration is not None:
        return Coding(pa.duration("us"), "m8[us]", *packing, time=duration)
    if has_date_texts and (dates := units_of(attributes, parent)) is not None:
        return Coding(pa.string(), "O", *packing, dates=dates)
    if scale is not None or offset is not None:
        scaled = np.dtype(_scaled_dtype(stored, attributes))
        arrow_type = _arrow_type(name, scaled)
        return Coding(arrow_type, _column_dtype(scaled), *packing, scaled=scaled.str[1:])
    return Coding(_arrow_type(name, stored), _column_dtype(stored), fills, view)


def _scaled_dtype(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> str:
    """The dtype in which xarray scales: that of stored floats if NaN alone marks missing ones."""
    fills = [_float(value) for value in _given_fills(attributes).values()]
    is_nan_alone = fills and all(fill is not None and np.isnan(fill) for fill in fills)
    return stored.str[1:] if stored.kind == "f" and is_nan_alone else "f8"


def _text_encoding(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> str | None:
    """How to read bytes as text, if the attributes say so; an unknown encoding is left alone."""
    given = attributes.get("_Encoding")
    if stored.kind != "S" or not isinstance(given, str):
        return None
    try:
        return codecs.lookup(given).name
    except LookupError:
        return None


def _column_dtype(stored: np.dtype[Any]) -> str:
    if stored.kind in "mM":
        return f"{stored.kind}8[us]"
    if stored.kind in "SUTVO":
        return "O" if stored.kind in "TO" else stored.newbyteorder("=").str
    plain = stored.str[1:]
    return _WIDENED.get(plain, plain)


def _arrow_type(name: str, stored: np.dtype[Any]) -> pa.DataType:
    plain = stored.str[1:]
    if plain == "u8":
        return _UINT64
    if plain in _COMPLEX_PARTS:
        return _COMPLEX_PARTS[plain]
    if stored.kind in "biuf" and plain != "f16":
        return pa.from_numpy_dtype(np.dtype(_WIDENED.get(plain, plain)))
    if stored.kind in "UTO":
        return pa.string()
    if stored.kind == "S" or (stored.kind == "V" and stored.names is None):
        return pa.binary()
    if stored.kind in "mM":
        return pa.timestamp("us") if stored.kind == "M" else pa.duration("us")
    raise InvalidInputError(
        f"array {name!r} has the data type {stored}, for which Spark has no column type; leave it "
        "out with variables=..., or read its bytes with layout='chunks'",
        ErrorKind.INVALID_ARRAY_METADATA,
    )


def _unsigned_view(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> str | None:
    said = attributes.get("_Unsigned")
    if stored.kind == "i" and said == "true":
        return f"u{stored.itemsize}"
    if stored.kind == "u" and said == "false":
        return f"i{stored.itemsize}"
    return None


def _given_fills(attributes: Mapping[str, Any]) -> dict[str, Any]:
    names = ("_FillValue", "missing_value")
    return {name: attributes[name] for name in names if attributes.get(name) is not None}


def _fill_values(
    stored: np.dtype[Any], view: str | None, attributes: Mapping[str, Any]
) -> tuple[Any, ...]:
    found: list[Any] = []
    for key, given in _given_fills(attributes).items():
        is_own_type = key == "_FillValue"
        is_pair = stored.kind == "c" and is_own_type
        for value in given if isinstance(given, list) and not is_pair else [given]:
            fill = _fill_value(stored, view, value, is_own_type=is_own_type)
            if fill is not None and fill not in found:
                found.append(fill)
    return tuple(found)


def _fill_value(stored: np.dtype[Any], view: str | None, value: Any, *, is_own_type: bool) -> Any:
    """A fill value in the type of the data; None for one that no value is equal to.

    xarray stores the `_FillValue` of floats as base64 of eight bytes. Where it refuses to read one
    (a number beside floats), the number `is_own_type` means is taken. A `missing_value` is compared
    as it is.
    """
    if stored.kind == "f":
        return _fitting(
            stored, _float(value), is_rounded=is_own_type and not isinstance(value, str)
        )
    if stored.kind == "c":
        parts = value if isinstance(value, list) and len(value) == 2 else [value, 0.0]
        real, imaginary = map(_float, parts)
        whole = None if real is None or imaginary is None else complex(real, imaginary)
        return _fitting(stored, whole, is_rounded=False)
    if stored.kind == "b" and isinstance(value, bool | int | float):
        return bool(value) if is_own_type or value in (0, 1) else None
    if stored.kind in "iu" and isinstance(value, int | float):
        if isinstance(value, float) and not value.is_integer():
            return None
        number, info = int(value), np.iinfo(view or stored)
        if view is not None and is_own_type:  # said in the stored type, meant in the other
            number = (number - int(info.min)) % (1 << info.bits) + int(info.min)
        return number if info.min <= number <= info.max else None
    if stored.kind in "UTO" and isinstance(value, str):
        return value
    if stored.kind == "S" and isinstance(value, str):
        try:
            return base64.standard_b64decode(value)
        except binascii.Error:
            return None
    return None


def _fitting(stored: np.dtype[Any], value: Any, *, is_rounded: bool) -> Any:
    """A number in a type of floats; one that it does not have is rounded, or None."""
    if value is None or np.isnan(value):
        return value
    with np.errstate(over="ignore"):
        fitted = stored.type(value).item()
    return fitted if is_rounded or fitted == value else None


def _float(value: Any) -> float | None:
    if not isinstance(value, str):
        return _number(value)
    try:
        found: float = struct.unpack("<d", base64.standard_b64decode(value))[0]
    except (ValueError, struct.error):
        try:
            return float(value)
        except ValueError:
            return None
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # an integer of more than 300 digits
        return None


class OpenArrays:
    """Arrays of one session, each opened once. Kept no longer than the task that reads them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._opened: dict[str, zarr.Array[Any]] = {}

    def at(self, path: str) -> zarr.Array[Any]:
        """The array at a path."""
        if path not in self._opened:
            store = self.session.store
            self._opened[path] = zarr.open_array(store, path=paths.to_key(path), mode="r")
        return self._opened[path]


@dataclass(frozen=True, slots=True)
class Variable:
    """One array. `chunk_shape` is that of the stored chunks, which are shards where there are; in a
    rectilinear grid, the greatest length along each axis."""

    name: str
    path: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    coding: Coding | None
    bounds: str | None = None
    """The array that has the bounds of its cells."""
    units: tuple[tuple[str, str], ...] = ()
    """What its numbers count: its attributes `units` and `calendar`."""
    edges: tuple[NDArray[np.int64], ...] | None = None
    """Of a rectilinear grid: where chunks begin and end along each axis."""

    @property
    def field(self) -> pa.Field:
        """Its column. One of numbers, or of dates as text, says its units."""
        assert self.coding is not None
        units = {} if self.coding.time is not None else dict(self.units)
        return pa.field(self.name, self.coding.arrow_type, metadata=units or None)

    @property
    def is_coordinate(self) -> bool:
        """Whether it gives the values along the dimension of its own name."""
        return self.dimensions == (self.name,)

    def read(self, arrays: OpenArrays, region: Slices) -> NDArray[Any]:
        """The stored values of a region."""
        return np.asarray(arrays.at(self.path)[region])

    def read_decoded(self, arrays: OpenArrays, region: Slices) -> Values:
        assert self.coding is not None
        return self.coding.decode(self.read(arrays, region))

    def present_cells(self, session: Session, region: Slices) -> NDArray[np.bool_]:
        """Which cells of a region are in a chunk that was ever written."""
        cells = [np.arange(part.start, part.stop) for part in region]
        if self.edges is None:
            of_cell = [at // chunk for at, chunk in zip(cells, self.chunk_shape, strict=True)]
        else:
            pairs = zip(cells, self.edges, strict=True)
            of_cell = [np.searchsorted(edges, at, "right") - 1 for at, edges in pairs]
        chunks = self.present_chunks(session, tuple(slice(at[0], at[-1] + 1) for at in of_cell))
        return chunks[np.ix_(*(at - at[0] for at in of_cell))]

    def present_chunks(self, session: Session, box: Slices) -> NDArray[np.bool_]:
        """Which of the chunks in a box of chunks were ever written."""
        found = np.zeros(shape_of(box), np.bool_)
        for index in chunk_indices(session, self.path, box):
            found[tuple((index - np.array([span.start for span in box], np.int64)).T)] = True
        return found


def chunk_indices(session: Session, path: str, box: Slices) -> list[NDArray[np.int64]]:
    """The indices of the chunks inside a box of chunks, a matrix from each manifest."""
    node, array = session.workspace.state.array(path)
    assets = session.handle.assets
    files = session.workspace.state.snapshot.manifest_files
    wanted = [
        (ref.id, files[ref.id].size_bytes)
        for ref in array.manifests
        if all(
            low < span.stop and span.start < high
            for (low, high), span in zip(ref.extents, box, strict=True)
        )
    ]
    start, stop = [span.start for span in box], [span.stop for span in box]
    found = []
    for manifest in run_blocking(assets.manifests(wanted)):
        refs = manifest.find(node.id)
        if refs is not None and len(refs):
            found.append(refs.select(start, stop).index.astype(np.int64))
    return found


def find_variables(
    session: Session, group: str, names: Sequence[str] | None, *, decode: bool, is_coded: bool
) -> list[Variable]:
    """The arrays directly in a group, or those named.

    Args:
        is_coded: whether columns are made of their values; if not, any data type will do.

    Raises:
        NodeNotFoundError: there is no such group or array.
    """
    folder = paths.validate("/" + group.strip("/"))
    node = session.workspace.state.find_node(folder)
    if node is None:
        raise NodeNotFoundError(f"group {folder!r} in snapshot {session.snapshot_id}")
    if node.array is not None:
        above = paths.parent(folder)
        raise InvalidInputError(
            f"{folder!r} is an array; give group={above!r} and variables=[{paths.name(folder)!r}]",
            ErrorKind.NOT_A_GROUP,
        )
    depth = len(paths.segments(folder))
    arrays = {
        paths.name(path): found
        for path in session.workspace.state.all_paths(folder)
        if len(paths.segments(path)) == depth + 1
        and (found := session.workspace.state.node(path)).array is not None
    }
    wanted = list(arrays) if names is None else list(names)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise NodeNotFoundError(
            f"array {missing[0]!r} in group {folder!r}; arrays are "
            f"{', '.join(map(repr, arrays)) or 'none'}"
        )
    return [
        _variable(session, name, arrays[name], decode=decode, is_coded=is_coded) for name in wanted
    ]


def _variable(session: Session, name: str, node: Node, *, decode: bool, is_coded: bool) -> Variable:
    array = zarr.open_array(session.store, path=paths.to_key(node.path), mode="r")
    metadata = array.metadata
    assert isinstance(metadata, ArrayV3Metadata)
    given = metadata.dimension_names or (None,) * len(array.shape)
    names = tuple(text or f"dim_{axis}" for axis, text in enumerate(given))
    chunk_shape, edges = getattr(metadata.chunk_grid, "chunk_shape", None), None
    if chunk_shape is None:
        lengths = array.write_chunk_sizes
        chunk_shape = [max(along, default=1) for along in lengths]
        edges = tuple(np.cumsum([0, *along], dtype=np.int64) for along in lengths)
    dtype = np.dtype(metadata.data_type.to_native_dtype())
    coding = None
    if is_coded:
        coding = array_coding(session, node.path, array, decode=decode, has_date_texts=True)
    shapes = tuple(array.shape), tuple(chunk_shape)
    said = (array.attrs.get(key) for key in ("bounds", "climatology"))
    bounds = next((text for text in said if isinstance(text, str)), None)
    attributes = ((key, array.attrs.get(key)) for key in ("units", "calendar"))
    units = tuple((key, value) for key, value in attributes if isinstance(value, str))
    return Variable(name, node.path, names, *shapes, dtype, coding, bounds, units, edges)


def array_coding(
    session: Session,
    path: str,
    array: zarr.Array[Any],
    *,
    decode: bool = True,
    has_date_texts: bool = False,
) -> Coding:
    """How the values of an array are read. Every reader of values in icefloe decodes with this."""
    metadata = array.metadata
    assert isinstance(metadata, ArrayV3Metadata)
    dtype = np.dtype(metadata.data_type.to_native_dtype())
    if dtype.kind == "O" and isinstance(metadata.data_type, VariableLengthBytes):
        return Coding(pa.binary(), "O")
    parent = _bounds_parent(session, path, metadata.dimension_names)
    return find_coding(
        path,
        dtype,
        dict(array.attrs),
        decode=decode,
        parent=parent,
        has_date_texts=has_date_texts,
    )


def _bounds_parent(
    session: Session, path: str, dimensions: Sequence[str | None] | None
) -> dict[str, Any] | None:
    """The attributes of the first dimension's coordinate, if it names this array as its bounds."""
    group, _, name = path.rpartition("/")
    if not dimensions or dimensions[0] in (None, name):
        return None
    coordinate = f"{group}/{dimensions[0]}"
    node = session.workspace.state.find_node(coordinate)
    if node is None or node.array is None:
        return None
    found = zarr.open_array(session.store, path=paths.to_key(coordinate), mode="r")
    attributes = dict(found.attrs)
    return attributes if name in (attributes.get("bounds"), attributes.get("climatology")) else None


def cell_bytes(variables: Sequence[Variable]) -> int:
    """Bytes of one cell of every variable, about; text counts as 16."""
    return sum(16 if v.dtype.kind in "OT" else max(v.dtype.itemsize, 1) for v in variables)
