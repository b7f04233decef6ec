"""The algorithms of document 000, section by section, as the API does them.

Every test quotes the section that it is about.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, ConflictError, NumberedRefs, Repository
from icefloe.credentials import LocalFileSystemAccess
from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.ids import decode_base32
from icefloe.legacy.numbered.files import Form, form_of
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from tests.legacy.numbered.examples import validate
from tests.servers import S3Server

ENCODINGS = [str(form) for form in Form]


@pytest.fixture(params=ENCODINGS)
def repo(request: pytest.FixtureRequest) -> Repository:
    return Repository.create(icefloe.in_memory_storage(), generation=NumberedRefs(request.param))


def keys(repo: Repository, prefix: str = "") -> list[str]:
    return sorted(prefix + key for key, _ in repo.storage.list_objects(prefix=prefix))


def read(storage: Storage, key: str) -> bytes:
    settings = storage.default_settings().resolved()
    driver = storage.driver(settings, blocking=True, max_concurrent_requests=1)
    return bytes(run_blocking(driver.get(key)))


def write_array(session: icefloe.Session, value: float, name: str = "x") -> None:
    group = zarr.open_group(session.store, mode="a")
    if name not in group:
        group.create_array(name, shape=(4, 6), chunks=(2, 3), dtype="f4", fill_value=np.nan)
    array: Any = group[name]
    array[...] = value


def values(session: icefloe.Session, name: str = "x") -> Any:
    found: Any = zarr.open_group(session.store, mode="r")[name]
    return found[...]


def commit(repo: Repository, value: float, message: str = "written", **more: Any) -> str:
    session = repo.writable_session("main")
    write_array(session, value)
    return session.commit(message, **more)


# -- Algorithms


def test_initialize_new_repository(repo: Repository) -> None:
    """ "creating a new [possibly empty] snapshot file and then creating the first file in the main
    branch sequence"."""
    assert keys(repo, "r/") == ["r/main/ZZZZZZZZ.json"]
    (snapshot,) = keys(repo, "s/")
    document = validate("RefData", read(repo.storage, "r/main/ZZZZZZZZ.json"))
    assert bytes(document["snapshot"]) == decode_base32(snapshot.removeprefix("s/"), 16)
    (first,) = repo.ancestry(branch="main")
    assert first.parent_id is None


def test_initialize_only_one_can_succeed() -> None:
    """ "If another client attempts to initialize a repository in the same location, only one can
    succeed."""
    storage = icefloe.in_memory_storage()
    Repository.create(storage, generation=NumberedRefs())
    with pytest.raises(AlreadyExistsError):
        Repository.create(storage, generation=NumberedRefs(), check_clean_root=False)


def test_read_from_snapshot_id(repo: Repository) -> None:
    """ "If the specific snapshot ID is known, a client can open it directly in read only mode."""
    first, second = commit(repo, 1), commit(repo, 2)
    assert (values(repo.readonly_session(snapshot_id=first)) == 1).all()
    session = repo.readonly_session(snapshot_id=second.lower())
    assert session.read_only
    assert session.snapshot_id == second
    assert (values(session) == 2).all()
    with pytest.raises(SnapshotNotFoundError):
        repo.readonly_session(snapshot_id="Z" * 25 + "W")
    with pytest.raises(InvalidInputError, match="expected 26"):
        repo.readonly_session(snapshot_id="AB")


def test_read_from_branch(repo: Repository) -> None:
    """ "List the object store prefix r/$BRANCH_NAME/ to obtain the latest branch file"."""
    for number in range(3):
        commit(repo, number)
    names = [f"r/main/ZZZZZZZ{letter}.json" for letter in "WXYZ"]
    assert keys(repo, "r/main/") == names  # the newest is the first
    newest = json.loads(read(repo.storage, names[0]))["snapshot"]
    again = Repository.open(repo.storage)
    assert decode_base32(again.lookup_branch("main"), 16) == bytes(newest)
    assert (values(again.readonly_session("main")) == 2).all()
    with pytest.raises(RefNotFoundError, match="branch 'other'"):
        again.readonly_session("other")


def test_read_from_tag(repo: Repository) -> None:
    """ "Read the tag file found at r/$TAG_NAME.json to obtain the snapshot ID."""
    first = commit(repo, 1)
    repo.create_tag("v1", first)
    commit(repo, 2)
    validate("RefData", read(repo.storage, "r/v1.json"))
    again = Repository.open(repo.storage)
    assert again.list_tags() == {"v1"}
    session = again.readonly_session(tag="v1")
    assert session.read_only
    assert (values(session) == 1).all()


