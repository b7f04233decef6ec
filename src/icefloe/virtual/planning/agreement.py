"""Which variables are ingested, and whether the files agree on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import convert_times
from icefloe.virtual.model.data_types import (
    bytes_codec,
    canonical_dtype,
    find_unfillable,
    json_equal,
    natural_fill_value,
)
from icefloe.virtual.model.description import Json, VariableDescription
from icefloe.virtual.planning.axes import OTHER_FILES, THE_REPOSITORY
from icefloe.virtual.planning.file_boxes import Arrangement, FileBox, FileBoxes, is_coordinate
from icefloe.virtual.planning.plan import common_type, packing_of

# Nothing is decided by which file comes first in a list: where files differ, the odd ones out are
# those that most others do not agree with.

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes without which a number means something else."""


class Signature(NamedTuple):
    """What all files have to agree on about one variable."""

    dimensions: tuple[str, ...]
    dtype: str
    shape: tuple[int | None, ...]
    packing: tuple[tuple[str, str], ...]
    digest: bytes | None

    def may_equal(self, other: Signature) -> bool:
        """Whether they differ only in values that one side was too large to look at."""
        return None in (self.digest, other.digest) and self[:-1] == other[:-1]

    def difference(self, other: Signature, whose: str) -> str:
        """What this one has and the other one has not; `whose` says where the other one is."""
        if self.dimensions != other.dimensions:
            return f"dimensions {self.dimensions}, {whose} {other.dimensions}"
        if self.dtype != other.dtype:
            return f"type {self.dtype}, {whose} {other.dtype}"
        if self.shape != other.shape:
            sizes = [
                f"{name} {mine}, {whose} {theirs}"
                for name, mine, theirs in zip(self.dimensions, self.shape, other.shape, strict=True)
                if mine != theirs
            ]
            return f"size of {'; '.join(sizes)}"
        mine, theirs = dict(self.packing), dict(other.packing)
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                return f"{name} {mine.get(name, 'not set')}, {whose} {theirs.get(name, 'not set')}"
        return f"other values than {whose}"


def signature_of(box: FileBox, *, ignores_packing: bool = False) -> Signature:
    """The signature of one file's variable. Sizes along joined dimensions do not count."""
    variable = box.variable
    attributes = variable.attributes
    counted = () if ignores_packing else PACKING
    packing = {name: json.dumps(attributes[name]) for name in counted if name in attributes}
    if box.times is not None:
        packing["calendar"] = box.times.calendar
    elif "units" in attributes:
        packing["units"] = json.dumps(attributes["units"])
    shape = tuple(None if at in box.concat_axes else size for at, size in enumerate(box.shape))
    return Signature(
        box.dimensions,
        "" if ignores_packing else canonical_dtype(variable.dtype),
        shape,
        tuple(sorted(packing.items())),
        None if box.concat_axes else variable.digest,
    )


def find_disagreements(
    path: str, boxes: FileBoxes, num_old: int, *, ignores_packing: bool = False
) -> dict[int, str]:
    """Sources whose variable is not like that of most others, or of the repository."""
    signatures: dict[int, Signature] = {}
    for box, numbers in boxes.by_kind():
        signature = signature_of(box, ignores_packing=ignores_packing)
        if box.concat_axes:
            signatures |= dict.fromkeys(numbers, signature)
        else:  # values count
            for number in numbers:
                signatures[number] = signature._replace(digest=boxes.digest(number))
    counted = Counter(signatures[number] for number in boxes)
    if len(counted) < 2:
        return {}
    old = signatures.get(0) if num_old else None
    usual = old or counted.most_common(1)[0][0]
    whose = THE_REPOSITORY if old else OTHER_FILES
    return {
        number: f"variable {path!r} has {signatures[number].difference(usual, whose)}"
        for number in boxes
        if signatures[number] != usual
        and number >= num_old
        and not signatures[number].may_equal(usual)
    }


def _find_inexact_times(path: str, boxes: FileBoxes, wanted: FileBox, whose: str) -> dict[int, str]:
    """Sources whose times cannot be written in the units that the array has."""
    if wanted.times is None:
        return {}
    problems = {}
    dtype = np.dtype(wanted.variable.dtype)
    kinds = [kind for kind in boxes.by_kind() if kind[0].times not in (None, wanted.times)]
    for number in (number for _, numbers in kinds for number in numbers):
        values, times = boxes[number].variable.values, boxes[number].times
        if values is None or times is None:
            continue
        if convert_times(values, times, wanted.times, dtype) is None:
            units = wanted.variable.attributes.get("units")
            problems[number] = (
                f"times of {path!r} cannot be written exactly as {dtype} in {units!r}, the units "
                f"of {whose}"
            )
    return problems


