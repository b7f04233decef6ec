"""Datasets to test with: made by the writer, or file by file as another program would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import icefloe
from icefloe import StateFileDataset
from icefloe.legacy.state_file.tables import Profile, manifest_schema, structure_schema
from icefloe.storage.spec import Storage


def create(
    storage: Storage,
    profile: Profile = Profile.strict,
    config: icefloe.RepositoryConfig | None = None,
) -> icefloe.Repository:
    """A new dataset."""
    generation = StateFileDataset(profile.value)
    return icefloe.Repository.create(storage, config, generation=generation)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """A Parquet file with plain options."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)


def array_row(
    number: int, path: str, shape: Sequence[int], chunks: Sequence[int], **changes: Any
) -> dict[str, Any]:
    """A row of a structure file: an array of little-endian int32 without compression."""
    return {
        "id": number,
        "type": "array",
        "path": path,
        "array_metadata": {
            "shape": list(shape),
            "data_type": "int32",
            "fill_value": (0).to_bytes(4, "big"),
            "dimension_names": None,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [{"name": "bytes", "configuration": b'{"endian":"little"}'}],
        },
        "inline_attrs": None,
        "attrs_reference": None,
        "inventories": [],
        **changes,
    }


def group_row(number: int, path: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "type": "group",
        "path": path,
        "array_metadata": None,
        "inline_attrs": None,
        "attrs_reference": None,
        "inventories": None,
        **changes,
    }


def chunk_row(number: int, array: int, *index: int, **place: Any) -> dict[str, Any]:
    """A row of a manifest; `place` is inline_data, or chunk_file, offset and length."""
    coord = b"".join(at.to_bytes(8, "big") for at in index)
    row = {"inline_data": None, "chunk_file": None, "offset": None, "length": 0} | place
    if row["inline_data"] is not None:
        row["length"] = len(row["inline_data"])
    return {"id": number, "array_id": array, "coord": coord, **row}


def inventory(file: str, row: int, *extent: tuple[int, int]) -> dict[str, Any]:
    return {
        "inventory_file": file,
        "row": row,
        "extent": [list(pair) for pair in extent],
        "flags": 3,
    }


def write_structure(root: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    write_table(root / "s" / name, rows, structure_schema(Profile.strict))


def write_manifest(root: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    write_table(root / "i" / name, rows, manifest_schema(Profile.strict))


def write_state(folder: Path, **members: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"id": "x", "generation": 7, **members}))


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)
