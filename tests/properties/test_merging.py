"""Merging forks puts together what each of them changed, or is refused; moves are renames."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.changes.change_set import Moves
from icefloe.errors import IcechunkError
from icefloe.format.nodes import Node, NodeTable
from icefloe.ids import NodeId
from tests.api.fork_cases import array, group
from tests.api.outcomes import changes, keys, outcome, put, remove

NAMES = ("a", "b", "g", "g/x", "n", "n/k")

edits = st.one_of(
    st.tuples(st.just("chunk"), st.sampled_from(["a", "b", "g/x"]), st.integers(0, 3)),
    st.tuples(st.just("large"), st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.tuples(st.just("no chunk"), st.sampled_from(["a", "b", "g/x"]), st.integers(0, 3)),
    st.tuples(st.just("array"), st.sampled_from(NAMES), st.integers(0, 2)),
    st.tuples(st.just("group"), st.sampled_from(NAMES), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("shift"), st.sampled_from(["a", "b"]), st.integers(-2, 2)),
)


def start() -> Any:
    """A session with uncommitted changes on top of a commit; small chunks go into packs."""
    packing = icefloe.PackingConfig(max_chunk_size_bytes=100)
    config = RepositoryConfig(inline_chunk_threshold_bytes=8, packing=packing)
    repository = Repository.create(icefloe.in_memory_storage(), config)
    session = repository.writable_session("main")
    for name in ("", "g/"):
        put(session.store, f"{name}zarr.json", group())
    for name in ("a", "g/x"):
        put(session.store, f"{name}/zarr.json", array(8))
        put(session.store, f"{name}/c/1", b"base----")
    session.commit("base")
    session = repository.writable_session("main")
    put(session.store, "b/zarr.json", array(8))
    put(session.store, "b/c/2", b"session-")
    return session


def apply(session: Any, edit: tuple[str, str, int], number: int) -> bool:
    """Make one edit; False when the session as it is refuses it."""
    kind, name, value = edit
    try:
        if kind in ("chunk", "large"):
            size = 8 if kind == "chunk" else 40
            put(session.store, f"{name}/c/{value}", bytes([number]) * size)
        elif kind == "no chunk":
            remove(session.store, f"{name}/c/{value}")
        elif kind == "delete":
            remove(session.store, f"{name}/zarr.json")
        elif kind == "shift":
            session.shift_array(f"/{name}", [value])
        else:
            document = array(8, attributes={"v": value}) if kind == "array" else group(v=value)
            put(session.store, f"{name}/zarr.json", document)
    except IcechunkError:
        return False
    return True


@settings(max_examples=60)
@given(st.lists(st.lists(edits, max_size=4), min_size=1, max_size=3), st.booleans())
def test_merging_puts_together_what_forks_changed(
    crews: list[list[tuple[str, str, int]]], is_pickled: bool
) -> None:
    session = start()
    before = keys(session.store), changes(session.status())
    expected = dict(before[0])
    forks = []
    number = 1
    for crew in crews:
        fork = session.fork()
        for edit in crew:
            apply(fork, edit, number)
            number += 1
        seen = keys(fork.store)
        for key in _touched(fork, before[0], seen):
            expected.pop(key, None)
            expected.update({key: seen[key]} if key in seen else {})
        forks.append(pickle.loads(pickle.dumps(fork)) if is_pickled else fork)
    answer = outcome(session.merge, *forks)
    if answer is not None:
        assert answer == "SessionStateError merge-failed"
        assert (keys(session.store), changes(session.status())) == before
        assert len(crews) > 1 or _touches_session_chunks(crews[0])
        return
    assert keys(session.store) == expected
    session.commit("merged", allow_empty=True)
    assert keys(session.store) == expected


def _touched(fork: Any, before: dict[str, bytes], seen: dict[str, bytes]) -> set[str]:
    """Keys that differ, and chunks that were written or deleted without a difference."""
    found = {key for key in before.keys() | seen.keys() if before.get(key) != seen.get(key)}
    for path, chunks in fork.status().updated_chunks.items():
        found.update(f"{path[1:]}/c/{at}" for (at,) in chunks)
    return found


def _touches_session_chunks(crew: list[tuple[str, str, int]]) -> bool:
    """The only reason to refuse a single fork: it deleted an array whose chunks the session had
    written before it forked."""
    return ("delete", "b", 0) in crew


names = st.sampled_from(["a", "b", "c"])
some_paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.sets(some_paths), st.lists(st.tuples(some_paths, some_paths), max_size=8))
def test_moves_are_renames_in_a_dictionary(
    start_paths: set[str], steps: list[tuple[str, str]]
) -> None:
    nodes = [Node(NodeId(bytes(8)), "/", b"")]
    nodes += [
        Node(NodeId(number.to_bytes(8, "big")), path, path.encode())
        for number, path in enumerate(sorted(start_paths), 1)
    ]
    base, moves = NodeTable.from_nodes(nodes), Moves()
    model = {node.path: node.id for node in nodes}
    for source, destination in steps:
        try:
            moves.move(base, source, destination)
        except IcechunkError:
            continue
        model = {
            destination + path[len(source) :]
            if path == source or path.startswith(source + "/")
            else path: node_id
            for path, node_id in model.items()
        }
        assert len(model) == len(nodes)
        assert moves.paths(base) == sorted(model)
    found = {path: moves.find(base, path) for path in model}
    assert {path: node and node.id for path, node in found.items()} == model
    origins = {node.id: node.path for node in nodes}
    logged = {(move.source, move.destination) for move in moves.log()}
    assert logged == {(origins[key], path) for path, key in model.items() if origins[key] != path}
    assert {node.path for node in moves.moved(base)} == {path for _, path in logged}
    assert set(moves.origins()) == {path for path, _ in logged}
