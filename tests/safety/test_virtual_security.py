"""A repository made by somebody else cannot turn a reader against themselves.

The hostile side writes configuration, references and names as it likes; the reader opens the
repository with what is saved and authorises one thing. What then arrives at which server is
counted, and files outside of what was authorised hold a mark that must never be seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import Repository, VirtualChunkContainer
from icefloe.credentials import HttpAccess, LocalFileSystemAccess
from icefloe.format.chunk_refs import ChunkKind, ChunkRef
from tests.virtual_sources import (
    CHUNK,
    WebServer,
    config_of,
    make_array,
    read_chunk,
    virtual_repo,
    web_server,
)

PUBLIC, SECRET = b"p" * 100, b"s" * 100
REFUSALS = {
    "unauthorized-virtual-chunk-container",
    "no-container-for-virtual-chunk",
    "invalid-virtual-ref",
    "virtual-chunk-fetch",
}


def hostile_repo(
    place: Path, locations: list[str], containers: list[VirtualChunkContainer]
) -> Repository:
    """References exactly as given: not checked, not even brought into stored form."""
    repo = Repository.create(icefloe.local_filesystem_storage(str(place)), config_of(containers))
    session = repo.writable_session("main")
    make_array(session.store, len(locations))
    node, _ = session._state.array("/a")
    for at, location in enumerate(locations):
        ref = ChunkRef(ChunkKind.VIRTUAL, 0, CHUNK, location=location)
        session._state.changes.edits(node).set((at,), ref)
    session.commit("hostile")
    return repo


def open_as_reader(repo: Repository, authorize: Mapping[str, Any]) -> Repository:
    return Repository.open(repo.storage, None, authorize)


def assert_refused(repo: Repository, at: int = 0) -> str:
    with pytest.raises(icefloe.IcechunkError) as caught:
        read_chunk(repo, at)
    assert caught.value.kind in REFUSALS
    return caught.value.message


# -- local files


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """`data/` is what readers share; the mark lies next to it."""
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "f").write_bytes(PUBLIC)
    (tmp_path / "data-evil").mkdir()
    for name in ("secret", "data-evil/f"):
        (tmp_path / name).write_bytes(SECRET)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "data-evil")
    (tmp_path / "data" / "inner").symlink_to(tmp_path / "data" / "f")
    return tmp_path


def files(prefix: str, name: str | None = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, icefloe.local_filesystem_store("/"), name)


def escapes(root: Path) -> list[str]:
    data = f"file://{root}/data"
    return [
        f"{data}/../secret",
        f"{data}/%2e%2e/secret",
        f"{data}/%2E%2E/secret",
        f"{data}/.%2e/secret",
        f"{data}/..%2fsecret",
        f"{data}/%2e%2e%2fsecret",
        f"{data}/..\\secret",
        f"{data}/..%5csecret",
        f"{data}/sub/../../secret",
        f"{data}//../../secret",
        f"{data}/./../secret",
        f"{data}/link",
        f"{data}/folder/f",
        f"{data}-evil/f",
        f"{data}",
        f"FILE://{root}/data/../secret",
        f"file://localhost{root}/secret",
        f"file:{root}/secret",
        f"file://{root}/secret",
        f"file://evil.example{root}/data/f",
        "vcc://here/../secret",
        "vcc://here/%2e%2e/secret",
        "vcc://here/..%2fsecret",
        f"vcc://here//{root}/secret",
        "vcc://here/link",
        "vcc://HERE/f",
        "vcc://here%2f/f",
        "vcc://",
        f"vcc:///{root}/secret",
        f"{root}/secret",
        "../secret",
        f"{data}/f\0/../../secret",
        f"{data}/\ud7ff\uff0e\uff0e/secret",
    ]


def test_files_outside_of_a_container_stay_closed(disk: Path) -> None:
    prefix = f"file://{disk}/data/"
    locations = [*escapes(disk), f"{prefix}f", f"{prefix}inner", "vcc://here/f"]
    repo = hostile_repo(disk / "repo", locations, [files(prefix, "here")])
    reader = open_as_reader(repo, {prefix: LocalFileSystemAccess})
    for at in range(len(locations) - 3):
        assert_refused(reader, at)
    for at in range(len(locations) - 3, len(locations)):  # and the others do not
        assert read_chunk(reader, at) == PUBLIC[:CHUNK]


def test_nothing_local_is_read_without_permission(disk: Path) -> None:
    prefix = f"file://{disk}/data/"
    repo = hostile_repo(disk / "repo", [f"{prefix}f", "vcc://here/f"], [files(prefix, "here")])
    for authorize in (
        {},
        {"http://127.0.0.1/": HttpAccess},
        {f"file://{disk}/": LocalFileSystemAccess},
    ):
        for at in (0, 1):
            assert "not authorised" in assert_refused(open_as_reader(repo, authorize), at)


def test_a_container_that_was_widened_is_another_container(disk: Path) -> None:
    narrow, wide = f"file://{disk}/data/", f"file://{disk}/"
    repo = hostile_repo(disk / "repo", [f"{wide}secret", f"{narrow}f"], [files(wide)])
    reader = open_as_reader(repo, {narrow: LocalFileSystemAccess})
    for at in (0, 1):
        assert_refused(reader, at)


def test_a_narrower_container_is_not_covered_by_a_wider_one(disk: Path) -> None:
    # The longer prefix is looked at first, whatever the order in the configuration.
    wide, narrow = f"file://{disk}/data/", f"file://{disk}/data/sub/"
    (disk / "data" / "sub" / "g").write_bytes(PUBLIC)
    repo = hostile_repo(disk / "repo", [f"{narrow}g"], [files(wide), files(narrow)])
    assert_refused(open_as_reader(repo, {wide: LocalFileSystemAccess}))


def test_one_name_for_two_containers_opens_neither_more(disk: Path) -> None:
    narrow, wide = files(f"file://{disk}/data/", "here"), files(f"file://{disk}/", "here")
    repo = hostile_repo(disk / "repo", ["vcc://here/secret"], [narrow])
    config = repo.config
    config.virtual_chunk_containers = {each.url_prefix: each for each in (narrow, wide)}
    repo.reopen(config).save_config()
    assert_refused(open_as_reader(repo, {narrow.url_prefix: LocalFileSystemAccess}))


def test_devices_and_pipes_are_not_files(disk: Path) -> None:
    prefix = f"file://{disk}/data/"
    os.mkfifo(disk / "data" / "pipe")
    repo = hostile_repo(disk / "repo", [f"{prefix}pipe", "file:///dev/zero"], [files(prefix)])
    assert "regular file" in assert_refused(open_as_reader(repo, {prefix: LocalFileSystemAccess}))
    devices = hostile_repo(disk / "other", ["file:///dev/zero"], [files("file:///dev/")])
    assert_refused(open_as_reader(devices, {"file:///dev/": LocalFileSystemAccess}))


# -- hosts


def web(prefix: str, **options: Any) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, icefloe.http_store(**options))


def test_other_hosts_ports_and_paths_are_not_asked(tmp_path: Path) -> None:
    with web_server(files={"/data/f": PUBLIC, "/secret": SECRET}) as good, web_server() as evil:
        here, there = good.url.removeprefix("http://"), evil.url.removeprefix("http://")
        prefix = f"http://{here}/data/"
        locations = [
            f"http://{there}/data/f",
            f"http://{here}@{there}/data/f",
            f"http://{here}:x@{there}/data/f",
            f"http://{there}#@{here}/data/f",
            f"http://{there}?@{here}/data/f",
            f"http://{there}\\@{here}/data/f",
            f"http://localhost:{here.rpartition(':')[2]}/data/f",
            f"http://{here}0/data/f",
            f"http://{here}.evil.example/data/f",
            f"http://{here}/data/../secret",
            f"http://{here}/data/%2e%2e/secret",
            f"http://{here}/data/..%2fsecret",
            f"http://{here}/data//../secret",
            f"http://{here}/data/./f",
            f"http://{here}/data-evil/f",
            f"http://{here}//{there}/data/f",
            f"https://{here}/data/f",
            f"//{here}/data/f",
            f"s3://{here}/data/f",
            f"http:/{here}/data/f",
        ]
        repo = hostile_repo(tmp_path / "repo", [*locations, f"{prefix}f"], [web(prefix)])
        reader = open_as_reader(repo, {prefix: HttpAccess})
        for at in range(len(locations)):
            assert_refused(reader, at)
        assert (good.requests, evil.requests) == ([], [])
        assert read_chunk(reader, len(locations)) == PUBLIC[:CHUNK]


def test_a_redirect_is_followed_only_to_what_is_authorised(tmp_path: Path) -> None:
    with web_server(files={"/data/f": SECRET}) as other, web_server() as server:
        for status_path, target in {
            "/data/a": f"{other.url}/data/f",
            "/data/b": f"//{other.url.removeprefix('http://')}/data/f",
            "/data/c": "/private/f",
            "/data/d": "/data/../private/f",
            "/data/e": "/data/%2e%2e/private/f",
            "/data/g": "file:///etc/passwd",
            "/data/h": "/data/h",
            "/data/i": "/data/moved",
        }.items():
            server.redirects[status_path] = target
        server.files["/private/f"] = SECRET
        server.files["/data/moved"] = PUBLIC
        prefix = f"{server.url}/data/"
        names = [path.rpartition("/")[2] for path in server.redirects]
        repo = hostile_repo(
            tmp_path / "repo",
            [prefix + name for name in names],
            [web(prefix, headers={"X-Token": "mine"})],
        )
        reader = open_as_reader(repo, {prefix: HttpAccess})
        for at in range(len(names) - 1):
            assert "redirect" in assert_refused(reader, at)
        assert other.requests == []
        assert "/private/f" not in {path for path, _ in server.requests}
        assert read_chunk(reader, len(names) - 1) == PUBLIC[:CHUNK]
        # A reader who knows where the server sends them can allow it; headers stay at home.
        both = open_as_reader(repo, {prefix: HttpAccess, f"{other.url}/data/": HttpAccess})
        assert read_chunk(both) == SECRET[:CHUNK]
        [(_, headers)] = other.requests
        assert "X-Token" not in headers


@pytest.mark.parametrize(
    "options",
    [
        {"opts": {"proxy_url": "PROXY"}},
        {"opts": {"allow_invalid_certificates": "true"}},
        {"opts": {"proxy_ca_certificate": "x"}},
        {"headers": {"Host": "internal.example"}},
        {"headers": {"If-Match": "x"}},
        {"headers": {"X-A": "b\r\nHost: internal.example"}},
    ],
)
def test_saved_options_do_not_choose_proxies_hosts_or_trust(
    tmp_path: Path, options: dict[str, dict[str, str]]
) -> None:
    with web_server(files={"/data/f": PUBLIC}) as server, web_server() as proxy:
        if options.get("opts", {}).get("proxy_url"):
            options = {"opts": {"proxy_url": proxy.url}}
        prefix = f"{server.url}/data/"
        repo = hostile_repo(tmp_path / "repo", [f"{prefix}f"], [web(prefix, **options)])
        with pytest.raises(icefloe.IcechunkError, match="container"):
            read_chunk(open_as_reader(repo, {prefix: HttpAccess}))
        assert (server.requests, proxy.requests) == ([], [])


# -- credentials


@pytest.fixture
def signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose owner is signed in everywhere."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAMBIENT",
        "AWS_SECRET_ACCESS_KEY": "ambient-secret",
        "AWS_SESSION_TOKEN": "ambient-token",
        "AWS_REGION": "us-east-1",
        "AZURE_STORAGE_ACCOUNT_KEY": "YW1iaWVudA==",
        "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent/ambient.json",
    }.items():
        monkeypatch.setenv(name, value)


def s3(prefix: str, endpoint: str, **options: Any) -> VirtualChunkContainer:
    settings = {"region": "us-east-1", "allow_http": True, "force_path_style": True, **options}
    return VirtualChunkContainer(prefix, icefloe.s3_store(endpoint_url=endpoint, **settings))


def saw_ambient(server: WebServer) -> bool:
    return any(
        "mbient" in str(headers) or "AMBIENT" in str(headers) for _, headers in server.requests
    )


@pytest.mark.usefixtures("signed_in")
def test_ambient_credentials_do_not_go_to_a_saved_endpoint(tmp_path: Path) -> None:
    with web_server(files={"/bucket/f": PUBLIC}) as evil:
        repo = hostile_repo(tmp_path / "repo", ["s3://bucket/f"], [s3("s3://bucket/", evil.url)])
        authorize = icefloe.containers_credentials(
            {"s3://bucket/": icefloe.s3_from_env_credentials()}
        )
        assert "endpoint" in assert_refused(open_as_reader(repo, authorize))
        assert evil.requests == []
        # The reader can say themselves that this is where the bucket is.
        own = config_of([s3("s3://bucket/", evil.url)])
        assert read_chunk(Repository.open(repo.storage, own, authorize)) == PUBLIC[:CHUNK]
        assert saw_ambient(evil)


@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize("saved_anonymous", [True, False])
def test_no_credential_means_no_signature(tmp_path: Path, saved_anonymous: bool) -> None:
    with web_server(files={"/bucket/f": PUBLIC}) as server:
        container = s3("s3://bucket/", server.url, anonymous=saved_anonymous)
        repo = hostile_repo(tmp_path / "repo", ["s3://bucket/f"], [container])
        with pytest.warns(DeprecationWarning, match="None"):
            reader = open_as_reader(repo, {"s3://bucket/": None})
        assert read_chunk(reader) == PUBLIC[:CHUNK]
        assert server.requests
        assert not saw_ambient(server)


@pytest.mark.usefixtures("signed_in")
def test_explicit_keys_reach_a_saved_endpoint_and_go_no_further(tmp_path: Path) -> None:
    with web_server(files={"/bucket/f": SECRET}) as other, web_server() as evil:
        evil.redirects["/bucket/f"] = f"{other.url}/bucket/f"
        evil.files["/bucket/g"] = PUBLIC
        locations = ["s3://bucket/f", "s3://bucket/g", "s3://bucket-evil/g", "s3://bucket@x/g"]
        repo = hostile_repo(tmp_path / "repo", locations, [s3("s3://bucket/", evil.url)])
        keys = icefloe.s3_credentials(access_key_id="MINE", secret_access_key="hidden")
        reader = open_as_reader(repo, icefloe.containers_credentials({"s3://bucket/": keys}))
        assert "redirect" in assert_refused(reader)
        assert read_chunk(reader, 1) == PUBLIC[:CHUNK]
        assert "Credential=MINE/" in evil.requests[-1][1]["Authorization"]
        for at in (2, 3):
            assert_refused(reader, at)
        assert other.requests == []
        sent = str(evil.requests)
        assert "hidden" not in sent
        assert not saw_ambient(evil)


@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize(
    ("prefix", "options", "make"),
    [
        ("gs://b/", {"google_base_url": "EVIL"}, icefloe.gcs_anonymous_credentials),
        ("gs://b/", {"service_account": "/etc/key.json"}, icefloe.gcs_anonymous_credentials),
        (
            "gs://b/",
            {"google_application_credentials": "/etc/k"},
            icefloe.gcs_anonymous_credentials,
        ),
        ("az://c/", {"azure_storage_endpoint": "EVIL"}, icefloe.azure_anonymous_credentials),
        ("az://c/", {"azure_storage_account_key": "eA=="}, icefloe.azure_anonymous_credentials),
        ("az://c/", {"account": "evil.example/"}, icefloe.azure_anonymous_credentials),
    ],
)
def test_saved_options_of_clouds_choose_neither_host_nor_identity(
    tmp_path: Path, prefix: str, options: dict[str, str], make: Callable[[], Any]
) -> None:
    with web_server() as evil:
        chosen = {name: evil.url if value == "EVIL" else value for name, value in options.items()}
        kinds = icefloe.ObjectStoreConfig
        store: Any = kinds.Gcs(chosen)
        if prefix.startswith("az"):
            store = kinds.Azure({"account": "ours", **chosen})
        repo = hostile_repo(
            tmp_path / "repo", [f"{prefix}f"], [VirtualChunkContainer(prefix, store)]
        )
        with pytest.raises(icefloe.IcechunkError, match="container"):
            read_chunk(open_as_reader(repo, icefloe.containers_credentials({prefix: make()})))
        assert evil.requests == []


def test_a_credential_of_another_kind_is_refused_when_opening(tmp_path: Path) -> None:
    repo = virtual_repo(tmp_path / "repo", [], [s3("s3://bucket/", "http://127.0.0.1:9")])
    for credential in (HttpAccess, LocalFileSystemAccess):
        with pytest.raises(icefloe.StorageError, match="expected") as caught:
            open_as_reader(repo, {"s3://bucket/": credential})
        assert caught.value.kind == "storage-other"


def test_messages_hold_no_query_strings(tmp_path: Path) -> None:
    with web_server() as server:
        prefix = f"{server.url}/data/"
        repo = hostile_repo(tmp_path / "repo", [f"{prefix}f?token=hush"], [web(prefix)])
        assert "hush" not in assert_refused(open_as_reader(repo, {prefix: HttpAccess}))


def test_required_access_tells_before_anything_is_authorised(tmp_path: Path) -> None:
    prefix = f"file://{tmp_path}/data/"
    repo = hostile_repo(
        tmp_path / "repo",
        [f"{prefix}f", "vcc://here/g", "s3://bucket/x", "gs://elsewhere/y", "no url"],
        [files(prefix, "here"), s3("s3://bucket/", "http://127.0.0.1:9")],
    )
    found = open_as_reader(repo, {prefix: LocalFileSystemAccess}).required_access()
    assert [(each.url_prefix, each.num_chunks, each.is_authorized) for each in found] == [
        (prefix, 2, True),
        ("gs://elsewhere/", 1, False),
        ("no url", 1, False),
        ("s3://bucket/", 1, False),
    ]
    assert [each.has_container for each in found] == [True, False, False, True]
    assert [each.endpoint_url for each in found][-1] == "http://127.0.0.1:9"
    assert sum(each.num_bytes for each in found) == 5 * CHUNK
