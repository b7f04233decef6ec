"""Two sessions with operations hypothesis makes up: the second is rebased over the first.

The model is a three-way merge of what can be seen through the store, key by key: what we changed
is ours, everything else theirs. Either that is what the repository holds in the end, or there was
a conflict, and then both have touched the same part of the hierarchy.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import paths
from tests.oracle.conflict_cases import WORLD, apply, array, group, stored

State = dict[str, str]

NODES = ["a", "g", "g/x", "h", "n", "g/n", "h/n", "h/n/deep"]


def steps(who: str) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """A few operations; whatever is written can be told apart from what anybody else wrote."""
    node = st.sampled_from(NODES)
    number = st.integers(0, 9)
    documents = st.one_of(
        st.builds(lambda length, n: array(length, by=f"{who}{n}"), st.integers(1, 8), number),
        st.builds(lambda n: group(by=f"{who}{n}"), number),
    )
    return st.lists(
        st.one_of(
            st.tuples(st.just("document"), node, documents),
            st.tuples(st.just("chunk"), node, st.integers(0, 5), number),
            st.tuples(st.just("no chunk"), node, st.integers(0, 5)),
            st.tuples(st.just("delete"), node),
            st.tuples(st.just("replace"), node, documents),
        ),
        min_size=1,
        max_size=4,
    )


def perform(session: icefloe.Session, done: list[tuple[Any, ...]], who: str) -> None:
    """What is not possible in the state it finds is left out."""
    for what, node, *more in done:
        try:
            if what == "document":
                apply(session, (f"{node}/zarr.json", more[0]))
            elif what == "chunk":
                apply(session, (f"{node}/c/{more[0]}", f"{who}{more[1]}".encode()))
            elif what == "no chunk":
                apply(session, (f"{node}/c/{more[0]}", None))
            else:
                apply(session, (node,))
                if what == "replace":
                    apply(session, (f"{node}/zarr.json", more[0]))
        except icefloe.IcechunkError:
            continue


def node_of(key: str) -> str:
    name = key.rpartition("/c/")[0] if "/c/" in key else key.removesuffix("zarr.json")
    return paths.from_key(name.removesuffix("/"))


def changed(before: State, after: State) -> set[str]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def merged(before: State, theirs: State, ours: State) -> State:
    mine = changed(before, ours)
    keys = theirs.keys() | ours.keys()
    state = {
        key: value
        for key in keys
        if (value := (ours if key in mine else theirs).get(key)) is not None
    }
    return {key: value for key, value in state.items() if _is_inside(key, state)}


def _is_inside(key: str, state: State) -> bool:
    """Whether a chunk is in the grid of an array; their chunks vanish when we shrink it."""
    name, is_chunk, at = key.rpartition("/c/")
    if not is_chunk:
        return True
    document = state.get(f"{name}/zarr.json", "group")
    return document.startswith("array") and int(at) < json.loads(document.split()[1])[0]


def touched_nodes(session: icefloe.Session) -> set[str]:
    status = session.status()
    lists = (
        *(status.new_groups, status.new_arrays, status.deleted_groups, status.deleted_arrays),
        *(status.updated_groups, status.updated_arrays, status.updated_chunks.keys()),
    )
    return {path for each in lists for path in each}


@pytest.mark.parametrize("spec", [1, 2])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(theirs=steps("t"), ours=steps("o"))
def test_a_rebase_merges_or_says_why_not(
    spec: int, theirs: list[tuple[Any, ...]], ours: list[tuple[Any, ...]]
) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec)
    session = repository.writable_session("main")
    apply(session, *WORLD.items())
    session.commit("world")
    before = stored(session.store)
    first, second = (repository.writable_session("main") for _ in range(2))
    perform(first, theirs, "t")
    perform(second, ours, "o")
    their_state, our_state = stored(first.store), stored(second.store)
    their_nodes, our_nodes = touched_nodes(first), touched_nodes(second)
    status = second.status()
    deleted = status.deleted_groups | status.deleted_arrays
    replaced = deleted & (status.new_groups | status.new_arrays)
    first.commit("theirs", allow_empty=True)
    tip = repository.lookup_branch("main")
    conflicts = commit_rebased(second)
    if conflicts:
        assert repository.lookup_branch("main") == tip
        assert stored(second.store) == our_state, "the session keeps its changes"
        assert any(
            paths.is_within(one, other) or paths.is_within(other, one)
            for one in their_nodes
            for other in our_nodes
        ), f"{conflicts} although nothing was touched by both"
        return
    both = changed(before, their_state) & changed(before, our_state)
    assert [
        key
        for key in both
        if their_state.get(key) != our_state.get(key)
        and _is_inside(key, our_state)
        and not (key not in their_state and node_of(key) in replaced)  # deleted by both
    ] == []
    found = stored(repository.readonly_session("main").store)
    assert found == merged(before, their_state, our_state)
    assert second.snapshot_id == repository.lookup_branch("main")


def commit_rebased(session: icefloe.Session) -> list[icefloe.Conflict]:
    """The conflicts; none when the commit has landed."""
    try:
        session.commit("ours", allow_empty=True, rebase_with=icefloe.ConflictDetector())
    except icefloe.RebaseFailedError as error:
        found: list[icefloe.Conflict] = error.conflicts
        return found
    return []
