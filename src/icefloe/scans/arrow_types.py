"""Types of columns that several scans share, named the way Spark names their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

INSTANT = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.field("element", pa.string(), nullable=True))
INDEX = pa.list_(pa.field("element", pa.int64(), nullable=False))
"""A chunk index, a shape: one number per dimension."""
TEXT_MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)
)


def index_column(matrix: NDArray[Any]) -> pa.Array:
    """Rows of a matrix as lists."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width) if width else np.zeros(rows + 1)
    values = pa.array(np.ascontiguousarray(matrix, np.int64).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=INDEX)


def required(name: str, kind: pa.DataType) -> pa.Field:
    """A column without nulls."""
    return pa.field(name, kind, nullable=False)


def table_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """A small table from rows of Python values."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