def find_overlaps(
    path: str,
    boxes: FileBoxes,
    num_old: int,
    names: Sequence[str],
    late: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """Sources that fill what an earlier one (in the order listed) fills already.

    Coordinates have been put in order already: at the same place they have the same values. Those
    of `late` may lie inside of what is in the repository.
    """
    first = next(iter(boxes.kinds().values()))
    if len(boxes) < 2 or not first.concat_axes or is_coordinate(first):
        return {}
    num_placed_old = int((boxes.numbers < num_old).sum())
    axes = list(first.concat_axes)
    starts, sizes = boxes.starts()[:, axes], boxes.shapes()[:, axes]
    if _is_disjoint(starts, sizes):
        return {}
    edges = [
        np.unique(np.concatenate([low, low + size]))
        for low, size in zip(starts.T, sizes.T, strict=True)
    ]
    owner = np.full([len(edge) for edge in edges], -1, np.int64)
    problems = {}
    numbers = boxes.numbers.tolist()
    for row, number in enumerate(numbers):
        spans = tuple(
            slice(*np.searchsorted(edge, [low, low + size]).tolist())
            for edge, low, size in zip(edges, starts[row], sizes[row], strict=True)
        )
        taken = owner[spans]
        if number in late:
            taken = taken[taken >= num_placed_old]
        if bool((taken >= 0).any()):
            other = numbers[int(taken.max())]
            where = "the repository" if other < num_old else names[other]
            problems[number] = f"variable {path!r} has values at places that {where} fills already"
        else:
            owner[spans] = row
    return problems


def drop_repeated(
    all_boxes: dict[str, FileBoxes],
    names: Sequence[str],
    replaced: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """Take boxes out that fill the very same place with the very same values as another source.

    Files with different variables bring the same bounds. A file of which nothing is left is the
    same as another one, and is returned with the reason, unless it is `replaced`.
    """
    repeated: dict[int, list[int]] = {}
    before = dict(all_boxes)
    for path, boxes in before.items():
        found = _repeated(boxes)
        if found:
            all_boxes[path] = boxes.without(found.keys())
        for number, other in found.items():
            repeated.setdefault(number, []).append(other)
    if not repeated:
        return {}
    brought: Counter[int] = Counter()
    for boxes in before.values():
        for number in repeated:
            if number in boxes:
                box = boxes[number]
                brought[number] += bool(box.concat_axes) and not is_coordinate(box)
    return {
        number: f"it holds the same as {names[others[0]]}"
        for number, others in repeated.items()
        if len(others) == brought[number] and number not in replaced
    }


def _repeated(boxes: FileBoxes) -> dict[int, int]:
    if not any(map(_may_repeat, boxes.kinds().values())):
        return {}
    places = np.concatenate([boxes.starts(), boxes.shapes()], axis=1)
    _, place, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    shared = boxes.numbers[counts[place.ravel()] > 1]
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    found = {}
    for number in shared.tolist():
        box = boxes[number]
        if _may_repeat(box):
            first = seen.setdefault((box.start, box.shape), number)
            if first != number and boxes[first].variable.digest == box.variable.digest:
                found[number] = first
    return found


def _may_repeat(box: FileBox) -> bool:
    has_digest = box.variable.digest is not None
    return has_digest and bool(box.concat_axes) and not is_coordinate(box)


def _is_disjoint(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    if starts.shape[1] != 1:
        return False
    order = np.argsort(starts[:, 0], kind="stable")
    first, last = starts[order, 0], starts[order, 0] + sizes[order, 0]
    return bool((first[1:] >= last[:-1]).all())


def as_matrix(rows: Sequence[Sequence[int]], ndim: int) -> NDArray[np.int64]:
    """Rows of numbers as a matrix, also when there are none."""
    return np.array(rows, np.int64).reshape(len(rows), ndim)


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
    serializer = bytes_codec(kind.newbyteorder("<"))
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


def _virtual_chunks(
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


def _find_unlike(boxes: Mapping[int, FileBox]) -> dict[int, str]:
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


def find_unlike_files(work: Arrangement, path: str) -> dict[int, str]:
    """Files whose variable does not fit; those that only pack it differently are unpacked."""
    boxes = work.boxes[path]
    strict = find_disagreements(path, boxes, work.num_old)
    box = boxes[work.first(boxes)]
    is_copied = work.options.mode == "native" and bool(box.concat_axes)
    if not strict or not is_copied or box.times is not None or is_coordinate(box):
        return strict
    loose = find_disagreements(path, boxes, work.num_old, ignores_packing=True)
    kind = common_type(item.variable for n, item in boxes.items() if n not in loose)
    if kind is None:
        return strict
    if work.num_old and 0 in boxes:  # the array there has this type, or packs values itself
        there = boxes[0].variable
        own = packing_of(there)
        if np.dtype(there.dtype) != kind and (own is None or not own.is_scaled):
            return strict
    work.unpacked[path] = kind
    return loose


def find_trouble(work: Arrangement, path: str) -> dict[int, str]:
    """Files that fill what others fill, or whose values look like missing ones."""
    boxes = work.boxes[path]
    first = boxes[work.first(boxes)]
    wrong = find_overlaps(path, boxes, work.num_old, work.names, work.late)
    whose = "the first file" if work.document(path) is None else THE_REPOSITORY
    wrong |= _find_inexact_times(path, boxes, first, whose)
    return wrong | _hole_trouble(work, path, first) | _size_trouble(work, path, first)


def _hole_trouble(work: Arrangement, path: str, box: FileBox) -> dict[int, str]:
    """Files without a variable that has no way to say so."""
    if not work.has_holes(path, box):
        return {}
    is_virtual = work.options.mode == "virtual"
    reason = find_unfillable(path, box.variable, work.document(path), is_virtual=is_virtual)
    if reason is None:
        return {}
    sources = work.new_sources()
    without = [number for number in sources if number not in work.boxes[path]]
    return dict.fromkeys(without or sources, reason)


def _size_trouble(work: Arrangement, path: str, box: FileBox) -> dict[int, str]:
    """Files that declare arrays too large to have been written."""
    if work.options.mode == "virtual":
        return {}
    new = work.new(work.boxes[path])
    size = prod(work.lengths(path, box)) * box.variable.itemsize
    large = {
        number: f"variable {path!r} has chunks of more than a gigabyte, too large to be copied"
        for item, numbers in new.by_kind()
        if not item.variable.is_contiguous
        and prod(item.variable.chunks) * item.variable.itemsize > MAX_CHUNK_BYTES
        for number in numbers
    }
    if size <= MAX_COPIED_BYTES:
        return large
    reason = f"variable {path!r} would have {size:,} bytes, too many to be copied"
    return dict.fromkeys(new, reason)


def reference_chunks(
    work: Arrangement, path: str, new: FileBoxes, box: FileBox
) -> tuple[tuple[int, ...] | None, str | None]:
    """The chunks of an array made of references, or why it cannot be."""
    kinds = new.kinds()
    if any(item.times != box.times for item in kinds.values()):
        return None, "its times have to be written in other units"
    document = work.document(path)
    if are_tiny(new):
        return None, "it is small, and has a chunk for every few values"
    if work.has_holes(path, box):
        natural = natural_fill_value(box.variable)
        for item in kinds.values():
            if item.variable.has_gaps and not json_equal(item.variable.fill_value, natural):
                return None, "chunks that were never written do not mean missing values there"
    if any(new[number].variable.has_gaps for number in work.replaced if number in new):
        return None, "a file that is replaced has chunks that were never written"
    if document is None:
        return _virtual_chunks(new, None)
    if list(document["codecs"]) != list(next(iter(kinds.values())).variable.codecs or ()):
        return None, "the array in the repository is stored with other codecs"
    old = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
    return _virtual_chunks(new, old)


def find_reference_trouble(work: Arrangement, path: str) -> dict[int, str]:
    """Files that keep a large variable from being made of references."""
    boxes = work.boxes[path]
    new, box = work.new(boxes), boxes[work.first(boxes)]
    if not new or work.comes_with_values(box, new) or widest(new) <= COPY_BYTES:
        return {}
    sources = (work.live[number] for number in new)
    if all(source is not None and source.format == "grib" for source in sources):
        return {}  # it is always copied
    chunks, reason = reference_chunks(work, path, new, box)
    if chunks is None:
        odd = _find_unlike(new) or dict.fromkeys(new, reason)
        return {
            number: f"variable {path!r} cannot be made of references: {why}; use "
            "mode='native', or leave it out with variables=[...]"
            for number, why in odd.items()
        }
    return find_misaligned(path, new, chunks, work.lengths(path, box))


def find_uncompared(work: Arrangement) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Variables that files repeat, but that are too large to have been compared by a scan.

    Also notes about those that are too large to be compared at all.
    """
    found, notes = {}, []
    for path, boxes in work.boxes.items():
        if len(boxes) < 2 or boxes[work.first(boxes)].concat_axes:
            continue
        unknown = sorted(
            number
            for box, numbers in work.new(boxes).by_kind()
            if box.variable.digest is None
            and box.variable.dtype != "string"
            and box.variable.nbytes > 0
            for number in numbers
        )
        size = widest(boxes)
        if unknown and size > MAX_COMPARED_BYTES:
            notes.append(f"variable {path!r} is not compared between files: it has {size:,} bytes")
        elif unknown:
            names = work.names
            found[path] = tuple(names[number] for number in unknown)
    return found, notes
