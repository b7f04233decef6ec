"""How a scenario tells its steps.

A scenario is a generator. What it does before its first `yield` is preparation and is not
measured; each later `yield` ends a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is over: how often it did its thing, and how big a file it wrote or read."""

    name: str
    times: int = 1
    size_bytes: int | None = None


PREPARED = Step("prepared")

Scenario = Iterator[Step]
