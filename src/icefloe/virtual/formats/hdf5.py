"""HDF5 and NetCDF 4 files: what is in them, and where. Needs h5py.

h5py's low-level calls are used throughout: its friendly ones take ten times as long, and a file has
to be opened for a few milliseconds only when there are a hundred thousand of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5a, h5d, h5g, h5l, h5o, h5r, h5s, h5t, h5z
from numpy.typing import NDArray

from icefloe.virtual.model import data_types
from icefloe.virtual.model.description import (
    GroupDescription,
    Json,
    SourceDescription,
    SourceError,
    VariableDescription,
    inline_references,
    join_path,
    make_references,
    mark_gaps,
    scope_of,
    wants_values,
    with_values,
)
from icefloe.virtual.sources import SourceFile

NOT_A_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
NON_COORDINATE = "_nc4_non_coord_"
"""NetCDF puts this before the name of a variable named like a dimension it does not span."""

_MAX_LINKS = 16
_MARKS = frozenset({b"CLASS", b"NAME", b"DIMENSION_LIST", b"_Netcdf4Dimid", b"_Netcdf4Coordinates"})
_BOOKKEEPING = frozenset({b"REFERENCE_LIST", b"_NCProperties", b"_nc3_strict"})


def scan_hdf5(
    file: SourceFile, *, references: bool, concat_dims: tuple[str, ...] | None
) -> SourceDescription:
    """Describe a file; with `references`, also find every chunk that can be referred to."""
    with opened(file) as fid:
        scan = _Scan(file, fid, references, concat_dims)
        scan.group(h5g.open(fid, b"/"), "")
        scan.stretch()
        mark_gaps(scan.variables, scan.references)
        return SourceDescription(
            file.location,
            "hdf5",
            file.version,
            scan.groups,
            scan.variables,
            scan.references if references else None,
        )


@contextlib.contextmanager
def opened(file: SourceFile) -> Iterator[Any]:
    """The HDF5 file id, closed afterwards. Raises `SourceError` for what HDF5 cannot read."""
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(_open(file, stack)).id
    except (OSError, RuntimeError, KeyError) as error:
        raise SourceError(f"{file.location}: HDF5 cannot read it: {error}") from error


def _open(file: SourceFile, stack: contextlib.ExitStack) -> h5py.File:
    """A file is not locked, so that programs that write it are not held up.

    HDF5 opens a file twice in a process only with the same flags. A file that the program has open
    is opened with the flags of h5py; if those do not fit either, it is read as a stream.
    """
    if file.path is None:
        return h5py.File(file.open(), "r")
    path = str(file.path)
    try:
        return h5py.File(path, "r", locking=False)
    except OSError:
        for locking in (None, True):
            with contextlib.suppress(OSError):
                return h5py.File(path, "r", locking=locking)
        with contextlib.suppress(OSError):
            return h5py.File(stack.enter_context(file.path.open("rb")), "r")
        raise


@dataclass
class _Scan:
    """One walk through a file."""

    file: SourceFile
    fid: Any
    with_references: bool
    concat_dims: tuple[str, ...] | None
    groups: dict[str, GroupDescription] = field(default_factory=dict)
    variables: dict[str, VariableDescription] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    dimension_names: dict[int, str] = field(default_factory=dict)
    """NetCDF's numbers of dimensions, as met so far."""
    scale_names: dict[int, str] = field(default_factory=dict)
    """Names of the scales that variables refer to, by address."""
    seen: set[int] = field(default_factory=set)
    """Addresses of the groups met so far: a group may be its own grandchild."""

    def group(self, gid: Any, path: str) -> None:
        address = h5o.get_info(gid).addr
        if address in self.seen:
            return
        self.seen.add(address)
        arrays, groups = _members(gid, self.file.location)
        dimensions, unlimited = {}, set()
        for name, item in arrays.items():
            if not item.is_scale:
                continue
            dimensions[name] = item.dataset.shape[0]
            self.scale_names[h5o.get_info(item.dataset).addr] = name
            longest = item.dataset.get_space().get_simple_extent_dims(maxdims=True)
            if longest[0] in (None, h5s.UNLIMITED):
                unlimited.add(name)
            if (number := item.marks.get(b"_Netcdf4Dimid")) is not None:
                self.dimension_names[int(np.ravel(number)[0])] = name
        # A dimension without a name is taken for one of the same size, as NetCDF does it.
        phony = [(name, size) for name, size in dimensions.items() if name not in unlimited]
        for name, item in arrays.items():
            if item.is_variable:
                self._variable(item, name, path, phony)
        dimensions |= dict(phony)
        own, _ = _attributes(gid)
        attributes = {key: data_types.attribute_json(value) for key, value in own.items()}
        self.groups[path] = GroupDescription(attributes, dimensions, frozenset(unlimited))
        for name, child in groups.items():
            self.group(child, join_path(path, name))

    def stretch(self) -> None:
        """Give all variables along an unlimited dimension its length, as NetCDF does.

        HDF5 knows how far each was written; NetCDF takes the rest for fill values.
        """
        longest: dict[tuple[str, str], int] = {}
        keys = {}
        for path, variable in self.variables.items():
            keys[path] = [self._unlimited(variable.group, name) for name in variable.dimensions]
            for key, size in zip(keys[path], variable.shape, strict=True):
                if key is not None:
                    known = longest.get(key, self.groups[key[0]].dimensions[key[1]])
                    longest[key] = max(size, known)
        for (group, name), size in longest.items():
            self.groups[group].dimensions[name] = size
        for path, variable in self.variables.items():
            shape = tuple(
                size if key is None else longest[key]
                for key, size in zip(keys[path], variable.shape, strict=True)
            )
            if shape != variable.shape:
                longer = replace(variable, shape=shape, values=None, digest=None)
                if variable.values is not None:
                    padded = pad(variable.values, shape, variable.fill_value)
                    longer = with_values(longer, padded)
                self.variables[path] = longer

    def _unlimited(self, group: str, name: str) -> tuple[str, str] | None:
        """The group that defines an unlimited dimension, with its name."""
        scope = scope_of(self.groups, group, name)
        is_unlimited = scope is not None and name in self.groups[scope].unlimited
        return (scope, name) if scope is not None and is_unlimited else None

    def _variable(
        self, item: _Dataset, name: str, group: str, phony: list[tuple[str, int]]
    ) -> None:
        name = name.removeprefix(NON_COORDINATE)
        path = join_path(group, name)
        dataset, attributes = item.dataset, item.attributes
        shape = dataset.shape or ()  # a dataset without values, only attributes, has none
        plist = dataset.get_create_plist()
        is_chunked = plist.get_layout() == h5d.CHUNKED
        dtype, trouble = storable_dtype(dataset)
        trouble = trouble or _foreign_storage(plist)
        fill: Json = None
        codecs, reason = None, trouble
        said = data_types.zarr_attributes(attributes, dtype)
        if not trouble:
            fill = data_types.fill_value_json(_fill_value(plist, dtype), dtype)
            codecs, reason = codecs_of(plist, dtype)
            if (odd := unusual_storage(dataset.get_type(), dtype)) is not None:
                codecs, reason = None, odd
        variable = VariableDescription(
            path=path,
            dtype="string" if dtype.kind == "O" else dtype.str,
            shape=shape,
            chunks=tuple(max(1, size) for size in (plist.get_chunk() if is_chunked else shape)),
            dimensions=self._dimensions(item, name, shape, phony),
            attributes=said.attributes,
            data_type=None if trouble else data_types.data_type_of(dtype),
            fill_value=fill,
            codecs=codecs,
            reason=reason,
            is_contiguous=not is_chunked and codecs is not None,
            notes=said.notes,
        )
        if not trouble and wants_values(variable, self.concat_dims):
            variable = with_values(variable, read_all(dataset, dtype))
        if self.with_references and codecs is not None:
            size_bytes = self.file.version.size_bytes
            found = find_references(dataset, plist, self.file.location, size_bytes)
            if isinstance(found, str):
                variable = replace(variable, codecs=None, reason=found)
            else:
                self.references[path] = found
        self.variables[path] = variable

    def _dimensions(
        self, item: _Dataset, name: str, shape: tuple[int, ...], phony: list[tuple[str, int]]
    ) -> tuple[str, ...]:
        if not shape:
            return ()
        numbers = item.marks.get(b"_Netcdf4Coordinates")
        if numbers is not None:
            known = [self.dimension_names.get(int(number)) for number in np.ravel(numbers)]
            names = tuple(known_name for known_name in known if known_name is not None)
            if len(names) == len(shape):
                return names
        listed: list[str | None] = [None] * len(shape)
        scales = item.marks.get(b"DIMENSION_LIST")
        if isinstance(scales, np.ndarray) and scales.shape == (len(shape),):
            listed = [self._scale_name(refs) for refs in scales]
        elif len(shape) == 1 and item.is_scale:
            return (name,)
        used: set[str] = set()
        return tuple(
            scale or _phony_name(size, phony, used)
            for scale, size in zip(listed, shape, strict=True)
        )

    def _scale_name(self, refs: Any) -> str | None:
        """The scale of a dimension, the last one as in NetCDF; None if there is none any more."""
        found = refs[-1] if isinstance(refs, np.ndarray) and refs.size else None
        if not isinstance(found, h5r.Reference):
            return None
        try:
            # HDF5 looks through the whole file for the name of an object: they are kept.
            address = h5o.get_info(h5r.dereference(found, self.fid)).addr
            if address not in self.scale_names:
                full = h5r.get_name(found, self.fid) or b""
                self.scale_names[address] = _text(full, self.file.location).rpartition("/")[2]
        except (KeyError, RuntimeError, ValueError):
            return None
        return self.scale_names[address] or None


