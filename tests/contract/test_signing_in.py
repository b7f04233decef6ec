"""Credentials against a server that looks at who signed: static, refreshed, from files, none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icefloe.credentials import S3StaticCredentials
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from tests.servers import S3Server

SECRET = "hush-hush"


def keys_used(server: S3Server) -> set[str]:
    return set(server.requests()["keys"])


def touch(storage: Storage) -> None:
    driver = storage.driver(blocking=True)
    run_blocking(driver.put("a", b"1"))
    assert bytes(run_blocking(driver.get("a"))) == b"1"


class Dispenser:
    """Hands out a new key each time, good for so long."""

    def __init__(self, name: str, lifetime: timedelta | None) -> None:
        self.name = name
        self.lifetime = lifetime
        self.num_calls = 0

    def __call__(self) -> S3StaticCredentials:
        self.num_calls += 1
        ends = datetime.now(UTC) + self.lifetime if self.lifetime else None
        return S3StaticCredentials(f"test-{self.name}-{self.num_calls}", SECRET, None, ends)


def test_a_function_is_asked_when_its_key_has_expired(s3_server: S3Server) -> None:
    dispenser = Dispenser("short", timedelta(seconds=-1))
    storage = s3_server.storage(get_credentials=dispenser)
    touch(storage)
    assert dispenser.num_calls >= 2
    assert {"test-short-1", "test-short-2"} <= keys_used(s3_server)


def test_a_function_is_not_asked_while_its_key_is_good(s3_server: S3Server) -> None:
    dispenser = Dispenser("long", timedelta(hours=2))
    storage = s3_server.storage(get_credentials=dispenser)
    touch(storage)
    touch(storage)
    assert dispenser.num_calls == 1
    assert "test-long-1" in keys_used(s3_server)


def test_a_scattered_key_is_used_until_it_expires(s3_server: S3Server) -> None:
    dispenser = Dispenser("scattered", timedelta(hours=2))
    storage = s3_server.storage(get_credentials=dispenser, scatter_initial_credentials=True)
    assert dispenser.num_calls == 1
    touch(storage)
    assert dispenser.num_calls == 1
    expired = Dispenser("stale", timedelta(seconds=-1))
    touch(s3_server.storage(get_credentials=expired, scatter_initial_credentials=True))
    assert "test-stale-1" not in keys_used(s3_server)
    assert "test-stale-2" in keys_used(s3_server)


def give_nonsense() -> Any:
    return "a key, honestly"


def give_up() -> Any:
    raise RuntimeError(f"no {SECRET} today")


@pytest.mark.parametrize("function", [give_nonsense, give_up])
def test_a_function_that_fails_is_a_storage_error(s3_server: S3Server, function: Any) -> None:
    driver = s3_server.storage(get_credentials=function).driver(blocking=True)
    with pytest.raises(StorageError, match="cannot read 'a'") as caught:
        run_blocking(driver.get("a"))
    assert caught.value.kind == ErrorKind.OBJECT_STORE


@pytest.mark.parametrize("options", [{"anonymous": True}, {"access_key_id": "stranger"}])
def test_who_may_not_read_is_told_so(s3_server: S3Server, options: dict[str, Any]) -> None:
    if "access_key_id" in options:
        options = {**options, "secret_access_key": SECRET}
    driver = s3_server.storage(**options).driver(blocking=True)
    for attempt in (driver.get("a"), driver.put_if("a", b"1", previous=None), driver.list("")):
        with pytest.raises(StorageError, match="AccessDenied") as caught:
            run_blocking(attempt)
        assert caught.value.kind == ErrorKind.OBJECT_STORE
        assert SECRET not in str(caught.value)


def test_a_key_that_may_only_read_cannot_write(s3_server: S3Server) -> None:
    touch(s3_server.storage("shown"))
    driver = s3_server.storage(
        "shown", access_key_id="test-readonly", secret_access_key=SECRET
    ).driver(blocking=True)
    assert bytes(run_blocking(driver.get("a"))) == b"1"
    _, version = run_blocking(driver.get_versioned("a"))
    for attempt in (
        driver.put("a", b"2"),
        driver.put_if("a", b"2", previous=version),
        driver.put_if("b", b"2", previous=None),
    ):
        with pytest.raises(StorageError, match="AccessDenied"):
            run_blocking(attempt)
    assert s3_server.storage("shown").list_objects() == [("a", 1)]


def test_a_bucket_that_does_not_exist_is_not_a_missing_object(s3_server: S3Server) -> None:
    driver = s3_server.storage(bucket="no-such-bucket").driver(blocking=True)
    for attempt in (driver.get("a"), driver.put_if("a", b"1", previous=None), driver.list("")):
        with pytest.raises(StorageError, match="NoSuchBucket") as caught:
            run_blocking(attempt)
        assert caught.value.kind == ErrorKind.OBJECT_STORE


def test_given_keys_are_not_mixed_with_variables(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-not-wanted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    touch(s3_server.storage(access_key_id="test-wanted", secret_access_key=SECRET))
    assert "test-wanted" in keys_used(s3_server)
    assert "test-not-wanted" not in keys_used(s3_server)
