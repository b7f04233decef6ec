"""The official library as installed in the running interpreter, whatever its version.

Here are the few calls whose spelling changed between releases. Nothing here decides what a
golden repository contains.
"""

import asyncio
import importlib
from pathlib import Path
from typing import Any

# Typed as Any on purpose: the same scenario runs under releases with different signatures.
icechunk: Any = importlib.import_module("icechunk")
zarr: Any = importlib.import_module("zarr")

VERSION = tuple(int(part) for part in str(icechunk.__version__).split("."))
BUCKET = "s3://example-bucket/"


def create_repository(root: Path, *, spec: int, config: Any = None) -> Any:
    """Create an empty repository; releases before 2.0 only know spec version 1."""
    storage = icechunk.local_filesystem_storage(str(root))
    options: dict[str, Any] = {}
    if VERSION >= (2,):
        options["spec_version"] = spec
    elif spec != 1:
        raise ValueError(f"icechunk {icechunk.__version__} cannot write spec version {spec}")
    return icechunk.Repository.create(storage, config=config, **options)


def open_repository(root: Path, *, config: Any = None) -> Any:
    """Open the repository below `root`."""
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(root)), config=config)


def container(url_prefix: str, store: Any, *, name: str | None = None) -> Any:
    """A virtual chunk container; names were mandatory in 0.2 and absent in 1.x."""
    if VERSION < (1,):
        return icechunk.VirtualChunkContainer(name or "example", url_prefix, store)
    if VERSION < (2,):
        return icechunk.VirtualChunkContainer(url_prefix, store)
    return icechunk.VirtualChunkContainer(url_prefix, store, name)


def bucket_container() -> Any:
    """The container every virtual ref of the scenarios belongs to. Nothing is ever fetched."""
    return container(BUCKET, icechunk.s3_store(region="us-east-1", anonymous=True))


def put(store: Any, key: str, data: bytes) -> None:
    """Set a store key to exactly these bytes, without going through zarr."""
    buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data)
    asyncio.run(store.set(key, buffer))


def delete(store: Any, key: str) -> None:
    """Delete one store key."""
    asyncio.run(store.delete(key))


def get(store: Any, key: str) -> bytes | None:
    """Bytes below a store key, None when missing."""
    prototype = zarr.core.buffer.default_buffer_prototype()
    buffer = asyncio.run(store.get(key, prototype))
    return None if buffer is None else bytes(buffer.to_bytes())
