"""How long a commit waits while others are committing to the same repository.

One commit at a time can win; every other try that is under way meanwhile is wasted, and what it
uploads slows the winner down. So whoever loses waits for a random while that doubles with every
loss. What was learnt about the others is kept for the next commit, which has to do with the same
ones; its first try does not wait.
"""

from __future__ import annotations

from icefloe.records import record

_MOST_LOSSES = 3.0
_LONGEST_PAUSE_S = 1.0
_REMEMBERED_US = 10_000_000


@record()
class Contention:
    """What a process knows about others that commit to the same repository."""

    losses: float = 0.0
    """Doublings of the pause: one more for every loss, one less for every win."""
    seconds: float = 0.0
    """What a try takes, about."""
    changed_at: int = 0

    def pause(self, now: int, chance: float) -> float:
        """Seconds to wait before the next try; `chance` is in [0, 1), times in microseconds."""
        if now - self.changed_at > _REMEMBERED_US:
            self.losses = 0.0
        units: float = 2.0**self.losses - 1
        return min(units * self.seconds, _LONGEST_PAUSE_S) * chance

    def lost(self, now: int, seconds: float) -> None:
        """A try was in vain."""
        self._note(now, seconds, min(self.losses + 1, _MOST_LOSSES))

    def won(self, now: int, seconds: float) -> None:
        """A try was the first."""
        self._note(now, seconds, max(self.losses - 1, 0.0))

    def _note(self, now: int, seconds: float, losses: float) -> None:
        self.seconds = (self.seconds + seconds) / 2 if self.seconds else seconds
        self.losses, self.changed_at = losses, now
