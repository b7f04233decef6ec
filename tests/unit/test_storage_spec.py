"""Storage descriptions: equality, pickles, what is printed, URLs, and the functions behind them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from icefloe.config.stores import ChecksumAlgorithm
from icefloe.credentials import (
    AzureRefreshableCredential,
    GcsBearerCredential,
    S3StaticCredentials,
)
from icefloe.errors import ErrorKind, InternalError, InvalidInputError, StorageError
from icefloe.storage.client import connect
from icefloe.storage.constructors import (
    azure_storage,
    gcs_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.locations import MemoryLocation, RedirectLocation
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import (
    Storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    redirect_storage,
)
from icefloe.storage.urls import storage_from_url

SECRET = "hush-hush"


def get_s3() -> S3StaticCredentials:
    return S3StaticCredentials("key", SECRET, SECRET, datetime.now(UTC) + timedelta(hours=1))


def get_gcs() -> GcsBearerCredential:
    return GcsBearerCredential(SECRET)


def every_storage() -> list[Storage]:
    s3: dict[str, Any] = {"bucket": "bucket", "prefix": "a/b"}
    keys: dict[str, Any] = {
        "access_key_id": "key",
        "secret_access_key": SECRET,
        "session_token": SECRET,
    }
    headers: dict[str, Any] = {"headers": {"authorization": SECRET}}
    return [
        in_memory_storage(),
        local_filesystem_storage("/some/where"),
        local_filesystem_storage("/some/where", durable=False),
        s3_storage(**s3),
        s3_storage(**s3, **keys, **headers),
        s3_storage(**s3, anonymous=True, region="eu-west-1", requester_pays=True),
        s3_storage(**s3, get_credentials=get_s3),
        s3_storage(**s3, get_credentials=get_s3, scatter_initial_credentials=True),
        s3_storage(**s3, checksum_algorithm=ChecksumAlgorithm.Crc64Nvme),
        r2_storage(**s3, account_id="account", **keys),
        tigris_storage(**s3, region="iad", **keys),
        tigris_storage(**s3, use_weak_consistency=True),
        gcs_storage(**s3, bearer_token=SECRET),
        gcs_storage(**s3, get_credentials=get_gcs, scatter_initial_credentials=True),
        gcs_storage(**s3, anonymous=True, config={"base_url": f"https://{SECRET}"}),
        azure_storage(account="account", container="c", prefix="p", access_key="aHVzaC1odXNo"),
        azure_storage(account="account", container="c", prefix="p", sas_token=f"sig={SECRET}"),
        http_storage("https://host/path", headers={"authorization": SECRET}),
        redirect_storage(f"https://host/path?token={SECRET}"),
    ]


def kind_of(storage: Storage) -> str:
    return storage.kind


@pytest.mark.parametrize("storage", every_storage(), ids=kind_of)
def test_storage_survives_pickling_and_stays_equal(storage: Storage) -> None:
    again = pickle.loads(pickle.dumps(storage))
    assert again == storage
    assert hash(again) == hash(storage)
    assert again.default_settings() == storage.default_settings()


@pytest.mark.parametrize("storage", every_storage(), ids=kind_of)
def test_no_secret_is_printed(storage: Storage) -> None:
    for text in (repr(storage), str(storage), repr(storage.location), storage.url):
        assert SECRET not in text
        assert "aHVzaC1odXNo" not in text


def test_each_description_is_its_own(tmp_path: Path) -> None:
    storages = every_storage()
    assert len(set(storages)) == len(storages)
    assert in_memory_storage() != in_memory_storage()
    assert local_filesystem_storage(tmp_path) == local_filesystem_storage(str(tmp_path))
    assert storages[0] != "memory"


@pytest.mark.parametrize(
    "storage",
    [one for one in every_storage() if not isinstance(one.location, RedirectLocation)],
    ids=kind_of,
)
def test_a_driver_is_made_without_a_request(storage: Storage) -> None:
    driver = storage.driver(blocking=True)
    assert driver is storage.driver(blocking=True)
    assert driver.can_write == (storage.kind != "HTTP" and not storage_is_weak(storage))


def storage_is_weak(storage: Storage) -> bool:
    return storage.kind == "Tigris" and not storage.location.can_write  # type: ignore[union-attr]


def test_equal_storages_share_a_driver(tmp_path: Path) -> None:
    one, other = local_filesystem_storage(tmp_path), local_filesystem_storage(tmp_path)
    assert one.driver(blocking=True) is other.driver(blocking=True)


def test_memory_is_shared_by_copies_and_freed_with_the_last() -> None:
    storage = in_memory_storage()
    run_blocking(storage.driver(blocking=True).put("a", b"1"))
    pickled = pickle.dumps(storage)
    copy = pickle.loads(pickled)
    assert bytes(run_blocking(copy.driver(blocking=False).get("a"))) == b"1"
    del storage, copy
    with pytest.raises(InternalError, match="another process") as caught:
        pickle.loads(pickled)
    assert caught.value.kind == ErrorKind.PICKLE


def test_memory_cannot_be_sent_to_another_process() -> None:
    storage = in_memory_storage()
    program = "import pickle, sys; pickle.load(sys.stdin.buffer)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(storage),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert b"belongs to another process" in done.stderr


# --- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: s3_storage(bucket="", prefix="p"), "storage-config", "bucket name"),
        (lambda: s3_storage(bucket="a/b", prefix="p"), "storage-config", "'a/b'"),
        (lambda: s3_storage(bucket="b", prefix="a/../b"), "bad-prefix", "'a/../b'"),
        (lambda: s3_storage(bucket="b", prefix="a//b"), "bad-prefix", "'a//b'"),
        (
            lambda: s3_storage(bucket="b", prefix="p", endpoint_url="http://host"),
            "storage-config",
            "allow_http",
        ),
        (
            lambda: s3_storage(bucket="b", prefix="p", endpoint_url=f"https://me:{SECRET}@host"),
            "cannot-parse-url",
            "without user or password",
        ),
        (
            lambda: s3_storage(bucket="b", prefix="p", anonymous=True, access_key_id="k"),
            "invalid-credentials",
            "anonymous and keys",
        ),
        (
            lambda: s3_storage(bucket="b", prefix="p", access_key_id="k"),
            "invalid-credentials",
            "both access_key_id and secret_access_key",
        ),
        (
            lambda: s3_storage(bucket="b", prefix="p", from_env=False),
            "invalid-credentials",
            "from_env",
        ),
        (
            lambda: s3_storage(bucket="b", prefix="p", checksum_algorithm=ChecksumAlgorithm.Sha1),
            "storage-config",
            "Sha256, Crc64Nvme",
        ),
        (
            lambda: s3_storage(bucket="b", prefix=None, legacy_rooted_keys=True),
            "unimplemented",
            "legacy_rooted_keys",
        ),
        (lambda: http_storage(f"https://me:{SECRET}@host"), "cannot-parse-url", "header"),
        (lambda: http_storage(f"https://host/?a={SECRET}"), "cannot-parse-url", "query"),
        (lambda: local_filesystem_storage(""), "invalid-path", "''"),
    ],
)
def test_arguments_that_cannot_work_are_refused(make: Any, kind: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        make()
    assert caught.value.kind == kind
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: r2_storage(bucket="b", prefix="p"), "storage-config", "account_id"),
        (lambda: tigris_storage(bucket="b", prefix="p"), "storage-other", "region"),
        (lambda: http_storage("ftp://host"), "cannot-parse-url", "'ftp'"),
    ],
)
def test_some_are_refused_as_failures_of_the_storage(make: Any, kind: str, message: str) -> None:
    """As in Icechunk, so that a program that catches one catches the other."""
    with pytest.raises(StorageError, match=message) as caught:
        make()
    assert caught.value.kind == kind


def test_r2_finds_the_bucket_in_the_prefix() -> None:
    split = r2_storage(prefix="bucket/some/prefix", account_id="me")
    assert split == r2_storage(bucket="bucket", prefix="some/prefix", account_id="me")


def test_an_option_the_client_does_not_know_is_an_error_without_secrets() -> None:
    storage = gcs_storage(bucket="b", prefix="p", config={"no_such_option": SECRET})
    with pytest.raises(StorageError, match=r"gs://b/p") as caught:
        connect(storage.location, storage.default_settings().resolved())  # type: ignore[arg-type]
    assert caught.value.kind == ErrorKind.STORAGE_CONFIG
    assert SECRET not in str(caught.value)


def test_azure_credentials_come_in_three_kinds() -> None:
    kinds = AzureRefreshableCredential
    end = datetime.now(UTC)
    for made in (
        kinds.AccessKey(SECRET, expires_after=end),
        kinds.SasToken(SECRET, expires_after=end),
        kinds.BearerToken(SECRET, expires_after=end),
    ):
        assert pickle.loads(pickle.dumps(made)) == made
        assert SECRET not in repr(made)


def test_an_end_without_a_time_zone_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="time zone"):
        S3StaticCredentials("key", SECRET, None, datetime(2030, 1, 1))  # noqa: DTZ001


# --- URLs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("s3://b/p/q", {}, s3_storage(bucket="b", prefix="p/q")),
        ("s3://b", {}, s3_storage(bucket="b", prefix=None)),
        (
            "s3://b/p?region=eu-west-1&anonymous=true&network_stream_timeout_seconds=5",
            {},
            s3_storage(
                bucket="b",
                prefix="p",
                region="eu-west-1",
                anonymous=True,
                network_stream_timeout_seconds=5,
            ),
        ),
        (
            "s3://b/p?region=eu-west-1",
            {"region": "us-east-1", "get_credentials": get_s3},
            s3_storage(bucket="b", prefix="p", region="us-east-1", get_credentials=get_s3),
        ),
        ("s3://b/a%20b", {}, s3_storage(bucket="b", prefix="a b")),
        ("gs://b/p", {}, gcs_storage(bucket="b", prefix="p")),
        ("az://a/c/p/q", {}, azure_storage(account="a", container="c", prefix="p/q")),
        ("az://c/p", {"account": "a"}, azure_storage(account="a", container="c", prefix="p")),
        ("az://c/p?account=a", {}, azure_storage(account="a", container="c", prefix="p")),
        (
            "abfss://c@a.dfs.core.windows.net/p",
            {},
            azure_storage(account="a", container="c", prefix="p"),
        ),
        ("r2://b/p?account_id=a", {}, r2_storage(bucket="b", prefix="p", account_id="a")),
        ("tigris://b/p?region=iad", {}, tigris_storage(bucket="b", prefix="p", region="iad")),
        ("https://host/p", {}, http_storage("https://host/p")),
        ("redirect+https://host/p?x=1", {}, redirect_storage("https://host/p?x=1")),
        ("file:///a/b%20c", {}, local_filesystem_storage("/a/b c")),
        ("file:/a/b%20c", {}, local_filesystem_storage("/a/b c")),
        ("file://localhost/a", {"durable": False}, local_filesystem_storage("/a", durable=False)),
        ("file:///a?durable=no", {}, local_filesystem_storage("/a", durable=False)),
        ("/a/b?c", {}, local_filesystem_storage("/a/b?c")),
        ("relative/path", {}, local_filesystem_storage(Path.cwd() / "relative/path")),
    ],
)
def test_urls_name_storages(url: str, options: dict[str, Any], expected: Storage) -> None:
    assert storage_from_url(url, **options) == expected


@pytest.mark.parametrize("storage", every_storage(), ids=kind_of)
def test_the_url_of_a_storage_leads_back_to_the_place(storage: Storage) -> None:
    url = f"redirect+{storage.url}" if storage.kind == "redirect" else storage.url
    assert storage_from_url(url).url == storage.url


def test_memory_urls_share_by_name() -> None:
    one, other = storage_from_url("memory://shelf"), storage_from_url("memory://shelf")
    assert one == other
    run_blocking(one.driver(blocking=True).put("a", b"1"))
    assert other.list_objects() == [("a", 1)]
    assert isinstance(one.location, MemoryLocation)
    assert storage_from_url("memory://other").list_objects() == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/path", "unknown scheme 'ftp'"),
        ("s3://b/p?regoin=x", "unknown option 'regoin'; options are .*region"),
        ("s3://b/p?anonymous=perhaps", "'perhaps', expected true or false"),
        ("s3://b/p?network_stream_timeout_seconds=soon", "'soon', expected a number"),
        ("s3://b/p?headers=x", "keyword argument"),
        (f"s3://b/p?secret_access_key={SECRET}", "secret_access_key in it"),
        (f"s3://key:{SECRET}@b/p", "no '@'"),
        ("file://otherhost/a", "otherhost"),
        ("s3:///p", "not a bucket name"),
    ],
)
def test_urls_that_name_nothing_are_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        storage_from_url(url)
    assert SECRET not in str(caught.value)
