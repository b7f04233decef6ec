"""Tables of references: where the chunks of one variable lie in its source.

Columns: `index` (a list of one number per dimension), `location`, `offset`, `length`, and where
chunks lie in objects of their own, `etag` or `last_modified`; else those of the source hold for
all.
A chunk that is kept in the table itself has its bytes in `inline` and no location; in a table with
both kinds, one of the two is null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.manifest.chunk_input import index_from_arrow, index_to_arrow
from icefloe.on_demand import on_demand
from icefloe.virtual.model.description import SourceVersion

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")


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
