"""Arrays that share manifests: official Icechunk reads, extends, rewrites and collects them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("icechunk", minversion="2", reason="official needs Python 3.12")

import icechunk
from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from benchmarks import touched_arrays
from icefloe.repo.session import all_chunks
from icefloe.storage.run import run_blocking

Chunk = tuple[str, tuple[int, ...]]
Model = dict[str, dict[tuple[int, ...], bytes]]

INLINE = 40


def config(library: Any, **manifest: Any) -> Any:
    made = library.ManifestConfig(**manifest)
    return library.RepositoryConfig(inline_chunk_threshold_bytes=INLINE, manifest=made)


def create(folder: Path, spec_version: int = 2, **manifest: Any) -> icefloe.Repository:
    return icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(folder)),
        config(icefloe, **manifest),
        spec_version=spec_version,
    )


def opened(library: Any, folder: Path, **manifest: Any) -> Any:
    storage = library.local_filesystem_storage(str(folder))
    return library.Repository.open(storage, config(library, **manifest))


def document(shape: tuple[int, ...]) -> bytes:
    """The zarr.json of an array with chunks of one element."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}}
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "uint8",
            "chunk_grid": grid,
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {},
        }
    ).encode()


GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def put(session: Any, items: Mapping[str, bytes | None]) -> None:
    """Set keys of the store, or delete them."""

    async def run() -> None:
        for key, data in items.items():
            if data is None:
                await session.store.delete(key)
            else:
                await session.store.set(key, cpu.Buffer.from_bytes(data))

    asyncio.run(run())


def get(session: Any, keys: Iterable[str]) -> dict[str, bytes | None]:
    async def run() -> dict[str, bytes | None]:
        found = {}
        for key in keys:
            data = await session.store.get(key, default_buffer_prototype())
            found[key] = None if data is None else data.to_bytes()
        return found

    return asyncio.run(run())


def key_of(path: str, at: tuple[int, ...]) -> str:
    return "/".join([path, "c", *map(str, at)])


def write_arrays(repo: Any, paths: Iterable[str], tag: bytes, size: int = 100) -> None:
    """One commit that sets the only chunk of every array, and makes those that are not there."""
    session = repo.writable_session("main")
    known = get(session, [f"{path}/zarr.json" for path in paths])
    for path in paths:
        if known[f"{path}/zarr.json"] is None:
            put(session, {f"{path}/zarr.json": document((1,))})
        put(session, {key_of(path, (0,)): (tag + path.encode()).ljust(size, b".")})
    session.commit(tag.decode())


def manifests_of(repo: icefloe.Repository) -> list[int]:
    """The number of references in each manifest of main."""
    files = repo.list_manifest_files(repo.lookup_branch("main"))
    return sorted(file.num_chunk_refs for file in files)


def all_of(repo: Any, paths: Iterable[str]) -> dict[str, bytes | None]:
    return get(repo.readonly_session("main"), [key_of(path, (0,)) for path in paths])


def expire_and_collect(library: Any, repo: Any) -> None:
    time.sleep(0.01)
    cut = datetime.now(UTC)
    repo.expire_snapshots(older_than=cut)
    repo.garbage_collect(datetime.now(UTC) + timedelta(seconds=1) if library is icechunk else cut)


PATHS = [f"g{group}/v{number}" for group in range(3) for number in range(20)]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_arrays_of_a_commit_share_manifests(tmp_path: Path, spec_version: int) -> None:
    repo = create(tmp_path, spec_version, max_refs_per_shared_manifest=25)
    write_arrays(repo, PATHS, b"first")
    assert manifests_of(repo) == [20, 20, 20]  # each ends with its group
    expected = all_of(repo, PATHS)
    assert None not in expected.values()
    theirs = opened(icechunk, tmp_path)
    assert all_of(theirs, PATHS) == expected
    assert repo.verify().is_healthy


def test_sharing_can_be_switched_off(tmp_path: Path) -> None:
    repo = create(tmp_path, max_shared_refs_per_array=0)
    write_arrays(repo, PATHS, b"first")
    assert manifests_of(repo) == [1] * len(PATHS)
    repo.save_config()
    again = opened(icefloe, tmp_path).config.manifest
    assert again is not None
    assert again.max_shared_refs_per_array == 0


