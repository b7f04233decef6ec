"""Sources of virtual chunks for tests: servers that count, and repositories that point there."""

from __future__ import annotations

import contextlib
import email.utils
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, VirtualChunkContainer
from tests.servers import serving

MODIFIED = 1_700_000_000
CHUNK = 10


@dataclass
class WebServer:
    """A web server with a few files; what arrives is kept."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """Answers to give first, by path."""
    etag: str | None = '"v1"'
    modified: int | None = MODIFIED
    heeds_conditions: bool = True
    heeds_ranges: bool = True
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    pause_seconds: float = 0.0
    """How long every answer takes."""
    most_at_once: int = 0
    """The largest number of requests that were being answered at the same time."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _now: int = 0

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        time.sleep(self.pause_seconds)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: WebServer

    def do_GET(self) -> None:
        with self.state.answering():
            self._get()

    def _get(self) -> None:
        state = self.state
        state.requests.append((self.path, dict(self.headers)))
        if state.statuses.get(self.path):
            self._answer(state.statuses[self.path].pop(0), b"")
        elif self.path in state.redirects:
            self._answer(302, b"", {"Location": state.redirects[self.path]})
        elif self.path not in state.files:
            self._answer(404, b"")
        elif state.heeds_conditions and self._has_changed():
            self._answer(412, b"")
        else:
            self._send(state.files[self.path])

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, data: bytes) -> None:
        state, headers = self.state, {}
        if state.etag is not None:
            headers["ETag"] = state.etag
        if state.modified is not None:
            headers["Last-Modified"] = email.utils.formatdate(state.modified, usegmt=True)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not state.heeds_ranges:
            return self._answer(200, data, headers)
        start, end = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if start >= len(data):
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return self._answer(206, data[start : end + 1], headers)

    def _has_changed(self) -> bool:
        match = self.headers.get("If-Match")
        if match is not None:
            return match not in ("*", self.state.etag)
        since = self.headers.get("If-Unmodified-Since")
        if since is None or self.state.modified is None:
            return False
        return self.state.modified > email.utils.parsedate_to_datetime(since).timestamp()

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def web_server(**settings: Any) -> Iterator[WebServer]:
    """A server on a free port of the loopback interface."""
    state = WebServer(**settings)
    with serving(type("Handler", (_Handler,), {"state": state})) as url:
        state.url = url
        yield state


def config_of(containers: Sequence[VirtualChunkContainer], library: Any = icefloe) -> Any:
    """A configuration with these containers."""
    config = library.RepositoryConfig()
    for container in containers:
        config.set_virtual_chunk_container(container)
    return config


def virtual_repo(
    place: Path,
    locations: Sequence[str],
    containers: Sequence[VirtualChunkContainer] = (),
    authorize: Mapping[str, Any] | None = None,
    *,
    offset: int = 0,
    checksum: Any = None,
    library: Any = icefloe,
) -> Any:
    """A committed repository whose array `a` has one chunk of 10 bytes for each location."""
    repo = library.Repository.create(
        library.local_filesystem_storage(str(place)), config_of(containers, library), authorize
    )
    session = repo.writable_session("main")
    make_array(session.store, len(locations))
    for at, location in enumerate(locations):
        session.store.set_virtual_ref(
            f"a/c/{at}",
            location,
            offset=offset,
            length=CHUNK,
            checksum=checksum,
            validate_container=False,
        )
    session.commit("refs")
    return repo


def make_array(store: Any, num_chunks: int) -> zarr.Array[Any]:
    """Bytes without compression, with a fill value that no source has."""
    return zarr.create_array(
        store,
        name="a",
        shape=(num_chunks * CHUNK,),
        chunks=(CHUNK,),
        dtype="u1",
        fill_value=255,
        compressors=None,
        filters=None,
    )


def read_chunk(repo: Any, at: int = 0) -> bytes:
    """One chunk of `a`, through Zarr."""
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    values: Any = array[at * CHUNK : (at + 1) * CHUNK]
    return np.asarray(values).tobytes()


def at_second(seconds: int) -> datetime:
    """A time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def reopened(
    repo: Repository, authorize: Mapping[str, Any] | None, config: RepositoryConfig | None = None
) -> Repository:
    """The way a stranger opens it: with what is saved, and their own authorisations."""
    return Repository.open(repo.storage, config, authorize)
