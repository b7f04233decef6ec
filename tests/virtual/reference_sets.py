"""Sets of references to chunks of HDF5 files, as kerchunk lays them out."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")

Refs = dict[str, Any]
"""Keys to metadata (a dictionary), `[url, offset, length]`, or bytes."""


def references_to(path: Path, url: str | None = None, *, inline_every: int = 0) -> Refs:
    """Metadata and chunks of a NetCDF 4 file; every so many chunks one is in the set itself."""
    count = 0
    refs: Refs = {".zgroup": {"zarr_format": 2}}
    whole = path.read_bytes()
    with xr.open_dataset(path, decode_cf=False) as found, h5py.File(path) as file:
        refs[".zattrs"] = {name: _plain(value) for name, value in found.attrs.items()}
        for name, variable in found.variables.items():
            dataset = file[name]
            attributes = {key: _plain(value) for key, value in variable.attrs.items()}
            fill = attributes.pop("_FillValue", None)
            chunks = dataset.chunks or dataset.shape
            filters = [{"id": "shuffle", "elementsize": dataset.dtype.itemsize}]
            refs[f"{name}/.zarray"] = {
                "zarr_format": 2,
                "shape": dataset.shape,
                "chunks": chunks,
                "dtype": dataset.dtype.str,
                "fill_value": "NaN" if isinstance(fill, float) and np.isnan(fill) else fill,
                "order": "C",
                "filters": filters if dataset.shuffle else None,
                "compressor": {"id": "zlib", "level": 4} if dataset.compression else None,
            }
            refs[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": list(variable.dims), **attributes}
            for index, offset, size in _chunks(dataset):
                key = ".".join(map(str, index)) or "0"
                count += 1
                is_inline = bool(inline_every) and count % inline_every == 0
                data = whole[offset : offset + size]
                refs[f"{name}/{key}"] = data if is_inline else [url or str(path), offset, size]
    return refs


def _chunks(dataset: Any) -> list[tuple[tuple[int, ...], int, int]]:
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        return [] if offset is None else [((0,) * dataset.ndim, offset, dataset.nbytes)]
    found = [dataset.id.get_chunk_info(n) for n in range(dataset.id.get_num_chunks())]
    return [
        (
            tuple(at // size for at, size in zip(chunk.chunk_offset, dataset.chunks, strict=True)),
            chunk.byte_offset,
            chunk.size,
        )
        for chunk in found
    ]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def as_texts(refs: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has them: metadata and chunks as text, in base64 where they are not."""
    return {key: _text(value) for key, value in refs.items()}


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    if not isinstance(value, bytes):
        return value
    return "base64:" + base64.b64encode(value).decode()


def write_json(path: Path, refs: Mapping[str, Any], *, version: int = 1, **more: Any) -> Path:
    texts = as_texts(refs)
    document = texts if version == 0 else {"version": version, "refs": texts, **more}
    path.write_text(json.dumps(document))
    return path


def write_parquet(folder: Path, refs: Mapping[str, Any], record_size: int = 4) -> Path:
    """The layout with a file for every so many chunks of an array."""
    folder.mkdir()
    metadata = {key: value for key, value in refs.items() if isinstance(value, dict)}
    document = {"metadata": metadata, "record_size": record_size}
    (folder / ".zmetadata").write_text(json.dumps(document))
    for key, described in metadata.items():
        if not key.endswith("/.zarray"):
            continue
        name = key.removesuffix("/.zarray")
        grid = [-(-s // c) for s, c in zip(described["shape"], described["chunks"], strict=True)]
        count = int(np.prod(grid))
        rows: list[Any] = [None] * (-(-count // record_size) * record_size)
        for number, index in enumerate(np.ndindex(*grid)):
            rows[number] = refs.get(f"{name}/{'.'.join(map(str, index)) or '0'}")
        for record in range(len(rows) // record_size):
            part = rows[record * record_size : (record + 1) * record_size]
            if any(row is not None for row in part):
                write_record(folder / name / f"refs.{record}.parq", part)
    return folder


def write_record(path: Path, rows: Sequence[Any]) -> None:
    places = [(*row, 0, 0)[:3] if isinstance(row, list) else (None, 0, 0) for row in rows]
    url, offset, size = zip(*places, strict=True)
    raw = [row if isinstance(row, bytes) else None for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [pa.array(url, pa.string()).dictionary_encode(), pa.array(offset), pa.array(size)]
    table = pa.table([*columns, pa.array(raw, pa.binary())], ["path", "offset", "size", "raw"])
    pq.write_table(table, path, compression="zstd")


def read_with_fsspec(references: Any, **options: Any) -> Any:
    """What xarray reads through fsspec's own view of a set."""
    reference: Any = pytest.importorskip("fsspec.implementations.reference", reason="an oracle")
    if isinstance(references, Path) and references.is_dir():
        references = reference.LazyReferenceMapper(str(references), engine="pyarrow")
    elif isinstance(references, Path):
        references = str(references)
    chosen = {"fo": references, "remote_protocol": "file", **options}
    with xr.open_dataset(
        "reference://",
        engine="zarr",
        backend_kwargs={"storage_options": chosen, "consolidated": False},
    ) as found:
        return found.load()
