"""A tour of what works: a versioned repository in a plain directory, seen from several sides.

Run it with `python examples/tour.py`. Where official icechunk is installed, it is asked to read the
result.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import zarr

import icefloe
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest

DAYS, ROWS, COLUMNS = 1000, 50, 20


def heading(text: str) -> None:
    """Print the title of a stop on the tour."""
    print(f"\n{text}\n{'-' * len(text)}")


@contextmanager
def timed(label: str) -> Iterator[None]:
    """Print how long the block took."""
    start = time.perf_counter()
    yield
    print(f"{label:<52}{time.perf_counter() - start:6.2f} s")


def write_history(repo: icefloe.Repository) -> str:
    """Three commits, a tag and a branch; returns the first commit."""
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "two weeks of temperature"})
    t2m = root.create_array("t2m", shape=(7, 40, 80), chunks=(1, 40, 80), dtype="f4")
    t2m[:] = 273.15 + np.arange(7, dtype="f4")[:, None, None]
    first = session.commit("a first week", {"source": "tour"})
    with repo.transaction("main", message="a second week") as store:
        t2m = zarr.open_array(store, path="t2m")
        t2m.resize((14, 40, 80))
        t2m[7:] = 290
    repo.create_tag("two-weeks", repo.lookup_branch("main"))
    repo.create_branch("experiment", first)
    with repo.transaction("experiment", message="colder, to see") as store:
        zarr.open_array(store, path="t2m")[0] = 200
    return first


def show_history(repo: icefloe.Repository, first: str) -> None:
    """The graph, a difference, and the same cell at three points of history."""
    print(repo.ancestry_graph(plain=True))
    print("\nwhat the second week changed:")
    print(repo.diff(from_snapshot_id=first, to_tag="two-weeks"), end="")
    for name, session in {
        "main": repo.readonly_session("main"),
        "experiment": repo.readonly_session("experiment"),
        "first commit": repo.readonly_session(snapshot_id=first),
    }.items():
        t2m = zarr.open_array(session.store, path="t2m", mode="r")
        print(f"{name:>14}: shape {t2m.shape}, first cell {np.asarray(t2m[0, 0, 0]).item():.2f}")


def collide(repo: icefloe.Repository) -> None:
    """Two sessions from one snapshot: the second commit is told, not lost."""
    early, late = repo.writable_session("main"), repo.writable_session("main")
    for session, value in ((early, 1), (late, 2)):
        zarr.open_array(session.store, path="t2m")[0] = value
    early.commit("first at the door")
    try:
        late.commit("second at the door")
    except icefloe.ConflictError as error:
        print(f"ConflictError ({error.kind}): {error}")


def ask_official(folder: str) -> None:
    """Let official icechunk open the directory and read it."""
    if importlib.util.find_spec("icechunk") is None:
        print("(official icechunk is not installed, it needs Python 3.12: left out)")
        return
    icechunk = importlib.import_module("icechunk")
    icechunk.set_logs_filter("error")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
    for entry in repository.ancestry(branch="main"):
        print(f"{entry.id}  {entry.message}")
    store = repository.readonly_session(tag="two-weeks").store
    t2m = zarr.open_array(store, path="t2m", mode="r")
    print("last cell:", np.asarray(t2m[-1, -1, -1]).item())


def million_references() -> None:
    """An array of a million chunks that lies in a thousand foreign files, as a table."""
    row = np.arange(DAYS * ROWS * COLUMNS)
    index = np.stack([row // 1000, row // 20 % 50, row % 20], axis=1)
    files = pa.array([f"s3://weather-archive/t2m/{day:04d}.nc" for day in range(DAYS)])
    location = pa.DictionaryArray.from_arrays(pa.array(row // 1000, pa.int32()), files)
    with timed("a million references from Arrow columns"):
        refs = ChunkRefs.virtual(index, location, 400 + row % 1000 * 4000, 4000)
    array = ArrayManifest(icefloe.NodeId(bytes(8)), refs)
    with timed("encoded as a manifest file"):
        data = encode_manifest(Manifest(icefloe.ManifestId(os.urandom(12)), (array,)))
    with timed(f"decoded again, from {len(data) / 1e6:.1f} MB"):
        decoded = decode_manifest(data).arrays[0].refs
    chunk = decoded.get((500, 25, 7))
    assert chunk is not None
    print(f"chunk (500, 25, 7): {chunk.length} bytes at {chunk.offset:,} of {chunk.location}")
    try:
        decode_manifest(data[:-1], "manifests/EXAMPLE")
    except icefloe.FormatError as error:
        print(f"with its last byte missing: {error}")


def main() -> None:
    """The tour."""
    with tempfile.TemporaryDirectory() as folder:
        storage = icefloe.local_filesystem_storage(folder)
        repo = icefloe.Repository.create(storage)
        first = write_history(repo)
        heading("A versioned repository in a plain directory")
        show_history(repo, first)
        heading("Two writers, one branch")
        collide(repo)
        heading("The same directory, read by official icechunk")
        ask_official(folder)
        objects = [path for path in Path(folder).rglob("*") if path.is_file()]
        print(f"({len(objects)} objects, {sum(p.stat().st_size for p in objects):,} bytes)")
    heading("A manifest is a table")
    million_references()


if __name__ == "__main__":
    main()
