"""What objects show of themselves: code that makes them again, text, HTML, and no secrets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import (
    Attribution,
    CachingConfig,
    ChecksumAlgorithm,
    CompressionAlgorithm,
    CompressionConfig,
    Conflict,
    ConflictType,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    PackingConfig,
    Repository,
    RepositoryConfig,
    S3Options,
    S3StaticCredentials,
    StorageRetriesSettings,
    StorageSettings,
    UpdateType,
    VirtualChunkContainer,
    s3_storage,
)
from icefloe.display import counted, show_as

SPLITTING = ManifestSplittingConfig.from_dict(
    {
        ManifestSplitCondition.any_array() | ManifestSplitCondition.name_matches('"a"\\d'): {
            ManifestSplitDimCondition.Axis(0): 3,
            ManifestSplitDimCondition.Any(): 5,
        }
    }
)
CONTAINER = VirtualChunkContainer(
    "s3://bucket/", ObjectStoreConfig.S3(S3Options(region="eu-west-1")), name="era"
)
CODED: list[Any] = [
    RepositoryConfig(),
    RepositoryConfig(
        caching=CachingConfig(num_chunk_refs=3),
        storage=StorageSettings(retries=StorageRetriesSettings(max_tries=5), storage_class="IA"),
        virtual_chunk_containers={"s3://bucket/": CONTAINER},
        manifest=ManifestConfig(
            ManifestPreloadConfig(preload_if=ManifestPreloadCondition.num_refs(None, 3)),
            SPLITTING,
            max_refs_per_manifest=7,
        ),
        packing=PackingConfig(target_size_bytes=9),
    ),
    CompressionConfig(CompressionAlgorithm.Zstd, 3),
    S3Options(endpoint_url="http://a", checksum_algorithm=ChecksumAlgorithm.Sha256),
    ObjectStoreConfig.InMemory(),
    ObjectStoreConfig.LocalFileSystem("/data"),
    ObjectStoreConfig.Gcs({"a": "b"}),
    ObjectStoreConfig.Tigris(S3Options(region="auto")),
    Attribution(client="weatherlib/0.9"),
    UpdateType.NewCommit("main", "VY76P925PRY57WFEK410"),
]


@pytest.mark.parametrize("value", CODED, ids=lambda value: type(value).__name__)
def test_a_repr_is_code_that_makes_the_object(value: Any) -> None:
    assert eval(repr(value), {"icefloe": icefloe}) == value


def test_text_says_what_is_set_and_what_is_the_default() -> None:
    lines = str(RepositoryConfig(caching=CachingConfig(num_chunk_refs=3))).splitlines()
    assert lines[0] == "<icefloe.RepositoryConfig>"
    assert "inline_chunk_threshold_bytes: 512 (default)" in lines
    assert "    num_chunk_refs: 3" in lines
    assert "    num_snapshot_nodes: 500000 (default)" in lines
    assert "    algorithm: Zstd (default)" in lines
    assert not any("packing" in line for line in lines)  # ours, and not set


def test_secrets_are_not_shown() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    credentials = S3StaticCredentials("AKIAEXAMPLE", "topsecret", "token", until)
    web = ObjectStoreConfig.Http({}, {"Authorization": "topsecret"})
    storage = s3_storage(
        bucket="b", prefix="p", access_key_id="AKIA1", secret_access_key="topsecret"
    )
    for value in (credentials, web, storage):
        for text in (repr(value), str(value), value._repr_html_()):
            assert "topsecret" not in text
            assert "token" not in text.replace("session_token", "")
    assert "access_key_id: AKIA****" in str(credentials)
    assert "bucket: b\nprefix: p" in repr(storage)


def test_html_can_be_opened_and_is_escaped() -> None:
    container = VirtualChunkContainer("s3://bucket/", CONTAINER.store, name="<b>")
    html = RepositoryConfig(virtual_chunk_containers={"s3://bucket/": container})._repr_html_()
    assert '<div class="icefloe-repr">' in html
    assert '<details><summary class="icefloe-field-name">s3://bucket/</summary>' in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count("<div") == html.count("</div")


def test_repositories_sessions_and_history(storage: icefloe.Storage) -> None:
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(12,), chunks=(1,), dtype="i4")[:] = 1
    assert "branch: main\nhas_uncommitted_changes: True" in repr(session)
    assert "read_only: False" in str(session.store)
    assert "Arrays created:\n    /a\n\nChunks updated:" in repr(session.status())
    assert "<icefloe.Diff" not in repr(session.status())
    assert "Chunks updated" in session.status()._repr_html_()
    session.commit("<first>")
    assert "branch" not in repr(session)
    assert repr(repo).startswith("<icefloe.Repository (v2)>\nstorage:\n    <icefloe.Storage>")
    newest = next(repo.ancestry(branch="main"))
    assert f"<icefloe.SnapshotInfo>\nid: {newest.id}\n" in repr(newest)
    assert "kind: icefloe.UpdateType.NewCommit(branch=" in repr(next(repo.ops_log()))
    assert "name: create_tag" in "".join(map(repr, repo.feature_flags()))
    svg = repo.ancestry_graph()._repr_svg_()
    assert svg.count("<circle") == 2
    assert svg.count("<path") == 1
    assert "&lt;first&gt;" in svg
    assert "(main)" in svg


@pytest.fixture
def storage() -> icefloe.Storage:
    return icefloe.in_memory_storage()


def test_conflicts_show_their_first_chunks() -> None:
    conflict = Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[at] for at in range(12)])
    assert "conflict_type: ChunkDoubleUpdate\npath: /a\nconflicted_chunks: [[0]," in repr(conflict)
    assert "and 2 more" in repr(conflict)


def test_one_place_decides_the_name_of_the_package() -> None:
    show_as("icechunk")
    try:
        assert repr(CONTAINER).startswith("icechunk.virtual.VirtualChunkContainer(")
        assert str(CONTAINER.store).startswith("<icechunk.config.ObjectStoreConfig.S3>")
        assert '<div class="icechunk-repr">' in CONTAINER._repr_html_()
    finally:
        show_as("icefloe")


def test_a_repository_shows_branches_tags_and_the_last_commit(storage: icefloe.Storage) -> None:
    repo = Repository.create(storage)
    with repo.transaction("main", message="first <line>\nsecond line") as store:
        zarr.create_array(store, name="a", shape=(2,), dtype="i4")[:] = 1
    tip = repo.lookup_branch("main")
    assert "tags: none\n" in repr(repo)
    repo.create_tag("v1", tip)
    for number in range(12):
        repo.create_branch(f"b{number:02}", tip)
    for text in (repr(repo), str(repo)):
        names = ", ".join(f"b{number:02}" for number in range(10))
        assert f"branches: {names} and 3 more\ntags: v1\nlast commit to main: {tip}, 20" in text
        assert text.rstrip().endswith(" UTC: first <line>")
    html = repo._repr_html_()
    assert "last commit to main" in html
    assert "first &lt;line&gt;" in html


def test_a_repository_that_cannot_be_reached_shows_itself(tmp_path: Path) -> None:
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "r")))
    (tmp_path / "r/repo").write_bytes(b"damaged")
    assert "branches: not known: " in repr(repo)


def test_reports_and_plans_show_themselves_for_people(storage: icefloe.Storage) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = Repository.create(storage, config)
    for value in (1, 2):
        with repo.transaction("main", message="m") as store:
            array = zarr.create_array(
                store,
                name="a",
                shape=(4000,),
                chunks=(4000,),
                dtype="i8",
                overwrite=True,
                compressors=None,
            )
            array[:] = value
    repo.reset_branch("main", icefloe.FIRST_SNAPSHOT_ID.text)
    later = datetime.now(UTC) + timedelta(hours=1)
    plan = repo.plan_garbage_collection(later)
    for shown in (plan, repo.verify(), repo.plan_repair()):
        assert repr(shown) == str(shown)
        html = shown._repr_html_()
        assert html.startswith('<pre class="icefloe-repr">')
        assert html.count("<") == 2  # what is shown is escaped
    assert "64.0 kB" in repr(plan)
    assert "healthy" in repr(repo.verify())
    stats = repo.chunk_storage_stats()
    assert "native_bytes: 0\n" in repr(stats)
    summary = repo.run_garbage_collection(plan)
    assert f"bytes_deleted: {summary.bytes_deleted:,} ({summary.bytes_deleted / 1000:.1f} kB)" in (
        repr(summary)
    )
    copied = icefloe.export_repository(repo, icefloe.in_memory_storage())
    assert repr(copied).startswith(f"<icefloe.ExportReport> {copied.objects} objects copied, ")
    assert "MaterializeReport> 0 chunks copied, 0 B; commits: none" in repr(
        icefloe.materialize(repo)
    )


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "file", "1 file"), (2000, "file", "2,000 files"), (0, "branch", "0 branches")],
)
def test_a_number_of_things_is_counted_truly(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
