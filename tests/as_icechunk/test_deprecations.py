"""Calls that the original warns of: the same category, the same first words, at the same line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.as_icechunk.programs import AS_ICECHUNK, run

pytest.importorskip("icechunk", minversion="2")

# Every call of 2.3.0 that is documented as deprecated, and neighbours that are not.
PROGRAM = """
import asyncio, json, warnings
import icechunk as ic

config = ic.RepositoryConfig.default()
prefixes = ["file:///tmp/x/", "s3://b/x/", "http://localhost/x/", "gcs://b/x/"]
stores = [ic.local_filesystem_store("/tmp/x"), ic.s3_store(region="us-east-1"),
          ic.http_store(), ic.gcs_store()]
for prefix, store in zip(prefixes, stores):
    config.set_virtual_chunk_container(ic.VirtualChunkContainer(prefix, store))
storage = ic.in_memory_storage()
ic.Repository.create(storage, config)
nothing = {prefix: None for prefix in prefixes}
access = ic.containers_credentials({prefixes[0]: ic.credentials.LocalFileSystemAccess,
          prefixes[1]: ic.s3_anonymous_credentials(),
          prefixes[2]: ic.credentials.HttpAccess})
repo = ic.Repository.open(storage)

def create_async():
    return asyncio.run(ic.Repository.create_async(
        ic.in_memory_storage(), config, authorize_virtual_chunk_access=nothing))

def open_async():
    return asyncio.run(ic.Repository.open_async(storage, authorize_virtual_chunk_access=nothing))

calls = {
    "create": lambda: ic.Repository.create(
        ic.in_memory_storage(), config, authorize_virtual_chunk_access=nothing),
    "open": lambda: ic.Repository.open(storage, authorize_virtual_chunk_access=nothing),
    "open_or_create": lambda: ic.Repository.open_or_create(
        storage, config, authorize_virtual_chunk_access=nothing),
    "create_async": create_async,
    "open_async": open_async,
    "reopen": lambda: repo.reopen(authorize_virtual_chunk_access=nothing),
    "explicit": lambda: ic.Repository.open(storage, authorize_virtual_chunk_access=access),
    "containers_credentials": lambda: ic.containers_credentials(nothing),
    "total_chunks_storage": lambda: repo.total_chunks_storage(),
    "total_chunks_storage_async": lambda: asyncio.run(repo.total_chunks_storage_async()),
    "chunk_storage_stats": lambda: repo.chunk_storage_stats(),
    "list_objects": lambda: storage.list_objects(),
}
found = {}
for name, call in calls.items():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    found[name] = sorted(
        [each.category.__name__, each.filename == __file__,
         " ".join(str(each.message).split()[:4]).replace("_async", ""),
         [prefix for prefix in prefixes if prefix in str(each.message)]]
        for each in seen if each.category in (DeprecationWarning, FutureWarning, UserWarning)
    )
print(json.dumps(found))
"""


def warnings_by(library: tuple[str, ...], folder: Path) -> Any:
    return json.loads(run(PROGRAM, folder, by=library).splitlines()[-1])


def test_deprecated_calls_warn_alike(tmp_path: Path) -> None:
    original, ours = warnings_by((), tmp_path), warnings_by(AS_ICECHUNK, tmp_path)
    assert ours == original
    assert [name for name, found in original.items() if found] == [
        "create",
        "open",
        "open_or_create",
        "create_async",
        "open_async",
        "reopen",
        "total_chunks_storage",
        "total_chunks_storage_async",
    ]
