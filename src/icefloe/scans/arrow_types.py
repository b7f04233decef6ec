"""Types of columns that several scans share, named the way Spark names their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.format.columns.arrow_columns import numbers_to_arrow

INSTANT = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.field("element", pa.string(), nullable=True))
INDEX = pa.list_(pa.field("element", pa.int64(), nullable=False))
"""A chunk index, a shape: one number per dimension."""
TEXT_MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)
)


# `pa.array` and `pa.repeat` import pandas when they are first called, which takes a worker of Spark
# longer than to read a chunk. The functions below do without.


def repeated_text(text: str, count: int) -> pa.Array:
    """A column with one text in every row."""
    raw = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def index_column(matrix: NDArray[Any]) -> pa.Array:
    """Rows of a matrix as lists."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    values = numbers_to_arrow(np.asarray(matrix, np.int64).reshape(-1))
    return pa.Array.from_buffers(INDEX, rows, [None, pa.py_buffer(offsets)], children=[values])


def required(name: str, kind: pa.DataType) -> pa.Field:
    """A column without nulls."""
    return pa.field(name, kind, nullable=False)


def table_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """A small table from rows of Python values."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
