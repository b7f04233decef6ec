"""What is read from a remote storage and kept on disk: requests saved, and nothing else changed."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.storage.cached import CacheFolder, DiskCache
from icefloe.storage.run import run_blocking
from tests.servers import BUCKET, S3Server

NUM_CHUNKS = 8
CHUNK_BYTES = 4 * 1000


@pytest.fixture
def prefix(s3_server: S3Server, request: pytest.FixtureRequest) -> str:
    """A repository on the server, with one array of native chunks."""
    prefix = f"disk-cache-{os.urandom(6).hex()}"
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    spec = getattr(request, "param", 2)
    repo = icefloe.Repository.create(s3_server.storage(prefix), config, spec_version=spec)
    with repo.transaction("main", message="a") as store:
        size = NUM_CHUNKS * 1000
        array = zarr.create_array(
            store, name="a", shape=(size,), chunks=(1000,), dtype="i4", compressors=None
        )
        array[:] = np.arange(size)
    return prefix


@pytest.fixture
def open_repo(
    s3_server: S3Server, prefix: str, tmp_path: Path
) -> Callable[..., icefloe.Repository]:
    """Opens the repository anew, with nothing in memory, through a cache."""

    def opened(folder: str = "cache", max_bytes: int | None = None) -> icefloe.Repository:
        storage = s3_server.storage(prefix).cached(tmp_path / folder, max_bytes)
        return icefloe.Repository.open(storage)

    return opened


def values(repo: icefloe.Repository) -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]


def gets(server: S3Server, work: Callable[[], Any]) -> int:
    """The number of requests that fetch something."""
    before = server.requests()["methods"].get("GET", 0)
    work()
    return server.requests()["methods"].get("GET", 0) - before


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"]


def test_the_second_reader_asks_for_what_may_change_only(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository], tmp_path: Path
) -> None:
    first = gets(s3_server, lambda: values(open_repo()))
    second = gets(s3_server, lambda: values(open_repo()))
    assert first >= NUM_CHUNKS + 3
    assert second <= 2, "the repo object, to open the repository and the session"
    assert np.array_equal(values(open_repo()), np.arange(NUM_CHUNKS * 1000))
    kept = entries(tmp_path / "cache")
    assert len(kept) == NUM_CHUNKS + 2, "chunks, snapshot and manifest"
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    plain = icefloe.Repository.open(s3_server.storage(open_repo().storage.location.prefix))  # type: ignore[union-attr]
    assert gets(s3_server, lambda: values(plain)) >= NUM_CHUNKS, "off unless asked for"


def test_event_loops_use_it_too(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository]
) -> None:
    values(open_repo())
    storage = open_repo().storage

    async def read() -> None:
        repo = await icefloe.Repository.open_async(storage)
        session = await repo.readonly_session_async("main")
        array = await zarr.api.asynchronous.open_array(store=session.store, path="a", mode="r")
        found = await array.getitem(slice(None))
        assert np.array_equal(found, np.arange(NUM_CHUNKS * 1000))

    assert gets(s3_server, lambda: asyncio.run(read())) <= 2


def test_commits_of_others_are_seen_at_once(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository], prefix: str
) -> None:
    repo = open_repo()
    values(repo)
    other = icefloe.Repository.open(s3_server.storage(prefix))
    with other.transaction("main", message="new") as store:
        zarr.open_array(store, path="a")[0] = 77
    assert values(repo)[0] == 77
    with repo.transaction("main", message="mine") as store:
        zarr.open_array(store, path="a")[1] = 78
    assert values(open_repo())[:2].tolist() == [77, 78]


@pytest.mark.parametrize("prefix", [1], indirect=True)
def test_snapshots_that_expiration_writes_again_are_not_kept(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository], prefix: str
) -> None:
    other = icefloe.Repository.open(s3_server.storage(prefix))
    for number in range(2):
        with other.transaction("main", message=str(number)) as store:
            zarr.open_array(store, path="a")[0] = number
    assert len(list(open_repo().ancestry(branch="main"))) == 4
    other.expire_snapshots(datetime.now(UTC))
    assert len(list(open_repo().ancestry(branch="main"))) == 2


def test_another_repository_in_the_same_place_is_not_confused_with_it(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository], prefix: str
) -> None:
    *_, first = open_repo().ancestry(branch="main")
    open_repo().readonly_session(snapshot_id=first.id)
    storage = s3_server.storage(prefix)
    driver = storage.driver(blocking=True)
    keys = [key for key, _ in storage.list_objects()]
    run_blocking(driver.delete_many(keys))
    icefloe.Repository.create(storage)
    *_, again = open_repo().ancestry(branch="main")
    state = open_repo().readonly_session(snapshot_id=again.id).workspace.state
    assert state.snapshot.flushed_at == int(again.written_at.timestamp() * 1e6)


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty", "swapped"])
def test_damaged_files_are_fetched_again(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository], tmp_path: Path, damage: str
) -> None:
    values(open_repo())
    chunks = [path for path in entries(tmp_path / "cache") if path.stat().st_size > CHUNK_BYTES]
    assert len(chunks) == NUM_CHUNKS
    whole = [path.read_bytes() for path in chunks]
    for path, data, other in zip(chunks, whole, whole[1:] + whole[:1], strict=True):
        damaged = {
            "truncated": data[:-1],
            "changed": data[:-1] + bytes([data[-1] ^ 1]),
            "empty": b"",
            "swapped": other,
        }
        path.write_bytes(damaged[damage])
    found: list[Any] = []
    assert gets(s3_server, lambda: found.append(values(open_repo()))) >= NUM_CHUNKS
    assert np.array_equal(found[0], np.arange(NUM_CHUNKS * 1000))
    assert gets(s3_server, lambda: values(open_repo())) <= 2, "they were replaced"


def test_the_folder_stays_within_its_limit(
    open_repo: Callable[..., icefloe.Repository], tmp_path: Path
) -> None:
    limit = 4 * CHUNK_BYTES
    for _ in range(3):
        assert np.array_equal(values(open_repo(max_bytes=limit)), np.arange(NUM_CHUNKS * 1000))
        assert sum(path.stat().st_size for path in entries(tmp_path / "cache")) <= limit


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(CacheFolder(str(tmp_path), 4000))
    for number in range(3):
        cache.put(str(number), bytes(1000))
        for path in entries(tmp_path):
            os.utime(path, (path.stat().st_atime - 1000, path.stat().st_mtime - 1000))
    assert cache.get("0") is not None  # used again
    cache.put("3", bytes(1000))
    kept = [number for number in range(4) if cache.get(str(number)) is not None]
    assert kept == [0, 2, 3]
    cache.put("large", bytes(5000))
    assert cache.get("large") is None


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    cache = DiskCache(CacheFolder(str(tmp_path), 4000))
    cache.put("0", bytes(1000))
    (entry,) = entries(tmp_path)
    for number, head in enumerate((b"", b"icef", b"icefloe1 and more")):
        left = entry.parent / f"new-1-{number:016x}"
        left.write_bytes(head)
        os.utime(left, (0, 0))
    cache.shrink()
    assert entries(tmp_path) == [entry]


def plant_foreign_files(folder: Path) -> list[Path]:
    """Files that look more and more like those of a cache: old, large, named as theirs are."""
    names = [
        "observations.nc",
        "runs/new-results.csv",
        "runs/observations.nc",
        "runs/2024/deep.nc",
        f"ab/{'0' * 38}",
        "ab/new-12-0123456789abcdef",
    ]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 5000)
        os.utime(path, (0, 0))
    return [folder / name for name in names]


@pytest.mark.parametrize("where", ["the folder", "the cache itself", "behind a link"])
def test_a_cache_deletes_no_foreign_file(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "data"
    cache = DiskCache(CacheFolder(str(folder), 4000))
    cache.put("first", bytes(100))
    own = folder / "icefloe-cache"
    if where == "behind a link":
        elsewhere = tmp_path / "elsewhere"
        foreign = plant_foreign_files(elsewhere)
        for number in range(256):  # whatever subfolder an entry belongs into
            if not (own / f"{number:02x}").exists():
                (own / f"{number:02x}").symlink_to(elsewhere / "ab")
        one = next(path.parent for path in entries(own) if not path.parent.is_symlink())
        for path in foreign[-2:]:
            (one / path.name).symlink_to(path)
    else:
        foreign = plant_foreign_files(folder if where == "the folder" else own)
    for number in range(40):
        cache.put(str(number), bytes(1000))
        cache.get(str(number))
    cache.shrink()
    assert [path for path in foreign if path.read_bytes() != b"x" * 5000] == []
    total = sum(path.stat().st_size for path in entries(own) if path not in foreign)
    assert total <= 4000 or where == "behind a link"


def test_a_foreign_folder_with_the_name_of_a_cache_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "icefloe-cache"
    foreign = plant_foreign_files(own)
    before = sorted(own.rglob("*"))
    cache = DiskCache(CacheFolder(str(tmp_path), 4000))
    with caplog.at_level(logging.WARNING, "icefloe.cache"):
        for number in range(10):
            cache.put(str(number), bytes(1000))
    assert sum("name another folder" in record.message for record in caplog.records) == 1
    assert cache.get("1") is None
    cache.shrink()
    assert sorted(own.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [own]
    assert all(path.exists() for path in foreign)


def test_a_cache_and_the_folders_made_for_it_are_private(tmp_path: Path) -> None:
    cache = DiskCache(CacheFolder(str(tmp_path / "new" / "folder"), 4000))
    cache.put("0", bytes(1000))
    made = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert len(made) == 3
    assert {path.stat().st_mode & 0o777 for path in [tmp_path / "new", *made]} == {0o700}


def test_a_cache_that_is_deleted_while_in_use_starts_again(tmp_path: Path) -> None:
    cache = DiskCache(CacheFolder(str(tmp_path), 4000))
    cache.put("0", bytes(1000))
    shutil.rmtree(tmp_path / "icefloe-cache")
    assert cache.get("0") is None
    cache.put("0", bytes(1000))
    assert cache.get("0") == bytes(1000)
    again = DiskCache(CacheFolder(str(tmp_path), 500))
    again.shrink()
    assert entries(tmp_path) == [], "the new folder is marked"


def test_a_cache_of_an_earlier_layout_is_left_alone(tmp_path: Path) -> None:
    old = tmp_path / "ab" / ("0" * 38)
    old.parent.mkdir()
    old.write_bytes(b"icefloe1" + bytes(9000))
    cache = DiskCache(CacheFolder(str(tmp_path), 4000))
    for number in range(10):
        cache.put(str(number), bytes(1000))
    assert old.exists()


def test_a_folder_is_the_same_one_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = icefloe.in_memory_storage().cached("kept")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    cache = pickle.loads(pickle.dumps(storage)).disk_cache()
    assert cache is not None
    cache.put("0", bytes(1000))
    assert len(entries(tmp_path / "kept")) == 1


def test_a_folder_that_cannot_be_written_costs_nothing_but_speed(
    open_repo: Callable[..., icefloe.Repository], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "icefloe.cache"):
        assert np.array_equal(values(open_repo()), np.arange(NUM_CHUNKS * 1000))
    assert sum("nothing is kept" in record.message for record in caplog.records) == 1


def test_processes_share_a_cache_that_is_too_small(
    s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    program = "tests.contract.disk_cache_reader"
    limit = 5 * CHUNK_BYTES
    words = [s3_server.endpoint_url, prefix, str(tmp_path / "cache"), str(limit), "4"]
    racers = [
        subprocess.Popen([sys.executable, "-m", program, *words], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for racer in racers:
        _, errors = racer.communicate(timeout=300)
        assert racer.returncode == 0, errors
    kept = entries(tmp_path / "cache")
    assert not [path for path in kept if path.name.startswith("new-")]
    assert sum(path.stat().st_size for path in kept) <= limit * (1 + 3 / 16)


def test_a_storage_is_pickled_with_its_cache(s3_server: S3Server, tmp_path: Path) -> None:
    storage = s3_server.storage().cached(tmp_path, 10**6)
    again = pickle.loads(pickle.dumps(storage))
    assert again.disk_cache() is storage.disk_cache()
    assert storage.attributed(None).disk_cache() is storage.disk_cache()
    with pytest.raises(icefloe.InvalidInputError, match="expected more than 0"):
        s3_server.storage().cached(tmp_path, 0)


def test_verification_looks_at_what_is_stored(
    s3_server: S3Server, open_repo: Callable[..., icefloe.Repository], prefix: str
) -> None:
    repo = open_repo()
    values(repo)
    assert repo.verify(read_chunks=True).is_healthy
    requests = gets(s3_server, lambda: open_repo().verify(read_chunks=True))
    assert requests >= NUM_CHUNKS


@pytest.mark.parametrize("has_checksum", [True, False])
def test_virtual_chunks_are_kept_if_their_references_have_a_checksum(
    s3_server: S3Server, tmp_path: Path, has_checksum: bool
) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    key = f"virtual-{os.urandom(6).hex()}.bin"
    etag = client.put_object(Bucket=BUCKET, Key=key, Body=bytes(range(64)))["ETag"]
    url = f"s3://{BUCKET}/"
    store = icefloe.s3_store(
        region="us-east-1",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        force_path_style=True,
    )
    container = icefloe.VirtualChunkContainer(url, store)
    config = icefloe.RepositoryConfig(virtual_chunk_containers={url: container})
    access = icefloe.containers_credentials(
        {url: icefloe.s3_credentials(access_key_id="test", secret_access_key="test-secret")}
    )
    storage = icefloe.in_memory_storage().cached(tmp_path / "cache")
    repo = icefloe.Repository.create(storage, config, authorize_virtual_chunk_access=access)
    with repo.transaction("main", message="v") as writing:
        zarr.create_array(
            writing, name="v", shape=(16,), chunks=(16,), dtype="u1", compressors=None, fill_value=0
        )
        writing.set_virtual_ref(
            "v/c/0",
            f"{url}{key}",
            offset=8,
            length=16,
            checksum=etag.strip('"') if has_checksum else None,
        )

    def read() -> None:
        opened = icefloe.Repository.open(storage, config, authorize_virtual_chunk_access=access)
        found = zarr.open_array(opened.readonly_session("main").store, path="v", mode="r")[:]
        assert found.tolist() == list(range(8, 24))  # type: ignore[union-attr]

    assert gets(s3_server, read) >= 1
    assert (gets(s3_server, read) == 0) == has_checksum
