"""Appends along one dimension by many writers: every block is there once, in the order of commits.

`time` is one chunk that all share, `whole` has a chunk for each step, and `parts` has chunks that
blocks share. A block has values that no other block has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import zarr

import icefloe
from tests.safety.counting import Counted

SOLVER = icefloe.AppendSolver(dim="time", accept_unordered=True)
FIRST = 3
CHUNKS = {"time": (4096,), "whole": (1, 2), "parts": (4, 2)}


def start_appending(repo: icefloe.Repository) -> None:
    """Commit arrays of a few steps."""
    session = repo.writable_session("main")
    top: Any = zarr.create_group(session.store)
    for name, chunks in CHUNKS.items():
        shape = (FIRST, 2)[: len(chunks)]
        dims = ["time", "x"][: len(chunks)]
        top.create_array(name, shape=shape, chunks=chunks, dtype="<i8", dimension_names=dims)
        _fill(top[name], 0, np.arange(FIRST))
    session.commit("start")


def block_of(writer: int, turn: int) -> list[int]:
    """One to three values."""
    first = (writer + 1) * 1_000_000 + turn * 10
    return [first + step for step in range(1 + (writer + turn) % 3)]


def append(session: icefloe.Session, values: list[int]) -> None:
    """Make all arrays longer."""
    top: Any = zarr.open_group(session.store, mode="r+")
    for name in CHUNKS:
        array = top[name]
        length = array.shape[0]
        array.resize((length + len(values), *array.shape[1:]))
        _fill(array, length, np.array(values))


def append_once(repo: icefloe.Repository, writer: int, turn: int) -> Counted:
    """Append a block; returns once the commit is acknowledged."""
    session = repo.writable_session("main")
    append(session, block_of(writer, turn))
    snapshot_id = session.commit(f"{writer}/{turn}", rebase_with=SOLVER)
    return Counted(writer, turn, 0, snapshot_id)


def _fill(array: Any, first: int, values: Any) -> None:
    array[first:] = values.reshape(-1, *(1,) * (array.ndim - 1))


def check_appending(repo: icefloe.Repository, acknowledged: Iterable[Counted]) -> int:
    """The arrays equal all appends in the order of their commits; returns how many there are."""
    history = [entry for entry in repo.ancestry(branch="main") if "/" in entry.message][::-1]
    made = [tuple(map(int, entry.message.split("/"))) for entry in history]
    assert len(set(made)) == len(made), "a block was appended twice"
    by_id = {entry.id: entry.message for entry in history}
    for counted in acknowledged:
        assert by_id[counted.snapshot_id] == counted.message, f"{counted} is lost"
    expected = [*range(FIRST), *(value for each in made for value in block_of(*each))]
    top: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    for name in CHUNKS:
        values = np.asarray(top[name][:]).reshape(len(expected), -1)
        assert (values == np.array(expected)[:, None]).all(), f"{name} is {values[:, 0].tolist()}"
    return len(made)
