"""Every ordered pair of operations from two sessions, on official icechunk and on icefloe.

Both must report the same conflicts to every solver and store the same in the end, or the pair is
among the differences listed here and in docs/differences.md.
"""

from __future__ import annotations

from typing import Any

import pytest

import icefloe
from icefloe import paths
from tests.oracle.conflict_cases import NAMES, Outcome, Pair

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

PARENT_GONE = "they deleted the group in which we create something: official leaves an orphan"
GROWN = "we delete a group in which they created something: official leaves an orphan"
REPLACED = "they replaced what we delete: official keeps theirs or ours without a word"
INSIDE_ARRAY = "they created something inside what becomes our array: official keeps both"

# (theirs, ours) -> the reason, and what icefloe's detector says
DIFFERENCES: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("create n/below", "create array n"): (INSIDE_ARRAY, ["NewNodeInInvalidGroup /n"]),
    ("create g/n", "delete g"): (GROWN, ["DeleteOfUpdatedGroup /g"]),
    ("create g/n", "recreate g"): (GROWN, ["DeleteOfUpdatedGroup /g"]),
    ("create h/n", "delete h"): (GROWN, ["DeleteOfUpdatedGroup /h"]),
    ("create h/n", "recreate h as an array"): (
        INSIDE_ARRAY,
        ["NewNodeInInvalidGroup /h", "DeleteOfUpdatedGroup /h"],
    ),
    ("create h/n/deep", "delete h"): (GROWN, ["DeleteOfUpdatedGroup /h"]),
    ("create h/n/deep", "recreate h as an array"): (
        INSIDE_ARRAY,
        ["NewNodeInInvalidGroup /h", "DeleteOfUpdatedGroup /h"],
    ),
    ("delete g", "create g/n"): (PARENT_GONE, ["NewNodeInInvalidGroup /g"]),
    ("delete h", "create h/n"): (PARENT_GONE, ["NewNodeInInvalidGroup /h"]),
    ("delete h", "create h/n/deep"): (PARENT_GONE, ["NewNodeInInvalidGroup /h"] * 2),
    ("recreate a", "delete a"): (REPLACED, ["DeleteOfUpdatedArray /a"]),
    ("recreate a", "recreate a"): (REPLACED, ["DeleteOfUpdatedArray /a"]),
    ("recreate a", "recreate a with a chunk"): (REPLACED, ["DeleteOfUpdatedArray /a"]),
    ("recreate a with a chunk", "delete a"): (REPLACED, ["DeleteOfUpdatedArray /a"]),
    ("recreate a with a chunk", "recreate a"): (REPLACED, ["DeleteOfUpdatedArray /a"]),
    ("recreate g", "delete g"): (REPLACED, ["DeleteOfUpdatedGroup /g"]),
    ("recreate g", "recreate g"): (REPLACED, ["DeleteOfUpdatedGroup /g"]),
    ("recreate h as an array", "delete h"): (REPLACED, ["DeleteOfUpdatedArray /h"]),
    ("recreate h as an array", "recreate h as an array"): (
        REPLACED,
        ["DeleteOfUpdatedArray /h"],
    ),
}

ORPHANS = {"create n/below"}
"""Operations that make a node without a group above it, which is allowed."""


def require_whole(outcome: Outcome, theirs: str, ours: str) -> None:
    """Every node lies in a group."""
    nodes = {
        paths.from_key(key.removesuffix("zarr.json").removesuffix("/")): value.split()[0]
        for key, value in outcome["state"].items()
        if key.endswith("zarr.json")
    }
    for path in nodes:
        if not {theirs, ours} & ORPHANS:
            for group in paths.ancestors(path):
                assert nodes.get(group) == "group", f"{path} lies in {nodes.get(group)} {group}"


def compare(spec: int, theirs: str, others: list[str]) -> None:
    official, mine = Pair(icechunk, spec), Pair(icefloe, spec)
    for ours in others:
        expected, found = official.run(theirs, ours), mine.run(theirs, ours)
        case = f"theirs: {theirs}, ours: {ours}"
        require_whole(found, theirs, ours)
        if (theirs, ours) not in DIFFERENCES:
            assert found == expected, case
            continue
        assert found != expected, f"no difference any more: {case}"
        assert found["said"]["detector"] == DIFFERENCES[theirs, ours][1], case


@pytest.mark.parametrize("theirs", NAMES)
def test_pairs_of_edits(theirs: str) -> None:
    compare(2, theirs, NAMES)


@pytest.mark.parametrize("theirs", NAMES)
def test_pairs_of_edits_in_version_1(theirs: str) -> None:
    """A quarter of the pairs, another one for each operation."""
    compare(1, theirs, NAMES[NAMES.index(theirs) % 4 :: 4])


@pytest.mark.parametrize("theirs", NAMES)
def test_the_other_ways_to_settle(theirs: str) -> None:
    """Chunks that both changed go to them; above they have gone to us."""
    official, mine = Pair(icechunk, 2), Pair(icefloe, 2)
    for ours in (name for name in NAMES if name.startswith(("set", "delete a "))):
        found = mine.run(theirs, ours, only="theirs")
        assert found == official.run(theirs, ours, only="theirs"), f"{theirs}, {ours}"
