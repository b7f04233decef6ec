"""Where the repositories of either library are: in memory, in a directory, on the S3 server."""

from __future__ import annotations

import importlib
import json
import subprocess
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import Corpus

MEMORY, LOCAL, UNSYNCED = "memory", "local", "local without fsync"
S3, SLOW_S3 = "S3", "S3 with 20 ms"
"""The second is the same server, which waits before it answers requests below a prefix."""

_SLOW_PREFIX = "latency-20ms/"

LIBRARIES = {"official": "icechunk", "ours": "icefloe"}

_ENDPOINT_FILE = "s3-endpoint"

S3_KEYS = {"access_key_id": "test", "secret_access_key": "test-secret"}
S3_OPTIONS: dict[str, Any] = {"bucket": "testbucket", "region": "us-east-1", **S3_KEYS}
"""What any client of the server of the tests has to say; it does not check signatures."""


def announce_endpoint(folder: Path, url: str) -> None:
    """Tell the processes that are started later where the S3 server is."""
    (folder / _ENDPOINT_FILE).write_text(url)


def endpoint(folder: Path) -> str:
    """Where the S3 server is."""
    return (folder / _ENDPOINT_FILE).read_text()


def count_requests(folder: Path) -> int:
    """The requests that the S3 server has had so far; this one is not among them."""
    with urllib.request.urlopen(f"{endpoint(folder)}/-/requests") as response:
        return sum(json.load(response)["methods"].values())


def ranges_prefix(kind: str) -> str:
    """Where the files are of which chunks are ranges."""
    return f"s3://{S3_OPTIONS['bucket']}/{_SLOW_PREFIX if kind == SLOW_S3 else ''}ranges/"


def is_remote(kind: str) -> bool:
    """Whether a kind of place is on the S3 server."""
    return kind in (S3, SLOW_S3)


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

    @property
    def _prefix(self) -> str:
        return _SLOW_PREFIX if self.kind == SLOW_S3 else ""

    @contextmanager
    def fresh_address(self) -> Iterator[str]:
        """An empty place, the same for both libraries; memory has no address.

        It is deleted with the corpus: for some seconds ext4 searches past every inode that was
        deleted to make a new file, which takes ten times as long as all the rest of a small write.
        """
        if is_remote(self.kind):
            yield self._prefix + uuid.uuid4().hex
        else:
            yield tempfile.mkdtemp(dir=self.corpus.folder)

    def address(self, dataset: str) -> str:
        """Where `benchmarks.repositories` has put a dataset."""
        if is_remote(self.kind):
            return f"{self._prefix}{self.corpus.rows}/{dataset}"
        return str(self.corpus / dataset)

    @contextmanager
    def copied(self, dataset: str) -> Iterator[Any]:
        """A copy of a dataset in a directory, of hard links: no library writes in place."""
        with tempfile.TemporaryDirectory(dir=self.corpus.folder) as folder:
            target = f"{folder}/copy"
            subprocess.run(["cp", "-al", str(self.corpus / dataset), target], check=True)
            yield self.storage(target)

    def storage(self, address: str) -> Any:
        """The library's own description of the place."""
        if self.kind == MEMORY:
            return self.library.in_memory_storage()
        if is_remote(self.kind):
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
