"""How the variables of many files fit together, and what does not agree.

Nothing is decided by which file comes first in a list: where files differ, the odd ones out are
those that most others do not agree with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import convert_times
from icefloe.records import record
from icefloe.virtual.model.data_types import canonical_dtype
from icefloe.virtual.model.description import VariableDescription
from icefloe.virtual.planning.axes import OTHER_FILES, THE_REPOSITORY
from icefloe.virtual.planning.file_boxes import FileBox, FileBoxes

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes without which a number means something else."""


# -- what has to be the same


@record(frozen=True)
class Signature:
    """What all files have to agree on about one variable."""

    dimensions: tuple[str, ...]
    dtype: str
    shape: tuple[int | None, ...]
    packing: tuple[tuple[str, str], ...]
    digest: bytes | None

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
            by_digest: dict[bytes | None, Signature] = {}
            for number in numbers:
                digest = boxes.digest(number)
                if digest not in by_digest:
                    by_digest[digest] = replace(signature, digest=digest)
                signatures[number] = by_digest[digest]
    counted = Counter(signatures[number] for number in boxes)
    if len(counted) < 2:
        return {}
    old = [signatures[number] for number in range(num_old) if number in signatures]
    usual = old[0] if old else counted.most_common(1)[0][0]
    whose = THE_REPOSITORY if old else OTHER_FILES
    return {
        number: f"variable {path!r} has {signatures[number].difference(usual, whose)}"
        for number in boxes
        if signatures[number] != usual
        and number >= num_old
        and not _is_unknown(signatures[number], usual)
    }


def _is_unknown(found: Signature, usual: Signature) -> bool:
    """Whether they differ only in values that one side was too large to look at."""
    if found.digest is not None and usual.digest is not None:
        return False
    return (found.dimensions, found.dtype, found.shape, found.packing) == (
        usual.dimensions,
        usual.dtype,
        usual.shape,
        usual.packing,
    )


def find_inexact_times(path: str, boxes: FileBoxes, wanted: FileBox, whose: str) -> dict[int, str]:
    """Sources whose times cannot be written in the units that the array has."""
    if wanted.times is None:
        return {}
    problems = {}
    dtype = np.dtype(wanted.variable.dtype)
    kinds = [kind for kind in boxes.by_kind() if kind[0].times not in (None, wanted.times)]
    for number, times in ((number, box.times) for box, numbers in kinds for number in numbers):
        values = boxes[number].variable.values
        if values is None or times is None:
            continue
        if convert_times(values, times, wanted.times, dtype) is None:
            units = wanted.variable.attributes.get("units")
            problems[number] = (
                f"times of {path!r} cannot be written exactly as {dtype} in {units!r}, the units "
                f"of {whose}"
            )
    return problems


# -- overlaps


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
    if len(boxes) < 2 or not first.concat_axes or is_own_coordinate(first):
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
                brought[number] += bool(box.concat_axes) and not is_own_coordinate(box)
    return {
        number: f"it holds the same as {names[others[0]]}"
        for number, others in repeated.items()
        if len(others) == brought[number] and number not in replaced
    }


def _repeated(boxes: FileBoxes) -> dict[int, int]:
    kinds = boxes.kinds()
    if not any(_may_repeat(box) for box in kinds.values()):
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
    return has_digest and bool(box.concat_axes) and not is_own_coordinate(box)


def is_own_coordinate(box: FileBox) -> bool:
    """Whether it gives the positions along its dimension."""
    return box.dimensions == (box.variable.name,)


def _is_disjoint(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    if starts.shape[1] != 1:
        return False
    order = np.argsort(starts[:, 0], kind="stable")
    first, last = starts[order, 0], starts[order, 0] + sizes[order, 0]
    return bool((first[1:] >= last[:-1]).all())


def as_matrix(rows: Sequence[Sequence[int]], ndim: int) -> NDArray[np.int64]:
    """Rows of numbers as a matrix, also when there are none."""
    return np.array(rows, np.int64).reshape(len(rows), ndim)


def fill_of(variable: VariableDescription) -> Any:
    """The stored number that marks a missing value of an integer variable, if there is one."""
    found = variable.attributes.get("_FillValue")
    return found if isinstance(found, int) else None
