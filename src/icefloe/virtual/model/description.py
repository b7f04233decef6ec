"""What a scan finds in a source, the same for all formats: one file, or many that share parts."""

from __future__ import annotations

import hashlib
import math
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.chunk_refs import index_from_arrow, index_to_arrow

# Values are never decoded here. A packed integer stays packed, a time stays a number with units:
# what the attributes say about them goes into the repository together with them.

Json = Any
"""Something `json` can write."""


class SourceError(FormatError):
    """A source file that cannot be read, or holds what cannot be brought over; names both."""

    default_kind = ErrorKind.INVALID_FILE_FORMAT


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """The state of a source file when it was scanned."""

    size_bytes: int
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970, rounded up: nothing that was there at the scan is younger."""
    fingerprint: str | None = None
    """Where there is no ETag: the exact time of the last change, and a hash of the file's ends."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group of a source. `dimensions` are those defined here, with their sizes."""

    attributes: dict[str, Json] = field(default_factory=dict)
    dimensions: dict[str, int] = field(default_factory=dict)
    unlimited: frozenset[str] = frozenset()


_NO_GROUP = GroupDescription()


def join_path(group: str, name: str) -> str:
    """The path of what is called `name` in a group; the root is empty."""
    return f"{group}/{name}" if group else name


def scope_of(groups: Mapping[str, GroupDescription], group: str, name: str) -> str | None:
    """The group that defines dimension `name` as seen from `group`; None when none does."""
    while name not in groups.get(group, _NO_GROUP).dimensions:
        if not group:
            return None
        group = group.rpartition("/")[0]
    return group


@dataclass(frozen=True, slots=True, eq=False)
class VariableDescription:
    """One array of a source.

    `dtype` is numpy's name of the stored values (`>i2`, `|S4`), or `string` for text of any length.
    `codecs` is the chain that decodes the stored chunks with Zarr; it is None where there is none,
    and `reason` says why. Attributes are as Zarr keeps them, `_FillValue` spelled as xarray does.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dimensions: tuple[str, ...]
    attributes: dict[str, Json]
    data_type: Json
    fill_value: Json
    codecs: tuple[Json, ...] | None
    reason: str | None = None
    is_contiguous: bool = False
    """Stored as one plain run of bytes, which can be cut anywhere along the first dimension."""
    values: NDArray[Any] | None = None
    """All values as stored, for small coordinates."""
    digest: bytes | None = None
    """Of the values, to compare variables that should be the same in every file."""
    notes: tuple[str, ...] = ()
    """What a reader of the repository has to know about it."""
    has_gaps: bool = False
    """Chunks were never written: they are the fill value. Known only together with references."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def group(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def itemsize(self) -> int:
        """Bytes a value; a guess for text of any length."""
        return 16 if self.dtype == "string" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def is_coordinate(self) -> bool:
        """Whether it gives the positions along the dimension of its own name."""
        return self.dimensions == (self.name,)


@dataclass(frozen=True, slots=True)
class StoredAttributes:
    """The attributes of the groups of one file, on a compressed page with those of others."""

    page: bytes
    place: int

    def of(self, path: str) -> dict[str, Json]:
        pages: list[bytes] = pickle.loads(zlib.decompress(self.page))
        found: dict[str, Json] = pickle.loads(pages[self.place])[path]
        return found


