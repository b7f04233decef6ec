"""Fresh, empty places for repositories: one of every kind of storage that tests can have."""

from __future__ import annotations

from pathlib import Path

from icefloe import Storage, in_memory_storage, local_filesystem_storage
from tests.servers import S3Server

KINDS = ("memory", "local", "s3")


def fresh_storage(kind: str, folder: Path, server: S3Server | None = None) -> Storage:
    """An empty place; on disk without fsync, because no test here pulls the plug."""
    if kind == "memory":
        return in_memory_storage()
    if kind == "local":
        return local_filesystem_storage(folder / "repository", durable=False)
    assert server is not None
    return server.storage()
