"""Making the repositories that are measured, where possible by official icechunk.

Some need what only icefloe can do: `native` has a million references to chunks that nobody wrote,
`packed by icefloe` has chunks that share objects, and `histories` writes a past that never was.

Started as `python -m benchmarks.repositories FOLDER ROWS DATASET...`, in a process of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import icefloe
from benchmarks.arrays import (
    GARBAGE,
    PACKED,
    chunk_values,
    listed,
    num_large,
    num_members,
    num_objects,
)
from benchmarks.data import CHUNK_BYTES, Corpus, References, committed_file, grid_index
from benchmarks.histories import make_history
from benchmarks.many_arrays import make_arrays
from benchmarks.places import LOCAL, S3, SLOW_S3, UNSYNCED, Place, endpoint, ranges_prefix
from benchmarks.s3_copies import s3_store
from benchmarks.stores import create_array
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.envelope import decode_header
from icefloe.format.manifest import ArrayManifest, decode_manifest, encode_manifest
from icefloe.format.snapshot import ManifestFiles, decode_snapshot, encode_snapshot
from icefloe.ids import encode_base32_rows

# Typed as Any: the types are not there on Python 3.11, and the check must pass there too.
icechunk: Any = importlib.import_module("icechunk")
zarr: Any = importlib.import_module("zarr")


def create(root: Path, grid: tuple[int, ...]) -> Any:
    """A new repository with array `a`, as a session that has not committed it yet."""
    storage = icechunk.local_filesystem_storage(str(root))
    session = icechunk.Repository.create(storage).writable_session("main")
    names = ["time", "y", "x"]
    zarr.create_array(
        session.store,
        name="a",
        shape=grid,
        chunks=(1,) * len(grid),
        dtype="float32",
        dimension_names=names,
    )
    return session


def hand_in(session: Any, refs: References) -> None:
    """Give the session the references of array `a`, the fast way."""
    failed = session.store.set_virtual_refs_arr(
        "a", refs.grid, refs.locations, refs.offset, refs.length, validate_containers=False
    )
    assert failed is None, failed


def make_virtual(corpus: Corpus, dataset: str) -> None:
    """One array of virtual references, in one manifest."""
    session = create(corpus / dataset, corpus.grid)
    hand_in(session, corpus.references(dataset))
    session.commit("references")


def make_native(corpus: Corpus, dataset: str) -> None:
    """The same with native references, encoded by icefloe."""
    make_virtual(corpus, dataset)
    ids = corpus.chunk_ids()
    refs = ChunkRefs.native(grid_index(corpus.grid), ids, 0, CHUNK_BYTES)
    substitute(corpus / dataset, refs)


def make_listed(corpus: Corpus, dataset: str) -> None:
    """Arrays with inline chunks."""
    arrays, chunks = listed(dataset, corpus.rows)
    _make_arrays(corpus / dataset, (chunks, 1, 1), arrays, chunks)


def make_members(corpus: Corpus, dataset: str) -> None:
    """Many arrays in one group."""
    _make_arrays(corpus / dataset, (1, 1, 1), num_members(corpus.rows), 0)


def _make_arrays(root: Path, grid: tuple[int, ...], arrays: int, chunks: int) -> None:
    """Copies of array `a`, which is then deleted, with some chunks along the first dimension."""
    session = create(root, grid)

    async def add() -> None:
        prototype = zarr.core.buffer.default_buffer_prototype()
        array = await session.store.get("a/zarr.json", prototype)
        chunk = prototype.buffer.from_bytes(bytes(16))
        await session.store.delete_dir("a")
        for number in range(arrays):
            path = f"array-{number:04d}"
            await session.store.set(f"{path}/zarr.json", array)
            for at in range(chunks):
                await session.store.set(f"{path}/c/{at}/0/0", chunk)

    asyncio.run(add())
    session.commit("arrays")


def make_eight_megabytes(corpus: Corpus, dataset: str) -> None:
    """Native chunks, none of them compressed."""
    count, width = num_large(corpus.rows), 1 << 20
    storage = icechunk.local_filesystem_storage(str(corpus / dataset))
    session = icechunk.Repository.create(storage).writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=(count, width),
        chunks=(1, width),
        dtype="uint64",
        compressors=None,
    )
    array[:] = np.random.default_rng(3).integers(1, 2**64, (count, width), np.uint64)
    session.commit("chunks")


def make_chunks(corpus: Corpus, dataset: str) -> None:
    """An array of native or inline chunks."""
    packed = dataset.endswith(PACKED)
    place = Place("ours", UNSYNCED, corpus) if packed else Place("official", LOCAL, corpus)
    values = chunk_values(dataset.removesuffix(PACKED), corpus.rows)
    storage = place.storage(str(corpus / dataset))
    array = create_array(place, storage, dataset.removesuffix(PACKED), values.shape)
    array[:] = values
    array.store.session.commit("chunks")


def make_ranges(corpus: Corpus, dataset: str) -> None:
    """An array of which every chunk is a range of one file on the S3 server."""
    values = np.ascontiguousarray(chunk_values("few small", corpus.rows))
    kind = SLOW_S3 if dataset == "slow ranges" else S3
    prefix = ranges_prefix(kind)
    s3_store(corpus, prefix.split("/", 3)[3]).put(str(corpus.rows), values.tobytes())
    options = {"region": "us-east-1", "endpoint_url": endpoint(corpus.folder), "allow_http": True}
    store = icechunk.s3_store(**options, s3_compatible=True, force_path_style=True)
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    storage = icechunk.local_filesystem_storage(str(corpus / dataset))
    session = icechunk.Repository.create(storage, config).writable_session("main")
    count, width = values.shape
    zarr.create_array(
        session.store,
        name="a",
        shape=values.shape,
        chunks=(1, width),
        dtype="uint64",
        compressors=None,
    )
    offset = np.arange(count, dtype=np.uint64) * np.uint64(8 * width)
    location = f"{prefix}{corpus.rows}"
    length = np.full(count, 8 * width, np.uint64)
    hand_in(session, References((count, 1), [location] * count, offset, length))
    session.commit("ranges")


def make_garbage(corpus: Corpus, dataset: str) -> None:
    """A repository of which a sixth of the chunk objects are in no snapshot."""
    write_garbage(corpus / dataset, num_objects(corpus.rows))


def write_garbage(root: Path, count: int) -> None:
    """`count` chunk objects, some of them in no snapshot; references without writing through Zarr.

    Every live object is in each of the snapshots.
    """
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(root, durable=False))
    live, size = count - count // GARBAGE, 8
    ids = np.frombuffer(np.random.default_rng(1).bytes(12 * count), np.uint8).reshape(-1, 12)
    (root / "chunks").mkdir(exist_ok=True)
    for name in encode_base32_rows(ids):
        (root / "chunks" / name).write_bytes(bytes(size))
    index = np.arange(live, dtype=np.uint32).reshape(-1, 1)
    refs = ChunkRefs.native(
        index, ids[:live], np.zeros(live, np.uint64), np.full(live, size, np.uint64)
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(live,), chunks=(1,), dtype="<i8")
    session.commit("array")
    for number in range(_SNAPSHOTS_WITH_GARBAGE):
        session = repo.writable_session("main")
        state = session.workspace.state
        with state.writing():
            state.changes.edits(state.node("/a")).set_table(refs)
        session.commit(f"snapshot {number}")


_SNAPSHOTS_WITH_GARBAGE = 20

MAKERS: dict[str, Callable[[Corpus, str], None]] = {
    "files": make_virtual,
    "distinct": make_virtual,
    "native": make_native,
    "few arrays": make_listed,
    "many arrays": make_listed,
    "members": make_members,
    "eight megabytes": make_eight_megabytes,
    "history": make_history,
    "long history": make_history,
    "small": make_chunks,
    "few small": make_chunks,
    "small zstd": make_chunks,
    "medium": make_chunks,
    "large": make_chunks,
    "inline": make_chunks,
    "packed": make_chunks,
    f"packed{PACKED}": make_chunks,
    "ranges": make_ranges,
    "slow ranges": make_ranges,
    "garbage": make_garbage,
    "1000 arrays": make_arrays,
    "5000 arrays": make_arrays,
    f"1000 arrays{PACKED}": make_arrays,
    f"5000 arrays{PACKED}": make_arrays,
}


def substitute(root: Path, refs: ChunkRefs) -> None:
    """Put `refs` in the place of the manifest, and the size of the new file into the snapshot."""
    path, snapshot_path = committed_file(root, "manifests"), committed_file(root, "snapshots")
    manifest = decode_manifest(path.read_bytes())
    arrays = (ArrayManifest(manifest.arrays[0].node_id, refs),)
    data = encode_manifest(replace(manifest, arrays=arrays), spec_version=2)
    path.write_bytes(data)
    before = snapshot_path.read_bytes()
    snapshot = decode_snapshot(before)
    # Official fetches as many bytes as the snapshot says.
    files = [info._replace(size_bytes=len(data)) for info in snapshot.manifest_files.values()]
    patched = replace(snapshot, manifest_files=ManifestFiles.from_infos(files))
    version = decode_header(before, "snapshot").spec_version
    snapshot_path.write_bytes(encode_snapshot(patched, spec_version=version))


def main(folder: str, rows: str, *datasets: str) -> None:
    """Make the datasets that are repositories and not there yet."""
    corpus = Corpus(Path(folder), int(rows))
    for dataset in datasets:
        if dataset in MAKERS and not (corpus / dataset).exists():
            MAKERS[dataset](corpus, dataset)


if __name__ == "__main__":
    main(*sys.argv[1:])
