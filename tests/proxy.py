"""A proxy in front of an S3 server that misbehaves as it is told to."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from icefloe.storage.spec import Storage
from tests.servers import S3Server, serving

LATE_SECONDS = 1.5
NOT_FORWARDED = ("Connection", "Transfer-Encoding", "Content-Length")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, as it came in at the proxy."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def is_conditional(self) -> bool:
        return "If-Match" in self.headers or "If-None-Match" in self.headers


@dataclass(slots=True)
class Proxy:
    """Forwards to an S3 server. `fault` names what to do wrong with a request, "" for nothing.

    `lose request` does not forward it, `lose answer` does but closes the connection without
    answering, `no answer` keeps it open and says nothing, `cut answer` stops in the middle of the
    body, `late answer` waits for `LATE_SECONDS`, `repeat` sends it twice and answers with the
    second answer, `ignore conditions` leaves the condition headers out, `busy` answers 503.
    """

    endpoint_url: str
    fault: Callable[[Seen], str] = lambda _: ""
    seen: list[Seen] = field(default_factory=list)

    def storage(self, prefix: str | None = None, **options: Any) -> Storage:
        return S3Server(self.endpoint_url).storage(prefix, **options)


class Forward(BaseHTTPRequestHandler):
    """One connection to the proxy."""

    protocol_version = "HTTP/1.1"
    proxy: ClassVar[Proxy]
    upstream: ClassVar[SplitResult]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        pass

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        seen = Seen(self.command, self.path, {k.title(): v for k, v in self.headers.items()})
        self.proxy.seen.append(seen)
        fault = self.proxy.fault(seen)
        if fault == "lose request":
            self.close_connection = True
        elif fault == "no answer":
            self.connection.recv(1)  # returns when the client is gone
            self.close_connection = True
        elif fault == "busy":
            self.answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
        else:
            self.forward(seen, body, fault)

    def forward(self, seen: Seen, body: bytes, fault: str) -> None:
        headers = dict(seen.headers)
        if fault == "ignore conditions":
            headers.pop("If-Match", None)
            headers.pop("If-None-Match", None)
        with contextlib.closing(
            http.client.HTTPConnection(self.upstream.hostname or "", self.upstream.port, timeout=30)
        ) as connection:
            for _ in range(2 if fault == "repeat" else 1):
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                data = response.read()
        if fault == "late answer":
            time.sleep(LATE_SECONDS)
        if fault == "lose answer":
            self.close_connection = True
            return
        kept = [pair for pair in response.getheaders() if pair[0].title() not in NOT_FORWARDED]
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.answer(response.status, kept, data, length, is_cut=fault == "cut answer")

    def answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        length: str | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if is_cut:
            data = data[: len(data) // 2]
            self.close_connection = True
        with contextlib.suppress(OSError):  # whoever asked may have given up
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815 - http.server's


@contextlib.contextmanager
def misbehaving_proxy(server: S3Server) -> Iterator[Proxy]:
    """Run a proxy in front of `server`."""

    class Forwarding(Forward):
        upstream = urlsplit(server.endpoint_url)

    with serving(Forwarding) as url:
        proxy = Forwarding.proxy = Proxy(url)
        yield proxy
