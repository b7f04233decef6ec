"""The bytes of the program of September 2024 that wrote snapshots and manifests as Parquet.

It follows the Arrow schemas of that program and shares no code with the package.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.legacy.numbered.releases import Array, Encoder, Node, Payload

_BIG_ENDIAN = {
    "Float32": ">f",
    "Int16": ">h",
    "UInt64": ">Q",
    "Bool": "?",
    "Complex64": ">ff",
}


def _not_null(kind: pa.DataType) -> pa.Field:
    return pa.field("item", kind, nullable=False)


SNAPSHOT = pa.schema(
    [
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        ("shape", pa.list_(_not_null(pa.uint64()))),
        ("data_type", pa.string()),
        ("chunk_shape", pa.list_(_not_null(pa.uint64()))),
        ("chunk_key_encoding", pa.uint8()),
        ("fill_value", pa.binary()),
        ("codecs", pa.list_(_not_null(pa.binary()))),
        ("storage_transformers", pa.list_(_not_null(pa.binary()))),
        ("dimension_names", pa.list_(pa.string())),
        ("user_attributes", pa.binary()),
        ("user_attributes_ref", pa.binary(16)),
        ("user_attributes_row", pa.uint32()),
        (
            "manifest_references",
            pa.struct(
                [
                    ("reference", pa.list_(pa.binary(16))),
                    ("start_row", pa.list_(pa.uint32())),
                    ("end_row", pa.list_(pa.uint32())),
                ]
            ),
        ),
    ]
)
MANIFEST = pa.schema(
    [
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("coords", pa.binary(), nullable=False),
        ("offset", pa.uint64()),
        pa.field("length", pa.uint64(), nullable=False),
        ("inline_data", pa.binary()),
        ("chunk_id", pa.binary(16)),
        ("virtual_path", pa.string()),
        ("extra", pa.string()),
    ]
)


def file_name(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode() + ".parquet"


def _parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink, compression="none")
    found: bytes = sink.getvalue().to_pybytes()
    return found


class ParquetEncoder(Encoder):
    """Files of that program. Rows of each array are next to each other."""

    rows: dict[tuple[bytes, int], tuple[int, int]]

    def snapshot(self, itself: Any, history: Any, nodes: Sequence[Node], **_: Any) -> bytes:
        return _parquet([self._row(node) for node in nodes], SNAPSHOT)

    def _row(self, node: Node) -> dict[str, Any]:
        row: dict[str, Any] = {"id": node.number, "path": node.path, "type": "group"}
        if node.attributes is not None:
            row["user_attributes"] = json.dumps(node.attributes).encode()
        if node.array is not None:
            row |= {"type": "array", **self._array(node.number, node.array)}
        return row

    def _array(self, number: int, array: Array) -> dict[str, Any]:
        kind, value = array.fill
        parts = value if isinstance(value, list) else [value]
        places = [self.rows[raw, number] for raw, _ in array.manifests]
        codecs = [{"name": name, "configuration": values} for name, values in array.codecs]
        return {
            "shape": array.shape,
            "data_type": array.data_type,
            "chunk_shape": array.chunk_shape,
            "chunk_key_encoding": ord("/"),
            "fill_value": struct.pack(_BIG_ENDIAN[kind], *parts),
            "codecs": [json.dumps(codec).encode() for codec in codecs],
            "dimension_names": array.names,
            "manifest_references": {
                "reference": [raw for raw, _ in array.manifests],
                "start_row": [first for first, _ in places],
                "end_row": [last for _, last in places],
            },
        }

    def manifest(
        self, raw: bytes, chunks: Mapping[int, Mapping[tuple[int, ...], Payload]], nodes: Any
    ) -> bytes:
        rows: list[dict[str, Any]] = []
        self.rows = getattr(self, "rows", {})
        for number, found in chunks.items():
            first = len(rows)
            for index, (kind, content) in found.items():
                row = {"array_id": number, "coords": struct.pack(f">{len(index)}Q", *index)}
                if kind == "Inline":
                    row |= {"inline_data": content, "length": len(content)}
                elif kind == "Ref":
                    row |= dict(zip(("chunk_id", "offset", "length"), content, strict=True))
                else:
                    names = ("virtual_path", "offset", "length")
                    row |= dict(zip(names, content[:3], strict=True))
                rows.append(row)
            self.rows[raw, number] = first, len(rows)
        return _parquet(rows, MANIFEST)
