"""How long a commit waits while other processes commit to the same repository.

One of several concurrent attempts succeeds. The uploads of the others are wasted and slow it down.
So a commit that loses waits for a random time, and the range of that time doubles with every loss.
The number of losses is kept for the next commit, which probably has the same competitors. The first
attempt never waits. Where writers can queue up (`Driver.turn`), those that have lost lately do so
instead of waiting for a random time.
"""

from __future__ import annotations

from icefloe.records import record

_MAX_LOSSES = 3.0
_MAX_PAUSE_S = 1.0
_REMEMBERED_US = 10_000_000
_CROWDED_US = 2_000_000


@record()
class Contention:
    """What a process knows about concurrent committers."""

    losses: float = 0.0
    """How often the pause is doubled: plus one for a loss, minus one for a success."""
    seconds: float = 0.0
    """A moving average of the duration of an attempt."""
    changed_at: int = 0
    lost_at: int = -_CROWDED_US

    def is_crowded(self, now: int) -> bool:
        """Whether an attempt has lost lately."""
        return now - self.lost_at < _CROWDED_US

    def pause(self, now: int, chance: float) -> float:
        """Seconds to wait before the next attempt; `chance` is in [0, 1), times in microseconds."""
        if now - self.changed_at > _REMEMBERED_US:
            self.losses = 0.0
        units: float = 2.0**self.losses - 1
        return min(units * self.seconds, _MAX_PAUSE_S) * chance

    def lost(self, now: int, seconds: float) -> None:
        """Record an attempt that lost to another commit."""
        self.lost_at = now
        self._note(now, seconds, min(self.losses + 1, _MAX_LOSSES))

    def won(self, now: int, seconds: float) -> None:
        """Record an attempt that succeeded."""
        self._note(now, seconds, max(self.losses - 1, 0.0))

    def _note(self, now: int, seconds: float, losses: float) -> None:
        self.seconds = (self.seconds + seconds) / 2 if self.seconds else seconds
        self.losses, self.changed_at = losses, now
