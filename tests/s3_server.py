"""The S3 server of the tests, as a program: moto, made fit for races.

    python tests/s3_server.py

prints its port on the first line of its output and serves 127.0.0.1 until it is killed or its
standard input ends. What it adds to moto:

- one lock around requests that change something: moto checks a condition and then stores without
  one, so that two conditional writers can both win;
- requests without a signature, or signed with a key that does not start with `test`, get 403, and
  the key `test-readonly` may only read. Signatures themselves are not checked;
- connections stay open: moto's server closes each after one answer, which real ones do not;
- listings are remembered until something changes: moto looks at all keys for each page;
- requests for keys below `latency-20ms/` are answered 20 ms later, and so for other numbers;
- `GET /-/requests` returns how many requests there were by method, which keys signed them, and
  how many bytes they brought.
"""

from __future__ import annotations

import collections
import functools
import io
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

# Before moto is imported: it asks for these, and must not find anybody's real ones.
os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "testbucket"
LATENCY = re.compile(r"latency-(\d+)ms(?:/|%2F)")
SIGNED_BY = re.compile(r"Credential=([^/,\s]+)/")

StartResponse = Callable[..., Any]


class Guard:
    """A WSGI application around moto's."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._methods: collections.Counter[str] = collections.Counter()
        self._keys: collections.Counter[str] = collections.Counter()
        self._received_bytes = 0
        self._changes = 0
        listed = backend().list_objects
        listings = functools.lru_cache(maxsize=4)(lambda _, *args, **more: listed(*args, **more))
        backend().list_objects = lambda *args, **more: listings(self._changes, *args, **more)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/-/requests":
            return _answer(
                start_response,
                "200 OK",
                json.dumps(
                    {
                        "methods": self._methods,
                        "keys": self._keys,
                        "received_bytes": self._received_bytes,
                    }
                ),
            )
        signed = SIGNED_BY.search(environ.get("HTTP_AUTHORIZATION", ""))
        key = signed[1] if signed else ""
        with self._lock:
            self._methods[method] += 1
            self._keys[key] += 1
            self._received_bytes += int(environ.get("CONTENT_LENGTH") or 0)
        late = LATENCY.search(f"{path}?{environ.get('QUERY_STRING', '')}")
        if late:
            time.sleep(int(late[1]) / 1000)
        is_change = method not in ("GET", "HEAD")
        if not key.startswith("test") or (key == "test-readonly" and is_change):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _answer(
                start_response,
                "403 Forbidden",
                "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
            )
        if not is_change:
            found: Iterable[bytes] = self._app(environ, start_response)
            return found
        with self._lock:
            self._changes += 1  # listings from now on may have it, and may not
            try:
                return list(self._app(environ, start_response))
            finally:
                self._changes += 1


def backend() -> Any:
    """What moto keeps the bucket in."""
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


def _answer(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    body = text.encode()
    start_response(status, [("Content-Length", str(len(body)))])
    return [body]


class Handler(WSGIRequestHandler):
    """Keeps connections open, as S3 does, and keeps quiet. Its parent would close each of them."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body are sent together

    def run_wsgi(self) -> None:
        self.environ = environ = self.make_environ()
        # All of the body: what an application left unread would be taken for the next request.
        is_chunked = "wsgi.input_terminated" in environ
        size = -1 if is_chunked else int(self.headers["Content-Length"] or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        status, headers = "", list[tuple[str, str]]()

        def start_response(*given: Any) -> Any:
            nonlocal status, headers
            status, headers = given[:2]

        body = b"".join(self.server.app(environ, start_response))
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            self.send_header(name, value)
        has_size = any(name.lower() == "content-length" for name, _ in headers)
        if not has_size and int(code) not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        pass


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    backend().create_bucket(BUCKET, "us-east-1")
    server = make_server(
        "127.0.0.1", 0, Guard(create_backend_app("s3")), threaded=True, request_handler=Handler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until whoever started us goes away


if __name__ == "__main__":
    main()
