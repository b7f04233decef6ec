"""Repositories of every generation become repositories of today, read by us and by official."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.credentials import LocalFileSystemAccess
from icefloe.errors import AlreadyExistsError, FormatError, InvalidInputError
from icefloe.legacy import convert
from icefloe.storage.run import run_blocking
from tests.legacy.numbered.old_repositories import Commit, World, check_contents, contents
from tests.legacy.numbered.releases import RELEASES, Release
from tests.legacy.numbered.test_old_releases import built

FIRST = "1CECHNKREP0F1RSTCMT0"


def access(folder: Path) -> dict[str, Any]:
    """Leave to read foreign files, and the files of the old repository."""
    prefixes = (f"file://{folder / 'foreign'}/", f"file://{folder / 'repo'}/")
    return dict.fromkeys(prefixes, LocalFileSystemAccess)


def config_of(world_folder: Path) -> icefloe.RepositoryConfig:
    prefix = f"file://{world_folder / 'foreign'}/"
    store = icefloe.local_filesystem_store(str(world_folder / "foreign"))
    container = icefloe.VirtualChunkContainer(prefix, store)
    return icefloe.RepositoryConfig(virtual_chunk_containers={prefix: container})


def check_migrated(world: World, repo: icefloe.Repository, report: icefloe.MigrationReport) -> None:
    """Data, attributes, messages, properties, times, order and refs are those of the model."""
    assert repo.list_branches() == world.branches.keys()
    assert repo.list_tags() == world.tags.keys()
    for name, commit in world.branches.items():
        assert repo.lookup_branch(name) == report.snapshots[commit.text]
        check_line(repo, commit, report)
    for name, commit in world.tags.items():
        assert repo.lookup_tag(name) == report.snapshots[commit.text]
    for commit in world.branches["main"].line():
        session = repo.readonly_session(snapshot_id=report.snapshots[commit.text])
        if commit.state.nodes:
            check_contents(contents(session), commit.state)


def check_line(repo: icefloe.Repository, commit: Commit, report: icefloe.MigrationReport) -> None:
    line = [each for each in commit.line() if report.snapshots[each.text] != FIRST]
    found = list(repo.ancestry(snapshot_id=report.snapshots[commit.text]))
    assert found[-1].id == FIRST
    assert [entry.id for entry in found[:-1]] == [report.snapshots[each.text] for each in line]
    assert [entry.message for entry in found[:-1]] == [each.message for each in line]
    for entry, each in zip(found[:-1], line, strict=True):
        properties = dict(entry.metadata)
        old = properties.pop("icefloe.migrated_from", each.text)
        assert (old, properties) == (each.text, each.properties)
    times = [entry.written_at for entry in found]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


def check_official(world: World, folder: Path, report: icefloe.MigrationReport) -> None:
    """Official Icechunk sees the same history and data, and goes on from there."""
    official = pytest.importorskip("icechunk")
    foreign = folder.parent / "foreign"
    prefix = f"file://{foreign}/"
    config = official.RepositoryConfig.default()
    store = official.local_filesystem_store(str(foreign))
    config.set_virtual_chunk_container(official.VirtualChunkContainer(prefix, store))
    repo = official.Repository.open(
        official.local_filesystem_storage(str(folder)),
        config,
        authorize_virtual_chunk_access={prefix: official.credentials.LocalFileSystemAccess},
    )
    assert repo.list_branches() == world.branches.keys()
    assert repo.list_tags() == world.tags.keys()
    for commit in {
        each.id: each for tip in world.branches.values() for each in tip.line()
    }.values():
        session = repo.readonly_session(snapshot_id=report.snapshots[commit.text])
        if commit.state.nodes:
            check_contents(contents(session), commit.state)
    ours = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder)))
    mine = [(entry.id, entry.message) for entry in ours.ancestry(branch="main")]
    assert [(entry.id, entry.message) for entry in repo.ancestry(branch="main")] == mine
    session = repo.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    for path, array in root.members(max_depth=None):
        if isinstance(array, zarr.Array):
            expected = zarr.open_array(ours.readonly_session("main").store, path=path, mode="r")
            assert array.metadata.to_dict() == expected.metadata.to_dict()
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="added_by_official")
    session.commit("official goes on")
    assert "added_by_official" in zarr.open_group(ours.readonly_session("main").store, mode="r")


@pytest.fixture(params=RELEASES.values(), ids=lambda release: release.name)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[World, icefloe.Repository]:
    found: Release = request.param
    return built(found, tmp_path, 2)


@pytest.mark.parametrize("version", [2, 1])
def test_into_another_storage(
    source: tuple[World, icefloe.Repository], tmp_path: Path, version: int
) -> None:
    world, old = source
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    before = dict(old.storage.list_objects())
    planned = icefloe.migrate_repository(
        old, target, spec_version=version, config=config_of(tmp_path), dry_run=True
    )
    assert not icefloe.Repository.exists(target)
    report = icefloe.migrate_repository(
        old, target, spec_version=version, config=config_of(tmp_path)
    )
    assert (planned.snapshots, planned.branches, planned.tags) == (
        report.snapshots,
        report.branches,
        report.tags,
    )
    assert report.chunks_compared == report.chunks_copied
    assert dict(old.storage.list_objects()) == before
    repo = icefloe.Repository.open(target, authorize_virtual_chunk_access=access(tmp_path))
    assert repo.spec_version == version
    check_migrated(world, repo, report)
    found = repo.verify()
    assert found.is_healthy
    assert not found.of_kind("orphan")
    assert report.manifests == found.checked["manifests"]
    check_official(world, tmp_path / "new", report)
    with pytest.raises(AlreadyExistsError):
        icefloe.migrate_repository(old, target, spec_version=version)


@pytest.mark.parametrize("chunks", ["copy", "keep"])
def test_in_place(source: tuple[World, icefloe.Repository], tmp_path: Path, chunks: Any) -> None:
    world, old = source
    files = dict(old.storage.list_objects())
    report = icefloe.migrate_repository(old, config=config_of(tmp_path), chunks=chunks)
    after = dict(old.storage.list_objects())
    assert {key: after[key] for key in files} == files
    if chunks == "keep" or old.generation in ("alpha", "beta"):
        new = after.keys() - files.keys()
        assert not [key for key in new if key.startswith("chunks/")]
    repo = icefloe.Repository.open(old.storage, authorize_virtual_chunk_access=access(tmp_path))
    assert repo.spec_version == 2
    check_migrated(world, repo, report)


@pytest.mark.parametrize("version", [2, 1])
@pytest.mark.parametrize("seed", range(3, 7))
@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.name)
def test_overlapping_manifests_are_joined_and_official_reads_every_value(
    release: Release, tmp_path: Path, seed: int, version: int
) -> None:
    world, old = built(release, tmp_path, seed)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    report = icefloe.migrate_repository(
        old, target, spec_version=version, config=config_of(tmp_path)
    )
    assert icefloe.Repository.open(target).verify().is_healthy
    check_official(world, tmp_path / "new", report)


def test_the_check_of_a_migration_is_that_of_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests that overlap hold the same references as before, and only `verify` finds them."""
    _world, old = built(RELEASES["0.1.0"], tmp_path, 3)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    monkeypatch.setattr(convert, "overlapping_boxes", lambda _: iter(()))
    with pytest.raises(FormatError, match=r"overlapping-manifests.*Nothing has been published"):
        icefloe.migrate_repository(old, target, config=config_of(tmp_path))
    assert not icefloe.Repository.exists(target)
    icefloe.migrate_repository(old, target, config=config_of(tmp_path), check=False)
    assert icefloe.Repository.open(target).verify().of_kind("overlapping-manifests")