@dataclass(frozen=True, slots=True)
class _Dataset:
    """An open dataset, its attributes, and the marks HDF5 and NetCDF put on it."""

    dataset: Any
    attributes: dict[str, Any]
    marks: dict[bytes, Any]

    @property
    def is_scale(self) -> bool:
        """Whether it is a dimension."""
        return self.marks.get(b"CLASS") == "DIMENSION_SCALE" and bool(self.dataset.shape)

    @property
    def is_variable(self) -> bool:
        """Whether it has values; NetCDF also makes empty ones, to be dimensions only."""
        label = str(self.marks.get(b"NAME", ""))
        return not (self.is_scale and label.startswith(NOT_A_VARIABLE))


def pad(values: NDArray[Any], shape: tuple[int, ...], fill: Any) -> NDArray[Any]:
    """Values with the fill value behind them, up to a shape."""
    if values.dtype.kind == "f" and isinstance(fill, str):  # as zarr.json spells it
        fill = np.nan if fill.startswith("0x") else float(fill)
    padded = np.full(shape, fill, values.dtype)
    padded[tuple(slice(0, size) for size in values.shape)] = values
    return padded


def _text(name: bytes, location: str) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{location}: the name {name!r} in it is not UTF-8") from error


def _members(gid: Any, location: str) -> tuple[dict[str, _Dataset], dict[str, Any]]:
    """Datasets and groups by name, as far as they are in this file."""
    arrays, groups = {}, {}
    for raw in gid:
        child = _linked(gid, raw)
        if isinstance(child, h5d.DatasetID):
            arrays[_text(raw, location)] = _Dataset(child, *_attributes(child))
        elif isinstance(child, h5g.GroupID) and gid.links.get_info(raw).type == h5l.TYPE_HARD:
            groups[_text(raw, location)] = child  # which is met under its own name only
    return arrays, groups


