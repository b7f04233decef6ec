"""Columns that callers hand in: checked before anything is cast, exchanged with Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns.arrow_columns import numbers_from_arrow, numbers_to_arrow
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.coded import Coded
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = on_demand("pyarrow"), on_demand("pyarrow.compute")


def whole_numbers(name: str, values: Any, dtype: Any) -> NDArray[Any]:
    """`values` as unsigned integers; refuses what a cast would quietly change."""
    given = np.asarray(values)
    if given.dtype == dtype:
        return given
    largest = int(np.iinfo(dtype).max)
    if given.size and given.dtype.kind not in "ui":
        raise InvalidInputError(f"{name} are {given.dtype}, expected whole numbers to {largest:,}")
    if given.size and (int(given.min()) < 0 or int(given.max()) > largest):
        raise InvalidInputError(
            f"{name} run from {int(given.min()):,} to {int(given.max()):,}, "
            f"expected 0 to {largest:,}"
        )
    return given.astype(dtype, copy=False)


def check_length(name: str, found: int, expected: int) -> None:
    """Refuse a column that has not one value for each chunk."""
    if found != expected:
        raise InvalidInputError(f"{name}: {found} given, expected {expected}, one for each chunk")


def coded_column(name: str, values: Any, count: int) -> Coded | None:
    """A text column from a list or an Arrow array; None when it has no value at all."""
    if isinstance(values, Coded):
        return values
    check_length(name, len(values), count)
    if isinstance(values, Sequence):
        return Coded.from_blobs(BlobColumn.from_values(values, is_text=True))
    return Coded.from_arrow(values if isinstance(values, pa.Array) else pa.array(values))


def index_to_arrow(index: Index) -> pa.Array:
    """An index matrix as lists of fixed size."""
    count, ndim = index.shape
    flat = numbers_to_arrow(np.ascontiguousarray(index, np.uint32).reshape(-1))
    kind = pa.list_(pa.uint32(), ndim)
    return pa.FixedSizeListArray.from_buffers(kind, count, [None], children=[flat])


def index_from_arrow(column: pa.Array) -> Index:
    """A matrix from lists of equal length, of fixed size or (as Spark makes them) not."""
    if pa.types.is_fixed_size_list(column.type):
        ndim = column.type.list_size
    else:
        lengths = pc.list_value_length(column).unique().to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise InvalidInputError(
                f"chunk indices have {lengths} dimensions, expected the same number for all",
                ErrorKind.INVALID_CHUNK_INDEX,
            )
        ndim = lengths[0] if lengths else 0
    flat = whole_numbers("chunk indices", numbers_from_arrow(column.flatten()), np.uint32)
    return flat.reshape(len(column), ndim)
