"""Reasons to refuse files in a plan: their values could not be distinguished afterwards."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from icefloe.virtual.model.description import VariableDescription
from icefloe.virtual.model.missing import find_unfillable, json_equal, natural_fill_value
from icefloe.virtual.planning.agreement import (
    find_disagreements,
    find_inexact_times,
    find_overlaps,
)
from icefloe.virtual.planning.arrangement import Arrangement, is_coordinate
from icefloe.virtual.planning.axes import THE_REPOSITORY
from icefloe.virtual.planning.cf_packing import common_type, packing_of
from icefloe.virtual.planning.file_boxes import FileBox, FileBoxes
from icefloe.virtual.planning.targets import (
    COPY_BYTES,
    MAX_CHUNK_BYTES,
    MAX_COMPARED_BYTES,
    MAX_COPIED_BYTES,
    are_tiny,
    find_misaligned,
    find_unlike,
    same_codecs,
    virtual_chunks,
    widest,
)


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
    there = boxes[0].variable if work.num_old and 0 in boxes else None
    if kind is None or (there is not None and not _takes(there, kind)):
        return strict
    work.unpacked[path] = kind
    return loose


def _takes(there: VariableDescription, kind: np.dtype[Any]) -> bool:
    """Whether an array in the repository has the type of the values, or packs them itself."""
    own = packing_of(there)
    is_packed = own is not None and (own.scale is not None or own.offset is not None)
    return np.dtype(there.dtype) == kind or is_packed


def find_trouble(work: Arrangement, path: str) -> dict[int, str]:
    """Files that fill what others fill, or whose values look like missing ones."""
    boxes = work.boxes[path]
    first = boxes[work.first(boxes)]
    wrong = find_overlaps(path, boxes, work.num_old, work.names, work.late)
    whose = "the first file" if work.document(path) is None else THE_REPOSITORY
    wrong |= find_inexact_times(path, boxes, first, whose)
    return wrong | _hole_trouble(work, path, first) | _size_trouble(work, path, first)


def _hole_trouble(work: Arrangement, path: str, box: FileBox) -> dict[int, str]:
    """Files without a variable that has no way to say so."""
    if not work.has_holes(path, box):
        return {}
    is_virtual = work.options.mode == "virtual"
    reason = find_unfillable(path, box.variable, work.document(path), is_virtual=is_virtual)
    if reason is None:
        return {}
    live = [n for n in range(work.num_old, len(work.live)) if work.live[n] is not None]
    without = [number for number in live if number not in work.boxes[path]]
    return dict.fromkeys(without or live, reason)


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
        return virtual_chunks(new, None)
    if not same_codecs(document, next(iter(kinds.values())).variable):
        return None, "the array in the repository is stored with other codecs"
    old = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
    return virtual_chunks(new, old)


def find_reference_trouble(work: Arrangement, path: str) -> dict[int, str]:
    """Files that keep a large variable from being made of references."""
    boxes = work.boxes[path]
    new, box = work.new(boxes), boxes[work.first(boxes)]
    if not new or work.comes_with_values(box, new) or widest(new) <= COPY_BYTES:
        return {}
    if all(_is_always_copied(work, number) for number in new):
        return {}
    chunks, reason = reference_chunks(work, path, new, box)
    if chunks is None:
        odd = find_unlike(new) or dict.fromkeys(new, reason)
        return {
            number: f"variable {path!r} cannot be made of references: {why}; use "
            "mode='native', or leave it out with variables=[...]"
            for number, why in odd.items()
        }
    return find_misaligned(path, new, chunks, work.lengths(path, box))


def _is_always_copied(work: Arrangement, number: int) -> bool:
    source = work.live[number]
    return source is not None and source.format == "grib"


def find_uncompared(work: Arrangement) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Variables that files repeat, but that are too large to have been compared by a scan.

    Also notes about those that are too large to be compared at all.
    """
    found, notes = {}, []
    for path, boxes in work.boxes.items():
        if len(boxes) < 2 or boxes[work.first(boxes)].concat_axes:
            continue
        unread = [numbers for box, numbers in work.new(boxes).by_kind() if _is_unread(box)]
        unknown = sorted(number for numbers in unread for number in numbers)
        size = widest(boxes)
        if unknown and size > MAX_COMPARED_BYTES:
            notes.append(f"variable {path!r} is not compared between files: it has {size:,} bytes")
        elif unknown:
            sources = [work.live[number] for number in unknown]
            found[path] = tuple(source.location for source in sources if source is not None)
    return found, notes


def _is_unread(box: FileBox) -> bool:
    variable = box.variable
    return variable.digest is None and variable.dtype != "string" and variable.nbytes > 0
