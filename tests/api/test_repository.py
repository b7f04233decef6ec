"""Repositories: making and finding them, refs, history, settings; on every storage."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import (
    FIRST_SNAPSHOT_ID,
    AlreadyExistsError,
    ConflictError,
    FormatError,
    ReadOnlyError,
    RefNotFoundError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepositoryNotFoundError,
    RepoStatus,
    SnapshotNotFoundError,
    SpecVersion,
    Storage,
    StorageError,
    StorageSettings,
    UpdateType,
    in_memory_storage,
)
from icefloe.storage.run import run_blocking
from tests.api.histories import clock_of, make, now, write
from tests.servers import S3Server

both_versions = pytest.mark.parametrize("spec_version", [1, 2])


# -- making and finding


@both_versions
def test_a_new_repository_is_empty_and_is_found(storage: Storage, spec_version: int) -> None:
    assert not Repository.exists(storage)
    assert Repository.fetch_spec_version(storage) is None
    repository = Repository.create(storage, spec_version=spec_version)
    assert Repository.exists(storage)
    assert Repository.exists(storage, StorageSettings())
    assert Repository.fetch_spec_version(storage) == SpecVersion(spec_version)
    assert repository.spec_version == spec_version
    assert repository.storage == storage
    for found in (repository, Repository.open(storage)):
        assert found.list_branches() == {"main"}
        assert found.list_tags() == set()
        assert found.lookup_branch("main") == FIRST_SNAPSHOT_ID.text
        [first] = found.ancestry(branch="main")
        assert first.message == "Repository initialized"
        assert first.parent_id is None
        assert first.metadata == {"__icechunk": {"is_root": True}}
        assert abs(now() - first.written_at) < timedelta(minutes=5)


@both_versions
def test_open_or_create_creates_once(storage: Storage, spec_version: int) -> None:
    first = Repository.open_or_create(storage, create_version=spec_version)
    snapshot = write(first, "a")
    second = Repository.open_or_create(storage, create_version=3 - spec_version)
    assert second.spec_version == spec_version
    assert second.lookup_branch("main") == snapshot


def test_the_default_version_is_2() -> None:
    assert SpecVersion.current() == SpecVersion.v2
    assert Repository.create(in_memory_storage()).spec_version == SpecVersion.v2
    assert Repository.create(in_memory_storage(), spec_version=SpecVersion.v1).spec_version == 1


@both_versions
def test_repositories_pickle(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    repository.set_default_commit_metadata({"author": "me"})
    loaded = pickle.loads(pickle.dumps(repository))
    assert loaded.lookup_branch("main") == ids[-1]
    assert loaded.spec_version == spec_version
    assert loaded.default_commit_metadata() == {"author": "me"}
    tip = write(loaded, "four")
    assert repository.lookup_branch("main") == tip
    assert repository.lookup_snapshot(tip).metadata == {"author": "me"}


# -- configuration


@both_versions
def test_a_configuration_is_saved_and_found(storage: Storage, spec_version: int) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    repository = Repository.create(storage, config, spec_version=spec_version)
    assert Repository.fetch_config(storage) == config
    assert repository.config.inline_chunk_threshold_bytes == 7
    opened = Repository.open(storage, RepositoryConfig(get_partial_values_concurrency=3))
    assert opened.config.inline_chunk_threshold_bytes == 7
    assert opened.config.get_partial_values_concurrency == 3
    found = Repository.fetch_config(storage)
    assert found is not None
    assert found.get_partial_values_concurrency is None
    opened.save_config()
    assert Repository.fetch_config(storage) == opened.config
    assert Repository.open(storage).config.get_partial_values_concurrency == 3


@both_versions
def test_nothing_is_saved_unless_asked_for(spec_version: int) -> None:
    for config in (None, RepositoryConfig()):
        storage = in_memory_storage()
        Repository.create(storage, config, spec_version=spec_version)
        assert Repository.fetch_config(storage) is None


def test_there_is_no_configuration_where_nothing_is(storage: Storage) -> None:
    with pytest.raises(
        RepositoryNotFoundError, match="the repository doesn't exist: found none in"
    ):
        Repository.fetch_config(storage)


def test_there_is_no_repository_in_a_bucket_that_does_not_exist(s3_server: S3Server) -> None:
    missing = s3_server.storage(bucket="no-such-bucket")
    assert not Repository.exists(missing)
    assert Repository.fetch_spec_version(missing) is None
    for find in (Repository.fetch_config, Repository.open):
        with pytest.raises(RepositoryNotFoundError, match="no-such-bucket"):
            find(missing)
    for create in (Repository.create, Repository.open_or_create):
        with pytest.raises(StorageError, match="NoSuchBucket"):
            create(missing)
    refused = s3_server.storage(access_key_id="unknown", secret_access_key="x")
    with pytest.raises(StorageError, match="AccessDenied"):
        Repository.exists(refused)


@both_versions
def test_reopening_lays_a_configuration_on_top(storage: Storage, spec_version: int) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    repository = Repository.create(storage, config, spec_version=spec_version)
    again = repository.reopen(RepositoryConfig(get_partial_values_concurrency=3))
    assert again.config.inline_chunk_threshold_bytes == 7
    assert again.config.get_partial_values_concurrency == 3
    assert repository.config.get_partial_values_concurrency is None
    assert repository.reopen().config == repository.config
    tip = write(again, "a")
    assert repository.lookup_branch("main") == tip


def test_a_configuration_of_version_1_is_not_overwritten_unseen() -> None:
    storage = in_memory_storage()
    Repository.create(storage, RepositoryConfig(inline_chunk_threshold_bytes=1), spec_version=1)
    first, second = (
        Repository.open(storage, RepositoryConfig(inline_chunk_threshold_bytes=size))
        for size in (2, 3)
    )
    first.save_config()
    with pytest.raises(ConflictError, match="reopen") as caught:
        second.save_config()
    assert caught.value.kind == "config-updated"
    found = Repository.fetch_config(storage)
    assert found is not None
    assert found.inline_chunk_threshold_bytes == 2


# -- branches and tags


@both_versions
def test_the_life_of_a_branch(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    repository.create_branch("dev", ids[1])
    assert repository.list_branches() == {"main", "dev"}
    tip = write(repository, "four", "dev")
    assert repository.lookup_branch("dev") == tip
    assert repository.lookup_branch("main") == ids[-1]
    repository.reset_branch("dev", ids[2])
    repository.reset_branch("dev", ids[3], from_snapshot_id=ids[2])
    with pytest.raises(ConflictError) as caught:
        repository.reset_branch("dev", ids[1], from_snapshot_id=ids[2])
    assert (caught.value.expected_parent, caught.value.actual_parent) == (ids[2], ids[3])
    assert Repository.open(storage).lookup_branch("dev") == ids[3]
    repository.delete_branch("dev")
    assert Repository.open(storage).list_branches() == {"main"}
    repository.create_branch("dev", ids[1])
    assert repository.lookup_branch("dev") == ids[1]


@both_versions
def test_the_life_of_a_tag(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    repository.create_tag("v1", ids[1])
    assert repository.list_tags() == {"v1"}
    assert Repository.open(storage).lookup_tag("v1") == ids[1]
    with pytest.raises(AlreadyExistsError):
        repository.create_tag("v1", ids[2])
    assert repository.lookup_tag("v1") == ids[1]
    repository.delete_tag("v1")
    assert repository.list_tags() == set()
    with pytest.raises(RefNotFoundError):
        repository.lookup_tag("v1")
    with pytest.raises(AlreadyExistsError):
        Repository.open(storage).create_tag("v1", ids[1])


NAMES = ["ünï cödé", "with space", "dots.and-dashes_", "tag.branch", "%2F", "x" * 200, "main2"]


@both_versions
@pytest.mark.parametrize("name", NAMES)
def test_names_are_free(storage: Storage, spec_version: int, name: str) -> None:
    repository = Repository.create(storage, spec_version=spec_version)
    first = FIRST_SNAPSHOT_ID.text
    repository.create_branch(name, first)
    repository.create_tag(name, first)
    found = Repository.open(storage)
    assert found.list_branches() == {"main", name}
    assert found.list_tags() == {name}
    assert found.lookup_branch(name) == found.lookup_tag(name) == first


def test_branches_and_tags_of_version_2_may_have_slashes() -> None:
    storage = in_memory_storage()
    repository = Repository.create(storage)
    repository.create_branch("feature/a", FIRST_SNAPSHOT_ID.text)
    repository.create_tag("releases/1", FIRST_SNAPSHOT_ID.text)
    tip = write(repository, "x", "feature/a")
    assert Repository.open(storage).lookup_branch("feature/a") == tip
    assert Repository.open(storage).list_tags() == {"releases/1"}


# -- history


@both_versions
def test_ancestry_goes_back_to_the_beginning(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    repository.create_tag("middle", ids[2])
    history = list(repository.ancestry(branch="main"))
    assert [info.id for info in history] == ids[::-1]
    assert [info.parent_id for info in history] == [*ids[-2::-1], None]
    assert [info.message for info in history][:3] == ["add three", "add two", "add one"]
    times = [info.written_at for info in history]
    assert times == sorted(times, reverse=True)
    assert list(repository.ancestry(tag="middle")) == history[1:]
    assert list(repository.ancestry(snapshot_id=ids[1])) == history[2:]
    assert repository.lookup_snapshot(ids[2]) == history[1]


@both_versions
def test_a_branch_is_read_as_it_was(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    history = list(repository.ancestry(branch="main"))
    for info in history:
        session = repository.readonly_session("main", as_of=info.written_at)
        assert session.snapshot_id == info.id
        assert session.read_only
    late = repository.readonly_session("main", as_of=now() + timedelta(hours=1))
    assert late.snapshot_id == ids[-1]
    between = history[1].written_at + (history[0].written_at - history[1].written_at) / 2
    assert repository.readonly_session("main", as_of=between).snapshot_id == ids[2]
    with pytest.raises(SnapshotNotFoundError):
        repository.readonly_session("main", as_of=history[-1].written_at - timedelta(seconds=1))


@both_versions
def test_differences_are_told_by_path(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group.attrs["title"] = "new"
    group.create_group("sub")
    array: Any = group["one"]
    array[0] = 9
    array.attrs["units"] = "K"
    del group["two"]
    tip = session.commit("many things")
    repository.create_tag("start", ids[1])
    found = repository.diff(from_tag="start", to_branch="main")
    assert found == repository.diff(from_snapshot_id=ids[1], to_snapshot_id=tip)
    assert found.new_arrays == {"/three"}
    assert found.new_groups == {"/sub"}
    assert found.updated_groups == {"/"}
    assert found.updated_arrays == {"/one"}
    assert found.updated_chunks == {"/one": [[0]], "/three": [[0], [1]]}
    last = repository.diff(from_snapshot_id=ids[3], to_snapshot_id=tip)
    assert last.deleted_arrays == {"/two"}
    assert last.updated_chunks == {"/one": [[0]]}
    assert not last.is_empty()
    assert "/sub" in repr(last)


@both_versions
def test_the_picture_of_the_history_has_every_snapshot(spec_version: int) -> None:
    repository, ids = make(in_memory_storage(), spec_version)
    repository.create_branch("dev", ids[1])
    dev = write(repository, "four", "dev")
    repository.create_tag("v1", ids[2])
    lines = str(repository.ancestry_graph(plain=True)).splitlines()
    assert len(lines) == len(ids) + 1
    assert all(sum(snapshot in line for line in lines) == 1 for snapshot in [*ids, dev])
    [tip] = [line for line in lines if ids[3] in line]
    assert "(main)" in tip
    assert "(tag: v1)" in next(line for line in lines if ids[2] in line)
    assert "\033" not in "".join(lines)
    assert "\033" in str(repository.ancestry_graph())
    only = str(repository.ancestry_graph(branch="dev", plain=True)).splitlines()
    assert [line.split()[1] for line in only] == [dev, ids[1], ids[0]]


def test_manifest_files_of_a_snapshot_are_listed(storage: Storage) -> None:
    repository, ids = make(storage)
    assert repository.list_manifest_files(ids[0]) == []
    files = repository.list_manifest_files(ids[3])
    assert [file.num_chunk_refs for file in files] == [2, 2, 2]
    stored = dict(storage.list_objects(prefix="manifests/"))
    assert {file.id: file.size_bytes for file in files} == stored


# -- the operations log


def test_the_operations_log_runs_over_backups(storage: Storage) -> None:
    config = RepositoryConfig(num_updates_per_repo_info_file=2)
    repository, ids = make(storage, config=config)
    repository.create_tag("v1", ids[1])
    repository.delete_tag("v1")
    repository.create_branch("dev", ids[1])
    repository.reset_branch("dev", ids[2])
    repository.delete_branch("dev")
    repository.set_metadata({"a": 1})
    repository.save_config()
    repository.set_feature_flag("create_tag", False)
    repository.set_status(RepoStatus(RepoAvailability.read_only))
    repository.set_status(RepoStatus(RepoAvailability.online))
    log = list(Repository.open(storage).ops_log())
    assert [type(update.kind).__name__ for update in log] == [
        *("RepoStatusChanged", "RepoStatusChanged", "FeatureFlagChanged", "ConfigChanged"),
        *("MetadataChanged", "BranchDeleted", "BranchReset", "BranchCreated", "TagDeleted"),
        *("TagCreated", "NewCommit", "NewCommit", "NewCommit", "RepoInitialized"),
    ]
    times = [update.updated_at for update in log]
    assert times == sorted(set(times), reverse=True)
    assert log[0].backup_path is None
    backups = {key for key, _ in storage.list_objects(prefix="overwritten/")}
    assert {update.backup_path for update in log[1:]} <= backups
    assert isinstance(log[5].kind, UpdateType.BranchDeleted)
    kind: Any = log[5].kind
    assert (kind.name, kind.previous_snap_id) == ("dev", ids[2])
    kind = log[10].kind
    assert (kind.branch, kind.new_snap_id) == ("main", ids[3])


def test_a_log_whose_backups_are_gone_ends_there() -> None:
    storage = in_memory_storage()
    repository, _ = make(storage, config=RepositoryConfig(num_updates_per_repo_info_file=2))
    assert len(list(repository.ops_log())) == 4
    driver = storage.driver(blocking=True)
    backups = [f"overwritten/{key}" for key, _ in storage.list_objects(prefix="overwritten/")]
    run_blocking(driver.delete_many(backups))
    assert 0 < len(list(Repository.open(storage).ops_log())) < 4


# -- metadata, status, flags


def test_metadata_of_a_repository(storage: Storage) -> None:
    repository = Repository.create(storage)
    assert repository.metadata == repository.get_metadata() == {}
    value = {"a": 1, "nested": {"list": [1, 2.5, None, True, "ä"]}}
    repository.set_metadata(value)
    assert Repository.open(storage).metadata == value
    assert repository.update_metadata({"a": 2, "b": 3}) == {**value, "a": 2, "b": 3}
    repository.set_metadata({})
    assert Repository.open(storage).get_metadata() == {}


def test_status_of_a_repository(storage: Storage) -> None:
    repository = Repository.create(storage)
    assert repository.status.availability == RepoAvailability.online
    assert repository.status.limited_availability_reason is None
    status = RepoStatus(RepoAvailability.read_only, limited_availability_reason="moving")
    repository.set_status(status)
    found = Repository.open(storage).get_status()
    assert found.availability == RepoAvailability.read_only
    assert found.limited_availability_reason == "moving"
    assert found.set_at == status.set_at
    with pytest.raises(ReadOnlyError, match="moving"):
        Repository.open(storage).writable_session("main")
    assert repository.readonly_session("main").snapshot_id == FIRST_SNAPSHOT_ID.text
    repository.set_status(RepoStatus(RepoAvailability.online))
    write(Repository.open(storage), "a")


def test_feature_flags(storage: Storage) -> None:
    repository = Repository.create(storage)
    flags = {flag.name: flag for flag in repository.feature_flags()}
    assert {name: flag.id for name, flag in flags.items()} == {
        "move_node": 3,
        "create_tag": 4,
        "delete_tag": 5,
    }
    assert all(flag.enabled and flag.default_enabled for flag in flags.values())
    assert all(flag.setting is None for flag in flags.values())
    repository.set_feature_flag("create_tag", False)
    repository.set_feature_flag("move_node", True)
    found = Repository.open(storage)
    assert [flag.name for flag in found.disabled_feature_flags()] == ["create_tag"]
    assert [flag.name for flag in found.enabled_feature_flags()] == ["move_node", "delete_tag"]
    assert {flag.name: flag.setting for flag in found.feature_flags()} == {
        "move_node": True,
        "create_tag": False,
        "delete_tag": None,
    }
    repository.set_feature_flag("create_tag", None)
    assert Repository.open(storage).disabled_feature_flags() == []


@both_versions
def test_default_commit_metadata_goes_below_that_of_the_call(spec_version: int) -> None:
    repository = Repository.create(in_memory_storage(), spec_version=spec_version)
    assert repository.default_commit_metadata() == {}
    repository.set_default_commit_metadata({"author": "me", "run": 1})
    first = write(repository, "a")
    second = write(repository, "b", metadata={"run": 2, "note": "x"})
    assert repository.lookup_snapshot(first).metadata == {"author": "me", "run": 1}
    assert repository.lookup_snapshot(second).metadata == {"author": "me", "run": 2, "note": "x"}


# -- transactions


@both_versions
def test_a_transaction_commits_at_its_end(storage: Storage, spec_version: int) -> None:
    repository = Repository.create(storage, spec_version=spec_version)
    with repository.transaction("main", message="all at once", metadata={"a": 1}) as store:
        zarr.create_array(store, name="a", shape=(2,), dtype="i4")[:] = 5
        assert repository.lookup_branch("main") == FIRST_SNAPSHOT_ID.text
    info = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert (info.message, info.metadata) == ("all at once", {"a": 1})
    with pytest.raises(ReadOnlyError):
        zarr.create_array(store, name="late", shape=(2,), dtype="i4")


def test_a_transaction_that_fails_commits_nothing() -> None:
    repository = Repository.create(in_memory_storage())

    def fail() -> None:
        with repository.transaction("main", message="never") as store:
            zarr.create_array(store, name="a", shape=(2,), dtype="i4")
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail()
    assert repository.lookup_branch("main") == FIRST_SNAPSHOT_ID.text


# -- the clock


def test_operations_on_a_clock_a_little_behind_go_on() -> None:
    repository, ids = make(in_memory_storage())
    with clock_of(repository) as clock:
        clock.ahead_us = 500_000
        repository.create_tag("ahead", ids[1])
        clock.ahead_us = 0
        repository.create_tag("behind", ids[1])
    times = [update.updated_at for update in repository.ops_log()]
    assert times == sorted(set(times), reverse=True)


def test_operations_on_a_clock_far_behind_are_refused() -> None:
    storage = in_memory_storage()
    repository, ids = make(storage)
    before = storage.list_objects()
    with clock_of(repository) as clock:
        clock.ahead_us = -3600 * 1_000_000
        with pytest.raises(FormatError, match=r"3\d\d\d s in the future.*set the clock") as caught:
            repository.create_tag("late", ids[1])
    assert caught.value.kind == "snapshot-timestamp"
    assert storage.list_objects() == before


def test_a_time_without_a_zone_is_local_time() -> None:
    repository, ids = make(in_memory_storage())
    written = repository.lookup_snapshot(ids[2]).written_at
    local: datetime = written.astimezone().replace(tzinfo=None)
    assert repository.readonly_session("main", as_of=local).snapshot_id == ids[2]


def test_a_snapshot_that_is_stored_but_not_listed_cannot_be_opened(tmp_path: Path) -> None:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path))
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    session.fork()  # its changes are stored aside
    listed = {snapshot.id for snapshot in repository.ancestry(branch="main")}
    [orphan] = {file.name for file in (tmp_path / "snapshots").iterdir()} - listed
    with pytest.raises(icefloe.errors.SnapshotNotFoundError, match=orphan):
        repository.readonly_session(snapshot_id=orphan)
