"""What a scan finds in one source file: small, picklable, and the same for every format.

Values are never decoded here. A packed integer stays packed, a time stays a number with units: what
the attributes say about them goes into the repository together with them.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

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
        """The attributes of one group."""
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
    """Where the chunks are, when that was asked for; see `references.py`."""
    stored_attributes: StoredAttributes | None = None
    """Where groups come without attributes: theirs."""

    def attributes_of(self, group: str) -> dict[str, Json]:
        """The attributes of a group."""
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
    """Equal for equal values, whatever their byte order; negative zero differs from zero."""
    hashed = hashlib.blake2b(digest_size=16)
    if values.dtype.kind in "OT":
        for text in values.ravel().tolist():
            encoded = str(text).encode()
            hashed.update(len(encoded).to_bytes(8, "little") + encoded)
    else:
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        hashed.update(np.ascontiguousarray(little).tobytes())
    return hashed.digest()