def test_a_rule_of_splitting_keeps_a_manifest_for_its_arrays(tmp_path: Path) -> None:
    one = icefloe.ManifestSplitCondition.name_matches("^v1$")
    axis = icefloe.ManifestSplitDimCondition.Any()
    splitting = icefloe.ManifestSplittingConfig.from_dict({one: {axis: 100}})
    repo = create(tmp_path, splitting=splitting)
    write_arrays(repo, PATHS, b"first")
    assert manifests_of(repo) == [1, 1, 1, 57]


def test_the_bytes_of_a_manifest_are_bounded(tmp_path: Path) -> None:
    repo = create(tmp_path, max_bytes_per_shared_manifest=1_000)
    write_arrays(repo, PATHS, b"first", size=INLINE)
    assert max(manifests_of(repo)) == 12  # 40 bytes each, and as many for the reference


def test_a_large_array_keeps_its_own(tmp_path: Path) -> None:
    repo = create(tmp_path)
    session = repo.writable_session("main")
    put(session, {"zarr.json": GROUP, "big/zarr.json": document((65,))})
    put(session, {key_of("big", (at,)): b"%d" % at for at in range(65)})
    for name in "ab":
        put(session, {f"{name}/zarr.json": document((65,)), key_of(name, (64,)): b"x"})
    session.commit("first")
    assert manifests_of(repo) == [2, 65]
    session = repo.writable_session("main")
    put(session, {key_of("a", (at,)): b"%d" % at for at in range(65)})
    session.commit("grows")
    assert manifests_of(repo) == [1, 65, 65]  # half of what both shared would be dead
    found = get(opened(icechunk, tmp_path).readonly_session("main"), [key_of("a", (64,)), "b/c/64"])
    assert list(found.values()) == [b"64", b"x"]


def test_a_commit_writes_only_the_arrays_it_touches_until_too_much_is_dead(tmp_path: Path) -> None:
    repo = create(tmp_path)
    write_arrays(repo, PATHS, b"first")
    assert manifests_of(repo) == [60]
    write_arrays(repo, PATHS[:12], b"second")  # a fifth
    assert manifests_of(repo) == [12, 60]
    write_arrays(repo, PATHS[12:13], b"third")
    assert manifests_of(repo) == [12, 48]
    expected = all_of(repo, PATHS)
    assert [value[:6] for value in expected.values() if value] == (
        [b"second"] * 12 + [b"thirdg"] + [b"firstg"] * 47
    )
    assert all_of(opened(icechunk, tmp_path), PATHS) == expected


def test_deleted_arrays_are_dead_as_well(tmp_path: Path) -> None:
    repo = create(tmp_path)
    write_arrays(repo, PATHS, b"first")
    session = repo.writable_session("main")
    put(session, dict.fromkeys([f"{path}/zarr.json" for path in PATHS[:12]]))
    session.commit("delete some")
    assert manifests_of(repo) == [60]
    session = repo.writable_session("main")
    put(session, {f"{PATHS[12]}/zarr.json": None})
    session.commit("delete one more")
    assert manifests_of(repo) == [47]
    expected = all_of(repo, PATHS[13:])
    assert None not in expected.values()
    assert all_of(opened(icechunk, tmp_path), PATHS[13:]) == expected


def test_few_large_chunks_count_by_their_bytes(tmp_path: Path) -> None:
    repo = create(tmp_path)
    write_arrays(repo, PATHS[:1], b"first", size=10_000)
    session = repo.writable_session("main")
    put(session, {key_of(PATHS[0], (0,)): b"x" * 10_000})
    for path in PATHS[1:]:
        put(session, {f"{path}/zarr.json": document((1,)), key_of(path, (0,)): b"x" * 41})
    session.commit("all")
    assert manifests_of(repo) == [60]
    write_arrays(repo, PATHS[:1], b"again")
    assert manifests_of(repo) == [60]


