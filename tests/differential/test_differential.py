"""Random programs with two sessions do the same on official icechunk and on icefloe.

After every step the outcomes, both sessions with every byte, and the repositories are compared; at
the end each library reads what the other wrote. `--differential-programs` says how many there are,
`--differential-seed` where they start. A failure prints the seed and a short program that diverges.
"""

from __future__ import annotations

import faulthandler
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

from zarr.core.sync import sync

from tests.differential import known
from tests.differential.programs import PLAIN, Program, Settings, Step, generate
from tests.differential.runner import DivergenceError, run, run_seed, shortened
from tests.differential.side import Side
from tests.differential.situation import Situation

SHARDS = 8
ENOUGH_TO_COUNT = 300
"""Steps: fewer say nothing about shares of them."""
MAX_SECONDS = 300
"""A program takes one or two, and is made short in thirty."""


@contextmanager
def limited_time() -> Iterator[None]:
    """End the process with a traceback if a program does not come to its end."""
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.timeout(0)  # the time of each program is limited instead
def test_programs_do_the_same_on_both_libraries(shard: int, request: pytest.FixtureRequest) -> None:
    total = request.config.getoption("--differential-programs")
    first = request.config.getoption("--differential-seed")
    done: Counter[tuple[str, bool]] = Counter()
    known_ones: Counter[str] = Counter()
    num_left = 0
    for seed in range(first + total * shard // SHARDS, first + total * (shard + 1) // SHARDS):
        with limited_time():
            report = run_seed(seed)
        done += report.done
        known_ones += report.known
        num_left += report.num_left
    # Programs that are refused everywhere, or differ everywhere, would compare nothing.
    num_steps = sum(done.values())
    if num_steps >= ENOUGH_TO_COUNT:
        effective = sum(times for (_, is_effective), times in done.items() if is_effective)
        assert effective >= 0.4 * num_steps, done
        assert num_left <= 0.4 * num_steps, known_ones
        assert known_ones.total() <= 0.1 * num_steps, known_ones


def test_a_seed_always_gives_the_same_program_and_the_seeds_give_every_step() -> None:
    names = {step.name for seed in range(64) for step in generate(seed).steps}
    steps = {name for name in vars(Side) if not name.startswith("_")}
    helpers = {"label", "snapshot", "run", "opening", "opened", "nodes", "node", "array", "target"}
    assert names == steps - helpers
    assert generate(5) == generate(5)
    assert generate(5) != generate(6)


# -- the comparison can fail


class OtherBytes(Side):
    def _set(self, session: int, key: str, data: bytes) -> None:
        is_document = key.endswith("zarr.json")
        super()._set(session, key, data if is_document else data[:-1] + b"?")


class MissingBytes(Side):
    """Written, and gone with the commit."""

    def commit(self, *arguments: Any, **named: Any) -> Any:
        session = self.sessions[named["session"]]
        for path, chunks in list(session.status().updated_chunks.items())[:1]:
            sync(session.store.delete("/".join([path[1:], "c", *map(str, chunks[0])])))
        return super().commit(*arguments, **named)


class KeptNodes(Side):
    def delete_node(self, session: int, path: Any) -> Any:
        return None


class OtherDocuments(Side):
    def change(self, session: int, path: Any, members: Any) -> Any:
        return super().change(session, path, {**members, "attributes": {"other": True}})


class OtherMessages(Side):
    def commit(self, *arguments: Any, **named: Any) -> Any:
        return super().commit(*arguments, **named | {"message": "other"})


class OtherErrors(Side):
    def shift(self, session: int, path: Any, offset: list[int]) -> Any:
        try:
            return super().shift(session, path, offset)
        except self.library.IcechunkError:
            raise KeyError(path) from None


class NoConflicts(Side):
    """Chunks that both changed are always ours."""

    def _solver(self, name: str | None) -> Any:
        return None if name is None else self.solvers["ours"]


class OtherTags(Side):
    def create_tag(self, tag: str, snapshot: int) -> None:
        super().create_tag(tag, snapshot + 1)


class LeakingSessions(Side):
    """What one session discards, the other loses as well."""

    def discard(self, session: int) -> Any:
        for each in self.sessions:
            if not each.read_only:
                each.discard_changes()


def _edit(session: int, byte: int) -> Step:
    arguments = {"session": session, "path": "a", "index": [1, 0, 0], "outside": 0, "length": 8}
    return Step("chunk", {**arguments, "byte": byte})


def _commit(session: int) -> Step:
    return Step("commit", {"session": session, "message": f"by {session}", **PLAIN})


def _node(path: str, document: Any) -> Step:
    return Step("document", {"session": 0, "path": path, "document": document, "inside": True})


OPEN = [Step("open", {"session": each, "branch": "main", "rearrange": False}) for each in range(2)]
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
}
GROUP = {"zarr_format": 3, "node_type": "group"}
ONE_OF_EACH = Program(
    2,
    Settings(),
    [
        *(_node("", GROUP), _node("a", ARRAY), _node("g", GROUP), _commit(0), *OPEN),
        Step("change", {"session": 0, "path": "g", "members": {"attributes": {"x": 1}}}),
        Step("shift", {"session": 0, "path": "nothing", "offset": [1]}),
        Step("delete_node", {"session": 0, "path": "g"}),
        *(_edit(0, 1), _edit(1, 2), _commit(1)),
        Step("rebase", {"session": 0, "solver": "chunks fail"}),
        Step("rebase", {"session": 0, "solver": "theirs"}),
        _commit(0),
        Step("create_tag", {"tag": "v1", "snapshot": 1}),
        *(*OPEN, _edit(0, 3), _edit(1, 4), Step("discard", {"session": 0})),
        Step("create_branch", {"branch": "other", "snapshot": 2}),
    ],
)


def test_a_library_that_does_the_same_is_not() -> None:
    report = run(ONE_OF_EACH)
    assert report.done["rebase", True] == report.done["rebase", False] == 1
    assert not report.known


@pytest.mark.parametrize(
    "broken",
    [
        *(OtherBytes, MissingBytes, KeptNodes, OtherDocuments, OtherMessages, OtherErrors),
        *(NoConflicts, OtherTags, LeakingSessions),
    ],
)
def test_a_library_that_does_something_else_is_found_out(broken: type[Side]) -> None:
    with pytest.raises(DivergenceError):
        run(ONE_OF_EACH, broken)


def test_a_program_that_diverges_is_made_short() -> None:
    with pytest.raises(DivergenceError) as caught:
        run(ONE_OF_EACH, OtherBytes)
    short, error = shortened(ONE_OF_EACH, caught.value, OtherBytes)
    assert short.steps[-1].name == "chunk"
    assert len(short.steps) <= 5 < len(ONE_OF_EACH.steps) // 3
    assert "contents/a/c/1" in str(error)


def test_a_difference_is_known_by_the_situation_not_by_the_outcome() -> None:
    step = Step("flush", {"session": 0, "message": "", "metadata": None})
    refused = {"error": "SessionStateError commit-not-allowed"}
    assert known.find(step, "snapshot 1", refused, Situation(is_read_only=True))
    assert known.find(step, "snapshot 1", refused, Situation()) is None