def _linked(gid: Any, raw: bytes, depth: int = 0) -> Any:
    """What a link leads to inside this file; None if it leads nowhere, or to another file.

    HDF5 would follow soft links through external ones, and who made this file must not choose
    which others are read. So each step is looked at.
    """
    if not gid.links.exists(raw):
        return None
    kind = gid.links.get_info(raw).type
    if kind == h5l.TYPE_HARD:
        return h5o.open(gid, raw)
    if kind != h5l.TYPE_SOFT or depth >= _MAX_LINKS:
        return None
    path: bytes = gid.links.get_val(raw)
    found = h5g.open(gid, b"/") if path.startswith(b"/") else gid
    for name in filter(None, path.split(b"/")):
        if not isinstance(found, h5g.GroupID):
            return None
        found = found if name == b"." else _linked(found, name, depth + 1)
    return found


def _phony_name(size: int, phony: list[tuple[str, int]], used: set[str]) -> str:
    """A made-up name for a dimension that has none: the same for the same size, as NetCDF does."""
    for name, length in phony:
        if length == size and name not in used:
            used.add(name)
            return name
    count = sum(known.startswith("phony_dim_") for known, _ in phony)
    phony.append((f"phony_dim_{count}", size))
    used.add(phony[-1][0])
    return phony[-1][0]


