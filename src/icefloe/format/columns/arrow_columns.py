"""Numbers and small rows to Arrow, numbers back, by their buffers; tables as bytes.

Arrow's own conversions (`pa.array`, `to_numpy`) load pandas first wherever it is installed, which
takes longer than most of what is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")


def numbers_to_arrow(numbers: NDArray[Any], absent: NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array over the memory of numbers or times; rows marked `absent` are null."""
    validity = _bits(~absent) if absent is not None and absent.any() else None
    raw = np.ascontiguousarray(numbers)
    data = pa.py_buffer(raw.view(np.uint8) if raw.nbytes else b"")  # times offer no buffer
    return pa.Array.from_buffers(pa.from_numpy_dtype(raw.dtype), len(raw), [validity, data])


def mask_to_arrow(mask: NDArray[np.bool_]) -> pa.Array:
    """Flat values that are true or false."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, _bits(mask)])


def _bits(mask: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def batch_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """A batch of a few rows of numbers, byte strings and texts; the latter two may be None."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [_column_of(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    is_text = pa.types.is_string(kind)
    if is_text or pa.types.is_binary(kind):
        return BlobColumn.from_values(values, is_text=is_text).to_arrow()
    return numbers_to_arrow(np.array(values, kind.to_pandas_dtype()))


def numbers_from_arrow(array: pa.Array) -> NDArray[Any]:
    """The numbers of an Arrow array that has no nulls, without copying."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    numbers: NDArray[Any] = np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
    return numbers


def mask_from_arrow(array: pa.Array) -> NDArray[np.bool_]:
    """An Arrow array of true and false, which has no nulls."""
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def pack_table(table: pa.Table) -> bytes:
    """A table as one compressed Arrow stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack_table(data: bytes | pa.Buffer) -> pa.Table:
    """The table of `pack_table`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
