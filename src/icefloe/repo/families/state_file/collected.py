"""The fence of a dataset with a state file: a member of `state.json`.

Document 003 does not define it. Readers and writers of the document keep members that they do not
know, and a commit that replaces the state file has read it anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from icefloe.legacy.state_file.state import State

MEMBER = "icefloe.collected"


class Collected(NamedTuple):
    """The last garbage collection."""

    generation: int
    """The generation of the state file that recorded it."""
    before: int
    """No collection has deleted an object stored at or after this time (microseconds)."""


def collected_in(state: State) -> Collected:
    """The last collection that a state file records; zeros if there was none."""
    found = state.unknown.get(MEMBER)
    if not isinstance(found, Mapping):
        return Collected(0, 0)
    numbers = [found.get(name) for name in Collected._fields]
    if not all(isinstance(number, int) for number in numbers):
        return Collected(0, 0)
    return Collected(*numbers)  # type: ignore[arg-type]


def with_collected(state: State, latest: Collected) -> State:
    """The state after a collection. The fence never goes down."""
    before = max(latest.before, collected_in(state).before)
    member = {"generation": latest.generation, "before": before}
    return replace(state, unknown={**state.unknown, MEMBER: member})
