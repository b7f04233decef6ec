"""How a scenario tells its steps.

A scenario is a generator. What it does before its first `yield` is preparation and is not
measured; each later `yield` ends a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is over: how often it did its thing, and how big a file it wrote or read.

    `correct` is called after the clock was read. It returns fields of `Measurement` that only the
    scenario knows, such as the CPU time of processes that it started.
    """

    name: str
    times: int = 1
    size_bytes: int | None = None
    correct: Callable[[], Mapping[str, Any]] | None = None


PREPARED = Step("prepared")

Scenario = Iterator[Step]