def test_write_new_snapshot(repo: Repository) -> None:
    """ "Attempt to write the next branch file in the sequence ... If successful, the commit
    succeeded and the branch is updated."""
    before = set(keys(repo))
    made = commit(repo, 1, metadata={"who": "me"})
    new = set(keys(repo)) - before
    assert "r/main/ZZZZZZZY.json" in new
    assert f"s/{made}" in new
    assert {key[0] for key in new} >= {"r", "s", "m"}
    (tip, _) = repo.ancestry(branch="main")
    assert (tip.id, tip.message, tip.metadata) == (made, "written", {"who": "me"})


def test_write_reconcile_and_retry(repo: Repository) -> None:
    """ "If unsuccessful, attempt to reconcile and retry the commit": as number N + 2."""
    commit(repo, 1)
    first, second = repo.writable_session("main"), repo.writable_session("main")
    write_array(first, 2, "y")
    write_array(second, 3, "z")
    winner = first.commit("first")
    with pytest.raises(ConflictError) as caught:
        second.commit("second")
    assert caught.value.actual_parent == winner
    assert keys(repo, "r/main/")[0] == "r/main/ZZZZZZZX.json"
    second.commit("second", rebase_with=ConflictDetector())
    assert keys(repo, "r/main/")[0] == "r/main/ZZZZZZZW.json"
    session = Repository.open(repo.storage).readonly_session("main")
    for name, value in (("x", 1), ("y", 2), ("z", 3)):
        assert (values(session, name) == value).all()


def test_write_conflicts_are_not_reconciled_silently(repo: Repository) -> None:
    commit(repo, 1)
    first, second = repo.writable_session("main"), repo.writable_session("main")
    write_array(first, 2)
    write_array(second, 3)
    first.commit("first")
    with pytest.raises(icefloe.RebaseFailedError):
        second.commit("second", rebase_with=ConflictDetector())
    second.commit("second", rebase_with=icefloe.BasicConflictSolver())
    assert (values(repo.readonly_session("main")) == 3).all()


def test_create_new_tag(repo: Repository) -> None:
    """ "Attempt to create the tag file. ... If unsuccessful, the tag already exists."""
    first, second = commit(repo, 1), commit(repo, 2)
    repo.create_tag("v1", first)
    for target in (first, second):
        with pytest.raises(
            AlreadyExistsError, match="tag already exists, tags are immutable: 'v1'"
        ):
            repo.create_tag("v1", target)
    assert repo.lookup_tag("v1") == first
    with pytest.raises(SnapshotNotFoundError):
        repo.create_tag("v2", "Z" * 25 + "W")


def test_tags_cannot_be_deleted(repo: Repository) -> None:
    """Tags: "Tags cannot be deleted once created"."""
    repo.create_tag("v1", repo.lookup_branch("main"))
    with pytest.raises(FormatError, match="deleting a tag is not possible"):
        repo.delete_tag("v1")
    assert repo.list_tags() == {"v1"}


# -- Reference Files


def test_creating_and_updating_branches(repo: Repository) -> None:
    """ "After creation, branches may be updated to point to a different snapshot"."""
    first = commit(repo, 1)
    second = commit(repo, 2)
    repo.create_branch("dev", first)
    assert keys(repo, "r/dev/") == ["r/dev/ZZZZZZZZ.json"]
    with pytest.raises(AlreadyExistsError, match="branch already exists: 'dev'"):
        repo.create_branch("dev", first)
    repo.reset_branch("dev", second, from_snapshot_id=first)
    assert keys(repo, "r/dev/") == ["r/dev/ZZZZZZZY.json", "r/dev/ZZZZZZZZ.json"]
    with pytest.raises(ConflictError):
        repo.reset_branch("dev", first, from_snapshot_id=first)
    assert repo.lookup_branch("dev") == second
    with pytest.raises(FormatError, match="deleting a branch is not possible"):
        repo.delete_branch("dev")


@pytest.mark.parametrize("name", ["a/b", "", "/"])
def test_branch_names_may_not_contain_slashes(repo: Repository, name: str) -> None:
    """ "Branch names may not contain the / character"."""
    tip = repo.lookup_branch("main")
    for create in (repo.create_branch, repo.create_tag):
        with pytest.raises(InvalidInputError):
            create(name, tip)


def test_a_tag_and_a_branch_may_share_a_name(repo: Repository) -> None:
    tip = repo.lookup_branch("main")
    repo.create_branch("same", tip)
    repo.create_tag("same", tip)
    assert repo.list_branches() == {"main", "same"}
    assert repo.list_tags() == {"same"}


# -- Goals


