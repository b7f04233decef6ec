"""An Azure server on the loopback interface: Azurite, where it is installed.

`make services` installs it and runs the tests that need it. Elsewhere `azurite-blob` has to be on
PATH, or `ICEFLOE_AZURITE` say where it is. Nothing else that speaks Azure's protocol can be had
from a package index.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import selectors
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

from icefloe.storage.constructors import azure_storage
from icefloe.storage.spec import Storage

PROGRAM = os.environ.get("ICEFLOE_AZURITE") or shutil.which("azurite-blob")
ACCOUNT, CONTAINER = "devstoreaccount1", "testcontainer"
# The key that every Azurite has; its documentation publishes it.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running server with one container."""

    endpoint_url: str

    @property
    def config(self) -> dict[str, str]:
        """Client options that lead here."""
        return {"endpoint": f"{self.endpoint_url}/{ACCOUNT}", "allow_http": "true"}

    def storage(self, prefix: str | None = None) -> Storage:
        """A place in the container; a fresh one unless `prefix` is given."""
        return azure_storage(
            account=ACCOUNT,
            container=CONTAINER,
            prefix=prefix or uuid.uuid4().hex,
            access_key=KEY,
            config=self.config,
        )


@contextlib.contextmanager
def azure_server_process() -> Iterator[AzureServer]:
    """Start Azurite on a free port; stop it, by its id, in the end."""
    assert PROGRAM is not None
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    address = ["--blobHost", "127.0.0.1", "--blobPort", "0"]
    with subprocess.Popen([PROGRAM, *options, *address], stdout=subprocess.PIPE) as process:
        try:
            server = AzureServer(_announced(process))
            _create_container(server)
            yield server
        finally:
            process.kill()
            process.wait(10)


def _announced(process: subprocess.Popen[bytes]) -> str:
    output: Any = process.stdout
    said = b""
    limit = monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while monotonic() < limit:
            if selector.select(1.0):
                said += os.read(output.fileno(), 1 << 16)
            if found := re.search(rb"successfully listens on (http://127\.0\.0\.1:\d+)", said):
                return found[1].decode()
    raise AssertionError(f"Azurite did not start within {_START_SECONDS:.0f} s, it said {said!r}")


def _create_container(server: AzureServer) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    signed = (
        "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
        f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "Content-Length": "0",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
    url = f"{server.endpoint_url}/{ACCOUNT}/{CONTAINER}?restype=container"
    with urlopen(Request(url, method="PUT", headers=headers), timeout=10) as response:
        assert response.status == 201
