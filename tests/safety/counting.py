"""A counter in a repository: read it, add one, commit, and again when somebody was faster.

Every commit depends on the one before, so whatever gets lost shows: in the counter, in the marks
that each commit leaves in an array, or in the history, where every commit says what it counted.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe.ids import FIRST_SNAPSHOT_ID

MAX_SECONDS = 100.0
"""How long one writer tries to get one commit in."""
FIRST_PAUSE = 0.01
MOST_WRITERS = 64
COUNTER = "counter/c/0"


@dataclass(frozen=True, slots=True)
class Counted:
    """A commit that was acknowledged."""

    writer: int
    turn: int
    value: int
    snapshot_id: str

    @property
    def message(self) -> str:
        return f"{self.writer}/{self.turn}"


def start_counting(repo: icefloe.Repository, num_turns: int) -> None:
    """Commit a counter at 0 and an array with a place for each turn of each writer."""
    session = repo.writable_session("main")
    top: Any = zarr.create_group(session.store)
    for name, shape, chunks in (
        ("counter", (1,), (1,)),
        ("marks", (MOST_WRITERS, num_turns), (1, 1)),
    ):
        top.create_array(
            name, shape=shape, chunks=chunks, dtype="<i8", compressors=None, fill_value=-1
        )
    top["counter"][0] = 0
    session.commit("start")


def count_once(repo: icefloe.Repository, writer: int, turn: int) -> Counted:
    """Add one to the counter; returns once the commit is acknowledged."""
    deadline = time.monotonic() + MAX_SECONDS
    for attempt in itertools.count():
        session = repo.writable_session("main")
        value = _read(session, COUNTER) + 1
        _write(session, COUNTER, value)
        _write(session, _mark(writer, turn), value)
        try:
            snapshot_id = session.commit(f"{writer}/{turn}", {"value": value})
        except icefloe.ConflictError:
            if time.monotonic() > deadline:
                raise
            # Without a pause all the work but one writer's would be for nothing each time.
            time.sleep(random.uniform(0, FIRST_PAUSE * 2 ** min(attempt, 5)))
        else:
            return Counted(writer, turn, value, snapshot_id)
    raise AssertionError("count has no end")


def _mark(writer: int, turn: int) -> str:
    return f"marks/c/{writer}/{turn}"


async def _num_marks(session: icefloe.Session) -> int:
    return len([index async for index in session.chunk_coordinates("/marks")])


def _read(session: icefloe.Session, key: str) -> int:
    found = sync(session.store.get(key, default_buffer_prototype()))
    assert found is not None, f"{key} is missing in snapshot {session.snapshot_id}"
    return int.from_bytes(found.to_bytes(), "little")


def _write(session: icefloe.Session, key: str, value: int) -> None:
    buffer: Any = default_buffer_prototype().buffer
    sync(session.store.set(key, buffer.from_bytes(value.to_bytes(8, "little"))))


# -- judging


def check_counting(repo: icefloe.Repository, acknowledged: Iterable[Counted]) -> int:
    """Nothing acknowledged is missing or there twice; returns how many commits there are."""
    history = list(repo.ancestry(branch="main"))
    _check_is_one_line(history)
    if repo.spec_version:  # before version 1 the first snapshot has an id of its own
        assert history[-1].id == FIRST_SNAPSHOT_ID.text
    commits = history[:-2][::-1]  # without the start and the first snapshot, oldest first
    assert [commit.metadata["value"] for commit in commits] == list(range(1, len(commits) + 1))
    messages = [commit.message for commit in commits]
    assert len(set(messages)) == len(messages), f"counted twice: {sorted(messages)}"
    by_id = {commit.id: commit for commit in commits}
    session = repo.readonly_session("main")
    for counted in acknowledged:
        assert counted.snapshot_id in by_id, f"{counted} was acknowledged and is lost"
        commit = by_id[counted.snapshot_id]
        assert (commit.message, commit.metadata["value"]) == (counted.message, counted.value)
        assert _read(session, _mark(counted.writer, counted.turn)) == counted.value
    assert _read(session, COUNTER) == len(commits)
    assert sync(_num_marks(session)) == len(commits)
    return len(commits)


def _check_is_one_line(history: Sequence[icefloe.SnapshotInfo]) -> None:
    ids = [entry.id for entry in history]
    assert len(set(ids)) == len(ids)
    assert [entry.parent_id for entry in history] == [*ids[1:], None]
    times = [entry.written_at for entry in history]
    assert times == sorted(times, reverse=True)
