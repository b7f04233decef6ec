"""The argument of operations on a session."""

from __future__ import annotations

from icefloe.records import NamedTuple
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionState


class Workspace(NamedTuple):
    """A session as operations see it: its repository through one driver, and its state."""

    handle: RepoHandle
    state: SessionState