IN_REPOSITORY = "icefloe"
"""The format of a group that is added to, where it is described like a source."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceDescription:
    """One source file. Paths are relative to its root, without a leading slash."""

    location: str
    format: str
    version: SourceVersion
    groups: dict[str, GroupDescription]
    variables: Mapping[str, VariableDescription]
    references: dict[str, pa.Table] | None = None
    """Where the chunks are, if they were scanned."""
    stored_attributes: StoredAttributes | None = None
    """Where groups come without attributes: theirs."""

    def attributes_of(self, group: str) -> dict[str, Json]:
        if self.stored_attributes is None:
            return self.groups[group].attributes
        return self.stored_attributes.of(group)

    def without_references(self) -> SourceDescription:
        return self if self.references is None else replace(self, references=None)


def mark_gaps(
    variables: dict[str, VariableDescription], references: Mapping[str, pa.Table]
) -> None:
    """Find out for each variable whether there is a reference for every chunk."""
    for path, table in references.items():
        variable = variables[path]
        sizes = zip(variable.shape, variable.chunks, strict=True)
        if table.num_rows < math.prod(-(-size // chunk) for size, chunk in sizes):
            variables[path] = replace(variable, has_gaps=True)


SMALL_BYTES = 64 * 1024
"""Up to this size the values of any variable are compared between files."""
TINY_BYTES = 4 * 1024
"""Up to this size also those that change from file to file: two files may both bring bounds."""
COORDINATE_BYTES = 8 * 1024 * 1024
"""Up to this size the values of a 1-d coordinate travel with the description."""


def wants_values(variable: VariableDescription, concat_dims: tuple[str, ...] | None) -> bool:
    """Whether a scan reads the values themselves.

    Coordinates decide where a file goes, and text cannot be referred to. Of the others, small ones
    that every file repeats are read to be compared.
    """
    if len(variable.shape) <= 1 and (variable.is_coordinate or not variable.shape):
        return variable.nbytes <= COORDINATE_BYTES
    if variable.nbytes > SMALL_BYTES:
        return False
    if concat_dims is None or variable.nbytes <= TINY_BYTES:
        return True
    return not set(concat_dims) & set(variable.dimensions)


def with_values(variable: VariableDescription, values: NDArray[Any]) -> VariableDescription:
    """The description with what was read: values of coordinates and scalars, a digest of others."""
    keeps = variable.is_coordinate or not variable.shape
    return replace(variable, values=values if keeps else None, digest=digest_of(values))


def digest_of(values: NDArray[Any]) -> bytes:
    """Equal for equal values in either byte order; negative zero differs from zero."""
    hashed = hashlib.blake2b(digest_size=16)
    if values.dtype.kind in "OT":
        for text in values.ravel().tolist():
            encoded = str(text).encode()
            hashed.update(len(encoded).to_bytes(8, "little") + encoded)
    else:
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        hashed.update(np.ascontiguousarray(little).tobytes())
    return hashed.digest()


# Columns of a table of references: `index` (a list of one number per dimension), `location`,
# `offset`, `length`, and where chunks lie in objects of their own, `etag` or `last_modified`; else
# those of the source hold for all. A chunk that is kept in the table itself has its bytes in
# `inline` and no location; in a table with both kinds, one of the two is null.


def make_references(
    index: NDArray[Any], location: Any, offset: NDArray[Any], length: NDArray[Any], **more: pa.Array
) -> pa.Table:
    """A table from columns; `location` is one text for all rows or a column."""
    count = len(index)
    if isinstance(location, str):
        codes = pa.array(np.zeros(count, np.int32))
        location = pa.DictionaryArray.from_arrays(codes, pa.array([location], pa.string()))
    columns = [
        index_to_arrow(index.astype(np.uint32, copy=False)),
        location,
        pa.array(offset.astype(np.uint64, copy=False)),
        pa.array(length.astype(np.uint64, copy=False)),
    ]
    names = ["index", "location", "offset", "length", *more]
    return pa.Table.from_arrays([*columns, *more.values()], names)


def inline_references(index: NDArray[Any], chunks: Sequence[bytes]) -> pa.Table:
    """Chunks that travel in the table."""
    return pa.table(
        {
            "index": index_to_arrow(index.astype(np.uint32, copy=False)),
            "inline": pa.array(chunks, pa.binary()),
        }
    )


def index_of(table: pa.Table) -> NDArray[np.uint32]:
    """The chunk indices as a matrix."""
    return index_from_arrow(table["index"].combine_chunks())


def shift_references(table: pa.Table, first_chunk: Sequence[int]) -> pa.Table:
    """The same chunks at another place of a larger grid.

    `first_chunk` may have more dimensions than the table: those that come first are new.
    """
    index = index_of(table)
    added = len(first_chunk) - index.shape[1]
    if added:
        index = np.hstack([np.zeros((len(index), added), np.uint32), index])
    moved = index + np.asarray(first_chunk, np.uint32)
    return table.set_column(table.schema.get_field_index("index"), "index", index_to_arrow(moved))


def cut_leading(table: pa.Table, shape: Sequence[int], chunks: Sequence[int]) -> pa.Table:
    """The reference of a contiguous array of this shape, cut into chunks.

    Each chunk is one run of bytes: of length 1 along the first dimensions, whole along the last
    ones, and along the one between them some part that divides its length.
    """
    grid = [size // chunk for size, chunk in zip(shape, chunks, strict=True)]
    count = math.prod(grid)
    index = np.stack(np.unravel_index(np.arange(count), grid), axis=1).astype(np.uint32)
    length = int(table["length"][0].as_py()) // count
    offset = int(table["offset"][0].as_py()) + np.arange(count, dtype=np.uint64) * length
    location = str(table["location"][0].as_py())
    return make_references(index, location, offset, np.full(count, length, np.uint64))


def with_checksums(table: pa.Table, version: SourceVersion) -> pa.Table:
    """References that say what they point at: an ETag where there is one, else the time of the
    last change. A reader refuses bytes that are not those that were scanned.
    """
    names = table.column_names
    if "inline" in names or "etag" in names or "last_modified" in names:
        return table
    count = len(table)
    if version.etag is not None:
        codes = pa.array(np.zeros(count, np.int32))
        etag = pa.DictionaryArray.from_arrays(codes, pa.array([version.etag], pa.string()))
        return table.append_column("etag", etag)
    if version.last_modified is not None:
        seconds = np.full(count, version.last_modified, np.uint32)
        return table.append_column("last_modified", pa.array(seconds))
    return table


# A plan looks at the variables of hundreds of thousands of files. An object for each of them
# would take most of the driver's memory, so that it is made when it is looked at.

DIGEST_BYTES = 16
Key = bytes
_FIELDS = {item.name: at for at, item in enumerate(fields(VariableDescription))}
_VALUES, _DIGEST = _FIELDS["values"], _FIELDS["digest"]
_fields_of = attrgetter(*_FIELDS)


class Column(NamedTuple):
    """What the bytes of one variable are: a digest, then values or the key of values.

    `dtype` is None where values are not among the bytes.
    """

    form: Key
    """All but values and digest."""
    size: int
    has_digest: bool
    has_key: bool = False
    dtype: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] = ()


class SharedField(NamedTuple):
    """Where the bytes of one variable are, and what they are."""

    form: VariableDescription
    column: Column
    start: int

    def digest(self, own: bytes) -> bytes | None:
        stop = self.start + DIGEST_BYTES
        return own[self.start : stop] if self.column.has_digest else None

    def make(self, own: bytes) -> VariableDescription:
        given = list(_fields_of(self.form))
        given[_DIGEST] = self.digest(own)
        _, size, has_digest, _, dtype, shape = self.column
        if dtype is not None:
            skipped = DIGEST_BYTES * has_digest
            count = (size - skipped) // max(1, dtype.itemsize)
            given[_VALUES] = np.frombuffer(own, dtype, count, self.start + skipped).reshape(shape)
        return VariableDescription(*given)


Layout = dict[str, SharedField | VariableDescription]
"""By path: where to find a variable that is a file's own, or the one that files share."""


class SharedVariables(Mapping[str, VariableDescription]):
    """The variables of one file by path. Files that are alike have the same `layout`."""

    __slots__ = ("layout", "own")

    def __init__(self, layout: Layout, own: bytes) -> None:
        self.layout = layout
        self.own = own

    def __getitem__(self, path: str) -> VariableDescription:
        found = self.layout[path]
        return found.make(self.own) if isinstance(found, SharedField) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)

    def __contains__(self, path: object) -> bool:
        return path in self.layout


def _entry(
    variables: Mapping[str, VariableDescription], path: str
) -> SharedField | VariableDescription | None:
    if isinstance(variables, SharedVariables):
        return variables.layout.get(path)
    return variables.get(path)


def form_of(variables: Mapping[str, VariableDescription], path: str) -> VariableDescription:
    """An object that is the same for all files whose variable differs in values at most."""
    found = _entry(variables, path)
    assert found is not None
    return found.form if isinstance(found, SharedField) else found


def digest_in(variables: Mapping[str, VariableDescription], path: str) -> bytes | None:
    """The digest of a variable, without the variable being made; None also where it is not."""
    found = _entry(variables, path)
    if isinstance(found, SharedField):
        assert isinstance(variables, SharedVariables)
        return found.digest(variables.own)
    return None if found is None else found.digest


