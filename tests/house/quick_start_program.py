"""Started in a fresh process: uses a repository step by step, and tells what each step loaded.

Prints a JSON object: for each step the modules that it brought in, after those of `import zarr`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import zarr

_loaded: dict[str, list[str]] = {}
_seen = set(sys.modules)


def _note(step: str) -> None:
    _loaded[step] = sorted(set(sys.modules) - _seen)
    _seen.update(sys.modules)


async def _list(store: Any) -> list[str]:
    return [key async for key in store.list()]


def main(kind: str, place: str, endpoint_url: str) -> None:
    """Import, open, read, list, commit and set a virtual reference."""
    import icefloe

    _note("import")
    if kind == "directory":
        storage = icefloe.local_filesystem_storage(place)
    else:
        storage = icefloe.s3_storage(
            bucket="testbucket",
            prefix=place,
            region="us-east-1",
            endpoint_url=endpoint_url,
            access_key_id="test",
            secret_access_key="test-secret",
            allow_http=True,
            force_path_style=True,
        )
    repository = icefloe.Repository.open(storage)
    session = repository.readonly_session("main")
    _note("open")
    array: Any = zarr.open_array(session.store, path="a", mode="r")
    assert array[:].tolist() == list(range(6))
    _note("read")
    assert len(asyncio.run(_list(session.store))) == 5
    assert len(list(repository.ancestry(branch="main"))) == 2
    _note("list")
    writable = repository.writable_session("main")
    array = zarr.open_array(writable.store, path="a")
    array[:] = np.arange(6, 12)
    writable.commit("other numbers")
    _note("commit")
    writable = repository.writable_session("main")
    writable.store.set_virtual_ref(
        "a/c/0", "s3://bucket/file", offset=0, length=8, validate_container=False
    )
    shape, locations = (2,), ["s3://bucket/file", "s3://bucket/other"]
    failed = writable.store.set_virtual_refs_arr(
        "a", shape, locations, np.zeros(2, "u8"), np.full(2, 8, "u8"), validate_containers=False
    )
    assert failed is None
    writable.commit("virtual chunks")
    _note("virtual")
    sys.stdout.write(json.dumps(_loaded))


if __name__ == "__main__":
    main(*sys.argv[1:])
