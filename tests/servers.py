"""Servers on the loopback interface that tests start and stop: S3, and small ones in threads."""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from icefloe.storage.constructors import s3_storage
from icefloe.storage.spec import Storage

BUCKET = "testbucket"
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server with one bucket."""

    endpoint_url: str

    def storage(self, prefix: str | None = None, **options: Any) -> Storage:
        """A place in the bucket; a fresh one unless `prefix` is given."""
        if not options.keys() & {"anonymous", "get_credentials", "from_env", "access_key_id"}:
            options |= {"access_key_id": "test", "secret_access_key": "test-secret"}
        return s3_storage(
            **{
                "bucket": BUCKET,
                "prefix": prefix or uuid.uuid4().hex,
                "region": "us-east-1",
                "endpoint_url": self.endpoint_url,
                "allow_http": True,
                "force_path_style": True,
                **options,
            }
        )

    def requests(self) -> dict[str, dict[str, int]]:
        """How many requests there have been: by method, and by the key that signed them."""
        parts = urlsplit(self.endpoint_url)
        with contextlib.closing(
            http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        ) as connection:
            connection.request("GET", "/-/requests")
            counts: dict[str, dict[str, int]] = json.load(connection.getresponse())
            return counts


@contextlib.contextmanager
def s3_server_process() -> Iterator[S3Server]:
    """Start `tests/s3_server.py` as a process of its own; stop it, by its id, in the end."""
    program = Path(__file__).with_name("s3_server.py")
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            port = _first_line(process)
            yield S3Server(f"http://127.0.0.1:{int(port)}")
        finally:
            process.kill()
            process.wait(10)


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    output = process.stdout
    assert output is not None
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        if not selector.select(START_SECONDS):
            raise TimeoutError(f"the S3 server has not started in {START_SECONDS:.0f} s")
    line = output.readline()
    assert line, "the S3 server has ended before it started"
    return line


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a handler on a free port of the loopback interface; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
