"""What both libraries do with a long history, each in a repository with nothing cached."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.arrays import REAL_COMMITS, num_snapshots
from benchmarks.data import Corpus
from benchmarks.places import Place
from benchmarks.steps import PREPARED, Scenario, Step

LOOKUPS = 100
STEP = "history"


def _operation(
    operate: Callable[[Any, int], None], corpus: Corpus, dataset: str, side: str, kind: str
) -> Scenario:
    """Open the repository and do one thing with it."""
    place = Place(side, kind, corpus)
    storage = place.storage(place.address(dataset))
    yield PREPARED
    operate(place.library.Repository.open(storage), num_snapshots(dataset, corpus.rows))
    yield Step(STEP)


def ancestry(*arguments: Any) -> Scenario:
    """Every line of the history, with all that a log shows."""

    def operate(repository: Any, count: int) -> None:
        history = repository.ancestry(branch="main")
        lines = [(info.id, info.parent_id, info.written_at, info.message) for info in history]
        assert len(lines) == count, len(lines)

    return _operation(operate, *arguments)


def metadata(*arguments: Any) -> Scenario:
    """The metadata of every commit."""

    def operate(repository: Any, count: int) -> None:
        runs = [info.metadata.get("run") for info in repository.ancestry(branch="main")]
        made_up = [run for run in runs if run is not None]
        assert made_up == list(range(count - REAL_COMMITS - 1))[::-1], len(made_up)

    return _operation(operate, *arguments)


def ancestry_graph(*arguments: Any) -> Scenario:
    """The history as text."""

    def operate(repository: Any, count: int) -> None:
        lines = str(repository.ancestry_graph(plain=True)).splitlines()
        assert len(lines) >= min(count, 200), len(lines)  # official shows no more

    return _operation(operate, *arguments)


def ops_log(*arguments: Any) -> Scenario:
    """Every operation, with its time and kind."""

    def operate(repository: Any, count: int) -> None:
        entries = [(update.updated_at, update.kind) for update in repository.ops_log()]
        assert len(entries) == count, len(entries)

    return _operation(operate, *arguments)


def tags(*arguments: Any) -> Scenario:
    """The names of all tags."""

    def operate(repository: Any, count: int) -> None:
        assert len(repository.list_tags()) == count

    return _operation(operate, *arguments)


def look_up(*arguments: Any) -> Scenario:
    """Some tags and the snapshots they are of."""

    def operate(repository: Any, count: int) -> None:
        for number in range(LOOKUPS):
            identifier = repository.lookup_tag(f"version-{number * count // LOOKUPS}")
            assert repository.lookup_snapshot(identifier).id == identifier

    return _operation(operate, *arguments)


def diff(*arguments: Any) -> Scenario:
    """What the last commits have changed."""

    def operate(repository: Any, count: int) -> None:
        first = repository.lookup_tag(f"version-{count - REAL_COMMITS}")
        found = repository.diff(from_snapshot_id=first, to_branch="main")
        [chunks] = found.updated_chunks.values()
        assert len(chunks) == REAL_COMMITS - 1, len(chunks)

    return _operation(operate, *arguments)


def as_of(*arguments: Any) -> Scenario:
    """The snapshot of a time in the past."""

    def operate(repository: Any, count: int) -> None:
        middle = repository.lookup_tag(f"version-{count // 2}")
        time = repository.lookup_snapshot(middle).written_at + timedelta(seconds=0.5)
        assert repository.readonly_session("main", as_of=time).snapshot_id == middle

    return _operation(operate, *arguments)


def commit(corpus: Corpus, dataset: str, side: str, kind: str) -> Scenario:
    """Commits of one chunk each on top of the history."""
    place = Place(side, kind, corpus)
    zarr: Any = importlib.import_module("zarr")  # what only reads a history does without
    with place.copied(dataset) as storage:
        yield PREPARED
        repository = place.library.Repository.open(storage)
        for number in range(COMMITS):
            session = repository.writable_session("main")
            array: Any = zarr.open_array(session.store, path="a")
            array[number] = -1
            session.commit("one more")
        yield Step(STEP, times=COMMITS)
        newest = next(iter(repository.ancestry(branch="main")))
        assert newest.message == "one more"


COMMITS = 5