def test_schema_evolution(repo: Repository) -> None:
    """Goals: "Arrays and Groups can be added, renamed, and removed"."""
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="a/b")
    write_array(session, 1)
    session.commit("added")
    before = repo.readonly_session("main").get_node_id("/x")
    moving = repo.rearrange_session("main")
    moving.move("/x", "/a/b/y")
    moving.move("/a", "/c")
    moved = moving.commit("renamed")
    again = Repository.open(repo.storage)
    session = again.readonly_session("main")
    assert (values(session, "c/b/y") == 1).all()
    assert session.get_node_id("/c/b/y") == before
    parent = list(again.ancestry(branch="main"))[1].id
    diff = again.diff(from_snapshot_id=parent, to_snapshot_id=moved)
    assert set(diff.moved_nodes) == {("/x", "/c/b/y"), ("/a", "/c")}
    assert not diff.new_arrays | diff.deleted_arrays
    session = again.writable_session("main")
    del zarr.open_group(session.store)["c"]
    session.commit("removed")
    assert list(zarr.open_group(again.readonly_session("main").store, mode="r")) == []


def test_serializable_isolation(repo: Repository) -> None:
    """Goals: "Reads will be isolated from concurrent writes"."""
    commit(repo, 1)
    reader = repo.readonly_session("main")
    writer = repo.writable_session("main")
    write_array(writer, 2)
    assert (values(reader) == 1).all()
    writer.commit("written")
    assert (values(reader) == 1).all()
    assert (values(repo.readonly_session("main")) == 2).all()


def test_time_travel(repo: Repository) -> None:
    """Goals: "Previous snapshots of a repository remain accessible"."""
    made = [commit(repo, number) for number in range(5)]
    again = Repository.open(repo.storage)
    for number, snapshot_id in enumerate(made):
        assert (values(again.readonly_session(snapshot_id=snapshot_id)) == number).all()
    assert [entry.id for entry in again.ancestry(branch="main")][:-1] == made[::-1]


