"""The arrays of the repository: chunks, codecs, zarr.json, and whether references can fill them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from math import gcd, prod
from typing import Any

import numpy as np

from icefloe.virtual.model.data_types import bytes_codec_of
from icefloe.virtual.model.description import Json, VariableDescription
from icefloe.virtual.planning.file_boxes import FileBox, FileBoxes

SMALL_CHUNK_BYTES = 256 * 1024
LARGE_CHUNK_BYTES = 64 * 1024 * 1024
GOOD_CHUNK_BYTES = 4 * 1024 * 1024
COORDINATE_CHUNK = (1024, 131072)
COPY_BYTES = 1024 * 1024
"""Up to this size for each file, what cannot be referred to is copied in a virtual ingest."""

TINY_CHUNK_BYTES = 64
_MAX_PARTS = 1_000_000
MAX_COPIED_BYTES = 1 << 50
MAX_CHUNK_BYTES = 1 << 30
MAX_COMPARED_BYTES = 256 * 1024 * 1024
"""Up to this size, what files repeat is read from each of them to be compared."""

_ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
_BLOSC_MAX_BYTES = 2**31 - 17
_ZSTD_BLOCK_BYTES = 128 << 10


def array_document(
    variable: VariableDescription,
    dimensions: Sequence[str],
    shape: Sequence[int],
    chunks: Sequence[int],
    codecs: Sequence[Json],
) -> dict[str, Json]:
    """The zarr.json of an array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": variable.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": variable.fill_value,
        "codecs": list(codecs),
        "attributes": variable.attributes,
        "dimension_names": list(dimensions),
        "storage_transformers": [],
    }