def test_small_commits_leave_few_dead_chunks_and_smaller_manifests() -> None:
    found = touched_arrays.run(arrays=100, commits=12, touched=5)
    shared, alone = found["shared"], found["one each"]
    assert max(shared.chunk_share.values()) <= 1.3
    assert set(alone.chunk_share.values()) == {1.0}
    assert shared.manifests < alone.manifests
    assert shared.manifest_bytes < alone.manifest_bytes
    for side, num_bytes in shared.manifest_bytes_after.items():
        assert num_bytes < alone.manifest_bytes_after[side]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_rewriting_manifests_in_turns(tmp_path: Path, spec_version: int) -> None:
    write_arrays(create(tmp_path, spec_version), PATHS, b"first")
    ours = opened(icefloe, tmp_path)
    write_arrays(ours, PATHS[:5], b"second")
    expected = all_of(ours, PATHS)
    opened(icechunk, tmp_path).rewrite_manifests("one each", branch="main")
    assert manifests_of(opened(icefloe, tmp_path)) == [1] * 60
    assert all_of(opened(icefloe, tmp_path), PATHS) == expected
    opened(icefloe, tmp_path).rewrite_manifests("together", branch="main")
    ours = opened(icefloe, tmp_path)
    assert manifests_of(ours) == [60]
    for library in (icechunk, icefloe):
        assert all_of(opened(library, tmp_path), PATHS) == expected
    assert ours.verify().is_healthy


class Program:
    """Random commits by both libraries, and what should be there afterwards."""

    def __init__(self, folder: Path, seed: int, *, spec_version: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.model: Model = {}
        create(folder, spec_version)
        self.clock = 0

    def repo(self, library: Any) -> Any:
        limits = {"max_refs_per_shared_manifest": 30, "max_shared_refs_per_array": 12}
        return opened(library, self.folder, **(limits if library is icefloe else {}))

    def commit(self, library: Any) -> None:
        session = self.repo(library).writable_session("main")
        self.clock += 1
        changed = False
        for _ in range(self.random.choice([1, 4, 15, 40])):
            changed |= self.edit(session)
        if changed:
            session.commit(f"{library.__name__} {self.clock}")

    def edit(self, session: Any) -> bool:
        pick = self.random.random()
        path = f"{self.random.choice('ab')}/v{self.random.randrange(40)}"
        if path not in self.shapes:
            shape = self.random.choice([(), (1,), (1,), (5,), (30,), (2, 3), (2, 2, 2)])
            self.shapes[path], self.model[path] = shape, {}
            put(session, {f"{path}/zarr.json": document(shape)})
        shape, chunks = self.shapes[path], self.model[path]
        if pick < 0.08:
            del self.shapes[path], self.model[path]
            put(session, {f"{path}/zarr.json": None})
            return True
        if pick < 0.16 and shape:
            shape = (self.random.randrange(1, 40), *shape[1:])
            self.shapes[path] = shape
            self.model[path] = {at: data for at, data in chunks.items() if at[0] < shape[0]}
            # Chunks beyond the end come back when an array grows again: they are deleted here.
            put(session, {key_of(path, at): None for at in chunks if at[0] >= shape[0]})
            put(session, {f"{path}/zarr.json": document(shape)})
            return True
        at = tuple(self.random.randrange(size) for size in shape)
        if pick < 0.3:
            chunks.pop(at, None)
            put(session, {key_of(path, at): None})
            return True
        for _ in range(self.random.choice([1, 1, 20])):
            at = tuple(self.random.randrange(size) for size in shape)
            self.clock += 1
            chunks[at] = b"%d" % self.clock * self.random.choice([1, 30])
            put(session, {key_of(path, at): chunks[at]})
        return True

    def check(self) -> None:
        keys = {
            key_of(path, at): data
            for path, chunks in self.model.items()
            for at, data in chunks.items()
        }
        for library in (icefloe, icechunk):
            assert get(self.repo(library).readonly_session("main"), keys) == keys, library.__name__
        repo = self.repo(icefloe)
        workspace = repo.readonly_session("main").workspace
        for path, chunks in self.model.items():
            node = workspace.state.node(f"/{path}")
            refs = run_blocking(all_chunks(workspace.handle, workspace.state.view, node))
            assert sorted(map(tuple, refs.index.tolist())) == sorted(chunks), path
        report = repo.verify()
        assert report.is_healthy, report


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_random_turns(tmp_path: Path, seed: int, spec_version: int) -> None:
    program = Program(tmp_path, seed, spec_version=spec_version)
    for _ in range(14):
        library = program.random.choice([icefloe, icefloe, icechunk])
        pick = program.random.random()
        if program.model and pick < 0.1:
            program.repo(library).rewrite_manifests("rewritten", branch="main")
        elif program.model and pick < 0.25:
            expire_and_collect(library, program.repo(library))
        else:
            program.commit(library)
        program.check()
