"""Making the repositories that are measured, by official icechunk.

Two of them then get a manifest that icefloe encoded: `native`, because official could only write
a million native references by writing a million chunks, and `rewritten`, to see how official
reads our layout.

Started as `python -m benchmarks.repositories FOLDER ROWS DATASET...`, in a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import official
from benchmarks.arrays import listed, num_large, num_members, num_snapshots
from benchmarks.data import CHUNK_BYTES, Corpus, committed_file, grid_index
from icefloe.format.envelope import decode_header
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.manifest.encode import encode_manifest
from icefloe.format.manifest.file import ArrayManifest, decode_manifest
from icefloe.format.repo_info.file import decode_repo_info, encode_repo_info
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.snapshot.encode import encode_snapshot
from icefloe.format.snapshot.file import ManifestFiles, decode_snapshot
from icefloe.ids import SnapshotId

NODES_PER_GROUP = 100


def make_virtual(corpus: Corpus, dataset: str) -> None:
    """One array of virtual references, in one manifest."""
    session = official.create(corpus / dataset, corpus.grid)
    official.hand_in(session, corpus.references(dataset))
    session.commit("references")


def make_native(corpus: Corpus, dataset: str) -> None:
    """The same with native references, encoded by icefloe."""
    make_virtual(corpus, dataset)
    ids = corpus.chunk_ids()
    refs = ChunkRefs.native(grid_index(corpus.grid), ids, 0, CHUNK_BYTES)
    substitute(corpus / dataset, refs)


def make_rewritten(corpus: Corpus, dataset: str) -> None:
    """What official wrote, encoded anew by icefloe."""
    make_virtual(corpus, dataset)
    manifest = decode_manifest(committed_file(corpus / dataset, "manifests").read_bytes())
    substitute(corpus / dataset, manifest.arrays[0].refs)


def make_nodes(corpus: Corpus, dataset: str) -> None:
    """A node for every hundred references: groups, and arrays of which one each has a chunk."""
    session = official.create(corpus / dataset, corpus.grid)
    groups = max(corpus.rows // 100 // NODES_PER_GROUP, 1)
    asyncio.run(_add_nodes(session.store, groups))
    for number in range(groups):
        official.hand_in_one(session, f"group-{number:03d}/array-000/c/0/0/0", number)
    session.commit("nodes")


def make_listed(corpus: Corpus, dataset: str) -> None:
    """Arrays with inline chunks."""
    arrays, chunks = listed(dataset, corpus.rows)
    _make_arrays(corpus / dataset, (chunks, 1, 1), arrays, chunks)


def make_members(corpus: Corpus, dataset: str) -> None:
    """Many arrays in one group."""
    _make_arrays(corpus / dataset, (1, 1, 1), num_members(corpus.rows), 0)


def _make_arrays(root: Path, grid: tuple[int, ...], arrays: int, chunks: int) -> None:
    """Copies of array `a`, which is then deleted, with some chunks along the first dimension."""
    session = official.create(root, grid)

    async def add() -> None:
        prototype = official.zarr.core.buffer.default_buffer_prototype()
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
    storage = official.icechunk.local_filesystem_storage(str(corpus / dataset))
    session = official.icechunk.Repository.create(storage).writable_session("main")
    array = official.zarr.create_array(
        session.store,
        name="a",
        shape=(count, width),
        chunks=(1, width),
        dtype="uint64",
        compressors=None,
    )
    array[:] = np.random.default_rng(3).integers(1, 2**64, (count, width), np.uint64)
    session.commit("chunks")


def make_history(corpus: Corpus, dataset: str) -> None:
    """One branch of many snapshots. Only the repo object knows of them: official would take
    minutes to commit so many, and a history is read from there alone."""
    root = corpus / dataset
    storage = official.icechunk.local_filesystem_storage(str(root))
    official.icechunk.Repository.create(storage)
    before = decode_repo_info((root / "repo").read_bytes())
    first = next(iter(before.snapshots.values()))
    raw = np.random.default_rng(4).integers(0, 256, (num_snapshots(corpus.rows), 12), np.uint8)
    line = [first]
    for number, row in enumerate(raw[1:], 1):
        parent, time = line[-1].id, first.flushed_at + number
        line.append(SnapshotInfo(SnapshotId(row.tobytes()), parent, time, f"commit {number}"))
    after = replace(
        before,
        branches={"main": line[-1].id},
        snapshots=SnapshotTable.from_infos(line),
    )
    (root / "repo").write_bytes(encode_repo_info(after))


async def _add_nodes(store: Any, groups: int) -> None:
    prototype = official.zarr.core.buffer.default_buffer_prototype()
    group, array = [await store.get(key, prototype) for key in ("zarr.json", "a/zarr.json")]
    for number in range(groups):
        path = f"group-{number:03d}"
        await store.set(f"{path}/zarr.json", group)
        for inner in range(NODES_PER_GROUP - 1):
            await store.set(f"{path}/array-{inner:03d}/zarr.json", array)


MAKERS: dict[str, Callable[[Corpus, str], None]] = {
    "files": make_virtual,
    "distinct": make_virtual,
    "rotating": make_virtual,
    "native": make_native,
    "rewritten": make_rewritten,
    "nodes": make_nodes,
    "few arrays": make_listed,
    "many arrays": make_listed,
    "members": make_members,
    "eight megabytes": make_eight_megabytes,
    "history": make_history,
}


def substitute(root: Path, refs: ChunkRefs, *, spec_version: int = 2) -> None:
    """Put `refs` in the place of the manifest, and the size of the new file into the snapshot."""
    path, snapshot_path = committed_file(root, "manifests"), committed_file(root, "snapshots")
    manifest = decode_manifest(path.read_bytes())
    arrays = (ArrayManifest(manifest.arrays[0].node_id, refs),)
    data = encode_manifest(replace(manifest, arrays=arrays), spec_version=spec_version)
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
