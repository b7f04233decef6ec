"""The writer of numbered refs against a plain model: random programs of sessions, refs, renames."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

import icefloe
from icefloe import ConflictError, NumberedRefs, Repository
from icefloe.errors import AlreadyExistsError

DTYPES = {"<f4": np.nan, "<i2": -1, "?": True, "<c8": 1 + 2j, "<u8": 2**63}
GROUPS = ["", "a", "b", "a/c"]
NAMES = ["x", "y"]


@dataclass
class ModelArray:
    values: Any
    chunks: tuple[int, ...]
    attributes: dict[str, Any]


@dataclass
class ModelState:
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, ModelArray] = field(default_factory=dict)


@dataclass
class ModelCommit:
    id: str
    message: str
    metadata: dict[str, Any]
    parent: ModelCommit | None
    state: ModelState

    def line(self) -> list[ModelCommit]:
        return [self, *(self.parent.line() if self.parent else [])]


@dataclass
class ModelSession:
    session: icefloe.Session
    branch: str
    base: ModelCommit
    state: ModelState
    is_changed: bool = False


def is_within(path: str, group: str) -> bool:
    return path == group or not group or path.startswith(group + "/")


attributes_values = st.dictionaries(
    st.sampled_from(["k", "ü", "long"]),
    st.one_of(st.integers(-5, 5), st.just("x" * 40), st.lists(st.none() | st.booleans())),
    max_size=2,
)


class NumberedRefsMachine(RuleBasedStateMachine):
    """Programs on one repository. Sessions that lose a race are dropped."""

    encoding: Any = "json"
    open_sessions = Bundle("open_sessions")

    @initialize(most=st.sampled_from([None, 10]), threshold=st.sampled_from([0, 512]))
    def create(self, most: int | None, threshold: int) -> None:
        self.storage = icefloe.in_memory_storage()
        self.config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
        made = NumberedRefs(self.encoding, inline_attributes_bytes=most)
        self.repo = Repository.create(self.storage, self.config, generation=made)
        (entry,) = self.repo.ancestry(branch="main")
        first = ModelCommit(entry.id, entry.message, {}, None, ModelState())
        self.branches = {"main": first}
        self.tags: dict[str, ModelCommit] = {}

    # -- sessions

    @rule(target=open_sessions, branch=st.sampled_from(["main", "dev"]))
    def open_session(self, branch: str) -> ModelSession | None:
        if branch not in self.branches:
            return None
        session = self.repo.writable_session(branch)
        base = self.branches[branch]
        assert session.snapshot_id == base.id
        return ModelSession(session, branch, base, deepcopy(base.state))

    @rule(chosen=open_sessions, path=st.sampled_from(GROUPS), attributes=attributes_values)
    def put_group(self, chosen: ModelSession | None, path: str, attributes: Any) -> None:
        if chosen is None or chosen.session.read_only or path in chosen.state.arrays:
            return
        parts = path.split("/")
        above = ["/".join(parts[:at]) for at in range(len(parts))]
        if any(each in chosen.state.arrays for each in above):
            return
        group = zarr.open_group(chosen.session.store, path=path, mode="a")
        group.attrs.put(attributes)
        for each in above:
            chosen.state.groups.setdefault(each, {})
        chosen.state.groups[path] = attributes
        chosen.is_changed = True

    @rule(
        chosen=open_sessions,
        group=st.sampled_from(GROUPS),
        name=st.sampled_from(NAMES),
        shape=st.lists(st.integers(1, 5), max_size=2),
        dtype=st.sampled_from(sorted(DTYPES)),
        attributes=attributes_values,
    )
    def create_array(
        self,
        chosen: ModelSession | None,
        group: str,
        name: str,
        shape: list[int],
        dtype: str,
        attributes: Any,
    ) -> None:
        if chosen is None or chosen.session.read_only or group not in chosen.state.groups:
            return
        path = f"{group}/{name}".strip("/")
        if path in chosen.state.arrays or path in chosen.state.groups:
            return
        chunks = tuple(max(1, size // 2) for size in shape)
        zarr.create_array(
            chosen.session.store,
            name=path,
            shape=tuple(shape),
            chunks=chunks,
            dtype=dtype,
            fill_value=DTYPES[dtype],
            attributes=attributes,
        )
        values = np.full(shape, DTYPES[dtype], dtype)
        chosen.state.arrays[path] = ModelArray(values, chunks, attributes)
        chosen.is_changed = True

    @rule(chosen=open_sessions, data=st.data())
    def write(self, chosen: ModelSession | None, data: Any) -> None:
        if chosen is None or chosen.session.read_only or not chosen.state.arrays:
            return
        path = data.draw(st.sampled_from(sorted(chosen.state.arrays)))
        array = chosen.state.arrays[path]
        box = tuple(
            slice(start, data.draw(st.integers(start + 1, size)))
            for size in array.values.shape
            for start in [data.draw(st.integers(0, size - 1))]
        )
        number = data.draw(st.integers(0, 1))
        array.values[box] = number
        stored: Any = zarr.open_array(chosen.session.store, path=path, mode="r+")
        stored[box] = number
        chosen.is_changed = True

    @rule(chosen=open_sessions, data=st.data())
    def delete(self, chosen: ModelSession | None, data: Any) -> None:
        if chosen is None or chosen.session.read_only:
            return
        paths = sorted(path for path in [*chosen.state.arrays, *chosen.state.groups] if path)
        if not paths:
            return
        path = data.draw(st.sampled_from(paths))
        group = zarr.open_group(chosen.session.store, mode="r+")
        del group[path]
        for kind in (chosen.state.arrays, chosen.state.groups):
            for gone in [each for each in kind if is_within(each, path)]:
                del kind[gone]
        chosen.is_changed = True

    @rule(chosen=open_sessions, message=st.text(max_size=5), number=st.integers(0, 3))
    def commit(self, chosen: ModelSession | None, message: str, number: int) -> None:
        if chosen is None or chosen.session.read_only:
            return
        tip = self.branches[chosen.branch]
        metadata = {"n": number} if number else {}
        try:
            made = chosen.session.commit(message, metadata, allow_empty=True)
        except ConflictError as conflict:
            actual: str | None = conflict.actual_parent
        else:
            actual = None
        if actual is not None:
            assert tip.id != chosen.base.id
            assert actual == tip.id == self.repo.lookup_branch(chosen.branch)
            return
        assert tip.id == chosen.base.id
        self.branches[chosen.branch] = ModelCommit(
            made, message, metadata, chosen.base, chosen.state
        )

    # -- renames and refs

    @precondition(lambda self: "main" in getattr(self, "branches", {}))
    @rule(data=st.data())
    def rename(self, data: Any) -> None:
        tip = self.branches["main"]
        paths = sorted(path for path in [*tip.state.arrays, *tip.state.groups] if path)
        if not paths:
            return
        path = data.draw(st.sampled_from(paths))
        target = f"moved{data.draw(st.integers(0, 2))}"
        known = {*tip.state.arrays, *tip.state.groups}
        if target in known or "" not in known:
            return
        session = self.repo.rearrange_session("main")
        session.move(f"/{path}", f"/{target}")
        made = session.commit("renamed")
        state = deepcopy(tip.state)
        kinds: list[dict[str, Any]] = [state.arrays, state.groups]
        for kind in kinds:
            for old in [each for each in kind if is_within(each, path)]:
                kind[target + old[len(path) :]] = kind.pop(old)
        self.branches["main"] = ModelCommit(made, "renamed", {}, tip, state)

    @rule(number=st.integers(0, 5))
    def create_branch(self, number: int) -> None:
        line = self.branches["main"].line()
        target = line[min(number, len(line) - 1)]
        try:
            self.repo.create_branch("dev", target.id)
        except AlreadyExistsError:
            assert "dev" in self.branches
        else:
            assert "dev" not in self.branches
            self.branches["dev"] = target

    @rule(number=st.integers(0, 5))
    def reset_branch(self, number: int) -> None:
        if "dev" not in self.branches:
            return
        line = self.branches["main"].line()
        target = line[min(number, len(line) - 1)]
        self.repo.reset_branch("dev", target.id)
        self.branches["dev"] = target

    @rule(name=st.sampled_from(["t", "ü"]))
    def create_tag(self, name: str) -> None:
        target = self.branches["main"]
        try:
            self.repo.create_tag(name, target.id)
        except AlreadyExistsError:
            assert name in self.tags
        else:
            assert name not in self.tags
            self.tags[name] = target

    @rule()
    def reopen(self) -> None:
        self.repo = Repository.open(self.storage, self.config)

    # -- judging

    def teardown(self) -> None:
        if not hasattr(self, "branches"):
            return
        for repo in (self.repo, Repository.open(self.storage)):
            assert repo.list_branches() == self.branches.keys()
            assert repo.list_tags() == self.tags.keys()
            for name, commit in self.branches.items():
                assert repo.lookup_branch(name) == commit.id
                found = list(repo.ancestry(branch=name))
                assert [entry.id for entry in found] == [each.id for each in commit.line()]
                assert [(entry.message, entry.metadata) for entry in found] == [
                    (each.message, each.metadata) for each in commit.line()
                ]
            for name, commit in self.tags.items():
                assert repo.lookup_tag(name) == commit.id
            for commit in [*self.branches["main"].line(), *self.branches.values()]:
                check_state(repo.readonly_session(snapshot_id=commit.id), commit.state)


def check_state(session: icefloe.Session, state: ModelState) -> None:
    if not state.groups:
        return
    root = zarr.open_group(session.store, mode="r")
    members = dict(root.members(max_depth=None))
    assert members.keys() | {""} == state.groups.keys() | state.arrays.keys()
    assert dict(root.attrs) == state.groups[""]
    for path, node in members.items():
        if isinstance(node, zarr.Array):
            array = state.arrays[path]
            assert dict(node.attrs) == array.attributes
            assert node.chunks == array.chunks
            assert node.dtype == array.values.dtype
            np.testing.assert_array_equal(node[...], array.values)
        else:
            assert dict(node.attrs) == state.groups[path]


class MessagePackMachine(NumberedRefsMachine):
    """The same with MessagePack."""

    encoding = "msgpack"


class BinaryMachine(NumberedRefsMachine):
    """The same with the header of document 004."""

    encoding = "binary"


_QUICK = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestJson = NumberedRefsMachine.TestCase
TestJson.settings = _QUICK
TestMessagePack = MessagePackMachine.TestCase
TestMessagePack.settings = _QUICK
TestBinary = BinaryMachine.TestCase
TestBinary.settings = _QUICK
