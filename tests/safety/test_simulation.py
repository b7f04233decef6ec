"""Worlds in a seed: a few fixed ones, the same steps each time, and planted defects that are found.

`make soak` runs as many as there is time for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from icefloe.repo import refs, spec2
from icefloe.testing.simulate import FAULTS
from tests.safety.simulation import Broken, Op, World, draw_world, run_world, shrink, simulate
from tests.safety.simulation.operations import OPERATIONS

SEEDS = range(20)
REPLAYED = 31


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_keeps_what_was_promised(seed: int) -> None:
    simulate(seed).require()


def test_the_worlds_have_every_operation_and_every_fault() -> None:
    """So that none of them passes for having nothing to do."""
    worlds = [draw_world(seed) for seed in range(200)]
    ops = [op for world in worlds for client in world.clients for op in client]
    assert {op.name for op in ops} == set(OPERATIONS)
    assert {op.fault[0] for op in ops if op.fault is not None} == set(FAULTS)
    assert {len(world.clients) for world in worlds} == set(range(3, 9))
    assert {world.spec for world in worlds} == {1, 2}


def test_a_world_takes_the_same_steps_each_time() -> None:
    first, again, other = (run_world(draw_world(seed), is_traced=True) for seed in (7, 7, 8))
    assert first.trace == again.trace
    assert first.digest == again.digest != other.digest


def test_a_world_takes_the_same_steps_in_every_process() -> None:
    program = f"from tests.safety.simulation import simulate; print(simulate({REPLAYED}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", program]
    first, again = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout
    assert first.stdout == again.stdout


def test_a_planted_defect_is_found_shrunk_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of version 2 that do not look whether their branch has moved."""
    monkeypatch.setattr(spec2, "require_tip", lambda *_: None)
    world = World(
        spec=2,
        schedule=1,
        clients=[
            [Op("commit", 1), Op("read", 2), Op("commit", 3)],
            [Op("commit", 5, ("lose", 3)), Op("verify", 6), Op("append", 8)],
            [Op("append", 13), Op("commit", 15)],
        ],
    )
    problem = run_world(world).problem
    assert problem is not None
    small = shrink(world, runs=60)
    assert sum(map(len, small.clients)) <= 3
    report = run_world(small)
    assert report.problem is not None
    with pytest.raises(Broken):
        exec(small.as_code(), {})
    monkeypatch.undo()
    assert run_world(small).problem is None


def test_what_is_lost_and_never_said_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that is acknowledged and did nothing."""

    async def nothing(*_: Any, **__: Any) -> None:
        return

    monkeypatch.setattr(refs, "create_tag", nothing)
    report = run_world(World(spec=2, schedule=1, clients=[[Op("create_tag", 1)]]))
    assert report.problem is not None
    assert "never happened" in report.problem
