"""Every ordered pair of operations from two sessions, on official icechunk and on icefloe.

Both must report the same conflicts to every solver and store the same in the end, or the pair is
among the differences listed here and in docs/differences.md.
"""

from __future__ import annotations

from typing import Any

import pytest

import icefloe
from icefloe import paths
from tests.oracle.conflict_cases import MOVES, NAMES, Outcome, Pair

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

TAKEN = "they created something where we move a node: official loses theirs"
SOURCE_GONE = "they deleted what we move: official fails at the commit, on every try"
CHILD_GONE = "they deleted something inside what we move: official fails at the commit"
INSIDE_MOVED = "they created something below a path we move a group to: official loses it"


def _moves() -> dict[tuple[str, str], tuple[str, list[str] | str]]:
    taken, gone = "NewNodeConflictsWithExistingNode", "ZarrMetadataUpdateOfDeleted"
    found: dict[tuple[str, str], tuple[str, list[str] | str]] = {}
    for theirs in ("create group n", "create array n"):
        for ours in ("move a to n", "move h to n"):
            found[theirs, ours] = TAKEN, [f"{taken} /n"]
    for theirs in ("create h/n", "create h/n/deep"):
        for ours in ("move g to h/n", "move g/x to h/n"):
            found[theirs, ours] = TAKEN, [f"{taken} /h/n"]
    found["create g/n", "move a to g/n"] = TAKEN, [f"{taken} /g/n"]
    found["create n/below", "move a to n"] = INSIDE_ARRAY, ["NewNodeInInvalidGroup /n"]
    found["create n/below", "move h to n"] = INSIDE_MOVED, "committed"
    for ours in ("move a to m", "move a to n", "move a to g/n"):
        found["delete a", ours] = SOURCE_GONE, [f"{gone}Array /a"]
    found["delete g", "move a to g/n"] = PARENT_GONE, ["NewNodeInInvalidGroup /g"]
    for ours in ("move g to m", "move g to h/n"):
        found["delete g", ours] = SOURCE_GONE, [f"{gone}Group /g"]
        found["delete g/x", ours] = found["recreate g", ours] = CHILD_GONE, "committed"
    for theirs in ("delete g", "delete g/x", "recreate g"):
        found[theirs, "move g/x to h/n"] = SOURCE_GONE, [f"{gone}Array /g/x"]
    found["delete h", "move h to n"] = SOURCE_GONE, [f"{gone}Group /h"]
    for theirs in ("delete h", "recreate h as an array"):
        for ours in ("move g to h/n", "move g/x to h/n"):
            found[theirs, ours] = PARENT_GONE, ["NewNodeInInvalidGroup /h"]
    return found


MOVE_DIFFERENCES = _moves()

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
        difference = {**DIFFERENCES, **MOVE_DIFFERENCES}.get((theirs, ours))
        if difference is None:
            assert found == expected, case
            continue
        assert found != expected, f"no difference any more: {case}"
        assert found["said"]["detector"] == difference[1], case


@pytest.mark.parametrize("theirs", NAMES)
def test_pairs_of_edits(theirs: str) -> None:
    compare(2, theirs, NAMES)


@pytest.mark.parametrize("theirs", NAMES)
def test_pairs_of_edits_in_version_1(theirs: str) -> None:
    """A quarter of the pairs, another one for each operation."""
    compare(1, theirs, NAMES[NAMES.index(theirs) % 4 :: 4])


@pytest.mark.parametrize("theirs", [*NAMES, *MOVES])
def test_pairs_with_moves(theirs: str) -> None:
    compare(2, theirs, [*MOVES, *(NAMES[::5] if theirs in MOVES else [])])


@pytest.mark.parametrize("theirs", NAMES)
def test_the_other_ways_to_settle(theirs: str) -> None:
    """Chunks that both changed go to them; above they have gone to us."""
    official, mine = Pair(icechunk, 2), Pair(icefloe, 2)
    for ours in (name for name in NAMES if name.startswith(("set", "delete a "))):
        found = mine.run(theirs, ours, only="theirs")
        assert found == official.run(theirs, ours, only="theirs"), f"{theirs}, {ours}"
