"""Repositories of the writable generations before spec version 1, with a bit of everything."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from tests.safety.worlds import driver_of, read_objects, write_objects

CHUNK = 20
CHUNKS = 4
GENERATIONS: dict[str, Any] = {
    "state file": icefloe.StateFileDataset(),
    "numbered": icefloe.NumberedRefs(),
}
LONG: Any = {"history": "x" * 6000}
"""Attributes that go into a file of their own."""


def create(storage: Storage, name: str) -> icefloe.Repository:
    generation = GENERATIONS[name]
    if name == "numbered":
        generation = icefloe.NumberedRefs(inline_attributes_bytes=1000)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    return icefloe.Repository.create(storage, config, generation=generation)


def open_repository(storage: Storage) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    return icefloe.Repository.open(storage, config)


def values(number: int) -> Any:
    return np.arange(CHUNK * CHUNKS) + 1000 * number


def write(session: Any, number: int, at: int | None = None) -> None:
    """All chunks of array `a`, or one of them."""
    array = zarr.open_array(session.store, path="a", mode="r+")
    if at is None:
        array[:] = values(number)
    else:
        array[at * CHUNK : (at + 1) * CHUNK] = number


def add_array(session: Any, name: str = "a") -> None:
    zarr.create_array(
        session.store,
        name=name,
        shape=(CHUNK * CHUNKS,),
        chunks=(CHUNK,),
        dtype="<i8",
        compressors=None,
        attributes=LONG,
    )


def read(repo: icefloe.Repository, **ref: Any) -> list[int]:
    store = repo.readonly_session(**ref).store
    array: Any = zarr.open_array(store, path="a", mode="r")
    found: list[int] = array[:].tolist()
    return found


@cache
def furnished(name: str) -> dict[str, bytes]:
    """Four commits on `main`, the tag `old` at the first of them, the branch `side`."""
    storage = icefloe.in_memory_storage()
    repo = create(storage, name)
    for number in range(4):
        session = repo.writable_session("main")
        if number == 0:
            add_array(session)
        write(session, number)
        tip = session.commit(f"commit {number}")
        if number == 0:
            repo.create_tag("old", tip)
        if number == 1:
            repo.create_branch("side", tip)
    session = repo.writable_session("side")
    write(session, 77, at=1)
    session.commit("on the side")
    session = repo.writable_session("main")  # a session that nobody heard of again
    write(session, 88, at=2)
    return read_objects(storage)


def copy_of(name: str, storage: Storage) -> Storage:
    write_objects(storage, furnished(name))
    return storage


def damaged_copy(name: str, folder: Path) -> icefloe.Storage:
    """A copy in a directory, for damages to its files."""
    storage = icefloe.local_filesystem_storage(str(folder), durable=False)
    return copy_of(name, storage)


def keys(storage: Storage, folder: str) -> list[str]:
    return [found.key for found in run_blocking(driver_of(storage).list(folder))]


def virtual_world(name: str, place: Path) -> tuple[icefloe.Repository, Path]:
    """A repository whose array `a` refers to a file."""
    sources = place / "sources"
    sources.mkdir(parents=True)
    source = sources / "one.bin"
    source.write_bytes(values(3).astype("<i8").tobytes())
    os.utime(source, (1_700_000_000, 1_700_000_000))
    prefix = f"file://{sources}/"
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    store = icefloe.local_filesystem_store(str(sources))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store, "sources"))
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(place / "repository"), durable=False),
        config,
        generation=GENERATIONS[name],
        authorize_virtual_chunk_access={prefix: icefloe.credentials.LocalFileSystemAccess},
    )
    session = repo.writable_session("main")
    add_array(session)
    size = CHUNK * 8
    session.store.set_virtual_refs(
        "a",
        [
            icefloe.VirtualChunkSpec([at], f"{prefix}one.bin", at * size, size)
            for at in range(CHUNKS)
        ],
    )
    session.commit("virtual")
    return repo, source
