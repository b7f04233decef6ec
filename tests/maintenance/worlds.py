"""Repositories to be damaged: native, inline and virtual chunks, two branches, a tag.

They can be made by official icechunk or by icefloe, with the same contents.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe

ROWS = 6
WIDTH = 40
MODIFIED = 1_700_000_000


@dataclass
class World:
    """A repository in a directory, and the folder with the files that its references lead to."""

    folder: Path
    sources: Path

    @property
    def storage(self) -> icefloe.Storage:
        return icefloe.local_filesystem_storage(str(self.folder), durable=False)

    def open(self) -> icefloe.Repository:
        return icefloe.Repository.open(
            self.storage, authorize_virtual_chunk_access=self.authorized(icefloe)
        )

    def authorized(self, library: Any) -> Any:
        return {self.prefix: library.credentials.LocalFileSystemAccess}

    @property
    def prefix(self) -> str:
        return f"file://{self.sources}/"

    def files(self, kind: str) -> list[Path]:
        return sorted((self.folder / kind).iterdir())

    def bytes_of_all(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and ".icefloe" not in path.parts
        }


def make_world(place: Path, library: Any, spec: int = 2, **settings: Any) -> World:
    """Four commits: arrays `a/native`, `inline`, `a/virtual`."""
    world = World(place / "repository", place / "sources")
    world.sources.mkdir(parents=True)
    for name in ("one.bin", "two.bin"):
        path = world.sources / name
        path.write_bytes(np.arange(ROWS * WIDTH, dtype="<i8").tobytes())
        os.utime(path, (MODIFIED, MODIFIED))
    container = library.VirtualChunkContainer(
        world.prefix, library.local_filesystem_store(str(world.sources)), "sources"
    )
    config = library.RepositoryConfig(inline_chunk_threshold_bytes=64, **settings)
    config.set_virtual_chunk_container(container)
    repo = library.Repository.create(
        library.local_filesystem_storage(str(world.folder)),
        config,
        spec_version=spec,
        authorize_virtual_chunk_access=world.authorized(library),
    )
    session = repo.writable_session("main")
    group = zarr.create_group(session.store).create_group("a")
    native = array(group, "native")
    array(session.store, "inline", width=4)[:] = values(4)
    session.commit("groups and arrays")
    for number in range(2):
        session = repo.writable_session("main")
        native = zarr.open_array(session.store, path="a/native", mode="r+")
        native[number * 2 : number * 2 + 2] = values(WIDTH)[:2] + number
        session.commit(f"rows {number}")
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("side", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, path="a", mode="r+")
    array(group, "virtual")
    session.store.set_virtual_refs(
        "a/virtual",
        [
            library.VirtualChunkSpec(
                [row, 0],
                f"{world.prefix}{'one' if row < 3 else 'two'}.bin",
                row * WIDTH * 8,
                WIDTH * 8,
                last_updated_at_checksum=datetime.fromtimestamp(MODIFIED, UTC),
            )
            for row in range(ROWS)
        ],
    )
    session.commit("virtual chunks")
    return world


def array(parent: Any, name: str, width: int = WIDTH) -> Any:
    made: Any = {"shape": (ROWS, width), "chunks": (1, width), "dtype": "<i8", "compressors": None}
    if hasattr(parent, "create_array"):
        return parent.create_array(name, **made)
    return zarr.create_array(parent, name=name, **made)


def values(width: int) -> Any:
    return np.arange(1, 1 + ROWS * width, dtype="<i8").reshape(ROWS, width)
