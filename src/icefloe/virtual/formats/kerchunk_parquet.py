"""Sets of references in a folder of Parquet files.

`.zmetadata` holds the metadata of all groups and arrays, and how many references a file has
(`record_size`). The chunks of an array, counted in C order, are the rows of `PATH/refs.0.parq`,
`PATH/refs.1.parq` and so on: `path`, `offset` and `size`, or the bytes themselves in `raw`. A row
without either, and a file that is not there, mean chunks that were never written.
"""

from __future__ import annotations

import io
import json
import math
import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from icefloe.on_demand import on_demand
from icefloe.virtual.formats.chunk_keys import ChunkKeys, grid_of
from icefloe.virtual.formats.kerchunk_entries import (
    ChunkColumns,
    Entry,
    inline_bytes,
    texts_to_arrow,
)
from icefloe.virtual.model.description import Json, SourceError, VariableDescription
from icefloe.virtual.places.list_objects import Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa = on_demand("pyarrow")
    pc = on_demand("pyarrow.compute")
    pq = on_demand("pyarrow.parquet")

_METADATA = ".zmetadata"
_RECORD = re.compile(r"(.+)/refs\.([0-9]+)\.parq")


def is_parquet_set(place: Place) -> bool:
    """Whether a folder is a set of references, rather than a Zarr store with such a file."""
    data = place.find(_METADATA)
    return data is not None and b'"record_size"' in data


