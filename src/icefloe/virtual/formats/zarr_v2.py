"""Array metadata of Zarr version 2 in the words of version 3."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from icefloe.virtual.model.data_types import (
    bytes_codec,
    data_type_of,
    encode_cf_fill_value,
    fill_value_json,
)
from icefloe.virtual.model.description import Json

_ARRAY_FILTERS = frozenset(
    {"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize"}
)
_BYTES_FILTERS = frozenset(
    {"adler32", "blosc", "bz2", "crc32", "crc32c", "fletcher32", "gzip", "jenkins_lookup3"}
    | {"lz4", "lzma", "shuffle", "zlib", "zstd"}
)
_TEXT_FILTER = "vlen-utf8"
_BLOSC_SHUFFLE = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def numpy_dtype(document: dict[str, Json]) -> np.dtype[Any] | None:
    """The type of a version 2 array; object for text of any length, None if it is not supported."""
    text = document.get("dtype")
    if text == "|O":
        names = [item.get("id") for item in document.get("filters") or []]
        return np.dtype(object) if names == [_TEXT_FILTER] else None
    if not isinstance(text, str):
        return None
    return np.dtype(text)


def codecs_from_v2(
    document: dict[str, Json], dtype: np.dtype[Any]
) -> tuple[tuple[Json, ...] | None, str | None]:
    """The chain of version 3 that reads the chunks of a version 2 array, or why there is none."""
    codecs: list[Json] = []
    ndim = len(document["shape"])
    if document.get("order") == "F" and ndim > 1:
        order = list(range(ndim))[::-1]
        codecs.append({"name": "transpose", "configuration": {"order": order}})
    packed: list[Json] = []
    for item in document.get("filters") or []:
        name = item["id"]
        if name == _TEXT_FILTER:
            continue
        if name in _ARRAY_FILTERS and not packed:
            codecs.append(_numcodec(item))
        elif name in _BYTES_FILTERS:
            packed.append(_numcodec(item))
        else:
            return None, f"its chunks are stored with the filter {name!r}"
    codecs.append({"name": "vlen-utf8"} if dtype.kind == "O" else bytes_codec(dtype))
    codecs += packed
    compressor = document.get("compressor")
    if compressor is not None:
        if compressor["id"] not in _BYTES_FILTERS:
            return None, f"its chunks are stored with the compressor {compressor['id']!r}"
        codecs.append(_compressor(compressor, dtype))
    return tuple(codecs), None


def _numcodec(item: dict[str, Json]) -> Json:
    configuration = {key: value for key, value in item.items() if key != "id"}
    return {"name": f"numcodecs.{item['id']}", "configuration": configuration}


def _compressor(item: dict[str, Json], dtype: np.dtype[Any]) -> Json:
    """Codecs that version 3 has under another name get that name."""
    shuffle = item.get("shuffle")
    if item["id"] == "blosc" and shuffle in _BLOSC_SHUFFLE:
        configuration = {
            "cname": item.get("cname", "lz4"),
            "clevel": item.get("clevel", 5),
            "shuffle": _BLOSC_SHUFFLE[shuffle],
            "typesize": max(1, dtype.itemsize),
            "blocksize": item.get("blocksize", 0),
        }
        return {"name": "blosc", "configuration": configuration}
    if item["id"] == "gzip":
        return {"name": "gzip", "configuration": {"level": item.get("level", 1)}}
    if item["id"] == "zstd":
        configuration = {"level": item.get("level", 0), "checksum": bool(item.get("checksum"))}
        return {"name": "zstd", "configuration": configuration}
    return _numcodec(item)


def fill_value_from_v2(document: dict[str, Json], dtype: np.dtype[Any]) -> tuple[Json, Json | None]:
    """`fill_value` of version 3, and the attribute `_FillValue` that keeps its second meaning.

    In version 2 xarray takes the fill value for the mark of missing values; in version 3 only the
    attribute is that.
    """
    value = document.get("fill_value")
    if value is None:
        return fill_value_json(None, dtype), None
    if dtype.kind == "S":
        value = _bytes_of(value)
    elif dtype.kind in "fc" and isinstance(value, str):
        value = float(value.replace("Infinity", "inf"))
    elif dtype.kind == "c" and isinstance(value, list):
        value = complex(*(float(str(part).replace("Infinity", "inf")) for part in value))
    elif dtype.kind in "mM":
        return fill_value_json(np.int64(value).view(dtype.newbyteorder("=")), dtype), None
    mark = None if dtype.kind in "OU" else encode_cf_fill_value(value, dtype)
    return fill_value_json(value, dtype), mark


def _bytes_of(value: Json) -> bytes:
    return base64.standard_b64decode(value) if isinstance(value, str) else b""


def supported(dtype: np.dtype[Any] | None) -> bool:
    """Whether version 3 has this type."""
    return dtype is not None and dtype.names is None and data_type_of(dtype) is not None
