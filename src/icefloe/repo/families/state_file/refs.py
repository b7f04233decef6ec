"""Branches and tags of a state file. A name is either a branch or a tag, never both."""

from __future__ import annotations

from dataclasses import replace

from icefloe.assets.state_file import StateObject
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    RefNotFoundError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.ids import SnapshotId
from icefloe.legacy.state_file import names
from icefloe.legacy.state_file.state import Entry, Ref, RefType, State
from icefloe.repo.families.state_file.update import update_state
from icefloe.repo.handle import RepoHandle


def find_ref(current: StateObject, kind: RefType, name: str) -> SnapshotId:
    """The snapshot that a branch or tag points at."""
    found = current.state.named(kind)
    if name not in found:
        known = ", ".join(map(repr, sorted(found)[:10])) or "none"
        raise RefNotFoundError(f"{kind} {name!r}; there are: {known}")
    return names.snapshot_id(found[name])


def require_entry(current: StateObject, snapshot_id: SnapshotId) -> Entry:
    """The entry of a snapshot that the state file lists."""
    entry = current.entries.get(snapshot_id)
    if entry is None:
        raise SnapshotNotFoundError(f"{snapshot_id} in {names.STATE}")
    return entry


def with_ref(state: State, name: str, ref: Ref | None) -> State:
    """The state with a name that points elsewhere, or without the name (None)."""
    # The implied branch has to be written explicitly before any other reference exists.
    implied = {key: Ref(tip, RefType.branch) for key, tip in state.named(RefType.branch).items()}
    refs = {**implied, **state.refs}
    refs.pop(name, None)
    return replace(state, refs=refs if ref is None else {**refs, name: ref})


def _require_new(current: StateObject, kind: RefType, name: str) -> None:
    for other in RefType:
        found = current.state.named(other)
        if name in found:
            raise AlreadyExistsError(
                f"{other} {name!r} points at {found[name]}; a name is a branch or a tag, choose "
                "another one",
                ErrorKind.BRANCH_ALREADY_EXISTS
                if kind is RefType.branch
                else ErrorKind.TAG_ALREADY_EXISTS,
            )


async def create_ref(handle: RepoHandle, kind: RefType, name: str, at: SnapshotId) -> None:
    """Create a branch or a tag."""

    def change(current: StateObject) -> State:
        _require_new(current, kind, name)
        return with_ref(current.state, name, Ref(require_entry(current, at).snapshot, kind))

    await update_state(handle, change)


async def reset_branch(
    handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
) -> None:
    """Point a branch at another snapshot, if it is still at `expected` (None: always)."""

    def change(current: StateObject) -> State:
        tip = find_ref(current, RefType.branch, name)
        if expected is not None and tip != expected:
            raise branch_moved(name, expected.text, tip.text, ErrorKind.BRANCH_UPDATE_CONFLICT)
        ref = Ref(require_entry(current, to).snapshot, RefType.branch)
        return with_ref(current.state, name, ref)

    await update_state(handle, change)


async def delete_ref(handle: RepoHandle, kind: RefType, name: str) -> None:
    """Delete a branch or a tag. The state file cannot record that a tag name was used."""

    def change(current: StateObject) -> State:
        find_ref(current, kind, name)
        return with_ref(current.state, name, None)

    await update_state(handle, change)
