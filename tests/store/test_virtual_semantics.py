"""The same calls on official Icechunk and on icefloe: what is accepted, refused, read.

Differences are data: each is listed with both outcomes and why ours is on purpose.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from tests.virtual_sources import CHUNK, config_of, make_array

icechunk: Any = pytest.importorskip("icechunk", minversion="2")

DATA = bytes(range(200))
MTIME = 1_700_000_000


@dataclass
class World:
    """One library with a repository whose array `a` has four chunks, none of them written."""

    library: Any
    root: Path
    session: Any
    array: Any

    @property
    def store(self) -> Any:
        return self.session.store

    def set(self, location: str, **options: Any) -> Any:
        """Where chunk 0 is said to lie once its reference is set."""
        location = location.replace("ROOT", str(self.root))
        options = {"offset": 0, "length": CHUNK, **options}
        self.store.set_virtual_ref("a/c/0", location, **options)
        found = self.session.all_virtual_chunk_locations()
        return [url.replace(str(self.root), "ROOT") for url in found]

    def set_key(self, key: str) -> Any:
        return self.store.set_virtual_ref(key, "s3://bucket/a", offset=0, length=1)

    def read(self, location: str, **options: Any) -> Any:
        self.set(location, validate_container=False, **options)
        return self.array[:CHUNK].tolist()

    def spec(self, index: list[int], location: str, *rest: Any) -> Any:
        return self.library.VirtualChunkSpec(index, location, 0, *(rest or (CHUNK,)))

    def arr(self, shape: Any, locations: Any, **options: Any) -> Any:
        count = len(locations)
        offsets = options.pop("offsets", np.zeros(count, "u8"))
        lengths = options.pop("lengths", np.full(count, CHUNK, "u8"))
        failed = self.store.set_virtual_refs_arr("a", shape, locations, offsets, lengths, **options)
        return failed, self.session.all_virtual_chunk_locations()

    def batch(self) -> Any:
        async def collect() -> list[Any]:
            return [
                tuple(each.tolist() if isinstance(each, np.ndarray) else each for each in batch)
                async for batch in self.store.array_chunk_iterator("a", batch_size=2)
            ]

        return asyncio.run(collect())


def world(library: Any, root: Path) -> World:
    (root / "data" / "sub").mkdir(parents=True, exist_ok=True)
    (root / "data" / "f.bin").write_bytes(DATA)
    (root / "secret").write_bytes(b"s" * 100)
    if not (root / "data" / "link").is_symlink():
        (root / "data" / "link").symlink_to(root / "secret")
    os.utime(root / "data" / "f.bin", (MTIME, MTIME))
    containers = [
        library.VirtualChunkContainer(
            f"file://{root}/data/", library.local_filesystem_store(str(root / "data")), "fs"
        ),
        library.VirtualChunkContainer("s3://bucket/", library.s3_store(region="us-east-1")),
        library.VirtualChunkContainer("gs://gb/p/", library.gcs_store()),
        library.VirtualChunkContainer("http://h.com/", library.http_store()),
    ]
    repo = library.Repository.create(
        library.in_memory_storage(),
        config_of(containers, library),
        {f"file://{root}/data/": library.credentials.LocalFileSystemAccess},
    )
    session = repo.writable_session("main")
    return World(library, root, session, make_array(session.store, 4))


LOCATIONS = [
    *("s3://bucket/a", "S3://bucket/A", "s3://bucket/a//b", "s3://bucket/../x"),
    *("s3://bucket/a/./b", "s3://bucket", "s3://bucket/", "s3:///a", "s3://bucket-evil/a"),
    *("s3://bucket/a?q#f", "s3://other/a", "gs://gb/p/x", "gs://gb/p/../x", "gs://gb/p//x"),
    *("gs://gb/p/%2e%2e/x", "http://h.com/x", "http://h.com:80/x", "HTTP://H.com/x"),
    *("http://u@h.com/x", "http://h.com@evil/x", "vcc://fs/f.bin", "vcc://fs", "vcc://fs/"),
    *("vcc://nope/f", "vcc:///x", "vcc://fs/../secret", "vcc://fs//f.bin", "/tmp/x", "x", ""),
    *("file://ROOT/data/f.bin", "file://ROOT/data/../secret", "file://ROOT/data/%2e%2e/secret"),
    *("FILE://ROOT/data/f.bin", "file://localhostROOT/data/f.bin", "file:ROOT/data/f.bin"),
    *("file://ROOT/data/a b", "file://ROOT/data/ü", "file://ROOT/data/a%20b", "file:///"),
    *("file://ROOT/data/a?b#c", "file://ROOT/data//f.bin", "mailto:x", "s3://bucket/ü"),
    *("s3://bucket/a\\b", "s3://buck et/x", "s3://bucket/a\nb", "s3:bucket/x"),
    *(" s3://bucket/a", "s3://bucket/%62", "file://ROOT/data/a\\b", "file://ROOT/data/`^{}|"),
]

CALLS: dict[str, Callable[[World], Any]] = {
    "no bytes": lambda w: w.set("s3://bucket/a", length=0),
    "a time without zone": lambda w: w.set("s3://bucket/a", checksum=at(1).replace(tzinfo=None)),
    "a checksum that is none": lambda w: w.set("s3://bucket/a", checksum=5),
    "metadata key": lambda w: w.set_key("a/zarr.json"),
    "no key": lambda w: w.set_key("foo"),
    "no node": lambda w: w.set_key("g/c/0"),
    "out of grid": lambda w: w.set_key("a/c/9"),
    "rank of a key": lambda w: w.set_key("a/c/0/0"),
    "specs": lambda w: (
        w.store.set_virtual_refs(
            "a",
            [w.spec([0], "s3://bucket/a"), w.spec([1], "s3://z/a"), w.spec([2], "vcc://fs/c")],
        ),
        len(w.session.all_virtual_chunk_locations()),
    ),
    "specs with a slash": lambda w: w.store.set_virtual_refs("/a", [w.spec([0], "s3://bucket/a")]),
    "specs, equal indices": lambda w: (
        w.store.set_virtual_refs("a", [w.spec([0], "s3://bucket/1"), w.spec([0], "s3://bucket/2")]),
        w.session.all_virtual_chunk_locations(),
    ),
    "specs, none": lambda w: w.store.set_virtual_refs("a", []),
    "specs, no url": lambda w: w.store.set_virtual_refs("a", [w.spec([0], "rel")]),
    "specs, no url, not validated": lambda w: w.store.set_virtual_refs(
        "a", [w.spec([0], "rel")], validate_containers=False
    ),
    "specs, not validated": lambda w: (
        w.store.set_virtual_refs("a", [w.spec([0], "s3://z/1")], validate_containers=False),
        w.session.all_virtual_chunk_locations(),
    ),
    "specs, grid": lambda w: w.store.set_virtual_refs("a", [w.spec([7], "s3://bucket/a")]),
    "specs, rank": lambda w: w.store.set_virtual_refs("a", [w.spec([0, 0], "s3://bucket/a")]),
    "specs, no bytes": lambda w: w.store.set_virtual_refs("a", [w.spec([0], "s3://bucket/a", 0)]),
    "specs, no array": lambda w: w.store.set_virtual_refs("q", [w.spec([0], "s3://bucket/a")]),
    "specs, both checksums": lambda w: w.store.set_virtual_refs(
        "a", [w.spec([0], "s3://bucket/a", 1, "e", datetime(2020, 1, 1, tzinfo=UTC))]
    ),
    "fields of a spec": lambda w: [
        (each.index, each.location, each.offset, each.length, each.etag_checksum)
        for each in [w.spec([0], "s3://bucket/a")]
    ],
    "grid": lambda w: w.arr((4,), ["s3://bucket/1", "", "s3://bad/1", "s3://bucket/4"]),
    "grid, no bytes": lambda w: w.arr((1,), ["s3://bucket/1"], lengths=np.zeros(1, "u8")),
    "grid, too short": lambda w: w.arr((2,), ["s3://bucket/1"]),
    "grid, moved": lambda w: w.arr((1,), ["s3://bucket/5"], arr_offset=(3,)),
    "grid, moved out": lambda w: w.arr((1,), ["s3://bucket/5"], arr_offset=(4,)),
    "grid, rank": lambda w: w.arr((1, 1), ["s3://bucket/5"]),
    "grid, rank of the offset": lambda w: w.arr((1,), ["s3://bucket/5"], arr_offset=(0, 0)),
    "grid, no url": lambda w: w.arr((1,), ["rel"]),
    "grid, a tuple": lambda w: w.arr((1,), ("s3://bucket/5",)),
    "grid, signed numbers": lambda w: w.arr((1,), ["s3://bucket/5"], offsets=np.zeros(1, "i8")),
    "grid, checksum": lambda w: w.arr((1,), ["s3://bucket/5"], checksum="etag"),
    "batches": lambda w: (
        w.set("s3://bucket/a"),
        w.store.set_virtual_ref("a/c/2", "s3://bucket/b", offset=3, length=4),
        w.batch(),
    )[-1],
    "batches of nothing": lambda w: w.batch(),
    "read": lambda w: w.read("file://ROOT/data/f.bin", offset=5),
    "read by name": lambda w: w.read("vcc://fs/f.bin", offset=15),
    "read through localhost": lambda w: w.read("file://localhostROOT/data/f.bin"),
    "read a link out of the container": lambda w: w.read("file://ROOT/data/link"),
    "read over the end": lambda w: w.read("file://ROOT/data/f.bin", offset=195),
    "read behind the end": lambda w: w.read("file://ROOT/data/f.bin", offset=500),
    "read what is missing": lambda w: w.read("file://ROOT/data/none"),
    "read a folder": lambda w: w.read("file://ROOT/data/sub"),
    "read with another etag": lambda w: w.read("file://ROOT/data/f.bin", checksum="nope"),
    "read with its etag": lambda w: w.read("file://ROOT/data/f.bin", checksum=etag(w)),
    "read with any etag": lambda w: w.read("file://ROOT/data/f.bin", checksum="*"),
    "read, not changed since": lambda w: w.read("file://ROOT/data/f.bin", checksum=at(MTIME)),
    "read, older": lambda w: w.read("file://ROOT/data/f.bin", checksum=at(MTIME + 9)),
    "read, changed since": lambda w: w.read("file://ROOT/data/f.bin", checksum=at(MTIME - 1)),
    "read without container": lambda w: w.read("s3://nope/x"),
    "read without authorisation": lambda w: w.read("s3://bucket/x"),
    "read above": lambda w: w.read("file://ROOT/data/../secret"),
    "read empty segments": lambda w: w.read("file://ROOT/data//f.bin"),
}


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def etag(world: World) -> str:
    found = (world.root / "data" / "f.bin").stat()
    return f'"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"'


ERRORS = (icefloe.IcechunkError, icechunk.IcechunkError, TypeError, ValueError)
FIRST = list(range(CHUNK))
# (official, icefloe); only the class and kind of errors are compared.
DIFFERENCES: dict[str, tuple[Any, Any]] = {
    # A location that leads out of its container cannot be read, so it is refused at once.
    "set vcc://fs/../secret": (
        ["file://ROOT/data/../secret"],
        "InvalidInputError no-container-for-virtual-chunk",
    ),
    # A scheme has no space in it.
    "set  s3://bucket/a": (
        "InvalidInputError no-container-for-virtual-chunk",
        "InvalidInputError invalid-virtual-ref",
    ),
    "set anyway  s3://bucket/a": ([" s3://bucket/a"], "InvalidInputError invalid-virtual-ref"),
    # Chunks of the wrong rank would be lost.
    "specs, rank": (None, "InvalidInputError invalid-chunk-index"),
    "grid, rank": ((None, ["s3://bucket/5"]), "InvalidInputError invalid-chunk-index"),
    # Anything that is a sequence, and any whole numbers.
    "grid, a tuple": ("TypeError", (None, ["s3://bucket/5"])),
    "grid, signed numbers": ("TypeError", (None, ["s3://bucket/5"])),
    # Official strips the quotes off one side only.
    "read with its etag": ("StorageError virtual-chunk-modified", FIRST),
    "read a link out of the container": ([ord("s")] * CHUNK, "StorageError virtual-chunk-fetch"),
    "rank of a key": (None, "InvalidInputError invalid-chunk-index"),
    # Too short is too short. (Official: invalid-object-size where it reads in one request.)
    "read over the end": (
        "StorageError virtual-chunk-fetch",
        "StorageError invalid-object-size",
    ),
    "read behind the end": (
        "StorageError virtual-chunk-fetch",
        "StorageError invalid-object-size",
    ),
}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ERRORS as error:
        return f"{type(error).__name__} {getattr(error, 'kind', '')}".strip()


def outcomes(root: Path, call: Callable[[World], Any]) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        official = world(icechunk, root)
        theirs = outcome(lambda: call(official))
    ours = world(icefloe, root)
    return theirs, outcome(lambda: call(ours))


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("validates", [True, False])
def test_locations(tmp_path: Path, location: str, validates: bool) -> None:
    found = outcomes(tmp_path, lambda w: w.set(location, validate_container=validates))
    name = f"set {'' if validates else 'anyway '}{location}"
    assert found == DIFFERENCES.get(name, (found[0], found[0]))


@pytest.mark.parametrize("name", CALLS)
def test_calls(tmp_path: Path, name: str) -> None:
    found = outcomes(tmp_path, CALLS[name])
    assert found == DIFFERENCES.get(name, (found[0], found[0]))


def test_every_difference_is_tried() -> None:
    tried = {*CALLS, *(f"set {each}" for each in LOCATIONS)}
    tried |= {f"set anyway {each}" for each in LOCATIONS}
    assert tried >= set(DIFFERENCES)