def has_values(variables: Mapping[str, VariableDescription], path: str) -> bool:
    """Whether the values of a variable are known."""
    found = _entry(variables, path)
    assert found is not None
    return (found.column.dtype if isinstance(found, SharedField) else found.values) is not None


def forms_of(variables: Mapping[str, VariableDescription]) -> Iterable[VariableDescription]:
    """The variables as `form_of` has them: those of files that are alike come without values."""
    if isinstance(variables, SharedVariables):
        found = variables.layout.values()
        return [item.form if isinstance(item, SharedField) else item for item in found]
    return variables.values()


def only(source: SourceDescription, *paths: str) -> SourceDescription:
    """What is needed to read some variables of a file, small enough to be sent to a task."""
    forms = {path: form_of(source.variables, path) for path in paths}
    variables = {
        path: form
        if form.values is None and form.digest is None
        else replace(form, values=None, digest=None)
        for path, form in forms.items()
    }
    return SourceDescription(source.location, source.format, source.version, {}, variables)


# Files of one archive differ in a few times and digests; names, attributes and grids are the same
# in all of them. Tasks hand over such parts once each, under a hash, and the driver puts
# descriptions together that share them: a file costs it a few hundred bytes, whatever its
# coordinates.
#
# Attributes of groups often differ in a line of history, and only those of one file are ever
# used. A task hands them over as a page for many files, compressed until then.

_INLINE_BYTES = 256
"""Values up to this size travel with their file: hashes would be as large."""
_KEY_BYTES = 12
_PAGE_BYTES = 1 << 20
_MAX_SHARED = 16
"""Small values that more files than this have differently are not looked for any more."""

_Slim = tuple[Key, tuple[Any, ...], Key, int, bytes]
"""Shape, version, page of attributes and place on it, and the bytes of all variables."""


_Shape = tuple[str, Key, tuple[Column, ...]]
"""Format, groups without attributes, variables: the same for all files that are alike."""


