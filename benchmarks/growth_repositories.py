"""The repositories of the growth curves, made by icefloe in the layout that official has too.

Every one has array `a` with virtual references; only one of its numbers is large.
Started as `python -m benchmarks.growth_repositories FOLDER KIND SIZE`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from benchmarks.data import Corpus
from benchmarks.growth import REFS_PER_ROW
from benchmarks.histories import lengthened
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot_table import SnapshotTable

REFS_PER_MANIFEST, FEW = 1000, 1000


def make(corpus: Corpus, kind: str) -> None:
    """One repository of which `corpus.rows` is the number that is large."""
    size, root = corpus.rows, corpus / kind
    refs = {"references": size, "manifests": size * REFS_PER_MANIFEST}.get(kind, FEW)
    session = _start(root, refs, is_split=kind == "manifests")
    if kind == "nodes":
        asyncio.run(_add_nodes(session.store, size))
    _add_refs(session.store, refs)
    session.commit("references")
    info = decode_repo_info((root / "repo").read_bytes())
    if kind == "snapshots":
        info = replace(info, snapshots=SnapshotTable.from_infos(lengthened(info, size)))
    if kind == "branches":
        names = ["main", *(f"branch-{number}" for number in range(size - 1))]
        info = replace(info, branches=dict.fromkeys(names, info.branches["main"]))
    (root / "repo").write_bytes(encode_repo_info(info))


def _start(root: Path, refs: int, *, is_split: bool) -> Any:
    conditions: Any = icefloe.ManifestSplitCondition.AnyArray()
    axis: Any = icefloe.ManifestSplitDimCondition.Axis(0)
    rows = REFS_PER_MANIFEST // REFS_PER_ROW if is_split else max(refs // REFS_PER_ROW, 1)
    splitting = icefloe.ManifestSplittingConfig.from_dict({conditions: {axis: rows}})
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=splitting))
    storage = icefloe.local_filesystem_storage(root, durable=False)
    session = icefloe.Repository.create(storage, config).writable_session("main")
    zarr.create_group(session.store)
    shape = (max(refs // REFS_PER_ROW, 1), REFS_PER_ROW)
    zarr.create_array(session.store, name="a", shape=shape, chunks=(1, 1), dtype="f4")
    return session


async def _add_nodes(store: Any, count: int) -> None:
    array = await store.get("a/zarr.json", default_buffer_prototype())
    for number in range(count - 2):
        await store.set(f"array-{number:06d}/zarr.json", array)


def _add_refs(store: Any, count: int) -> None:
    row = np.arange(count)
    files = pa.array([f"s3://bucket/{number:08d}.nc" for number in range(-(-count // 1000))])
    codes = pa.array((row // 1000).astype(np.int32))
    table = pa.table(
        {
            "i0": (row // REFS_PER_ROW).astype(np.uint32),
            "i1": (row % REFS_PER_ROW).astype(np.uint32),
            "location": pa.DictionaryArray.from_arrays(codes, files),
            "offset": (row % 1000 * 4096).astype(np.uint64),
            "length": np.full(count, 4096, np.uint64),
        }
    )
    assert store.set_virtual_refs_table("a", table, validate_containers=False) is None


def main(folder: str, kind: str, size: str) -> None:
    """Make one."""
    make(Corpus(Path(folder), int(size)), kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
