"""A column of texts as numbers into its distinct values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.arrow_columns import numbers_from_arrow, numbers_to_arrow
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.manifest.dictionary import distinct_values
from icefloe.format.manifest.locations import Locations
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

_FEW_VALUES = 64
_SLICE = 1 << 16


class Coded(NamedTuple):
    """A text column as numbers into its distinct values; -1 means no value."""

    codes: NDArray[np.int32]
    values: Locations

    def take(self, rows: Any) -> Coded:
        return Coded(self.codes[rows], self.values)

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes) + self.values.nbytes

    def compact(self) -> Coded:
        """The same column over the values it uses, if it leaves most of its values unused."""
        if len(self.values) <= _FEW_VALUES or not len(self.codes):
            return self
        first, last = max(int(self.codes.min()), 0), int(self.codes.max())
        is_used = np.zeros(last - first + 1, np.bool_)
        for at in range(0, len(self.codes), _SLICE):
            codes = self.codes[at : at + _SLICE]
            is_used[codes[codes >= 0] - first] = True
        used = np.flatnonzero(is_used)
        if 2 * len(used) >= len(self.values):
            return self
        number = np.cumsum(is_used, dtype=np.int32) - 1
        codes = np.where(self.codes < 0, -1, number.take(self.codes - first, mode="clip"))
        values = self.values.strings().take(used + first)
        return Coded(codes.astype(np.int32), Locations(values))

    def to_arrow(self) -> pa.Array:
        codes = numbers_to_arrow(self.codes, self.codes < 0)
        values = self.values.strings().to_arrow().cast(pa.string())
        return pa.DictionaryArray.from_arrays(codes, values)

    def get(self, row: int) -> str | None:
        """The value of one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.values.get(code)

    @classmethod
    def from_arrow(cls, column: pa.Array) -> Coded | None:
        if len(column) == column.null_count:
            return None
        if not pa.types.is_dictionary(column.type):
            return cls.from_blobs(BlobColumn.from_arrow(column))
        codes = numbers_from_arrow(column.indices.cast(pa.int32()).fill_null(-1))
        return cls(codes, Locations(BlobColumn.from_arrow(column.dictionary)))

    @classmethod
    def from_blobs(cls, column: BlobColumn) -> Coded | None:
        if column.null_count == len(column):
            return None
        codes, values = distinct_values(column)
        return cls(codes, Locations(values))
