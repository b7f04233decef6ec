"""Random sessions that append and do other things: every outcome is that of a serial order.

The model does what a session did on what the branch has at the moment of its commit. A commit may
also be refused; then nothing has changed.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import zarr
from hypothesis import event, given
from hypothesis import strategies as st

import icefloe

CHUNKS = {"time": (64,), "a": (1,), "b": (2, 2), "c": (3,)}
"""`time` is one chunk; blocks of `a` move; of `b` and `c` some move, and others are joined."""
Model = dict[str, Any]


class Step(NamedTuple):
    """What a session does, with the arrays it does it to and a value of its own."""

    kind: str
    num: int
    names: tuple[str, ...]

    def on_model(self, model: Model, value: int) -> None:
        for name in self.names:
            if self.kind == "append":
                model[name] += range(value, value + self.num)
            elif self.kind == "overwrite" and name != "time":
                model[name][self.num - 1] = value
            elif self.kind == "describe":
                model["said"][name] = value

    def on_session(self, session: icefloe.Session, value: int) -> None:
        top: Any = zarr.open_group(session.store, mode="r+")
        for name in self.names:
            array = top[name]
            if self.kind == "append":
                length = array.shape[0]
                array.resize((length + self.num, *array.shape[1:]))
                values = np.arange(value, value + self.num)
                array[length:] = values.reshape(-1, *(1,) * (array.ndim - 1))
            elif self.kind == "overwrite" and name != "time":
                array[self.num - 1] = value
            elif self.kind == "describe":
                array.attrs["said"] = value


ALL = tuple(CHUNKS)
appends = st.builds(Step, st.just("append"), st.integers(1, 4), st.just(ALL))
partial = st.builds(
    Step,
    st.sampled_from(["append", "overwrite", "describe"]),
    st.integers(1, 4),
    st.lists(st.sampled_from(ALL), min_size=1, max_size=2, unique=True).map(tuple),
)
sessions = st.lists(
    st.tuples(
        st.lists(st.one_of(appends, appends, appends, partial), min_size=1, max_size=2),
        st.integers(0, 3),  # so many others commit before it does
    ),
    min_size=2,
    max_size=5,
)


def start(first: int, spec: int, *, inline: bool) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=512 if inline else 0)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    for name, chunks in CHUNKS.items():
        shape, dims = (first, 2)[: len(chunks)], ["time", "x"][: len(chunks)]
        array: Any = top.create_array(
            name, shape=shape, chunks=chunks, dtype="<i8", dimension_names=dims
        )
        array[:] = np.arange(first).reshape(-1, *(1,) * (len(chunks) - 1))
    session.commit("start")
    return repo


def seen(repo: icefloe.Repository) -> Model:
    top: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    found: Model = {"said": {}}
    for name in CHUNKS:
        values = np.asarray(top[name][:]).reshape(top[name].shape[0], -1)
        assert (values == values[:, :1]).all()
        found[name] = values[:, 0].tolist()
        if "said" in top[name].attrs:
            found["said"][name] = top[name].attrs["said"]
    return found


@given(
    first=st.integers(4, 7),
    plays=sessions,
    spec=st.sampled_from([1, 2]),
    inline=st.booleans(),
    accepts=st.booleans(),
)
def test_every_outcome_is_that_of_a_serial_order(
    first: int,
    plays: list[tuple[list[Step], int]],
    spec: int,
    inline: bool,
    accepts: bool,
) -> None:
    repo = start(first, spec, inline=inline)
    model = seen(repo)
    solver = icefloe.AppendSolver(dim="time", accept_unordered=accepts)
    waiting: list[tuple[int, int, icefloe.Session, list[Step]]] = []

    def commit_due(now: int) -> None:
        nonlocal model
        for item in sorted(item for item in waiting if item[0] <= now):
            waiting.remove(item)
            _, number, session, steps = item
            expected = deepcopy(model)
            for at, step in enumerate(steps):
                step.on_model(expected, 100 * (number + 1) + 10 * at)
            refused = None
            try:
                session.commit(str(number), rebase_with=solver)
            except icefloe.RebaseFailedError as error:
                event("refused")
                refused = error
            else:
                event("landed")
                model = expected
            if refused is not None:
                assert {conflict.path.strip("/") for conflict in refused.conflicts} <= {*CHUNKS}
                # Appends alone are refused for the order of coordinates only.
                assert has_others or not accepts
            assert seen(repo) == model
            if not accepts and not has_others:
                assert model["time"] == sorted(set(model["time"]))

    has_others = any(
        step.kind != "append" or step.names != ALL for steps, _ in plays for step in steps
    )
    for number, (steps, delay) in enumerate(plays):
        session = repo.writable_session("main")
        for at, step in enumerate(steps):
            step.on_session(session, 100 * (number + 1) + 10 * at)
        if session.has_uncommitted_changes:
            waiting.append((number + delay, number, session, steps))
        commit_due(number)
    commit_due(len(plays) + 4)
