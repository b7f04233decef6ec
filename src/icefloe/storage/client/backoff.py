"""How long to wait before trying again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from icefloe.config.resolved import ResolvedRetries

MAX_SECONDS = 180.0
"""No operation goes on trying for longer than this, whatever the settings say."""


def pauses(retries: ResolvedRetries) -> Iterator[float]:
    """Seconds to wait before each further try; ends when there should be none.

    The pauses grow twofold from `initial_backoff_ms` to `max_backoff_ms`, and each is drawn at
    random between nothing and that, so that those who collided once do not collide again.
    """
    deadline = time.monotonic() + MAX_SECONDS
    ceiling_ms = float(retries.initial_backoff_ms)
    for _ in range(retries.max_tries - 1):
        pause = random.uniform(0, min(ceiling_ms, retries.max_backoff_ms)) / 1000
        if time.monotonic() + pause > deadline:
            return
        yield pause
        ceiling_ms *= 2
