"""Jobs whose tasks run in place, one after the other; what Spark does in between is a sort."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from icefloe import Repository, Session
from icefloe.api.session import ForkSession
from icefloe.changes.splits import ChunkSpan
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.repo.session import all_chunks
from icefloe.spark import shared_write
from icefloe.spark.shared_write import SharedWrite, share
from icefloe.storage.run import run_blocking

Task = Callable[[ForkSession], None]
CONTAINER = "s3://bucket/"
NEVER = 1 << 60
ANYWHERE = ChunkSpan(1000)
"""What a job says about its chunks."""


def create(folder: Path, spec: int = 2, **splitting: Any) -> Repository:
    """Arrays are cut into splits of 16 references: four rows of `v`."""
    manifest = icefloe.ManifestConfig(max_refs_per_manifest=16, **splitting)
    config = icefloe.RepositoryConfig(manifest=manifest)
    container = icefloe.VirtualChunkContainer(CONTAINER, icefloe.s3_store(region="us-east-1"))
    config.set_virtual_chunk_container(container)
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    repository = Repository.create(storage, config, spec_version=spec)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    for name in ("v", "other"):
        group.create_array(name, shape=(32, 4), chunks=(1, 1), dtype="i4", fill_value=-1)
    group.create_array("single", shape=(), dtype="i4", fill_value=-1)
    session.commit("arrays")
    return repository


def refer(first: int, last: int, name: str = "v", salt: int = 0) -> Task:
    """A task that sets references of some rows."""

    def run(fork: ForkSession) -> None:
        row = np.arange(4 * first, 4 * last)
        table = pa.table(
            {
                "i0": row // 4,
                "i1": row % 4,
                "location": pa.array([f"{CONTAINER}{salt}/{number // 4}.nc" for number in row]),
                "offset": 10 * row,
                "length": np.full(len(row), 10),
            }
        )
        assert fork.store.set_virtual_refs_table(name, table) is None

    return run


def fill(first: int, last: int, value: int, name: str = "v") -> Task:
    """A task that writes values; the fill value deletes chunks."""

    def run(fork: ForkSession) -> None:
        zarr.open_array(fork.store, path=name, mode="r+")[first:last] = value

    return run


def run_tasks(shared: SharedWrite, tasks: Sequence[Task]) -> pa.Table:
    """What all tasks hand back; each has the fork as it came over the wire."""
    batches = []
    for task in tasks:
        side = pickle.loads(pickle.dumps(shared.tasks))
        task(side.fork)
        batches.append(side.drain())
    batches.append(shared_write.pieces_to_cut(shared.tasks.reductions))
    rows = pa.Table.from_batches(batches)
    if not shared.tasks.reductions:
        return rows
    order = [("node_id", "ascending"), ("piece", "ascending")]
    side = pickle.loads(pickle.dumps(shared.tasks))
    sorted_rows = rows.sort_by(order).to_batches(max_chunksize=2)
    return pa.Table.from_batches(shared_write.reduce_task(side.fork, side.reductions, sorted_rows))


def job(session: Session, *tasks: Task, names: Sequence[str] = ("v",)) -> Any:
    shared = share(session, dict.fromkeys(names, ANYWHERE))
    return shared.take(run_tasks(shared, tasks))


def values_of(session: Session, name: str = "v") -> Any:
    return zarr.open_array(session.store, path=name, mode="r")[:]


def refs_of(session: Session, name: str = "v") -> ChunkRefs:
    state = session._state
    return run_blocking(all_chunks(session.handle, state.view, state.node(f"/{name}")))


def contents(repository: Repository, snapshot_id: str | None = None) -> dict[str, Any]:
    """Every reference, the layout of manifests, and the log, by path."""
    key = snapshot_id or repository.lookup_branch("main")
    session = repository.readonly_session(snapshot_id=key)
    snapshot = session._state.snapshot
    log = run_blocking(repository._handles.blocking.assets.transaction_log(snapshot.id))
    seen: dict[str, Any] = {}
    for node in snapshot.nodes:
        if node.array is None:
            continue
        manifests = [
            (ref.extents, snapshot.manifest_files[ref.id].num_chunk_refs)
            for ref in node.array.manifests
        ]
        touched = log.updated_chunks.get(node.id)
        rows = refs_of(session, node.path.strip("/")).to_arrow(plain=True).to_pylist()
        seen[node.path] = (
            node.array.shape,
            manifests,
            None if touched is None else touched.tolist(),
            rows,
        )
    return seen


Story = Callable[[Repository], None]


def both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Story, **options: Any
) -> Repository:
    """Tell a story twice, and compare what comes of it. Returns the one with reducers."""
    ends = []
    for name, least in (("reduced", 1), ("plain", NEVER)):
        monkeypatch.setattr(shared_write, "MIN_REDUCED_CHUNKS", least)
        repository = create(tmp_path / name, **options)
        story(repository)
        ends.append(repository)
    # The first snapshot of a repository has no arrays, and in version 1 no log.
    commits = [[entry.id for entry in end.ancestry(branch="main")][:-1] for end in ends]
    assert len(commits[0]) == len(commits[1])
    for mine, theirs in zip(*commits, strict=True):
        ours, expected = contents(ends[0], mine), contents(ends[1], theirs)
        for path, (shape, manifests, touched, rows) in expected.items():
            assert ours[path][0] == shape
            assert ours[path][2:] == (touched, rows)
            # What tasks wrote is joined by what it really holds, edits by what they may lead to.
            assert ours[path][1] == manifests or len(ours[path][1]) < len(manifests)
        assert ours.keys() == expected.keys()
    return ends[0]


def commit(repository: Repository, *tasks: Task, grow: int = 0, **options: Any) -> None:
    session = repository.writable_session("main")
    if grow:
        zarr.open_array(session.store, path="v", mode="r+").resize((grow, 4))
    job(session, *tasks, **options)
    session.commit("job")