def test_what_broke_off_is_continued(
    source: tuple[World, icefloe.Repository], tmp_path: Path
) -> None:
    world, old = source
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))

    def stop(progress: Any) -> None:
        if progress.stage == "compare snapshots":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        icefloe.migrate_repository(old, target, config=config_of(tmp_path), progress=stop)
    assert not icefloe.Repository.exists(target)
    report = icefloe.migrate_repository(old, target, config=config_of(tmp_path))
    assert report.chunks_copied == 0
    repo = icefloe.Repository.open(target, authorize_virtual_chunk_access=access(tmp_path))
    check_migrated(world, repo, report)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("release", ["2024-09 Parquet", "2024-09", "alpha.8", "0.1.0"])
def test_short_chunks_of_an_interrupted_migration_are_copied_again(
    release: str, tmp_path: Path, check: bool
) -> None:
    world, old = built(RELEASES[release], tmp_path, 2)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    first = icefloe.migrate_repository(old, target, config=config_of(tmp_path))
    (tmp_path / "new" / "repo").unlink()
    chunks = sorted((tmp_path / "new" / "chunks").iterdir())
    assert len(chunks) == first.chunks_copied > 2
    for short in chunks[:2]:
        short.write_bytes(short.read_bytes()[:-1])
    report = icefloe.migrate_repository(old, target, config=config_of(tmp_path), check=check)
    assert report.chunks_copied == 2
    repo = icefloe.Repository.open(target, authorize_virtual_chunk_access=access(tmp_path))
    assert repo.verify().is_healthy
    check_migrated(world, repo, report)


def test_a_migration_into_a_folder_of_its_source_is_refused(tmp_path: Path) -> None:
    _, old = built(RELEASES["0.1.0"], tmp_path, 2)
    below = icefloe.local_filesystem_storage(str(tmp_path / "repo" / "new"))
    with pytest.raises(InvalidInputError, match="inside of the repository"):
        icefloe.migrate_repository(old, below)


def test_a_chunk_that_changed_on_the_way_is_found(tmp_path: Path) -> None:
    _world, old = built(RELEASES["0.1.0"], tmp_path, 2)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))

    def damage(progress: Any) -> None:
        if progress.stage == "compare snapshots" and progress.done == 0:
            for path in (tmp_path / "new" / "chunks").iterdir():
                path.write_bytes(b"?" * path.stat().st_size)

    with pytest.raises(FormatError, match="Nothing has been published"):
        icefloe.migrate_repository(old, target, config=config_of(tmp_path), progress=damage)
    assert not icefloe.Repository.exists(target)


def test_places_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    _, old = built(RELEASES["alpha.8"], tmp_path, 2)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    run_blocking(storage.driver(blocking=True).put("notes.txt", b"mine"))
    with pytest.raises(InvalidInputError, match=r"notes\.txt"):
        icefloe.migrate_repository(old, storage)
    with pytest.raises(InvalidInputError, match="another storage"):
        icefloe.migrate_repository(old, spec_version=1)
    with pytest.raises(InvalidInputError, match="'copy' or 'keep'"):
        icefloe.migrate_repository(old, storage, chunks="move")  # type: ignore[arg-type]