@dataclass(slots=True)
class Splitter:
    """Takes descriptions apart; every part is handed out once."""

    seen: set[Key] = field(default_factory=set)
    _fresh: list[tuple[Key, bytes]] = field(default_factory=list)
    _page: dict[bytes, int] = field(default_factory=dict)
    """Pickled attributes and their places."""
    _page_key: Key = b""
    _page_bytes: int = 0

    def split(self, source: SourceDescription) -> bytes:
        """What is left of a description without its parts."""
        columns, own = [], []
        for variable in source.variables.values():
            column, data = self._column(variable)
            columns.append(column)
            own.append(data)
        groups = {
            path: GroupDescription({}, group.dimensions, group.unlimited)
            for path, group in source.groups.items()
        }
        shape: _Shape = (source.format, self._part(groups), tuple(columns))
        page, place = self._place_attributes(source)
        state = astuple(source.version)
        slim: _Slim = (self._part(shape), state, page, place, b"".join(own))
        return pickle.dumps(slim)

    def fresh(self) -> Iterator[tuple[Key, bytes]]:
        """The parts that were not handed out so far."""
        yield from self._fresh
        self._fresh.clear()

    def finish(self) -> Iterator[tuple[Key, bytes]]:
        """The parts that were held back; to be called after the last description."""
        self._end_page()
        yield from self.fresh()

    def _column(self, variable: VariableDescription) -> tuple[Column, bytes]:
        form = self._part(replace(variable, values=None, digest=None))
        data, values = variable.digest or b"", variable.values
        dtype, has_key = None, False
        if values is not None and (values.nbytes > _INLINE_BYTES or values.dtype.hasobject):
            data, has_key = data + self._part(values), True
        elif values is not None:
            data, dtype = data + values.tobytes(), values.dtype
        shape = () if dtype is None or values is None else values.shape
        has_digest = variable.digest is not None
        return Column(form, len(data), has_digest, has_key, dtype, shape), data

    def _place_attributes(self, source: SourceDescription) -> tuple[Key, int]:
        data = pickle.dumps({path: source.attributes_of(path) for path in source.groups})
        if data not in self._page:
            if self._page_bytes > _PAGE_BYTES:
                self._end_page()
            if not self._page:
                self._page_key = _hash(source.location.encode())  # which no other page begins with
            self._page[data] = len(self._page)
            self._page_bytes += len(data)
        return self._page_key, self._page[data]

    def _end_page(self) -> None:
        if self._page:
            data = zlib.compress(pickle.dumps(list(self._page)))
            self._fresh.append((self._page_key, pickle.dumps(data)))
        self._page, self._page_bytes = {}, 0

    def _part(self, part: Any) -> Key:
        data = pickle.dumps(part)
        key = _hash(data)
        if key not in self.seen:
            self.seen.add(key)
            self._fresh.append((key, data))
        return key


def _hash(data: bytes) -> Key:
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).digest()


@dataclass(slots=True)
class Joiner:
    """Puts descriptions together again; equal parts become the same object."""

    parts: dict[Key, Any] = field(default_factory=dict)
    _shared: dict[tuple[Key, int], dict[bytes, VariableDescription]] = field(default_factory=dict)
    """By shape and position: variables that several files may have, by their bytes."""
    _layouts: dict[tuple[Key, tuple[int, ...]], Layout] = field(default_factory=dict)
    """By shape and the identities of the variables that files share."""

    def add(self, key: Key, data: bytes) -> None:
        if key not in self.parts:
            self.parts[key] = pickle.loads(data)

    def join(self, location: str, data: bytes) -> SourceDescription:
        """The description that was taken apart; all parts have been added before."""
        slim: _Slim = pickle.loads(data)
        shape, state, page, place, own = slim
        kind, groups, columns = self.parts[shape]
        shared: list[VariableDescription | None] = []
        rest = []
        at = 0
        for position, column in enumerate(columns):
            piece = own[at : at + column.size]
            at += column.size
            variable = self._variable((shape, position), column, piece)
            shared.append(variable)
            if variable is None:
                rest.append(piece)
        key = (shape, tuple(map(id, shared)))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._layout(columns, shared)
        return SourceDescription(
            location,
            kind,
            SourceVersion(*state),
            self.parts[groups],
            SharedVariables(layout, b"".join(rest)),
            stored_attributes=StoredAttributes(self.parts[page], place),
        )

    def _variable(
        self, where: tuple[Key, int], column: Column, piece: bytes
    ) -> VariableDescription | None:
        """The variable that files share; None for one whose bytes stay with the file."""
        known = self._shared.setdefault(where, {})
        found = known.get(piece)
        if found is None and (column.has_key or len(known) < _MAX_SHARED):
            found = SharedField(self.parts[column.form], column, 0).make(piece)
            if column.has_key:
                values = self.parts[piece[DIGEST_BYTES * column.has_digest :]]
                found = replace(found, values=values)
            known[piece] = found
        return found

    def _layout(
        self, columns: tuple[Column, ...], shared: list[VariableDescription | None]
    ) -> Layout:
        layout: Layout = {}
        at = 0
        for column, variable in zip(columns, shared, strict=True):
            form = self.parts[column.form]
            layout[form.path] = variable or SharedField(form, column, at)
            at += 0 if variable else column.size
        return layout
