"""zarr's state machines, with commits and fresh sessions in between, on every storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, assume, note, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.stateful import SyncStoreWrapper, ZarrHierarchyStateMachine, ZarrStoreStateMachine

from icefloe import PackingConfig, Repository, RepositoryConfig, Session, Storage
from tests.places import fresh_storage
from tests.servers import S3Server
from tests.store.scripts import GROUP, array

# The same sequences on every run; a new machine makes a new repository, which costs most on S3.
EXAMPLES = {"memory": (10, 25), "local": (6, 20), "s3": (3, 12)}
KINDS = [
    *(
        pytest.param(kind, spec, id=f"{kind} v{spec}")
        for kind in ("memory", "local")
        for spec in (2, 1)
    ),
    pytest.param("s3", 2, id="s3 v2"),
]
# So small that packs fill up in the middle of things, and some chunks are inline or alone.
PACKING = RepositoryConfig(
    inline_chunk_threshold_bytes=16,
    packing=PackingConfig(target_size_bytes=900, max_chunk_size_bytes=500),
)
CONFIGS = [pytest.param(None, id="plain"), pytest.param(PACKING, id="packing")]


@pytest.fixture
def make_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Storage]:
    made = 0

    def make(kind: str) -> Storage:
        nonlocal made
        made += 1
        server: S3Server | None = request.getfixturevalue("s3_server") if kind == "s3" else None
        return fresh_storage(kind, tmp_path / str(made), server)

    return make


def play(machine: Callable[[], Any], kind: str) -> None:
    examples, steps = EXAMPLES[kind]
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type] # a function that makes one will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )


class Committing:
    """The rules both machines gain: commit and go on in a new session, or reopen everything."""

    repository: Repository
    session: Session

    def open_session(
        self, storage: Storage, spec_version: int, config: RepositoryConfig | None
    ) -> Any:
        self.repository = Repository.create(storage, config, spec_version=spec_version)
        self.session = self.repository.writable_session("main")
        return self.session.store

    def commit_and_go_on(self, *, is_reopened: bool) -> Any:
        if self.session.has_uncommitted_changes:
            note("committing")
            snapshot = self.session.commit("go on")
            assert self.session.read_only
            assert self.repository.lookup_branch("main") == snapshot
        if is_reopened:
            note("reopening")
            self.repository = Repository.open(self.repository.storage)
        self.session = self.repository.writable_session("main")
        return self.session.store


# -- groups and arrays, through zarr


class Hierarchy(Committing, ZarrHierarchyStateMachine):
    def __init__(
        self, storage: Storage, spec_version: int, config: RepositoryConfig | None
    ) -> None:
        super().__init__(self.open_session(storage, spec_version, config))

    @rule(is_reopened=st.booleans())
    def commit(self, is_reopened: bool) -> None:
        before = self.everything()
        self.store = self.commit_and_go_on(is_reopened=is_reopened)
        assert self.everything() == before

    def everything(self) -> dict[str, bytes]:
        found = {}
        for key in self._sync_iter(self.store.list()):
            value = self._sync(self.store.get(key, default_buffer_prototype()))
            assert value is not None
            found[key] = value.to_bytes()
        return found

    @precondition(lambda self: bool(self.all_groups))
    @rule(data=st.data())
    def check_list_dir(self, data: st.DataObject) -> None:
        # Overridden: an array always has a folder of chunks, also while that is empty.
        path = self.draw_directory(data)
        expected = set(self._sync_iter(self.model.list_dir(path)))
        if path in self.all_arrays:
            expected.add("c")
        assert set(self._sync_iter(self.store.list_dir(path))) == expected


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("kind", "spec_version"), KINDS)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_hierarchies(
    kind: str,
    spec_version: int,
    config: RepositoryConfig | None,
    make_storage: Callable[[str], Storage],
) -> None:
    play(lambda: Hierarchy(make_storage(kind), spec_version, config), kind)


# -- single keys

DOCUMENTS = {
    "zarr.json": [GROUP, b'{"node_type":"group","attributes":{}}'],
    "a/zarr.json": [array([4, 6], [2, 3]), array([4, 6], [2, 3], attributes={"x": 1})],
    "a-b/zarr.json": [array([2], [1])],
    "g/zarr.json": [GROUP, b'{"node_type":"group","attributes":{"y":"z"}}'],
    "g/s/zarr.json": [array([], [])],
}
CHUNKS = {
    **{f"a/c/{i}/{j}": "a/zarr.json" for i in range(2) for j in range(2)},
    **{f"a-b/c/{i}": "a-b/zarr.json" for i in range(2)},
    "g/s/c": "g/s/zarr.json",
}
KEYS = st.sampled_from(sorted([*DOCUMENTS, *CHUNKS]))


class Keys(Committing, ZarrStoreStateMachine):
    """Keys and values are drawn from a small hierarchy, because others mean nothing here."""

    def __init__(
        self, storage: Storage, spec_version: int, config: RepositoryConfig | None
    ) -> None:
        super().__init__(self.open_session(storage, spec_version, config))

    @rule(is_reopened=st.booleans())
    def commit(self, is_reopened: bool) -> None:
        self.store = SyncStoreWrapper(self.commit_and_go_on(is_reopened=is_reopened))

    @rule(key=KEYS, data=st.binary(min_size=1, max_size=700), choice=st.integers(0, 1))
    def set(self, key: str, data: bytes, choice: int) -> None:
        if key in CHUNKS:
            assume(CHUNKS[key] in self.model)
        else:
            # A group without a node is not listed, so the model cannot have one.
            assume(key != "g/s/zarr.json" or "g/zarr.json" in self.model)
            documents = DOCUMENTS[key]
            data = documents[choice % len(documents)]
        note(f"setting {key!r} to {data!r}")
        self.store.set(key, cpu.Buffer.from_bytes(data))
        self.model[key] = cpu.Buffer.from_bytes(data)

    @rule(key=KEYS)
    def get_invalid_zarr_keys(self, key: str) -> None:
        assume(key not in self.model)
        assert self.store.get(key, self.prototype) is None

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        note(f"deleting {key!r}")
        self.store.delete(key)
        gone = key.removesuffix("zarr.json") if key in DOCUMENTS else key
        self.model = {
            other: value
            for other, value in self.model.items()
            if other != key and not (key in DOCUMENTS and other.startswith(gone))
        }

    @rule(key=KEYS)
    def exists(self, key: str) -> None:
        assert self.store.exists(key) == (key in self.model)

    @rule(key=st.sampled_from(sorted(DOCUMENTS)))
    def getsize_prefix(self, key: str) -> None:
        assume(key in self.model)
        folder = key.removesuffix("zarr.json")
        expected = sum(
            len(value) for other, value in self.model.items() if other.startswith(folder)
        )
        # Not through the wrapper, which lacks this method before Zarr 3.3.
        store = self.store.store
        assert self.store._sync(store.getsize_prefix(folder.removesuffix("/"))) == expected

    model: dict[str, Buffer]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("kind", "spec_version"), KINDS)
def test_keys(
    kind: str,
    spec_version: int,
    config: RepositoryConfig | None,
    make_storage: Callable[[str], Storage],
) -> None:
    play(lambda: Keys(make_storage(kind), spec_version, config), kind)