def test_histories_longer_than_a_snapshot_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`short_term_history` is short: older ancestors are found through newer ones."""
    monkeypatch.setattr("icefloe.legacy.numbered.snapshots.MOST_ANCESTORS", 3)
    repo = Repository.create(icefloe.in_memory_storage(), generation=NumberedRefs())
    made = [commit(repo, number) for number in range(8)]
    document = validate("Snapshot", read(repo.storage, f"s/{made[-1]}"))
    assert (document["short_term_parents"], document["total_parents"]) == (3, 8)
    again = Repository.open(repo.storage)
    assert [entry.id for entry in again.ancestry(branch="main")][:-1] == made[::-1]
    session = again.writable_session("main")
    late = Repository.open(repo.storage)
    for number in range(5):
        commit(late, number)
    write_array(session, 7, "other")
    session.commit("over five commits", rebase_with=ConflictDetector())
    assert len(list(late.ancestry(branch="main"))) == 15


# -- Snapshot, Attributes and Chunk Manifest Files


def test_every_document_is_valid_against_the_schemas() -> None:
    repo = Repository.create(
        icefloe.in_memory_storage(),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=10),
        generation=NumberedRefs(inline_attributes_bytes=60),
    )
    session = repo.writable_session("main")
    group = zarr.create_group(session.store, attributes={"long": "x" * 100, "ü": [1, None]})
    for number, dtype in enumerate(("f4", "i8", "c8", "?", "u2", "f2")):
        array: Any = group.create_array(
            f"a{number}", shape=(5,), chunks=(2,), dtype=dtype, attributes={"units": "K"}
        )
        array[...] = 1
    session.commit("all", metadata={"nested": {"a": [1.5]}})
    repo.create_tag("t", repo.lookup_branch("main"))
    titles = {"r": "RefData", "s": "Snapshot", "m": "Manifest"}
    seen = set()
    for key in keys(repo):
        if key[0] in titles:
            validate(titles[key[0]], read(repo.storage, key))
        seen.add(key[0])
    assert seen == {"r", "s", "m", "a", "c"}
    found = zarr.open_group(Repository.open(repo.storage).readonly_session("main").store, mode="r")
    assert found.attrs["long"] == "x" * 100


def test_attributes_files_are_not_written_again(repo: Repository) -> None:
    """Attributes Files: "to store additional user-defined attributes for arrays and groups"."""
    storage = repo.storage
    encoding = form_of(read(storage, keys(repo, "s/")[0]))
    storage = icefloe.in_memory_storage()
    made = NumberedRefs(str(encoding), inline_attributes_bytes=50)  # type: ignore[arg-type]
    repo = Repository.create(storage, generation=made)
    session = repo.writable_session("main")
    zarr.create_group(session.store, attributes={"long": "x" * 100})
    session.commit("one")
    commit(repo, 1)
    assert len(keys(repo, "a/")) == 1
    again = Repository.open(storage)  # knows nothing of a limit, and still refers to the file
    commit(again, 2)
    assert len(keys(repo, "a/")) == 1
    found = zarr.open_group(again.readonly_session("main").store, mode="r")
    assert found.attrs["long"] == "x" * 100


def test_the_encoding_of_a_repository_stays(repo: Repository) -> None:
    form = form_of(read(repo.storage, keys(repo, "s/")[0]))
    commit(Repository.open(repo.storage), 1)
    for key in [*keys(repo, "s/"), *keys(repo, "m/")]:
        assert form_of(read(repo.storage, key)) is form


def test_what_has_no_place_is_refused_when_it_is_written(repo: Repository) -> None:
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="has no place in a repository with numbered refs"):
        zarr.create_array(session.store, name="s", shape=(2,), dtype="U5")
    assert "s" not in zarr.open_group(session.store)
    with pytest.raises(FormatError, match="saving the configuration is not possible"):
        repo.save_config()
    with pytest.raises(FormatError, match="needs a repository of spec version 2"):
        repo.get_metadata()


# -- Chunk Files


def chunk_sizes(repo: Repository) -> list[int]:
    return sorted(size for _, size in repo.storage.list_objects(prefix="c/"))


def small_arrays(repo: Repository) -> None:
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for name in ("x", "y"):
        array: Any = group.create_array(
            name, shape=(4, 4), chunks=(2, 2), dtype="f8", compressors=None, fill_value=0
        )
        array[...] = np.arange(16).reshape(4, 4) + 1
    session.commit("two arrays")
    again = Repository.open(repo.storage).readonly_session("main")
    for name in ("x", "y"):
        assert (values(again, name) == np.arange(16).reshape(4, 4) + 1).all()


@pytest.mark.parametrize(
    ("packing", "sizes"),
    [
        (None, [32] * 8),
        (icefloe.PackingConfig(is_one_array_each=True), [128, 128]),
        (icefloe.PackingConfig(), [256]),
        (icefloe.PackingConfig(target_size_bytes=64, is_one_array_each=True), [64] * 4),
    ],
    ids=["one chunk", "several of one array", "several arrays", "several, of limited size"],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_chunks_in_files(encoding: Any, packing: Any, sizes: list[int]) -> None:
    """Chunk Files: "One chunk per chunk file", "Multiple contiguous chunks from the same array in
    a single chunk file", "Chunks from multiple different arrays in the same file"."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, packing=packing)
    repo = Repository.create(icefloe.in_memory_storage(), config, generation=NumberedRefs(encoding))
    small_arrays(repo)
    assert chunk_sizes(repo) == sizes


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_chunks_in_other_file_types(encoding: Any, tmp_path: Path) -> None:
    """ "Other file types (e.g. NetCDF, HDF5) which contain Zarr-compatible chunks"."""
    data = np.arange(6, dtype="<f8")
    (tmp_path / "foreign.bin").write_bytes(b"head" + data.tobytes())
    prefix = f"file://{tmp_path}/"
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    config = icefloe.RepositoryConfig(virtual_chunk_containers={prefix: container})
    repo = Repository.create(
        icefloe.in_memory_storage(),
        config,
        authorize_virtual_chunk_access={prefix: LocalFileSystemAccess},
        generation=NumberedRefs(encoding),
    )
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="v", shape=(6,), chunks=(3,), dtype="<f8", compressors=None
    )
    for number in range(2):
        session.store.set_virtual_ref(
            f"v/c/{number}", f"{prefix}foreign.bin", offset=4 + 24 * number, length=24
        )
    session.commit("virtual")
    again = Repository.open(
        repo.storage, config, authorize_virtual_chunk_access={prefix: LocalFileSystemAccess}
    )
    found: Any = zarr.open_array(again.readonly_session("main").store, path="v", mode="r")
    np.testing.assert_array_equal(found[...], data)


# -- 004


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_object_metadata(encoding: Any, s3_server: S3Server) -> None:
    """004: "the file information (spec version, compression, type, etc) is also stored as object
    store metadata"."""
    storage = s3_server.storage(prefix=f"numbered-{encoding}")
    repo = Repository.create(storage, generation=NumberedRefs(encoding, inline_attributes_bytes=1))
    session = repo.writable_session("main")
    zarr.create_group(session.store, attributes={"a": "b"})
    session.commit("one")
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        aws_access_key_id="test",
        aws_secret_access_key="test-secret",
        region_name="us-east-1",
    )
    kinds = {"s": "snapshot", "a": "attributes", "t": "transaction-log"}
    for key in keys(repo):
        if key[0] not in kinds:
            continue
        found = client.head_object(Bucket="testbucket", Key=f"numbered-{encoding}/{key}")
        metadata = found["Metadata"]
        if encoding.startswith("binary"):
            assert metadata["icspecver"] == "1"
            assert metadata["icfiletype"] == kinds[key[0]]
            assert metadata["iccompalg"] == ("zstd" if encoding == "binary" else "none")
        assert metadata["icclient"].startswith("ic-floe")
