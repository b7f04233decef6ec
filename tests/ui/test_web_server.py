"""Which requests the server of the page answers, and which not."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

import icefloe
from icefloe.ui import PageServer, page_server
from icefloe.ui.routes import ROUTES
from icefloe.ui.web_server import is_loopback
from tests.ui.asking import ask


def test_the_page_and_its_files_are_served_with_a_policy(server: PageServer) -> None:
    page = ask(server, "/")
    assert page.status == 200
    assert b"/static/main.js" in page.body
    assert page.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, "/static/main.js").headers["Content-Type"].startswith("text/javascript")
    # A style or a script inside the page would not run under this policy.
    assert b"<style" not in page.body
    assert page.body.count(b"<script") == page.body.count(b'<script type="module" src=') == 1


@pytest.mark.parametrize(
    "address",
    [
        "/static/../web_server.py",
        "/static/..%2fweb_server.py",
        "/static/%2e%2e/web_server.py",
        "/static//etc/passwd",
        "/static/",
        "/static",
        "//etc/passwd",
        "/../../../../etc/passwd",
        "/index.html",
        "/api/",
        "/api/nothing",
        "/repo",
        "/snapshots",
    ],
)
def test_nothing_else_can_be_read(server: PageServer, address: str) -> None:
    reply = ask(server, address)
    assert reply.status == 404
    assert reply.value["error"] == "there is nothing at this address"
    assert reply.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/../..", "/surface/../..", "file:///etc/passwd", "/etc/passwd"]
)
def test_a_path_is_a_node_and_never_a_file(
    server: PageServer, weather: icefloe.Repository, path: str
) -> None:
    tip = weather.lookup_branch("main")
    for address in ("/api/node", "/api/children"):
        reply = ask(server, address, snapshot=tip, path=path)
        assert reply.status == 404
        assert reply.value["error"].startswith("node not found: ")
        assert "no node" not in reply.value["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_is_answered(server: PageServer, method: str) -> None:
    for address in ("/", "/api/repository"):
        reply = ask(server, address, method)
        assert reply.status == 405
        assert reply.value == {"error": "only GET is answered"}
    assert ask(server, "/api/repository", "HEAD").body == b""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "", "127.0.0.1.evil", "[::2]"]
)
@pytest.mark.parametrize("address", ["/", "/api/repository", "/static/main.js"])
def test_a_foreign_host_header_is_refused(server: PageServer, host: str, address: str) -> None:
    named = host.replace("PORT", str(urlsplit(server.url).port))
    assert ask(server, address, headers={"Host": named}).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:8765"])
def test_names_of_this_machine_are_accepted(server: PageServer, host: str) -> None:
    assert ask(server, "/", headers={"Host": host}).status == 200


def test_requests_of_other_sites_are_refused(server: PageServer) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        assert ask(server, "/api/repository", headers={"Sec-Fetch-Site": site}).status == status
    # A link on another site may lead to the page.
    assert ask(server, "/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200


@pytest.mark.parametrize("address", ROUTES)
@pytest.mark.parametrize(
    "query", ["a=1&a=2", "path=%ff", "&".join("abcdefgh" * 8), "q=" + "x" * 5000]
)
def test_a_query_that_cannot_be_read_is_refused(
    server: PageServer, address: str, query: str
) -> None:
    assert ask(server, f"{address}?{query}").status == 400


def test_what_is_no_http_gets_an_answer_and_the_server_goes_on(server: PageServer) -> None:
    port = urlsplit(server.url).port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert b"Bad request" in connection.recv(1000)
    assert ask(server, "/").status == 200


def test_this_machine_only_unless_asked(weather: icefloe.Repository) -> None:
    server = page_server(weather, name="x")
    try:
        assert server.server_address[0] == "127.0.0.1"
        assert not server.accepts("10.1.2.3:80")
    finally:
        server.server_close()
    everywhere = page_server(weather, name="x", host="0.0.0.0")
    try:
        assert urlsplit(everywhere.url).hostname == "127.0.0.1"
        # Addresses cannot be pointed elsewhere by others; names can.
        assert everywhere.accepts("10.1.2.3:80")
        assert everywhere.accepts(socket.gethostname())
        assert not everywhere.accepts("evil.example")
    finally:
        everywhere.server_close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