def _attributes(owner: Any) -> tuple[dict[str, Any], dict[bytes, Any]]:
    """The attributes of the user, and those that HDF5 and NetCDF add; numpy or Python values."""
    found, marks = {}, {}
    for number in range(h5a.get_num_attrs(owner)):
        attribute = h5a.open(owner, index=number)
        raw = attribute.name if isinstance(attribute.name, bytes) else attribute.name.encode()
        if raw in _BOOKKEEPING:
            continue
        is_list = raw == b"DIMENSION_LIST"
        # h5py crashes at some references, and they have no meaning in a repository.
        readable = is_list or not holds_references(attribute.get_type())
        value = _attribute(attribute) if readable else None
        if value is None and is_list:
            raise SourceError("a list of dimensions is of a type that h5py cannot read")
        if value is None:
            continue
        if raw in _MARKS:
            marks[raw] = value
        else:
            found[raw.decode("utf-8", "replace")] = value
    return found, marks


def _attribute(attribute: Any) -> Any:
    """The value of an attribute; None for types that JSON cannot hold, such as times."""
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return ""
    try:
        values = np.empty(attribute.shape, attribute.dtype)
    except TypeError:  # numpy has no such type
        return None
    attribute.read(values)
    if values.dtype.kind == "S" and not values.shape:
        return bytes(values[()]).decode("utf-8", "replace")
    if values.dtype.kind == "O" and h5py.check_string_dtype(values.dtype):
        text = [_as_str(item) for item in values.ravel().tolist()]
        return text[0] if len(text) == 1 else text
    return values[()] if not values.shape else values


def _as_str(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item or "")


def _foreign_storage(plist: Any) -> str | None:
    if plist.get_layout() == h5d.VIRTUAL:
        return "it is put together from other HDF5 files (a virtual dataset)"
    if plist.get_external_count():
        return "its values lie in other files (external storage)"
    return None


