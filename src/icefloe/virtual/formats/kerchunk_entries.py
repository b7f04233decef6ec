"""What a set of references says of its chunks, whatever file the set is in."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from icefloe.on_demand import on_demand
from icefloe.records import record
from icefloe.virtual.formats.chunk_keys import ChunkKeys
from icefloe.virtual.model.description import SourceVersion, VariableDescription

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

Entry = bytes | tuple[str, int, int]
"""The bytes themselves, or a URL, an offset and a length. No length (0) means the whole file."""

METADATA_NAMES = frozenset({".zgroup", ".zarray", ".zattrs", "zarr.json"})
_BASE64 = b"base64:"


@record(frozen=True)
class ChunkColumns:
    """The chunks of one array: one row for each, a URL or bytes, and null for the other."""

    index: NDArray[np.int64]
    url: pa.DictionaryArray
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    inline: pa.Array


class ReferenceSet(Protocol):
    """A set that has been opened."""

    location: str
    version: SourceVersion
    documents: dict[str, Entry]
    """Metadata of groups and arrays, by key."""

    def columns(self, variable: VariableDescription, keys: ChunkKeys) -> ChunkColumns:
        """All chunks of an array.

        Raises:
            SourceError: some cannot be chunks of it.
        """
        ...

    def find(self, key: str) -> Entry | None:
        """One chunk, by its key."""
        ...

    def check_owners(self, paths: frozenset[str]) -> None:
        """Refuse chunks that belong to none of these arrays."""
        ...


def inline_bytes(data: bytes) -> bytes:
    """The bytes of a chunk that is in the set; they may be written in base64."""
    if not data.startswith(_BASE64):
        return data
    try:
        return base64.b64decode(data[len(_BASE64) :], validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is not base64 ({error})") from None


def texts_to_arrow(texts: Any) -> pa.DictionaryArray:
    """A column of texts that repeat."""
    return pa.array(texts, pa.string()).dictionary_encode()
