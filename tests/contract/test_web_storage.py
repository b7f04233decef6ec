"""Storage on a web server, and addresses that lead to a storage."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.storage.driver import Driver, Span, Version
from icefloe.storage.locations import GcsLocation, HttpLocation, RemoteLocation, S3Location
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import http_storage, local_filesystem_storage, redirect_storage
from icefloe.storage.web import resolve_redirect
from tests.servers import serving

DATA = bytes(range(256)) * 4
KEYS = ["repo", "chunks/A", "refs/tag.ä/ref.json"]


class Files(SimpleHTTPRequestHandler):
    """Python's own file server: no ranges, no ETags, and a 404 for what is missing."""

    seen_headers: list[dict[str, str]]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        self.seen_headers.append(dict(self.headers.items()))


@pytest.fixture
def seen_headers() -> list[dict[str, str]]:
    return []


@pytest.fixture
def url(tmp_path: Path, seen_headers: list[dict[str, str]]) -> Iterator[str]:
    """A web server for a directory that a local storage has filled."""
    driver = local_filesystem_storage(tmp_path / "site" / "repo").driver(blocking=True)
    run_blocking(driver.put_many([(key, DATA) for key in KEYS]))
    handler = type("ServedFiles", (Files,), {"seen_headers": seen_headers})
    with serving(functools.partial(handler, directory=tmp_path / "site")) as running:  # type: ignore[arg-type]
        yield f"{running}/repo"


@pytest.fixture(params=["blocking", "eventloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return run_blocking if request.param == "blocking" else asyncio.run


def driver_for(url: str, run: object) -> Driver:
    return http_storage(url).driver(blocking=run is run_blocking)


def test_a_repository_on_a_web_server_can_be_read(url: str, run: Any) -> None:
    driver = driver_for(url, run)

    async def scenario() -> None:
        for key in KEYS:
            assert bytes(await driver.get(key)) == DATA
            assert bytes(await driver.get(key, Span(3, 500))) == DATA[3:503]
        found = await driver.get_many([(key, Span(0, 10)) for key in KEYS])
        assert [bytes(one) for one in found] == [DATA[:10]] * 3
        data, version = await driver.get_versioned("repo")
        assert data == DATA
        assert await driver.get_if_changed("repo", version) in (None, (DATA, version))
        assert (await driver.get_if_changed("repo", Version('"x"'))) == (DATA, version)
        assert (await driver.head("repo")).size_bytes == len(DATA)
        with pytest.raises(StorageError, match=r"'repo'.* 1024 bytes") as caught:
            await driver.get("repo", Span(1000, 100))
        assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE
        with pytest.raises(StorageError, match="missing") as caught:
            await driver.get("chunks/missing")
        assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND

    run(scenario())


def test_a_web_server_cannot_be_written(url: str, run: Any) -> None:
    driver = driver_for(url, run)
    assert not driver.can_write

    async def scenario() -> None:
        for attempt in (
            driver.put("a", b"1"),
            driver.put_many([("a", b"1")]),
            driver.put_if("repo", b"1", previous=None),
            driver.delete_many(["repo"]),
        ):
            with pytest.raises(ReadOnlyError, match="can only be read") as caught:
                await attempt
            assert caught.value.kind == ErrorKind.READ_ONLY_STORAGE

    run(scenario())


def test_a_web_server_cannot_be_listed_and_says_so(url: str, run: Any) -> None:
    driver = driver_for(url, run)

    async def scenario() -> None:
        for attempt in (driver.list("refs/"), driver.is_empty()):
            with pytest.raises(StorageError, match="cannot be listed"):
                await attempt

    run(scenario())


def test_headers_and_a_user_agent_are_sent(url: str, seen_headers: list[dict[str, str]]) -> None:
    driver = http_storage(url, headers={"x-mine": "yes"}).driver(blocking=True)
    run_blocking(driver.get("repo"))
    assert seen_headers[-1]["x-mine"] == "yes"
    assert seen_headers[-1]["user-agent"].startswith("icefloe")


# --- redirects ---------------------------------------------------------------------------------


class Redirects(BaseHTTPRequestHandler):
    """Answers `/to` with the location that the test has set, `/hop/N` with N more hops."""

    target: str

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/hop/"):
            hops = int(self.path.rpartition("/")[2])
            location = f"/hop/{hops - 1}" if hops else "/to"
        elif self.path == "/to?secret":
            location = ""
        else:
            location = self.target
        self.send_response(302 if location else 200)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "s3://bucket/some/prefix?region=eu-west-1",
            ("s3://bucket/some/prefix", "S3", "eu-west-1", True),
        ),
        ("r2://bucket/p?account_id=me", ("s3://bucket/p", "R2", "auto", True)),
        ("tigris://bucket/p", ("s3://bucket/p", "Tigris", "auto", False)),
    ],
)
def test_an_address_may_lead_to_a_bucket(target: str, expected: tuple[Any, ...]) -> None:
    found = resolved(target)
    assert isinstance(found, S3Location)
    assert (found.url, found.kind, found.region, found.can_write) == expected


def resolved(target: str, path: str = "/to") -> RemoteLocation:
    handler = type("To", (Redirects,), {"target": target})
    with serving(handler) as url:
        return resolve_redirect(url + path)


def test_an_address_may_lead_to_google_or_the_web() -> None:
    assert isinstance(resolved("gs://bucket/p"), GcsLocation)
    for scheme in ("https+icechunk", "https+ic"):
        assert resolved(f"{scheme}://host/p") == HttpLocation("https://host/p")
    assert resolved("http+ic://host:81/p?x=1") == HttpLocation("http://host:81/p")


def test_several_redirects_are_followed_but_not_for_ever() -> None:
    assert resolved("gs://bucket/p", "/hop/8").url == "gs://bucket/p"
    with pytest.raises(StorageError, match="after 10 of them") as caught:
        resolved("gs://bucket/p", "/hop/9")
    assert caught.value.kind == ErrorKind.BAD_REDIRECT


@pytest.mark.parametrize(
    ("target", "path", "reason"),
    [
        ("s3://bucket/p", "/to", "'region'"),
        ("r2://bucket/p", "/to", "'account_id'"),
        ("file:///etc/passwd", "/to", "is none"),
        ("", "/to?secret", "answered 200 and no Location"),
    ],
)
def test_addresses_that_lead_nowhere_are_refused(target: str, path: str, reason: str) -> None:
    with pytest.raises(StorageError, match=reason) as caught:
        resolved(target, path)
    assert caught.value.kind == ErrorKind.BAD_REDIRECT
    assert "secret" not in str(caught.value)


def test_an_address_nobody_answers_at_is_a_bad_redirect() -> None:
    with serving(Redirects) as url:
        pass
    with pytest.raises(StorageError, match="could not be asked"):
        resolve_redirect(url)


def test_a_redirect_is_followed_when_the_storage_is_used(url: str) -> None:
    handler = type("To", (Redirects,), {"target": url.replace("http:", "http+icechunk:")})
    with serving(handler) as address:
        storage = redirect_storage(f"{address}/to")
        assert bytes(run_blocking(storage.driver(blocking=True).get("repo"))) == DATA
