"""The differences between the two libraries that programs come across, each with its reason.

All but chance are in docs/differences.md. A difference is told by the situation before the step,
not by how the outcomes look: everywhere else the two have to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from icefloe import paths
from tests.differential.programs import Step
from tests.differential.situation import Situation


class Known(NamedTuple):
    """A difference: whether a step in a situation comes under it, given both outcomes."""

    applies: Callable[[Step, Any, Any, Situation], bool]
    is_state_same: bool = False
    """Only the outcomes differ; what can be seen afterwards must not."""


def find(step: Step, official: Any, ours: Any, situation: Situation) -> str | None:
    """The name of the known difference that this is."""
    for name, known in KNOWN.items():
        if known.applies(step, official, ours, situation):
            return name
    return None


# -- calls that are refused


def _is_not_for_this(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """The session is not one for this call, which ours says first and always.

    Official may find something else wrong with the call, or nothing when it has nothing to do.
    """
    if official is not None and not isinstance(official, dict):
        return False
    kind = "rearrange-session-only" if situation.is_rearranging else "non-rearrange-session"
    refusals = [f"SessionStateError {kind}"]
    if situation.is_read_only:
        refusals = ["ReadOnlyError read-only-session", "ReadOnlyError read-only-store"]
    return isinstance(ours, dict) and ours["error"] in refusals


def _is_not_regular(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Chunks of a rectilinear grid cannot change places: official has no class for this error."""
    errors = {"error": "IcechunkError unknown"}, {"error": "InvalidInputError unknown"}
    return step.name in ("shift", "reindex") and (official, ours) == errors


def _flushes_nothing(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Official makes a snapshot of a session that is read-only."""
    refused = {"error": "SessionStateError commit-not-allowed"}
    return step.name == "flush" and situation.is_read_only and ours == refused


def _moves_holes(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Official moves deletions of the session like chunks, but not those committed before."""
    return step.name in ("shift", "reindex") and situation.has_holes


def _buries_orphans(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Official loses nodes that lie below the goal of a move; ours keeps them, or refuses."""
    refused = {"error": "AlreadyExistsError move-wont-overwrite"}
    return step.name == "move" and situation.has_orphans and ours in (None, refused)


def _deletes_what_it_made(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Official counts chunks of an array that was made and deleted in the session as changes."""
    return situation.has_filled_new_array and official == ours


def _fails_part_way(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Zarr writes the chunks of a region side by side. Which of them are written when one of them
    fails depends on timing, in both libraries."""
    return step.name == "write" and isinstance(official, dict) and official == ours


# -- rebasing


def _is_rebase(step: Step) -> bool:
    return step.name == "rebase" or (step.name == "commit" and step.arguments["solver"] is not None)


def _is_proper(ours: Any) -> bool:
    """It worked, or was refused for a reason that a rebase or a commit may have."""
    refusals = ("RebaseFailedError", "ConflictError", "SessionStateError no-changes-to-commit")
    return not isinstance(ours, dict) or ours["error"].startswith(refusals)


def _branch_is_missing(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Official has two kinds for this, and calls it a conflict in some calls of version 1."""
    if step.name not in ("reset_branch", "amend", "commit") or situation.is_branch_there:
        return False
    kinds = "RefNotFoundError branch-not-found", "ConflictError branch-update-conflict"
    is_same = isinstance(official, dict) and official["error"] in kinds
    return is_same and ours == {"error": "RefNotFoundError ref-not-found"}


def _branch_is_gone(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Official goes on trying."""
    gone = {"error": "RefNotFoundError ref-not-found"}
    return _is_rebase(step) and not situation.is_branch_there and ours == gone


def _history_is_gone(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """The branch was reset or amended under the session: for official all history is theirs."""
    return _is_rebase(step) and not situation.is_in_history and _is_proper(ours)


def _is_conflict_of_nodes(step: Step, official: Any, ours: Any, situation: Situation) -> bool:
    """Nodes that come and go on both sides: official loses some, and says nothing."""
    if not _is_rebase(step) or situation.theirs is None or not _is_proper(ours):
        return False
    return any(_node_conflicts(situation.ours, situation.theirs))


def _node_conflicts(ours: Any, theirs: Any) -> Iterator[bool]:
    our_new, our_gone = ours.new_groups | ours.new_arrays, _gone(ours)
    their_new, their_gone = theirs.new_groups | theirs.new_arrays, _gone(theirs)
    # we create a node in a group they deleted
    yield _any_within(our_new, their_gone)
    # we delete a group in which they created something, or what they replaced
    yield _any_within(their_new, our_gone)
    # we create an array where they put something inside
    yield _any_within(their_new, ours.new_arrays)
    for source, target in ours.moved_nodes:
        # they made something where a node goes, or deleted or made something where it was
        yield _any_within(their_new, {target}) or _any_within(their_new | their_gone, {source})
        # they deleted the group it goes to, or it itself
        yield _any_within({source, target}, their_gone | theirs.new_arrays)


def _gone(diff: Any) -> set[str]:
    found: set[str] = diff.deleted_groups | diff.deleted_arrays
    return found


def _any_within(inner: Iterable[str], outer: Iterable[str]) -> bool:
    return any(paths.is_within(path, group) for path in inner for group in outer)


KNOWN = {
    "the session is not for this": Known(_is_not_for_this, is_state_same=True),
    "chunks of a rectilinear grid change places": Known(_is_not_regular, is_state_same=True),
    "a read-only session is flushed": Known(_flushes_nothing),
    "chunks deleted in the session are given other indices": Known(_moves_holes),
    "a node is moved above nodes without a group": Known(_buries_orphans),
    "an array made in the session is deleted again": Known(_deletes_what_it_made),
    "a write of several chunks fails": Known(_fails_part_way),
    "a branch that is gone is to be moved": Known(_branch_is_missing, is_state_same=True),
    "the branch is gone": Known(_branch_is_gone),
    "the branch was reset or amended": Known(_history_is_gone),
    "nodes come and go on both sides": Known(_is_conflict_of_nodes),
}
