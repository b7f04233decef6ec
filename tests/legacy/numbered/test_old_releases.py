"""Repositories of every release from the weeks of document 000 to 0.1.3, read through the API."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.credentials import LocalFileSystemAccess
from icefloe.errors import FormatError, ReadOnlyError, RefNotFoundError
from icefloe.format.layout import Generation
from tests.legacy.numbered.old_repositories import Builder, Commit, World, check_contents, contents
from tests.legacy.numbered.releases import RELEASES, Release

GENERATIONS = {
    "2024-09": Generation.NUMBERED,
    "2024-09 Parquet": Generation.NUMBERED,
    **dict.fromkeys(("alpha.1", "alpha.2", "alpha.5", "alpha.8"), Generation.ALPHA),
    **dict.fromkeys(("alpha.10", "alpha.11", "alpha.15", "0.1.0"), Generation.BETA),
}


def built(release: Release, folder: Path, seed: int) -> tuple[World, icefloe.Repository]:
    """A random repository on disk, opened with leave to read its foreign files."""
    foreign = folder / "foreign"
    foreign.mkdir(parents=True)
    storage = icefloe.local_filesystem_storage(folder / "repo")
    prefix = f"file://{foreign}/"
    builder = Builder(release, storage, seed, prefix.removesuffix("/"))
    world = builder.build()
    for name, data in builder.foreign_parts.items():
        (foreign / name).write_bytes(data)
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(foreign)))
    config = icefloe.RepositoryConfig(virtual_chunk_containers={prefix: container})
    repo = icefloe.Repository.open(
        storage, config, authorize_virtual_chunk_access={prefix: LocalFileSystemAccess}
    )
    return world, repo


@pytest.fixture(params=RELEASES.values(), ids=lambda release: release.name)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[World, icefloe.Repository]:
    return built(request.param, tmp_path, 1)


def check_all(world: World, repo: icefloe.Repository) -> None:
    """Everything that can be seen is what the model says."""
    assert repo.list_branches() == world.branches.keys()
    assert repo.list_tags() == world.tags.keys()
    for name, commit in world.branches.items():
        assert repo.lookup_branch(name) == commit.text
        check_contents(contents(repo.readonly_session(name)), commit.state)
        check_history(repo, commit)
    for name, commit in world.tags.items():
        assert repo.lookup_tag(name) == commit.text
        if commit.state.nodes:
            check_contents(contents(repo.readonly_session(tag=name)), commit.state)
    for commit in world.branches["main"].line():
        if commit.state.nodes:
            session = repo.readonly_session(snapshot_id=commit.text)
            assert session.snapshot_id == commit.text
            check_contents(contents(session), commit.state)


def check_history(repo: icefloe.Repository, commit: Commit) -> None:
    found = list(repo.ancestry(snapshot_id=commit.text))
    line = commit.line()
    assert [entry.id for entry in found] == [each.text for each in line]
    assert [entry.parent_id for entry in found] == [*(each.text for each in line[1:]), None]
    assert [entry.message for entry in found] == [each.message for each in line]
    assert [entry.metadata for entry in found] == [each.properties for each in line]
    times = [int(entry.written_at.timestamp() * 1e6 + 0.5) for entry in found]
    assert times == pytest.approx([each.written_at for each in line], abs=1)


def test_everything_is_what_the_model_says(opened: tuple[World, icefloe.Repository]) -> None:
    check_all(*opened)


@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.name)
def test_random_repositories(release: Release, tmp_path: Path, seed: int) -> None:
    check_all(*built(release, tmp_path, seed))


def test_the_generation_is_told(opened: tuple[World, icefloe.Repository]) -> None:
    world, repo = opened
    expected = GENERATIONS[world.release.name]
    assert repo.generation is expected
    assert f"<icefloe.Repository ({expected.value})>" in repr(repo)
    assert repo.spec_version == 0
    assert icefloe.Repository.exists(repo.storage)


def test_differences(opened: tuple[World, icefloe.Repository]) -> None:
    """From logs where the release has them, else by comparison."""
    world, repo = opened
    line = world.branches["main"].line()
    for commit in line[:-1]:
        assert commit.parent is not None
        diff = repo.diff(from_snapshot_id=commit.parent.text, to_snapshot_id=commit.text)
        arrays = {node.path for node in commit.new if node.array is not None}
        assert diff.new_arrays == arrays
        assert diff.new_groups == {node.path for node in commit.new} - arrays
        gone = {node.path for node in commit.deleted}
        assert diff.deleted_arrays | diff.deleted_groups == gone
        updated = {node.path for node in commit.updated}
        found = diff.updated_arrays | diff.updated_groups
        chunks = {path: {tuple(i) for i in found} for path, found in diff.updated_chunks.items()}
        if world.release.log_items:
            assert found == updated
            assert chunks == commit.chunks
        else:  # a node may have been given the attributes it had, and a chunk its bytes
            assert found <= updated
            rewritten = {(path, i) for path, rows in commit.chunks.items() for i in rows}
            changed = {(path, i) for path, rows in chunks.items() for i in rows}
            assert changed <= rewritten
            for path, index in rewritten - changed:
                before = commit.parent.state.arrays[path].chunks
                assert before[index] == commit.state.arrays[path].chunks[index]
                assert before[index][0] == "Inline"


def test_maintenance_that_only_reads(opened: tuple[World, icefloe.Repository]) -> None:
    world, repo = opened
    report = repo.verify()
    assert not report.findings
    assert report.checked["snapshots"] == len({each.id for each in _all_commits(world)})
    folder = world.release.folder("chunks")
    stored = sum(size for _, size in repo.storage.list_objects(prefix=folder))
    assert repo.chunk_storage_stats().native_bytes == stored
    for inspect in (repo.inspect_snapshot, repo.inspect_manifest, repo.inspect_transaction_log):
        with pytest.raises(FormatError, match="migrate it first"):
            inspect(world.branches["main"].text)


def _all_commits(world: World) -> list[Commit]:
    tips = [*world.branches.values(), *world.tags.values()]
    return [each for tip in tips for each in tip.line()]


def test_nothing_can_be_written(opened: tuple[World, icefloe.Repository]) -> None:
    world, repo = opened
    tip = world.branches["main"].text
    for write in (
        lambda: repo.writable_session("main"),
        lambda: repo.create_branch("new", tip),
        lambda: repo.create_tag("new", tip),
        lambda: repo.reset_branch("side", tip),
    ):
        with pytest.raises(ReadOnlyError, match="can only be read; migrate it first"):
            write()


def test_deleted_tags_are_gone(opened: tuple[World, icefloe.Repository]) -> None:
    _, repo = opened
    with pytest.raises(RefNotFoundError, match="tag 'gone'"):
        repo.lookup_tag("gone")


def test_sessions_travel(opened: tuple[World, icefloe.Repository]) -> None:
    world, repo = opened
    again = pickle.loads(pickle.dumps(repo.readonly_session("main")))
    check_contents(contents(again), world.branches["main"].state)


async def _async_ancestry(repo: icefloe.Repository) -> list[Any]:
    return [entry.message for entry in await repo.ancestry_async(branch="main")]


def test_the_same_inside_an_event_loop(opened: tuple[World, icefloe.Repository]) -> None:
    world, repo = opened
    line = world.branches["main"].line()
    assert asyncio.run(_async_ancestry(repo)) == [commit.message for commit in line]
