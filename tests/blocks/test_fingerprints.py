"""A computation is told from another one by its functions and arguments, in every process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from icefloe.blocks.fingerprints import fingerprint

OFFSET = 1.0


def made(offset: float, default: Any = 0) -> list[Callable[..., Any]]:
    """Functions that differ by a closure, a default, a constant or what is inside of them."""

    def closed(block: Any) -> Any:
        return block + offset

    def defaulted(block: Any, by: Any = default) -> Any:
        return block + by

    def nested(block: Any) -> Any:
        def inner(value: Any) -> Any:
            return value + OFFSET

        return inner(block)

    return [closed, defaulted, nested]


class Scaled:
    """A function with a state."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, block: Any) -> Any:
        """Scale a block."""
        return block * self.by


def test_the_same_functions_are_the_same() -> None:
    for first, second in zip(made(1, [2]), made(1, [2]), strict=True):
        assert fingerprint(first) == fingerprint(second)
    assert fingerprint(Scaled(2)) == fingerprint(Scaled(2))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda block: block + 1, lambda block: block + 2),
        (lambda block: block.x, lambda block: block.y),
        (made(1)[0], made(2)[0]),
        (made(1, 1)[1], made(1, 2)[1]),
        (Scaled(2), Scaled(3)),
        (Scaled(2).__call__, Scaled(3).__call__),
        (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))),
        ({1, 2}, {1, 3}),
    ],
)
def test_other_functions_and_values_are_others(first: Any, second: Any) -> None:
    assert fingerprint(first) != fingerprint(second)


def test_globals_count_in_inner_functions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(made(1)[2])
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 2.0)
    assert fingerprint(made(1)[2]) != before


def test_every_process_finds_the_same() -> None:
    program = (
        "from icefloe.blocks.fingerprints import fingerprint\n"
        "names = {'a', 'b', 'c', 'd'}\n"
        "print(fingerprint((lambda x: x in {'t', 'u', 'v', 'w'} or x in names, {'x', 'y', 'z'})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
