"""Virtual chunks are read from wherever they lie, and never as anything but what was referenced."""

from __future__ import annotations

import asyncio
import os
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import obstore
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe import VirtualChunkContainer
from icefloe.assets.virtual import MOST_READERS
from icefloe.credentials import HttpAccess, LocalFileSystemAccess
from icefloe.repo.session import Workspace
from icefloe.storage.locations import S3Location
from icefloe.storage.run import run_blocking
from icefloe.store import operations
from tests.servers import BUCKET, S3Server
from tests.virtual_sources import (
    CHUNK,
    MODIFIED,
    make_array,
    read_chunk,
    reopened,
    virtual_repo,
    web_server,
)

DATA = bytes(range(200))


def files(directory: Path, name: str | None = None) -> VirtualChunkContainer:
    store = icefloe.local_filesystem_store(str(directory))
    return VirtualChunkContainer(f"file://{directory}/", store, name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a b%ü.bin").write_bytes(DATA)
    (tmp_path / "data" / "f.bin").write_bytes(DATA)
    return tmp_path / "data"


def file_repo(data: Path, location: str, **options: Any) -> Any:
    return virtual_repo(
        data.parent / "repo",
        [location],
        [files(data, "here")],
        {f"file://{data}/": LocalFileSystemAccess},
        **options,
    )


def kind_of(repo: Any) -> str:
    with pytest.raises(icefloe.StorageError) as caught:
        read_chunk(repo)
    return caught.value.kind


@pytest.mark.parametrize("name", ["f.bin", "a b%25ü.bin", "a%20b%25%C3%BC.bin"])
def test_files(data: Path, name: str) -> None:
    assert read_chunk(file_repo(data, f"file://{data}/{name}", offset=5)) == DATA[5:15]


def test_relative_locations(data: Path) -> None:
    repo = file_repo(data, "vcc://here/f.bin", offset=7)
    assert read_chunk(repo) == DATA[7:17]
    found = repo.readonly_session("main").all_virtual_chunk_locations()
    assert found == [f"file://{data}/f.bin"]


def test_parts_of_a_chunk(data: Path) -> None:
    store = file_repo(data, "vcc://here/f.bin", offset=20).readonly_session("main").store
    asked = [
        (RangeByteRequest(2, 5), DATA[22:25]),
        (OffsetByteRequest(4), DATA[24:30]),
        (SuffixByteRequest(3), DATA[27:30]),
    ]
    prototype = default_buffer_prototype()
    for request, expected in asked:
        found = asyncio.run(store.get("a/c/0", prototype, request))
        assert found.to_bytes() == expected


def test_a_missing_short_or_odd_file_is_an_error(data: Path) -> None:
    (data / "short.bin").write_bytes(DATA[:9])
    (data / "folder").mkdir()
    os.mkfifo(data / "pipe")
    expected = {
        "missing": "virtual-chunk-fetch",
        "short.bin": "invalid-object-size",
        "folder": "virtual-chunk-fetch",
        "pipe": "virtual-chunk-fetch",
        "f.bin/x": "virtual-chunk-fetch",
    }
    repo = virtual_repo(
        data.parent / "repo",
        [f"file://{data}/{name}" for name in expected],
        [files(data)],
        {f"file://{data}/": LocalFileSystemAccess},
    )
    for at, kind in enumerate(expected.values()):
        with pytest.raises(icefloe.StorageError) as caught:
            read_chunk(repo, at)
        assert caught.value.kind == kind


def test_a_file_that_has_changed_is_an_error(data: Path) -> None:
    location = f"file://{data}/f.bin"
    info = obstore.head(obstore.store.LocalStore(str(data)), "f.bin")
    repo = file_repo(data, location, checksum=info["e_tag"])
    assert read_chunk(repo) == DATA[:CHUNK]
    os.utime(data / "f.bin", (MODIFIED, MODIFIED))
    assert kind_of(repo) == "virtual-chunk-modified"


def test_a_file_modified_later_is_an_error(data: Path) -> None:
    modified = datetime.fromtimestamp((data / "f.bin").stat().st_mtime, UTC)
    repo = file_repo(data, f"file://{data}/f.bin", checksum=modified)
    assert read_chunk(repo) == DATA[:CHUNK]
    later = modified.timestamp() + 2
    os.utime(data / "f.bin", (later, later))
    assert kind_of(repo) == "virtual-chunk-modified"


def test_a_time_to_come_is_not_rounded_up(data: Path) -> None:
    """VirtualiZarr adds a second to the present time. What changes after that has to be noticed."""
    given = datetime.now(UTC).replace(microsecond=500_000) + timedelta(minutes=5)
    repo = file_repo(data, f"file://{data}/f.bin", checksum=given)
    assert read_chunk(repo) == DATA[:CHUNK]
    later = given.timestamp() + 0.1
    os.utime(data / "f.bin", (later, later))
    assert kind_of(repo) == "virtual-chunk-modified"


def test_nothing_is_read_without_authorisation(data: Path) -> None:
    repo = file_repo(data, f"file://{data}/f.bin")
    assert repo.authorized_virtual_container_prefixes == {f"file://{data}/"}
    stranger = reopened(repo, None)
    assert stranger.authorized_virtual_container_prefixes == set()
    with pytest.raises(icefloe.InvalidInputError, match="authorize_virtual_chunk_access") as caught:
        read_chunk(stranger)
    assert caught.value.kind == "unauthorized-virtual-chunk-container"
    allowed = stranger.reopen(
        authorize_virtual_chunk_access={f"file://{data}/": LocalFileSystemAccess}
    )
    assert read_chunk(allowed) == DATA[:CHUNK]
    assert read_chunk(allowed.reopen()) == DATA[:CHUNK]
    assert read_chunk(pickle.loads(pickle.dumps(allowed))) == DATA[:CHUNK]


async def test_the_event_loop_flavour(data: Path) -> None:
    repo = await icefloe.Repository.open_async(
        file_repo(data, f"file://{data}/f.bin").storage,
        authorize_virtual_chunk_access={f"file://{data}/": LocalFileSystemAccess},
    )
    store = (await repo.readonly_session_async("main")).store
    found = await store.get("a/c/0", default_buffer_prototype())
    assert found is not None
    assert found.to_bytes() == DATA[:CHUNK]


# -- the web


def web(url: str, **options: Any) -> VirtualChunkContainer:
    return VirtualChunkContainer(f"{url}/data/", icefloe.http_store(**options))


def web_repo(place: Path, url: str, **options: Any) -> Any:
    return virtual_repo(
        place / "repo",
        [f"{url}/data/f.bin"],
        [web(url, headers={"X-Who": "me"})],
        {f"{url}/data/": HttpAccess},
        **options,
    )


@pytest.mark.parametrize("heeds_ranges", [True, False])
def test_web_servers(tmp_path: Path, heeds_ranges: bool) -> None:
    with web_server(files={"/data/f.bin": DATA}, heeds_ranges=heeds_ranges) as server:
        repo = web_repo(tmp_path, server.url, offset=30)
        assert read_chunk(repo) == DATA[30:40]
        [(path, headers)] = server.requests
        assert (path, headers["Range"], headers["X-Who"]) == ("/data/f.bin", "bytes=30-39", "me")


@pytest.mark.parametrize("heeds_conditions", [True, False])
@pytest.mark.parametrize("checksum", ['"v1"', "v1", datetime.fromtimestamp(MODIFIED, UTC)])
def test_a_web_file_that_has_changed(
    tmp_path: Path, heeds_conditions: bool, checksum: str | datetime
) -> None:
    files = {"/data/f.bin": DATA}
    with web_server(files=files, heeds_conditions=heeds_conditions) as server:
        repo = web_repo(tmp_path, server.url, checksum=checksum)
        assert read_chunk(repo) == DATA[:CHUNK]
        server.etag, server.modified = '"v2"', MODIFIED + 5
        assert kind_of(repo) == "virtual-chunk-modified"
        server.etag, server.modified = None, None
        server.heeds_conditions = False
        assert kind_of(repo) == "virtual-chunk-modified"


def test_web_trouble(tmp_path: Path) -> None:
    path = "/data/f.bin"
    with web_server(files={path: DATA}) as server:
        repo = web_repo(tmp_path, server.url, offset=190)
        server.statuses[path] = [503, 500]
        assert read_chunk(repo) == DATA[190:]
        assert len(server.requests) == 3
        server.statuses[path] = [403]
        assert kind_of(repo) == "virtual-chunk-fetch"
        for shorter in (195, 100):
            server.files[path] = DATA[:shorter]
            assert kind_of(repo) == "invalid-object-size"
            server.heeds_ranges = not server.heeds_ranges
            assert kind_of(repo) == "invalid-object-size"
        del server.files[path]
        assert kind_of(repo) == "virtual-chunk-fetch"


# -- S3


def s3_container(server: S3Server, prefix: str) -> VirtualChunkContainer:
    store = icefloe.s3_store(
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    return VirtualChunkContainer(prefix, store)


def put(server: S3Server, key: str, data: bytes) -> obstore.PutResult:
    location = server.storage("x").location
    assert isinstance(location, S3Location)
    store = obstore.store.S3Store(
        BUCKET,
        config={
            "endpoint": server.endpoint_url,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "x",
        },
        client_options={"allow_http": True},
    )
    return store.put(key, data)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("has_checksum", ["no", "etag", "time"])
def test_s3(tmp_path: Path, s3_server: S3Server, is_own: bool, has_checksum: str) -> None:
    prefix = f"s3://{BUCKET}/{tmp_path.name}/"
    key = f"{tmp_path.name}/a b+ü~.bin"
    etag = put(s3_server, key, DATA)["e_tag"]
    checksum = {"no": None, "etag": etag, "time": datetime.now(UTC) + timedelta(seconds=1)}
    container = s3_container(s3_server, prefix)
    keys = icefloe.s3_credentials(access_key_id="test-reader", secret_access_key="x")
    credentials = icefloe.containers_credentials({prefix: keys})
    repo = virtual_repo(
        tmp_path / "repo",
        [f"{prefix}a b+%C3%BC~.bin", f"{prefix}missing"],
        [container],
        credentials,
        offset=40,
        checksum=checksum[has_checksum],
    )
    if not is_own:  # the endpoint is then out of the saved configuration
        repo = reopened(repo, credentials)
    assert read_chunk(repo) == DATA[40:50]
    assert s3_server.requests()["keys"]["test-reader"] > 0
    with pytest.raises(icefloe.StorageError) as caught:
        read_chunk(repo, 1)
    assert caught.value.kind == "virtual-chunk-fetch"
    put(s3_server, key, DATA[:45])
    expected = {"no": "invalid-object-size", "etag": "virtual-chunk-modified"}
    if has_checksum in expected:
        assert kind_of(repo) == expected[has_checksum]


def test_s3_refuses_who_may_not_read(tmp_path: Path, s3_server: S3Server) -> None:
    prefix = f"s3://{BUCKET}/{tmp_path.name}/"
    put(s3_server, f"{tmp_path.name}/f.bin", DATA)
    for at, keys in enumerate(
        [
            icefloe.s3_anonymous_credentials(),
            icefloe.s3_credentials(access_key_id="nobody", secret_access_key="x"),
        ]
    ):
        credentials = icefloe.containers_credentials({prefix: keys})
        container = s3_container(s3_server, prefix)
        repo = virtual_repo(tmp_path / str(at), [f"{prefix}f.bin"], [container], credentials)
        assert kind_of(repo) == "virtual-chunk-fetch"
        assert kind_of(reopened(repo, credentials)) == "virtual-chunk-fetch"


def test_many_chunks_at_once(tmp_path: Path, s3_server: S3Server) -> None:
    prefix = f"s3://{BUCKET}/{tmp_path.name}/"
    put(s3_server, f"{tmp_path.name}/f.bin", DATA)
    keys = icefloe.s3_credentials(access_key_id="test", secret_access_key="x")
    credentials = icefloe.containers_credentials({prefix: keys})
    container = s3_container(s3_server, prefix)
    repo = icefloe.Repository.create(
        icefloe.in_memory_storage(), icefloe.RepositoryConfig(), credentials
    )
    repo.config.set_virtual_chunk_container(container)
    repo = repo.reopen(repo.config)
    session = repo.writable_session("main")
    array = make_array(session.store, 20)
    for at in range(20):
        location = f"{prefix}f.bin"
        session.store.set_virtual_ref(f"a/c/{at}", location, offset=at * CHUNK, length=CHUNK)
    assert bytes(array[:]) == DATA  # type: ignore[arg-type]


def test_threads_and_forks_share_a_web_reader(tmp_path: Path) -> None:
    locations = [f"/data/{at}.bin" for at in range(8)]
    files = {path: bytes([at]) * CHUNK for at, path in enumerate(locations)}
    with web_server(files=files) as server:
        prefix = f"{server.url}/data/"
        repo = virtual_repo(
            tmp_path / "repo",
            [server.url + path for path in locations],
            [web(server.url)],
            {prefix: HttpAccess},
        )
        session = repo.readonly_session("main")
        handle = repo._handles.blocking

        def read(at: int) -> bytes:
            found = run_blocking(operations.get(Workspace(handle, session._state), f"a/c/{at}"))
            assert found is not None
            return bytes(found)

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, [*range(8)] * 5)) == list(files.values()) * 5
        [process] = [get_context("fork").Process(target=_read_and_exit, args=(read,))]
        with warnings.catch_warnings():  # of threads in a process that forks: that is the point
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        process.join(30)
        assert process.exitcode == 7
        assert read(1) == files[locations[1]]


def _read_and_exit(read: Callable[[int], bytes]) -> None:
    os._exit(
        7 if [read(at) for at in (3, 3, 5)] == [bytes([at]) * CHUNK for at in (3, 3, 5)] else 1
    )


def test_no_more_readers_are_kept_than_allowed(tmp_path: Path) -> None:
    containers = []
    for at in range(MOST_READERS + 5):
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "f").write_bytes(DATA)
        containers.append(files(tmp_path / str(at)))
    prefixes = [container.url_prefix for container in containers]
    repo = virtual_repo(
        tmp_path / "repo",
        [f"{prefix}f" for prefix in prefixes],
        containers,
        dict.fromkeys(prefixes, LocalFileSystemAccess),
    )
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    values: Any = array[:]
    assert bytes(values) == DATA[:CHUNK] * len(prefixes)
    reader = repo._handles.eventloop.assets.virtual
    assert len(reader._readers._entries) <= MOST_READERS
