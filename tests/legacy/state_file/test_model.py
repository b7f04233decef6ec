"""The writer against a plain model: sections "Initialize New Store", "Write Snapshot" and "Read
Snapshot" of document 003, in any order that hypothesis comes up with."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

import icefloe
from icefloe.legacy.state_file.tables import Profile
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from tests.legacy.state_file.datasets import create

Tree = dict[str, tuple[dict[str, Any], np.ndarray[Any, Any] | None]]
"""Attributes of each node, and the values of arrays."""

NAMES = st.sampled_from(["a", "b", "c"])
LONG = 5000  # letters: more than fit into a structure file
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["k", "ä"]),
    st.sampled_from([1, None, "long", [1.5, True]]).map(lambda v: "x" * LONG if v == "long" else v),
    max_size=2,
)
SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=2)


def read_tree(store: Any) -> Tree:
    found: Tree = {}
    try:
        root: Any = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return found
    found[""] = (dict(root.attrs), None)
    for path, node in root.members(max_depth=None):
        values = None if isinstance(node, zarr.Group) else np.asarray(node[...])
        found[path] = (dict(node.attrs), values)
    return found


def assert_same(found: Tree, expected: Tree) -> None:
    assert found.keys() == expected.keys()
    for path, (attributes, values) in expected.items():
        assert found[path][0] == attributes
        if values is None:
            assert found[path][1] is None
        else:
            np.testing.assert_array_equal(found[path][1], values)


class StateFileMachine(RuleBasedStateMachine):
    """One writable session after another on a dataset with branches and tags."""

    commits = Bundle("commits")

    @initialize(
        target=commits, profile=st.sampled_from(Profile), threshold=st.sampled_from([0, 16, 512])
    )
    def start(self, profile: Profile, threshold: int) -> str:
        self.storage = icefloe.in_memory_storage()
        self.config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
        self.repo = create(self.storage, profile, self.config)
        first = self.repo.lookup_branch("main")
        self.snapshots: dict[str, Tree] = {first: {}}
        self.parents: dict[str, str | None] = {first: None}
        self.branches = {"main": first}
        self.tags: dict[str, str] = {}
        self.generation = 0
        self.open_session("main")
        return first

    def open_session(self, branch: str) -> None:
        self.branch = branch
        self.session = self.repo.writable_session(branch)
        self.tree = copy.deepcopy(self.snapshots[self.branches[branch]])
        self.is_changed = False

    def driver(self) -> Driver:
        return self.storage.driver(blocking=True)

    # -- changing

    @rule(attributes=ATTRIBUTES)
    def make_root(self, attributes: dict[str, Any]) -> None:
        if "" in self.tree:
            zarr.open_group(self.session.store, mode="r+").update_attributes(attributes)
            self.tree[""][0].update(attributes)
        else:
            zarr.create_group(self.session.store, attributes=attributes)
            self.tree[""] = (dict(attributes), None)
        self.is_changed = True

    @precondition(lambda self: "" in self.tree)
    @rule(name=NAMES, inside=NAMES, attributes=ATTRIBUTES, shape=SHAPES, data=st.data())
    def make_array(
        self, name: str, inside: str, attributes: dict[str, Any], shape: list[int], data: Any
    ) -> None:
        path = name if self.tree.get(inside, ({}, 1))[1] is not None else f"{inside}/{name}"
        if path in self.tree:
            return
        chunks = tuple(data.draw(st.integers(1, size)) for size in shape)
        root: Any = zarr.open_group(self.session.store, mode="r+")
        root.create_array(
            path,
            shape=tuple(shape),
            chunks=chunks,
            dtype="<i4",
            fill_value=-7,
            attributes=attributes,
        )
        self.tree[path] = (dict(attributes), np.full(shape, -7, "<i4"))
        self.is_changed = True

    @precondition(lambda self: "" in self.tree)
    @rule(name=NAMES, attributes=ATTRIBUTES)
    def make_group(self, name: str, attributes: dict[str, Any]) -> None:
        if name in self.tree:
            return
        root: Any = zarr.open_group(self.session.store, mode="r+")
        root.create_group(name, attributes=attributes)
        self.tree[name] = (dict(attributes), None)
        self.is_changed = True

    def arrays(self) -> list[str]:
        return sorted(path for path, (_, values) in self.tree.items() if values is not None)

    @precondition(lambda self: self.arrays())
    @rule(data=st.data(), number=st.integers(0, 2**30))
    def write(self, data: Any, number: int) -> None:
        path = data.draw(st.sampled_from(self.arrays()))
        values = self.tree[path][1]
        assert values is not None
        where = tuple(data.draw(st.integers(0, size - 1)) for size in values.shape)
        array: Any = zarr.open_array(self.session.store, path=path, mode="r+")
        array[where] = number
        values[where] = number
        self.is_changed = True

    @precondition(lambda self: len(self.tree) > 1)
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        path = data.draw(st.sampled_from(sorted(self.tree.keys() - {""})))
        root: Any = zarr.open_group(self.session.store, mode="r+")
        del root[path]
        for gone in [at for at in self.tree if at == path or at.startswith(path + "/")]:
            del self.tree[gone]
        self.is_changed = True

    # -- committing

    @precondition(lambda self: self.is_changed)
    @rule(target=commits, message=st.text(max_size=5))
    def commit(self, message: str) -> str:
        made = self.session.commit(message, {"note": message}, allow_empty=True)
        self.record(made)
        return made

    def record(self, made: str) -> None:
        self.parents[made] = self.branches[self.branch]
        self.snapshots[made] = self.tree
        self.branches[self.branch] = made
        self.generation += 1
        self.open_session(self.branch)

    @precondition(lambda self: not self.is_changed and self.tree.keys() - {""})
    @rule(target=commits, data=st.data(), name=NAMES)
    def rename(self, data: Any, name: str) -> str:
        """Nodes are renamed without touching their chunks."""
        source = data.draw(st.sampled_from(sorted(self.tree.keys() - {""})))
        parent = source.rpartition("/")[0]
        target = f"{parent}/{name}".lstrip("/")
        if target in self.tree:
            return self.branches[self.branch]
        session = self.repo.rearrange_session(self.branch)
        session.move("/" + source, "/" + target)
        made = session.commit("renamed")
        self.tree = {
            target + path[len(source) :] if (path + "/").startswith(source + "/") else path: node
            for path, node in self.tree.items()
        }
        self.record(made)
        return made

    @rule()
    def start_again(self) -> None:
        self.repo = icefloe.Repository.open(self.storage, self.config)
        self.open_session(self.branch)

    @rule(at=commits, name=NAMES)
    def make_branch(self, at: str, name: str) -> None:
        if name in self.branches or name in self.tags:
            try:
                self.repo.create_branch(name, at)
            except icefloe.AlreadyExistsError:
                return
            raise AssertionError(f"{name} was there")
        self.repo.create_branch(name, at)
        self.branches[name] = at
        self.generation += 1

    @rule(at=commits, name=st.sampled_from(["t", "u", "a"]))
    def make_tag(self, at: str, name: str) -> None:
        if name in self.branches or name in self.tags:
            return
        self.repo.create_tag(name, at)
        self.tags[name] = at
        self.generation += 1

    @precondition(lambda self: self.tags)
    @rule()
    def delete_tag(self) -> None:
        name = min(self.tags)
        self.repo.delete_tag(name)
        del self.tags[name]
        self.generation += 1

    @rule(at=consumes(commits))
    def reset(self, at: str) -> None:
        self.repo.reset_branch(self.branch, at)
        self.branches[self.branch] = at
        self.generation += 1
        self.open_session(self.branch)

    @rule(data=st.data())
    def switch(self, data: Any) -> None:
        self.open_session(data.draw(st.sampled_from(sorted(self.branches))))

    # -- looking

    @invariant()
    def the_session_shows_the_tree(self) -> None:
        if hasattr(self, "session"):
            assert_same(read_tree(self.session.store), self.tree)

    def teardown(self) -> None:
        if not hasattr(self, "repo"):
            return
        repo = icefloe.Repository.open(self.storage)
        assert repo.list_branches() == self.branches.keys()
        assert repo.list_tags() == self.tags.keys()
        for name, at in self.branches.items():
            assert repo.lookup_branch(name) == at
        for name, at in self.tags.items():
            assert repo.lookup_tag(name) == at
        for at, tree in self.snapshots.items():
            assert_same(read_tree(repo.readonly_session(snapshot_id=at).store), tree)
            line = [entry.id for entry in repo.ancestry(snapshot_id=at)]
            assert line[0] == at
            assert line[1:2] == ([self.parents[at]] if self.parents[at] else [])
        data, _ = run_blocking(self.driver().get_versioned("state.json"))
        assert json.loads(data)["generation"] == self.generation


StateFileMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStateFile = StateFileMachine.TestCase
