"""Decoding references without a repository: their bytes go into a Zarr store in memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from icefloe.virtual.model.description import SourceDescription, index_of
from icefloe.virtual.sources import SourceAccess


def bytes_at(location: str, offset: int, length: int, access: SourceAccess) -> bytes:
    with access.open(location).open() as stream:
        stream.seek(offset)
        data: bytes = stream.read(length)
    assert len(data) == length
    return data


def decode(
    source: SourceDescription, path: str, access: SourceAccess | None = None
) -> NDArray[Any]:
    """All values of a variable, read by zarr from nothing but its description and references."""
    variable = source.variables[path]
    assert source.references is not None
    assert variable.codecs is not None, variable.reason
    table = source.references[path]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(variable.shape),
        "data_type": variable.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(variable.chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": variable.fill_value,
        "codecs": list(variable.codecs),
        "attributes": variable.attributes,
        "dimension_names": list(variable.dimensions),
    }
    store = MemoryStore()
    buffer = default_buffer_prototype().buffer
    sync(store.set("zarr.json", buffer.from_bytes(json.dumps(document).encode())))
    for row, index in zip(table.to_pylist(), index_of(table).tolist(), strict=True):
        if row.get("inline") is not None:
            data = row["inline"]
        else:
            place = (row["location"], row["offset"], row["length"])
            data = bytes_at(*place, access or SourceAccess())
        key = "/".join(["c", *map(str, index)])
        sync(store.set(key, buffer.from_bytes(data)))
    return np.asarray(zarr.open_array(store, mode="r")[...])