def _fill_value(plist: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "O" or plist.fill_value_defined() == h5d.FILL_VALUE_UNDEFINED:
        return None
    value = np.zeros((), dtype)
    plist.get_fill_value(value)
    return value[()]


def read_all(dataset: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Every value as stored; text as Python strings."""
    if dtype.kind == "O":
        return as_text(h5py.Dataset(dataset)[()])
    values = np.empty(dataset.shape or (), dtype)
    if values.size and dataset.shape is not None:
        dataset.read(h5s.ALL, h5s.ALL, values)
    return values


def as_text(values: Any) -> NDArray[Any]:
    """Variable-length HDF5 text as an array of `str`."""
    array = np.asarray(values, object)
    return np.array([_as_str(item) for item in array.ravel()], object).reshape(array.shape)


class OpenDataset(NamedTuple):
    """A dataset to read regions of."""

    dataset: Any
    written: NDArray[np.int64] | None
    """Where its chunks start, if it is sparse."""
    plain_chunk: tuple[int, ...] | None
    """The shape of its chunks, if their bytes are the values."""


def open_dataset(fid: Any, path: str) -> OpenDataset:
    """The dataset of a variable, for `read_region`."""
    group, _, name = path.rpartition("/")
    parent = h5g.open(fid, b"/")
    for part in filter(None, group.split("/")):
        parent = _linked(parent, part.encode())
    raw = name.encode()
    if parent.links.exists(NON_COORDINATE.encode() + raw):
        raw = NON_COORDINATE.encode() + raw
    found = h5py.Dataset(_linked(parent, raw))
    return OpenDataset(found, written_chunks(found.id), plain_chunk(found.id))


def read_region(opened: OpenDataset, region: tuple[slice, ...]) -> NDArray[Any]:
    """Part of a dataset as stored."""
    dataset, written, chunk = opened
    dtype, _ = storable_dtype(dataset.id)
    if chunk is not None and (values := read_plain_chunk(dataset.id, chunk, region)) is not None:
        return values
    if written is not None and region and dtype.kind in "biuf":
        fill = _fill_value(dataset.id.get_create_plist(), dtype)
        values = read_sparse(dataset, written, region, 0 if fill is None else fill)
    else:
        values = dataset[region] if dataset.shape else dataset[()]
    values = as_text(values) if dtype.kind == "O" else np.asarray(values, dtype)
    wanted = tuple(
        values.shape[axis] if span.stop is None else span.stop - (span.start or 0)
        for axis, span in enumerate(region)
    )
    if wanted == values.shape:
        return values
    # Not written so far, though the dimension has grown: see `stretch`.
    fill = "" if dtype.kind == "O" else _fill_value(dataset.id.get_create_plist(), dtype)
    return pad(values, wanted, fill)


_NOTHING = np.dtype("V1")


def storable_dtype(dataset: Any) -> tuple[np.dtype[Any], str | None]:
    """The type of the values, and why it cannot be brought over, if it cannot."""
    try:
        dtype = dataset.dtype
    except Exception as error:  # noqa: BLE001 - h5py raises what it likes for types it has none for
        return _NOTHING, f"its HDF5 type has no counterpart in numpy ({error})"
    if h5py.check_enum_dtype(dtype) is not None:
        return np.dtype(dtype.str), None
    if dtype.kind == "O":
        if h5py.check_string_dtype(dtype):
            return dtype, None
        what = "references" if h5py.check_ref_dtype(dtype) else "lists of any length"
        return dtype, f"it holds {what}, which Zarr has no data type for"
    if dtype.names is not None:
        return dtype, f"it is compound ({', '.join(dtype.names)}), which is not supported"
    if dtype.subdtype is not None:
        return dtype, f"each value is an array ({dtype}), which is not supported"
    if data_types.data_type_of(dtype) is None:
        return dtype, f"its type {dtype} has no counterpart in Zarr"
    return dtype, None


def unusual_storage(stored: Any, dtype: np.dtype[Any]) -> str | None:
    """Why the stored bytes are not what numpy's type has in memory; None if they are.

    HDF5 converts such values when it reads them. A reader of the bytes cannot.
    """
    if dtype.kind == "O":
        return None
    if isinstance(stored, h5t.TypeEnumID):
        stored = stored.get_super()
    if isinstance(stored, h5t.TypeStringID):
        is_padded = stored.get_strpad() == h5t.STR_NULLPAD or stored.get_size() == 1
        return None if is_padded else "its text is not filled up with zero bytes"
    if isinstance(stored, h5t.TypeIntegerID):
        bits = 8 * stored.get_size()
        if stored.get_precision() == bits == 8 * dtype.itemsize:
            return None
        return (
            f"its integers have {stored.get_precision()} bits, from bit {stored.get_offset()} on, "
            f"in {stored.get_size()} bytes"
        )
    plain = dtype if dtype.kind != "b" else np.dtype("i1")
    if stored == h5t.py_create(plain):
        return None
    return f"its values are stored in a form of their own, not as {dtype}"


def holds_references(stored: Any) -> bool:
    """Whether values of a type are references, or have any inside."""
    kind = stored.get_class()
    if kind == h5t.REFERENCE:
        return True
    if kind in (h5t.VLEN, h5t.ARRAY):
        return holds_references(stored.get_super())
    if kind == h5t.COMPOUND:
        members = range(stored.get_nmembers())
        return any(holds_references(stored.get_member_type(number)) for number in members)
    return False


BZIP2, BLOSC, LZ4, ZSTD = 307, 32001, 32004, 32015
"""Filters outside HDF5 itself, by their registered numbers."""

_BLOSC_SHUFFLE = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_PLAIN = {
    h5z.FILTER_SHUFFLE: ("numcodecs.shuffle", "elementsize", 1),
    h5z.FILTER_DEFLATE: ("numcodecs.zlib", "level", 1),
    BZIP2: ("numcodecs.bz2", "level", 9),
}
"""Filters with one setting: the codec, the name of the setting, and what it is if not given."""
_REFUSED = {
    h5z.FILTER_SZIP: "szip",
    h5z.FILTER_SCALEOFFSET: "scale-offset",
    h5z.FILTER_NBIT: "n-bit",
    h5z.FILTER_LZF: "LZF",
    LZ4: "LZ4",
}

_SPARSE_CELLS = 100_000
_NONE = np.empty(0, np.uint64)

Chain = tuple[tuple[Json, ...] | None, str | None]


def codecs_of(plist: Any, dtype: np.dtype[Any]) -> Chain:
    """The Zarr codecs that undo a dataset's filters, or None and why there are none."""
    if dtype.kind == "O":
        return None, "text of variable length lies in the file's heap, not in chunks"
    codecs = [data_types.bytes_codec(dtype)]
    if plist.get_layout() == h5d.CHUNKED:
        for number in range(plist.get_nfilters()):
            code, _, settings, name = plist.get_filter(number)
            codec = _codec(code, settings)
            if codec is None:
                known = _REFUSED.get(code) or name.decode("utf-8", "replace") or f"number {code}"
                return None, f"its chunks are stored with the HDF5 filter {known}"
            codecs.append(codec)
    return tuple(codecs), None


def _codec(code: int, settings: tuple[int, ...]) -> Json | None:
    if code in _PLAIN:
        name, argument, default = _PLAIN[code]
        return {"name": name, "configuration": {argument: settings[0] if settings else default}}
    if code == h5z.FILTER_FLETCHER32:
        return {"name": "numcodecs.fletcher32", "configuration": {}}
    if code == ZSTD:
        level = settings[0] if settings else 3
        level = level - 2**32 if level >= 2**31 else level
        return {"name": "zstd", "configuration": {"level": level, "checksum": False}}
    return _blosc(settings) if code == BLOSC and len(settings) >= 7 else None


def _blosc(settings: tuple[int, ...]) -> Json | None:
    typesize, _, level, shuffle, compressor = settings[2:7]
    if shuffle >= len(_BLOSC_SHUFFLE) or compressor >= len(_BLOSC_NAMES):
        return None
    return {
        "name": "blosc",
        "configuration": {
            "cname": _BLOSC_NAMES[compressor],
            "clevel": level,
            "shuffle": _BLOSC_SHUFFLE[shuffle],
            "typesize": max(1, typesize),
            "blocksize": 0,
        },
    }


def find_references(dataset: Any, plist: Any, location: str, size_bytes: int) -> pa.Table | str:
    """Every chunk that was written; or the reason why some cannot be referred to."""
    layout = plist.get_layout()
    if layout == h5d.CHUNKED:
        return _chunked(dataset, plist, location, size_bytes)
    stored = dataset.get_storage_size()
    first = np.zeros((1, len(dataset.shape or ())), np.uint32)
    is_empty = dataset.shape is None or 0 in dataset.shape or not stored
    if layout == h5d.COMPACT and not is_empty:
        values = np.empty(dataset.shape, dataset.dtype)
        dataset.read(h5s.ALL, h5s.ALL, values)
        return inline_references(first, [values.tobytes()])
    offset = None if is_empty else dataset.get_offset()
    if offset is None:
        return make_references(first[:0], location, _NONE, _NONE)
    _check_end(location, size_bytes, offset + stored)
    return make_references(
        first, location, np.array([offset], np.uint64), np.array([stored], np.uint64)
    )


def _chunked(dataset: Any, plist: Any, location: str, size_bytes: int) -> pa.Table | str:
    found: list[Any] = []
    dataset.chunk_iter(found.append)
    chunk = np.array(plist.get_chunk(), np.int64)
    ndim = len(chunk)
    if not found:
        return make_references(np.empty((0, ndim), np.uint32), location, _NONE, _NONE)
    starts, masks, offsets, lengths = zip(*found, strict=True)
    if any(masks):
        skipped = sum(map(bool, masks))
        return f"{skipped} of its chunks were stored without some of the filters"
    index = np.array(starts, np.int64).reshape(len(found), ndim) // chunk
    if (doubt := _doubtful_places(dataset, chunk, index)) is not None:
        return doubt
    if _has_plain_edges(dataset, plist, chunk, index, np.array(lengths, np.int64)):
        return "chunks at its edges were stored without the filters"
    offset, length = np.array(offsets, np.uint64), np.array(lengths, np.uint64)
    _check_end(location, size_bytes, int((offset + length).max()))
    order = np.lexsort(index.T[::-1])
    return make_references(index[order], location, offset[order], length[order])


def written_chunks(dataset: Any) -> NDArray[np.int64] | None:
    """Where the chunks of a sparse dataset start, if most were never written; else None.

    HDF5 looks for every chunk of a region: in an array of millions of which two were written, that
    takes minutes.
    """
    plist = dataset.get_create_plist()
    if plist.get_layout() != h5d.CHUNKED or not dataset.shape:
        return None
    chunk = np.array(plist.get_chunk(), np.int64)
    grid = -(-np.array(dataset.shape, np.int64) // chunk)
    cells, count = int(np.prod(grid.astype(object))), dataset.get_num_chunks()
    if cells < _SPARSE_CELLS or count * 10 > cells:
        return None
    found: list[Any] = []
    dataset.chunk_iter(found.append)
    starts = np.array([one.chunk_offset for one in found], np.int64).reshape(len(found), len(grid))
    return None if _doubtful_places(dataset, chunk, starts // chunk) is not None else starts


def read_sparse(dataset: Any, starts: NDArray[np.int64], region: Any, fill: Any) -> NDArray[Any]:
    """A region of a sparse dataset of plain numbers: its fill value, and the chunks inside."""
    chunk = np.array(dataset.chunks, np.int64)
    low = np.array([span.start for span in region], np.int64)
    high = np.minimum([span.stop for span in region], dataset.shape)
    values = np.full(np.maximum(high - low, 0), fill, dataset.dtype)
    inside = ((starts < high) & (starts + chunk > low)).all(axis=1)
    for start in starts[inside]:
        first, last = np.maximum(start, low), np.minimum(start + chunk, high)
        source = tuple(map(slice, first.tolist(), last.tolist()))
        values[tuple(map(slice, (first - low).tolist(), (last - low).tolist()))] = dataset[source]
    return values


def plain_chunk(dataset: Any) -> tuple[int, ...] | None:
    """The shape of chunks whose bytes are the values; None where HDF5 has to convert them."""
    plist = dataset.get_create_plist()
    if plist.get_layout() != h5d.CHUNKED or plist.get_nfilters():
        return None
    dtype, trouble = storable_dtype(dataset)
    if trouble or dtype.kind not in "biufc" or unusual_storage(dataset.get_type(), dtype):
        return None
    found: tuple[int, ...] = plist.get_chunk()
    return found


def read_plain_chunk(
    dataset: Any, chunk: tuple[int, ...], region: tuple[slice, ...]
) -> NDArray[Any] | None:
    """The values of a region that is one whole chunk; None for other regions, and for a chunk that
    was never written.

    The bytes are read into the memory that the values stay in. HDF5 would clear that memory first.
    """
    start = tuple(span.start or 0 for span in region)
    ends = zip(region, start, chunk, dataset.shape, strict=True)
    if not all(
        first % length == 0 and span.stop == first + length <= size
        for span, first, length, size in ends
    ):
        return None
    if dataset.get_chunk_info_by_coord(start).byte_offset is None:
        return None
    _, data = dataset.read_direct_chunk(start)
    dtype, _ = storable_dtype(dataset)
    return np.frombuffer(data, dtype).reshape(chunk)


def _doubtful_places(dataset: Any, chunk: NDArray[Any], index: NDArray[Any]) -> str | None:
    """Whether HDF5 tells wrong places, which it does for its index of one unlimited dimension
    (`libver="latest"`), unless that is the first: there all places along those before it are 0.
    """
    limits = dataset.get_space().get_simple_extent_dims(maxdims=True)
    unlimited = [at for at, most in enumerate(limits) if most in (None, h5s.UNLIMITED)]
    grid = -(-np.array(dataset.shape, np.int64) // chunk)
    if (index >= grid).any():
        return "HDF5 tells of chunks outside of it"
    if len(unlimited) != 1 or (grid[: unlimited[0]] <= 1).all():
        return None
    if index[:, : unlimited[0]].any() or not index.any():
        return None
    return "HDF5 does not tell where its chunks are: its unlimited dimension is not the first"


def _has_plain_edges(
    dataset: Any,
    plist: Any,
    chunk: NDArray[Any],
    index: NDArray[Any],
    lengths: NDArray[np.int64],
) -> bool:
    """Whether chunks that reach over the edge are stored as they are, in spite of filters.

    HDF5 has an option for it, which it does not tell of. Such a chunk is as long as its values
    are, and its bytes are the values.
    """
    if not plist.get_nfilters():
        return False
    whole = int(np.prod(chunk)) * dataset.dtype.itemsize
    is_edge = ((index + 1) * chunk > np.array(dataset.shape, np.int64)).any(axis=1)
    rows = np.flatnonzero(is_edge & (lengths == whole))
    if not len(rows):
        return False
    start = index[rows[0]] * chunk
    _, stored = dataset.read_direct_chunk(tuple(start.tolist()))
    raw = np.frombuffer(stored, dataset.dtype).reshape(chunk)
    count = tuple(np.minimum(chunk, np.array(dataset.shape) - start).tolist())
    space = dataset.get_space()
    space.select_hyperslab(tuple(start.tolist()), count)
    values = np.empty(count, dataset.dtype)
    dataset.read(h5s.create_simple(count), space, values)
    return raw[tuple(slice(0, size) for size in count)].tobytes() == values.tobytes()


def _check_end(location: str, size_bytes: int, end: int) -> None:
    if end > size_bytes:
        raise SourceError(
            f"{location}: it says that chunks reach to byte {end:,}, the file has {size_bytes:,}: "
            "it was cut off"
        )
