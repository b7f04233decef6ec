"""How long a commit waits while other processes commit to the same repository.

Of concurrent tries one succeeds. The others are wasted, and their uploads slow it down. So a commit
that loses waits for a random time, whose range doubles with every loss. The number of losses is
kept for the next commit, which probably has the same competitors. Its first try does not wait.
"""

from __future__ import annotations

from icefloe.records import record

_MOST_LOSSES = 3.0
_LONGEST_PAUSE_S = 1.0
_REMEMBERED_US = 10_000_000


@record()
class Contention:
    """What a process knows of its competitors."""

    losses: float = 0.0
    """How often the pause is doubled: plus one for a loss, minus one for a success."""
    seconds: float = 0.0
    """A moving average of the duration of a try."""
    changed_at: int = 0

    def pause(self, now: int, chance: float) -> float:
        """Seconds to wait before the next try; `chance` is in [0, 1), times in microseconds."""
        if now - self.changed_at > _REMEMBERED_US:
            self.losses = 0.0
        units: float = 2.0**self.losses - 1
        return min(units * self.seconds, _LONGEST_PAUSE_S) * chance

    def lost(self, now: int, seconds: float) -> None:
        """Note a try that another commit overtook."""
        self._note(now, seconds, min(self.losses + 1, _MOST_LOSSES))

    def won(self, now: int, seconds: float) -> None:
        """Note a try that succeeded."""
        self._note(now, seconds, max(self.losses - 1, 0.0))

    def _note(self, now: int, seconds: float, losses: float) -> None:
        self.seconds = (self.seconds + seconds) / 2 if self.seconds else seconds
        self.losses, self.changed_at = losses, now