class ParquetReferences:
    """A set from a folder; its files are read when they are asked for."""

    def __init__(self, place: Place) -> None:
        """Read the metadata of a set and list its files.

        Raises:
            SourceError: it is none.
        """
        self.location, self._place = place.location, place
        listing = place.list_all()
        self.version = listing.version()
        document = self._metadata(place.find(_METADATA) or b"")
        self._record_size: int = document["record_size"]
        self.documents: dict[str, Entry] = {
            key: json.dumps(item).encode() for key, item in document["metadata"].items()
        }
        self._records: dict[str, list[int]] = {}
        for key in listing.keys:
            if found := _RECORD.fullmatch(key):
                self._records.setdefault(found[1], []).append(int(found[2]))
        self._layouts: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._loaded: tuple[str, int, pa.Table] | None = None

    def check_owners(self, paths: frozenset[str]) -> None:
        if strange := sorted(self._records.keys() - paths):
            reason = f"there are references of {strange[0]!r}, but no .zarray for it"
            raise SourceError(f"{self.location}: {reason}")

    def columns(self, variable: VariableDescription, keys: ChunkKeys) -> ChunkColumns:
        grid = grid_of(variable.shape, variable.chunks)
        count = math.prod(grid)
        parts, numbers = [], [np.empty(0, np.int64)]
        for record in sorted(self._records.get(variable.path, [])):
            table = self._table(variable.path, record)
            first = record * self._record_size
            is_there = _is_there(table)
            rows = np.flatnonzero(is_there)
            if len(rows) and first + int(rows[-1]) >= count:
                raise self._wrong(
                    variable.path,
                    record,
                    f"chunks outside of the grid of {grid}: there are {count}",
                )
            needed = min(self._record_size, count - first)
            if table.num_rows < needed:
                found = f"{table.num_rows} rows, expected {needed}"
                raise self._wrong(variable.path, record, found)
            numbers.append(first + rows)
            parts.append(table.take(pa.array(rows)))
        whole = pa.concat_tables(parts) if parts else _SCHEMA.empty_table()
        number = np.concatenate(numbers)
        index = np.zeros((len(number), len(grid)), np.int64)
        for axis, at in enumerate(np.unravel_index(number, grid) if grid and count else ()):
            index[:, axis] = at
        inline = [None if raw is None else inline_bytes(raw) for raw in whole["raw"].to_pylist()]
        return ChunkColumns(
            index,
            texts_to_arrow(whole["path"].combine_chunks()),
            whole["offset"].to_numpy(),
            whole["size"].to_numpy(),
            pa.array(inline, pa.binary()),
        )

    def find(self, key: str) -> Entry | None:
        path, number = self._number(key)
        if path is None:
            return None
        record, row = divmod(number, self._record_size)
        if record not in self._records.get(path, []):
            return None
        loaded = self._loaded  # other threads may replace it meanwhile
        if loaded is None or loaded[:2] != (path, record):
            self._loaded = loaded = path, record, self._table(path, record)
        table = loaded[2]
        if row >= table.num_rows:
            found = f"{table.num_rows} rows, and none for chunk {key!r}"
            raise self._wrong(path, record, found)
        values = {name: table[name][row].as_py() for name in table.column_names}
        if values["raw"] is not None:
            return inline_bytes(values["raw"])
        if values["path"] is None:
            return None
        return values["path"], values["offset"], values["size"]

    def _number(self, key: str) -> tuple[str | None, int]:
        """The array a key of zarr belongs to, and the position of the chunk in C order."""
        parts = key.split("/")
        for at in range(len(parts) - 1, 0, -1):
            path = "/".join(parts[:at])
            if (layout := self._layout(path)) is not None:
                separator, grid = layout
                index = "/".join(parts[at:]).split(separator)
                number = 0
                for position, length in zip(index, grid, strict=False):
                    number = number * length + int(position)
                return path, number
        return None, 0

    def _layout(self, path: str) -> tuple[str, tuple[int, ...]] | None:
        if path not in self._layouts:
            data = self.documents.get(f"{path}/.zarray")
            if not isinstance(data, bytes):
                return None
            found = json.loads(data)
            separator = found.get("dimension_separator") or "."
            self._layouts[path] = separator, grid_of(found["shape"], found["chunks"])
        return self._layouts[path]

    def _metadata(self, data: bytes) -> dict[str, Json]:
        try:
            document = json.loads(data)
        except ValueError as error:
            raise SourceError(f"{self.location}: {_METADATA!r} is not JSON ({error})") from None
        match document:
            case {"metadata": dict(), "record_size": int(size)} if size > 0:
                return dict(document)
        raise SourceError(
            f"{self.location}: {_METADATA!r} has no 'metadata', or no 'record_size' above 0"
        )

    def _table(self, path: str, record: int) -> pa.Table:
        """The references of one file, in columns of known types."""
        data = self._place.find(f"{path}/refs.{record}.parq")
        if data is None:
            raise self._wrong(path, record, "gone: it disappeared while it was read")
        try:
            found = pq.read_table(io.BytesIO(data))
            columns = [_column(found, field) for field in _SCHEMA]
        except (pa.ArrowException, OSError) as error:
            raise self._wrong(path, record, f"not readable ({error})") from error
        table = pa.Table.from_arrays(columns, schema=_SCHEMA)
        offset, size = table["offset"].to_numpy(), table["size"].to_numpy()
        is_wrong = (offset < 0) | (size < 0) | ((size == 0) & (offset > 0))
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            found_there = f"offset {offset[row]} and size {size[row]} in row {row}"
            raise self._wrong(path, record, found_there)
        return table

    def _wrong(self, path: str, record: int, found: str) -> SourceError:
        return SourceError(f"{self.location}: '{path}/refs.{record}.parq' has {found}")


_SCHEMA = pa.schema(
    [("path", pa.string()), ("offset", pa.int64()), ("size", pa.int64()), ("raw", pa.binary())]
)


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    """A column as the schema has it. Writers leave out empty ones, or store them as numbers."""
    is_number = pa.types.is_integer(field.type)
    if field.name not in table.column_names:
        found: pa.Array = pa.nulls(table.num_rows, field.type)
    else:
        given = table[field.name].combine_chunks()
        given = given.chunk(0) if isinstance(given, pa.ChunkedArray) else given
        if not is_number and pa.types.is_floating(given.type) and pc.all(pc.is_nan(given)).as_py():
            given = pa.nulls(len(given), field.type)
        found = given if given.type == field.type else given.cast(field.type)
    if is_number:
        return found.fill_null(0)
    # An empty text is written by those who have no null.
    return pc.if_else(pc.equal(pc.binary_length(found), 0), None, found)


def _is_there(table: pa.Table) -> NDArray[np.bool_]:
    is_there = pc.or_(pc.is_valid(table["path"]), pc.is_valid(table["raw"]))
    found: NDArray[np.bool_] = is_there.to_numpy(zero_copy_only=False)
    return found
