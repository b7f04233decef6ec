"""What official says about a session and its branch before a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zarr.core.sync import sync

from tests.differential.programs import Step, Where
from tests.differential.side import Side


@dataclass(frozen=True)
class Situation:
    """As much as tells the known differences apart; the rest is left at its default."""

    is_read_only: bool = False
    is_rearranging: bool = False
    is_branch_there: bool = True
    is_in_history: bool = True
    """Whether the session's snapshot is an ancestor of the branch's tip."""
    ours: Any = None
    """What the session has changed, if the branch has moved on."""
    theirs: Any = None
    """What the branch has changed since the session was opened, if it has moved on."""
    has_holes: bool = False
    """Whether chunks of the array were deleted in this session."""
    has_orphans: bool = False
    """Whether nodes lie below the path a node is moved to, where there is none itself."""
    has_filled_new_array: bool = False
    """Whether chunks of an array that this session made were set or deleted."""


def before(side: Side, step: Step) -> Situation:
    """The situation a step is going to find."""
    if step.name == "reset_branch":
        is_there = step.arguments["branch"] in side.repository.list_branches()
        return Situation(is_branch_there=is_there)
    if "session" not in step.arguments:
        return Situation()
    session = side.sessions[step.arguments["session"]]
    found = Situation(session.read_only, str(session.mode).endswith("rearrange"))
    if session.read_only:
        return found
    if step.name in ("shift", "reindex"):
        return replace(found, has_holes=_has_holes(side, **step.arguments))
    if step.name in ("delete_node", "delete_dir", "clear"):
        status = session.status()
        filled = not status.new_arrays.isdisjoint(status.updated_chunks)
        return replace(found, has_filled_new_array=filled)
    if step.name == "move":
        return replace(found, has_orphans=_has_orphans(side, **step.arguments))
    if step.name in ("rebase", "commit", "amend"):
        return _since_opened(side.repository, session, found)
    return found


def _since_opened(repository: Any, session: Any, found: Situation) -> Situation:
    if session.branch not in repository.list_branches():
        return replace(found, is_branch_there=False)
    base = session.snapshot_id
    history = [entry.id for entry in repository.ancestry(branch=session.branch)]
    if base not in history:
        return replace(found, is_in_history=False)
    if base == history[0]:
        return found
    theirs = repository.diff(from_snapshot_id=base, to_branch=session.branch)
    return replace(found, ours=session.status(), theirs=theirs)


def _has_orphans(side: Side, session: int, into: int | None, name: str, **_: Any) -> bool:
    target, nodes = side.target(session, into, name), side.nodes(session)
    return target not in nodes and any(path.startswith(f"{target}/") for path in nodes)


def _has_holes(side: Side, session: int, path: Where, **_: Any) -> bool:
    store, status = side.sessions[session].store, side.sessions[session].status()
    found = side.node(session, path, "array")
    touched = status.updated_chunks.get(f"/{found}", [])
    keys = ("/".join([found, "c", *map(str, index)]) for index in touched)
    return not all(sync(store.exists(key)) for key in keys)
