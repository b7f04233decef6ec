"""Zarr metadata made up at random, and the little that programs read out of it.

Documents are valid: what a store makes of broken ones is in `tests/store/semantics_cases.py`.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

Document = dict[str, Any]

INTEGERS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
SINGLE_BYTES = {"bool", "int8", "uint8"}
SPECIAL = [0.0, -0.0, 1.5, "NaN", "Infinity", "-Infinity"]
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0}
"""No gzip: its files bear the time at which they were made."""
NAMES = ["x", "y", "time", "τ", None]
MOST_CELLS = 4
"""Chunks along one dimension of an array."""


def group(drawn: random.Random) -> Document:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes(drawn)}


def array(drawn: random.Random) -> Document:
    rank = drawn.choice([0, 1, 1, 1, 2, 2, 3])
    data_type = drawn.choice(["bool", *INTEGERS, *FLOATS, *COMPLEX])
    document: Document = {
        "zarr_format": 3,
        "node_type": "array",
        "data_type": data_type,
        **shape_and_grid(drawn, rank),
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value(drawn, data_type),
        "attributes": attributes(drawn),
    }
    document["codecs"] = codecs(drawn, document)
    if drawn.random() < 0.5:
        document["dimension_names"] = [drawn.choice(NAMES) for _ in range(rank)]
    if drawn.random() < 0.2:
        document["storage_transformers"] = []
    return document


def shape_and_grid(drawn: random.Random, rank: int) -> Document:
    if rank and drawn.random() < 0.05:
        axes = [
            [drawn.randint(1, 3) for _ in range(drawn.randint(1, MOST_CELLS))] for _ in range(rank)
        ]
        grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": axes}}
        return {"shape": list(map(sum, axes)), "chunk_grid": grid}
    chunks = [drawn.randint(1, 3) for _ in range(rank)]
    return {
        "shape": [length(drawn, chunk) for chunk in chunks],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
    }


def length(drawn: random.Random, chunk: int) -> int:
    """A few chunks and sometimes a part of one; now and then nothing."""
    if drawn.random() < 0.05:
        return 0
    return drawn.randint(0, MOST_CELLS - 1) * chunk + drawn.randint(1, chunk)


def fill_value(drawn: random.Random, data_type: str) -> Any:
    if data_type == "bool":
        return drawn.choice([False, True])
    if data_type in INTEGERS:
        bits = INTEGERS[data_type]
        signed = not data_type.startswith("u")
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return drawn.choice([0, 1, least, most])
    if data_type in FLOATS:
        return drawn.choice(SPECIAL)
    return [drawn.choice(SPECIAL), drawn.choice(SPECIAL)]


def codecs(drawn: random.Random, document: Document) -> list[Document]:
    is_regular = document["chunk_grid"]["name"] == "regular"
    found = inner_codecs(drawn, document)
    if is_regular and document["shape"] and drawn.random() < 0.1:
        chunk = document["chunk_grid"]["configuration"]["chunk_shape"]
        configuration = {
            "chunk_shape": [1] * len(chunk),
            "codecs": [step for step in found if step["name"] != "transpose"],
            "index_codecs": [bytes_codec("uint64", "little"), {"name": "crc32c"}],
            "index_location": drawn.choice(["start", "end"]),
        }
        return [{"name": "sharding_indexed", "configuration": configuration}]
    return found


def inner_codecs(drawn: random.Random, document: Document) -> list[Document]:
    rank = len(document["shape"])
    found = []
    if rank > 1 and drawn.random() < 0.2:
        order = drawn.sample(range(rank), rank)
        found.append({"name": "transpose", "configuration": {"order": order}})
    found.append(bytes_codec(document["data_type"], drawn.choice(["little", "big"])))
    found += drawn.choice(
        [
            [],
            [],
            [{"name": "blosc", "configuration": BLOSC}],
            [{"name": "zstd", "configuration": {"level": 0, "checksum": True}}],
            [{"name": "crc32c"}],
        ]
    )
    return found


def bytes_codec(data_type: str, endian: str) -> Document:
    if data_type in SINGLE_BYTES:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": endian}}


def attributes(drawn: random.Random) -> Document:
    return {
        drawn.choice(["units", "", "größe", "a/b", "scale"]): json_value(drawn, 2)
        for _ in range(drawn.randint(0, 3))
    }


def json_value(drawn: random.Random, depth: int) -> Any:
    kind = drawn.randrange(8 if depth else 6)
    if kind == 6:
        return [json_value(drawn, depth - 1) for _ in range(drawn.randint(0, 3))]
    if kind == 7:
        return {str(n): json_value(drawn, depth - 1) for n in range(drawn.randint(0, 3))}
    plain = [None, drawn.random() < 0.5, drawn.randint(-(2**63), 2**64 - 1), drawn.random()]
    return [*plain, "text ü ☃ \U0001f9ca", ""][kind]


# -- changes


def changed(drawn: random.Random) -> Document:
    """Members to put over those of a node that is there; an array keeps its rank."""
    found: Document = {}
    if drawn.random() < 0.7:
        found["attributes"] = attributes(drawn)
    if drawn.random() < 0.4:
        found["dimension_names"] = [drawn.choice(NAMES) for _ in range(3)]
    return found or {"attributes": {}}


def with_members(document: Document, members: Document) -> Document:
    """The document changed; an array has as many dimension names as dimensions, a group none."""
    found = copy.deepcopy(document) | copy.deepcopy(members)
    if "dimension_names" in members:
        if found["node_type"] == "array":
            found["dimension_names"] = members["dimension_names"][: len(found["shape"])]
        else:
            del found["dimension_names"]
    return found


def resized(document: Document, cells: list[int], rest: int) -> Document:
    """The document with other numbers of chunks along its dimensions.

    `rest` is how many elements the last chunk of a dimension lacks, as far as it can.
    """
    found = copy.deepcopy(document)
    grid = found["chunk_grid"]
    if grid["name"] == "regular":
        chunks = grid["configuration"]["chunk_shape"]
        found["shape"] = [
            max(0, cell * chunk - min(rest, chunk - 1))
            for cell, chunk in zip(cells, chunks, strict=False)
        ]
        return found
    axes = grid["configuration"]["chunk_shapes"]
    axes = [(axis * MOST_CELLS)[: max(1, cell)] for axis, cell in zip(axes, cells, strict=False)]
    grid["configuration"]["chunk_shapes"] = axes
    found["shape"] = list(map(sum, axes))
    return found


def num_cells(document: Document) -> list[int]:
    """The number of chunks along each dimension of an array."""
    grid = document["chunk_grid"]
    if grid["name"] == "regular":
        chunks = grid["configuration"]["chunk_shape"]
        return [-(-n // chunk) for n, chunk in zip(document["shape"], chunks, strict=True)]
    return list(map(len, grid["configuration"]["chunk_shapes"]))


def encoded(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