def group_document(attributes: Mapping[str, Json]) -> dict[str, Json]:
    """The zarr.json of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def native_codecs(dtype: str, chunks: Sequence[int]) -> list[Json]:
    """How copied chunks are stored: little-endian and compressed by zstd.

    Numbers of several bytes are shuffled before, which Blosc does: packed measurements become a
    fifth smaller than by zstd alone, and take a seventh of the time. A block of Blosc is as large
    as makes every byte of its numbers fill a block of zstd, which then gives up at once on bytes
    that are noise. The blocks that Blosc chooses by itself take half as long again, to compress and
    to decompress, and become larger.
    """
    if dtype == "string":
        return [{"name": "vlen-utf8"}, _ZSTD]
    kind = np.dtype(dtype)
    serializer = bytes_codec_of(dtype)
    is_small = prod(chunks) * kind.itemsize <= _BLOSC_MAX_BYTES
    if kind.kind not in "iufcmM" or kind.itemsize == 1 or not is_small:
        return [serializer, _ZSTD]
    settings = {
        "cname": "zstd",
        "clevel": 1,
        "shuffle": "shuffle",
        "blocksize": _ZSTD_BLOCK_BYTES * kind.itemsize,
        "typesize": kind.itemsize,
    }
    return [serializer, {"name": "blosc", "configuration": settings}]


def choose_chunks(box: FileBox, shape: Sequence[int], wanted: Mapping[str, int]) -> tuple[int, ...]:
    """The chunks of a copied array.

    Those of the source where they have a reasonable size; small ones grow along the joined
    dimension, then along the others, and very large ones are halved. What the user wants comes
    before all that. A small coordinate is one chunk, with room to grow.
    """
    variable = box.variable
    if len(shape) == 1 and variable.is_coordinate and box.dimensions[0] not in wanted:
        low, high = COORDINATE_CHUNK
        return (min(max(shape[0], low), high) if box.concat_axes else max(1, shape[0]),)
    start = [1] * box.num_new_axes + list(variable.chunks)
    chunks = [max(1, min(size, chunk)) for size, chunk in zip(shape, start, strict=True)]
    free = [at for at, name in enumerate(box.dimensions) if name not in wanted]
    for at, name in enumerate(box.dimensions):
        chunks[at] = wanted.get(name, chunks[at])
    itemsize = variable.itemsize

    def size_bytes() -> int:
        return prod(chunks) * itemsize

    for at in sorted(free, key=lambda axis: axis not in box.concat_axes):
        if size_bytes() >= SMALL_CHUNK_BYTES:
            break
        room = max(1, GOOD_CHUNK_BYTES // size_bytes())
        chunks[at] = min(max(1, shape[at]), chunks[at] * room)
    while size_bytes() > LARGE_CHUNK_BYTES and any(chunks[at] > 1 for at in free):
        longest = max(free, key=lambda axis: chunks[axis])
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def virtual_chunks(
    boxes: FileBoxes, old_chunks: tuple[int, ...] | None
) -> tuple[tuple[int, ...] | None, str | None]:
    """The chunks of an array made of references, or why it cannot be.

    All files need the same stored form. A contiguous file is one chunk; where files have
    different lengths it is cut into chunks of their common divisor, and a large one into parts.
    """
    kinds = boxes.kinds()
    first = next(iter(kinds.values()))
    for box in kinds.values():
        reason = _unlike(box.variable, first.variable)
        if reason is not None:
            return None, reason
    chunks = [1] * first.num_new_axes + list(first.variable.chunks)
    if first.variable.is_contiguous:
        for at in first.concat_axes[first.num_new_axes :]:
            lengths = {box.shape[at] for box in kinds.values()}
            if len(lengths) > 1 and at != 0:
                return None, "it is not chunked, and files have different lengths"
            chunks[at] = max(1, reduce(gcd, lengths))
        chunks = cut_chunks(chunks, first.variable.itemsize)
        if old_chunks is not None and _is_cut_of(old_chunks, chunks, first.num_new_axes):
            chunks = list(old_chunks)
    if old_chunks is not None and tuple(chunks) != old_chunks:
        return None, f"its chunks are {tuple(chunks)}, those in the repository {old_chunks}"
    return tuple(chunks), None


def cut_chunks(lengths: Sequence[int], itemsize: int) -> list[int]:
    """Chunks of a contiguous array of a reasonable size, cut along the first dimensions.

    Only a part that divides a dimension will do: the last chunk has to be whole as well.
    """
    chunks = list(lengths)
    for at, length in enumerate(lengths):
        if prod(chunks) * itemsize <= LARGE_CHUNK_BYTES:
            break
        rest = prod(chunks[at + 1 :]) * itemsize
        most = max(1, GOOD_CHUNK_BYTES // max(1, rest))
        chunks[at] = max(part for part in range(1, min(most, length) + 1) if length % part == 0)
    count = prod(length // chunk for length, chunk in zip(lengths, chunks, strict=True))
    return chunks if count <= _MAX_PARTS else list(lengths)


def _is_cut_of(old: Sequence[int], chunks: Sequence[int], num_new_axes: int) -> bool:
    """Whether chunks of an array that is there are parts of these, each one run of bytes."""
    if len(old) != len(chunks) or any(a % b for a, b in zip(chunks, old, strict=True)):
        return False
    differ = [at for at, (a, b) in enumerate(zip(chunks, old, strict=True)) if a != b]
    return not differ or all(length == 1 for length in old[num_new_axes : differ[-1]])


def find_unlike(boxes: Mapping[int, FileBox]) -> dict[int, str]:
    """Sources whose chunks have no codecs, else those stored otherwise than in most sources."""
    closed = {
        number: box.variable.reason or "its chunks cannot be read by Zarr"
        for number, box in boxes.items()
        if box.variable.codecs is None
    }
    if closed:
        return closed
    forms = {
        number: (repr(box.variable.codecs), box.variable.is_contiguous, box.variable.chunks)
        for number, box in boxes.items()
    }
    usual = Counter(forms.values()).most_common(1)[0][0]
    first = next(box for number, box in boxes.items() if forms[number] == usual)
    unlike = {number: _unlike(box.variable, first.variable) for number, box in boxes.items()}
    return {number: reason for number, reason in unlike.items() if reason is not None}


def _unlike(found: VariableDescription, first: VariableDescription) -> str | None:
    if found.codecs is None:
        return found.reason
    if found.codecs != first.codecs:
        return "it is stored with different codecs in different files"
    if found.is_contiguous != first.is_contiguous:
        return "it is chunked in some files only"
    if found.is_contiguous:
        return None
    if found.chunks != first.chunks:
        return f"it has chunks of {found.chunks} in some files, {first.chunks} in others"
    if found.fill_value != first.fill_value and (found.has_gaps or first.has_gaps):
        return "chunks that were never written mean different values in different files"
    return None


def find_misaligned(
    path: str, boxes: FileBoxes, chunks: Sequence[int], lengths: Sequence[int]
) -> dict[int, str]:
    """Sources after which the next one would start inside a chunk."""
    starts, shapes = boxes.starts(), boxes.shapes()
    stops = starts + shapes
    is_cut = (stops % chunks != 0) & (stops != np.array(lengths, np.int64))
    is_wrong = is_cut | (starts % chunks != 0)
    problems = {}
    for row in np.flatnonzero(is_wrong.any(axis=1)).tolist():
        number = int(boxes.numbers[row])
        box = boxes[number]
        for at in box.concat_axes:
            if is_wrong[row, at]:
                problems[number] = (
                    f"variable {path!r} has {box.shape[at]} along {box.dimensions[at]!r} (from "
                    f"{box.start[at]} on) and chunks of {chunks[at]}: references need whole "
                    "chunks in every file but the last; use mode='native'"
                )
    return problems


def widest(boxes: FileBoxes) -> int:
    """Bytes of the largest part."""
    return max((box.variable.nbytes for box in boxes.kinds().values()), default=0)


def are_tiny(boxes: FileBoxes) -> bool:
    """Whether references would be larger than the values, and take much longer to be read."""
    tiny = [
        prod(box.variable.chunks) * box.variable.itemsize <= TINY_CHUNK_BYTES
        and box.variable.nbytes >= TINY_CHUNK_BYTES * 8
        for box in boxes.kinds().values()
    ]
    return all(tiny) and widest(boxes) <= COPY_BYTES


def same_codecs(document: Mapping[str, Any], variable: VariableDescription) -> bool:
    """Whether an existing array decodes what a source stores."""
    return variable.codecs is not None and list(document["codecs"]) == list(variable.codecs)
