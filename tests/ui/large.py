"""A repository of 10,000 snapshots and 10,000 nodes, made without 10,000 commits.

The repo object lists all snapshots. Files are written for those that are looked at: every
`EVERY`-th one, and the tip of `main`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import zarr

import icefloe
from icefloe.format.nodes import ArrayData, Dimension, Node, NodeTable
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import NodeId, SnapshotId

NUM_SNAPSHOTS = 10_000
NUM_NODES = 10_000
EVERY = 1000
_GROUPS = 10
_SIDES = 40


def make_large(root: Path) -> icefloe.Repository:
    """Ten groups of a thousand arrays; a main line with branches of 20 commits beside it."""
    storage = icefloe.local_filesystem_storage(str(root))
    repo = icefloe.Repository.create(storage)
    with repo.transaction("main", message="a field") as store:
        field = zarr.create_array(
            store, name="field", shape=(4, 50, 80), chunks=(1, 50, 80), dtype="f4"
        )
        field[:] = np.arange(4 * 50 * 80).reshape(4, 50, 80)
    tip = repo.lookup_branch("main")
    first = decode_snapshot((root / "snapshots" / tip).read_bytes())
    document = next(node.user_data for node in first.nodes if node.array is not None)
    nodes = NodeTable.from_nodes(sorted([*first.nodes, *_nodes(document)], key=lambda n: n.path))
    rng = np.random.default_rng(7)
    line, branches = _history(first.flushed_at, first.id, rng)
    stored = {info.id for info in line[::EVERY]} | {branches["main"]}
    for info in line:
        if info.id in stored:
            made = replace(first, id=info.id, nodes=nodes, message=info.message)
            (root / "snapshots" / info.id.text).write_bytes(encode_snapshot(made, spec_version=2))
    before = decode_repo_info((root / "repo").read_bytes())
    tags = {f"v{at}": info.id for at, info in enumerate(line[::EVERY])}
    after = replace(before, branches=branches, tags=tags, snapshots=SnapshotTable.from_infos(line))
    (root / "repo").write_bytes(encode_repo_info(after))
    return icefloe.Repository.open(storage)


def _nodes(document: bytes) -> list[Node]:
    shape = (Dimension(4, 4), Dimension(50, 1), Dimension(80, 1))
    rng = np.random.default_rng(6)
    group = b'{"zarr_format":3,"node_type":"group","attributes":{}}'

    def new_id() -> NodeId:
        return NodeId(rng.bytes(8))

    made = [Node(new_id(), f"/group-{at}", group) for at in range(_GROUPS)]
    for at in range(NUM_NODES - _GROUPS - 2):
        path = f"/group-{at % _GROUPS}/array-{at // _GROUPS:04d}"
        made.append(Node(new_id(), path, document, ArrayData(shape)))
    return made


def _history(
    start: int, first: SnapshotId, rng: np.random.Generator
) -> tuple[list[SnapshotInfo], dict[str, SnapshotId]]:
    found = [SnapshotInfo(first, None, start, "the first")]
    tips = {"main": first}
    open_side = None
    for number in range(1, NUM_SNAPSHOTS):
        at = number % (NUM_SNAPSHOTS // _SIDES)
        if at == 20:
            open_side = f"side-{number:05d}"
            tips[open_side] = tips["main"]
        branch = open_side if open_side and 20 <= at < 60 and at % 2 else "main"
        info = SnapshotInfo(
            SnapshotId(rng.bytes(12)), tips[branch], start + number, f"commit {number} to {branch}"
        )
        tips[branch] = info.id
        found.append(info)
    return found, tips
