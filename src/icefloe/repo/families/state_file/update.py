"""Replacing `state.json`: read, change, write if unchanged.

Document 003: "in an atomic swap operation, it replaces the state file with a new state file
recording the presence of the new snapshot". The swap is a conditional write. It fails when another
writer has replaced the file since it was read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from icefloe.assets.state_file import StateFileAssets, StateObject
from icefloe.errors import ConflictError, ErrorKind
from icefloe.legacy.state_file import names
from icefloe.legacy.state_file.state import State, encode_state
from icefloe.repo.fence import require_open
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed

Change = Callable[[StateObject], State | None]
"""From the current state to the new one, or None if nothing has to change."""

_IMMEDIATE_RETRIES = 5
_JSON = "application/json"


def assets_of(handle: RepoHandle) -> StateFileAssets:
    """The files of a dataset with a state file."""
    assert isinstance(handle.assets, StateFileAssets)
    return handle.assets


async def create_state(handle: RepoHandle, state: State) -> None:
    """Write the first state file; `ConditionFailed` if there is one."""
    version = await handle.driver.put_if(
        names.STATE, encode_state(state), previous=None, content_type=_JSON
    )
    assets_of(handle).keep_state(state, version)


async def update_state(handle: RepoHandle, change: Change, *, is_migrating: bool = False) -> None:
    """Apply `change` to the newest state, and retry while other writers replace it.

    Refuses during and after a migration in place, unless that is who calls.

    `change` checks the state it is given; an exception from it ends the update. Each update
    increments `generation`.

    Raises:
        ConflictError: every attempt lost to another writer, kind `update-attempts-exhausted`.
    """
    handle.require_writable()
    assets = assets_of(handle)
    retries = handle.settings.repo_update_retries.default
    attempts = max(_IMMEDIATE_RETRIES, retries.max_tries) + 1
    for attempt in range(attempts):
        current = await assets.state_object()
        changed = change(current)
        if changed is None:
            return
        if not is_migrating:
            await require_open(handle)
        state = replace(changed, generation=current.state.generation + 1)
        try:
            version = await handle.driver.put_if(
                names.STATE, encode_state(state), previous=current.version, content_type=_JSON
            )
        except ConditionFailed:
            if attempt >= _IMMEDIATE_RETRIES:
                grown = retries.initial_backoff_ms * 2 ** min(attempt - _IMMEDIATE_RETRIES, 30)
                longest = min(grown, retries.max_backoff_ms) / 1000
                await handle.driver.sleep(longest * random.uniform(0.5, 1.0))
            continue
        assets.keep_state(state, version)
        return
    raise ConflictError(
        message=f"{names.STATE} was changed by others at each of {attempts} attempts; try again "
        "when fewer writers are active, or raise repo_update_retries",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )
