"""Where the repositories of either library are: in memory, in a directory, on the S3 server."""

from __future__ import annotations

import importlib
import json
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import Corpus

MEMORY, LOCAL, UNSYNCED, S3 = "memory", "local", "local without fsync", "S3"

LIBRARIES = {"official": "icechunk", "ours": "icefloe"}

_ENDPOINT_FILE = "s3-endpoint"

S3_OPTIONS: dict[str, Any] = {
    "bucket": "testbucket",
    "region": "us-east-1",
    "access_key_id": "test",
    "secret_access_key": "test-secret",
}
"""What any client of the server of the tests has to say; it does not check signatures."""


def announce_endpoint(folder: Path, url: str) -> None:
    """Tell the processes that are started later where the S3 server is."""
    (folder / _ENDPOINT_FILE).write_text(url)


def endpoint(folder: Path) -> str:
    """Where the S3 server is."""
    return (folder / _ENDPOINT_FILE).read_text()


def count_requests(folder: Path) -> dict[str, int]:
    """The requests that the S3 server has had so far, by method; this one is not among them."""
    with urllib.request.urlopen(f"{endpoint(folder)}/-/requests") as response:
        methods: dict[str, int] = json.load(response)["methods"]
    return methods


def count_received(folder: Path) -> int:
    """How many bytes requests have brought to the S3 server so far."""
    with urllib.request.urlopen(f"{endpoint(folder)}/-/requests") as response:
        received: int = json.load(response)["received_bytes"]
    return received


@dataclass(frozen=True, slots=True)
class Place:
    """The storages that one library has of one kind."""

    side: str
    kind: str
    corpus: Corpus

    @property
    def library(self) -> Any:
        """The module, imported when it is first asked for: the other one is never loaded."""
        return importlib.import_module(LIBRARIES[self.side])

    @contextmanager
    def fresh_address(self) -> Iterator[str]:
        """An empty place, the same for both libraries; memory has no address."""
        if self.kind == S3:
            yield uuid.uuid4().hex
        else:
            with tempfile.TemporaryDirectory(dir=self.corpus.folder) as folder:
                yield folder

    def address(self, dataset: str) -> str:
        """Where `benchmarks.repositories` has put a dataset."""
        if self.kind == S3:
            return f"{self.corpus.rows}/{dataset}"
        return str(self.corpus / dataset)

    def storage(self, address: str) -> Any:
        """The library's own description of the place."""
        if self.kind == MEMORY:
            return self.library.in_memory_storage()
        if self.kind == S3:
            return self.library.s3_storage(
                **S3_OPTIONS,
                prefix=address,
                endpoint_url=endpoint(self.corpus.folder),
                allow_http=True,
                force_path_style=True,
            )
        if self.kind == UNSYNCED:
            return self.library.local_filesystem_storage(address, durable=False)
        return self.library.local_filesystem_storage(address)
