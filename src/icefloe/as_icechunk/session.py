"""Sessions."""

from icefloe.api.session import ForkSession, Session
from icefloe.repo.sessions import SessionMode

__all__ = ["ForkSession", "Session", "SessionMode"]
