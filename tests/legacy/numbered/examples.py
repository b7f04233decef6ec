"""Snapshots and references with everything that document 000 has a place for."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from icefloe.format.chunk_refs import ChunkRefs
from icefloe.ids import NodeId
from icefloe.legacy.numbered.model import (
    Ancestor,
    ArrayMetadata,
    AttributesRef,
    FillValue,
    NamedConfiguration,
    OldManifestRef,
    OldNode,
    OldSnapshot,
    node_id,
)

_SCHEMAS = Path(__file__).parent / "schemas"


@cache
def _validator(title: str) -> Any:
    # The schema of a schema does not allow the empty list that the document has for `Flags`.
    schema = json.loads((_SCHEMAS / f"{title}.json").read_text())
    return jsonschema.Draft7Validator(schema)


def validate(title: str, data: bytes | memoryview) -> Any:
    """The document in a file, valid against a schema that document 000 prints.

    JSON has no NaN and no infinity, so a file with one of them is not valid.
    """

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document = json.loads(bytes(data), parse_constant=refuse)
    _validator(title).validate(document)
    return document


def wide(number: int) -> bytes:
    return number.to_bytes(4, "big") * 4


def metadata(
    data_type: Any = "float32", fill: FillValue | None = None, **others: Any
) -> ArrayMetadata:
    return ArrayMetadata(
        others.get("shape", (5, 4)),
        data_type,
        others.get("chunk_shape", (2, 4)),
        "Slash",
        fill or FillValue("Float32", 1.5),
        others.get("codecs", (NamedConfiguration("bytes", {"endian": "little"}),)),
        others.get("transformers"),
        others.get("names", ("time", None)),
    )


FILLS: list[tuple[Any, FillValue, Any]] = [
    ("bool", FillValue("Bool", True), True),
    ("int8", FillValue("Int8", -128), -128),
    ("int64", FillValue("Int64", -(2**63)), -(2**63)),
    ("uint8", FillValue("UInt8", 255), 255),
    ("uint64", FillValue("UInt64", 2**64 - 1), 2**64 - 1),
    ("float16", FillValue("Float16", 0.5), 0.5),
    ("float32", FillValue("Float32", -2.25), -2.25),
    ("float64", FillValue("Float64", 1e300), 1e300),
    ("float16", FillValue("Float16", math.nan), "NaN"),
    ("float32", FillValue("Float32", math.nan), "NaN"),
    ("float64", FillValue("Float64", math.inf), "Infinity"),
    ("float64", FillValue("Float64", -math.inf), "-Infinity"),
    ("float32", FillValue("RawBits", b"\x01\0\xc0\x7f"), "0x7fc00001"),
    ("complex64", FillValue("Complex64", (1.5, -2.0)), [1.5, -2.0]),
    ("complex128", FillValue("Complex128", (math.nan, 1.0)), ["NaN", 1.0]),
    ({"rawbits": 24}, FillValue("RawBits", b"abc"), "YWJj"),
]
"""Data type, fill value in a file, fill value in zarr.json."""


def snapshot() -> OldSnapshot:
    arrays = [
        OldNode(
            node_id(10 + number),
            f"/fills/{number:02}",
            None,
            metadata(data_type, fill, names=None),
        )
        for number, (data_type, fill, _) in enumerate(FILLS)
    ]
    return OldSnapshot(
        wide(1),
        1728302400123456,
        "with 'quotes', ünïcode and \U0001f9ca",
        [
            OldNode(node_id(1), "/", {"title": "ünïcode", "nested": {"list": [1, 2.5, None]}}),
            OldNode(node_id(2), "/group", {}),
            OldNode(node_id(3), "/group/without attributes"),
            OldNode(
                node_id(2**32 - 1),
                "/group/array",
                AttributesRef(wide(9), 3),
                metadata(transformers=(NamedConfiguration("none"),)),
                (OldManifestRef(wide(2), ((0, 3), (0, 1))), OldManifestRef(wide(3))),
            ),
            OldNode(
                node_id(5),
                "/scalar",
                {},
                metadata(shape=(), chunk_shape=(), names=()),
                (OldManifestRef(wide(4), ()),),
            ),
            *arrays,
        ],
        {"user": "somebody", "tries": 3},
        tuple(Ancestor(wide(20 + at), 1728302400000000 - at, f"commit {at}") for at in range(3)),
        7,
        1728302400000000,
    )


def references() -> dict[NodeId, ChunkRefs]:
    ids = np.frombuffer(b"".join(wide(at)[:11] + b"\x02" for at in (1, 2, 2)), np.uint8)
    native = ChunkRefs.native([[0, 0], [1, 0], [1, 1]], ids, [0, 0, 30], [7, 30, 11])
    virtual = ChunkRefs.virtual(
        [[3, 0], [2**32 - 1, 5]], ["s3://b/f", "s3://b/ü"], [0, 2**40], [9, 8]
    )
    inline = ChunkRefs.inline_chunks([[2, 2], [2, 3]], [b"", b"\0\xff" * 100])
    many = ChunkRefs.overlay([(native, None), (virtual, None), (inline, None)], 2)[0]
    scalar = ChunkRefs.inline_chunks(np.empty((1, 0), np.uint32), [b"x"])
    return {node_id(2**32 - 1): many, node_id(5): scalar}
