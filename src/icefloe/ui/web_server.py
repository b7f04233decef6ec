"""The server of the page: which requests it answers, and what every answer carries.

It listens on this machine only, unless another address is given. A request must name this server
in its `Host` header: a page of another site whose name was pointed at this machine (DNS rebinding)
sends its own name. Browsers say where a request comes from (`Sec-Fetch-Site`); those of other sites
are refused.
"""

from __future__ import annotations

import json
import logging
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, gethostname
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from icefloe.api.repository import Repository
from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.query import Answer, Query, json_text
from icefloe.ui.routes import find_answer

_log = logging.getLogger("icefloe.ui")

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_IDLE_SECONDS = 60
_MOST_PARAMETERS = 32
_PORT = re.compile(r":\d{1,5}$")

_STATUSES: dict[type[IcechunkError], HTTPStatus] = {
    NotFoundError: HTTPStatus.NOT_FOUND,
    InvalidInputError: HTTPStatus.BAD_REQUEST,
    StorageError: HTTPStatus.BAD_GATEWAY,
    FormatError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class PageServer(ThreadingHTTPServer):
    """A server for one repository; `serve_forever` and `shutdown` are Python's."""

    daemon_threads = True

    def __init__(self, opened: OpenedRepository, host: str, port: int) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.opened = opened
        self._host = host
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page, as a browser on this machine takes it."""
        host = self._host
        try:
            if ip_address(host).is_unspecified:
                host = "127.0.0.1" if self.address_family == AF_INET else "::1"
        except ValueError:
            pass  # a name
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def accepts(self, host: str) -> bool:
        """Whether a `Host` header names this server.

        A server that was asked to listen beyond this machine is also named by its host name, and
        by any address: names can be pointed elsewhere by others, addresses cannot.
        """
        name = _PORT.sub("", host).strip("[]").lower()
        if name in (*_LOOPBACK_NAMES, self._host.lower()):
            return True
        if is_loopback(self._host):
            return False
        try:
            ip_address(name)
        except ValueError:
            return name == gethostname().lower()
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no failure."""
        _log.debug("a connection ended early", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "icefloe"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        if not self.server.accepts(self.headers.get("Host", "")):
            self._fail(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
            return
        try:
            address = urlsplit(self.path)
        except ValueError as error:
            self._fail(HTTPStatus.BAD_REQUEST, f"the address cannot be read: {error}")
            return
        is_own = self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        if not is_own and address.path != "/":  # a link to the page is fine, its parts are not
            self._fail(HTTPStatus.FORBIDDEN, "requests of other sites are not answered")
            return
        self._answer(address)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, address: SplitResult) -> None:
        try:
            query = Query(_parameters(address.query))
            answer = find_answer(self.server.opened, unquote(address.path), query)
        except IcechunkError as error:
            self._fail(_status(error), error.message, error.kind)
        except Exception as error:  # noqa: BLE001 - report it and keep serving
            _log.exception("no answer to %s", self.path)
            found = f"{type(error).__name__}: {error}"
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, found)
        else:
            self._send(HTTPStatus.OK, answer)

    def _fail(self, status: HTTPStatus, message: str, kind: str | None = None) -> None:
        body = json.dumps({"error": message, **({} if kind is None else {"kind": kind})}).encode()
        self._send(status, Answer(body, "application/json"))

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        keep = "private, max-age=600, immutable" if answer.is_constant else "no-store"
        self.send_header("Cache-Control", keep)
        if answer.about is not None:
            self.send_header("X-Icefloe-About", json_text(answer.about))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What Python's server refuses: other methods than GET, and what is no HTTP."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered"
        self.close_connection = True
        status = HTTPStatus(code)
        self._fail(status, message or status.phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is Python's
        _log.debug(format, *args)


def _status(error: IcechunkError) -> HTTPStatus:
    if error.kind == ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION:
        return HTTPStatus.BAD_REQUEST
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    return HTTPStatus.CONFLICT


def _parameters(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(
            query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS, errors="strict"
        )
    except ValueError as error:
        raise InvalidInputError(f"the address cannot be read: {error}") from None


def page_server(
    repo: Repository, *, name: str, host: str = "127.0.0.1", port: int = 0
) -> PageServer:
    """A server for the page of a repository, listening; call `serve_forever` to answer.

    Args:
        repo: what is shown. Nothing is ever written to it.
        name: how the page calls it, such as its URL.
        host: the address to listen on. Whoever can reach it can read the repository.
        port: 0 takes any free one; `server.url` says which.
    """
    return PageServer(OpenedRepository(repo, name), host, port)
