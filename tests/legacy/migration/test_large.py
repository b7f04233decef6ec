"""Migration of large repositories: time and memory, measured in processes of their own."""

from __future__ import annotations

import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import NumberedRefs
from icefloe.repo import commit, session
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.store import operations

MOST_MEGABYTES = 2048


class Measured(NamedTuple):
    report: icefloe.MigrationReport
    told: list[icefloe.Progress]
    cpu_seconds: float
    peak_megabytes: float


def migrated(source: Path, target: Path) -> Measured:
    """Migrate one directory to another."""
    told: list[icefloe.Progress] = []
    old = icefloe.Repository.open(icefloe.local_filesystem_storage(str(source)))
    storage = icefloe.local_filesystem_storage(str(target), durable=False)
    start = time.process_time()
    report = icefloe.migrate_repository(old, storage, progress=told.append)
    seconds = time.process_time() - start
    return Measured(report, told, seconds, peak_megabytes())


def peak_megabytes() -> float:
    """Not `ru_maxrss`, which begins with that of the process that started this one."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(tmp_path: Path) -> Measured:
    """The migration of `old` to `new`, in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(migrated, tmp_path / "old", tmp_path / "new").result(900)
    sys.stdout.write(
        f"{found.report}\n{found.cpu_seconds:.0f} s of CPU, {found.peak_megabytes:.0f} MB\n"
    )
    return found


def new_repository(tmp_path: Path, encoding: Any) -> icefloe.Repository:
    return icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "old"), durable=False),
        generation=NumberedRefs(encoding),
        config=icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
    )


def set_references(store: icefloe.IcechunkStore, count: int, first: int) -> None:
    """`count` virtual chunks of the array `big`, with offsets from `first` on."""
    store.set_virtual_refs_arr(
        "big",
        chunk_grid_shape=[count],
        locations=[f"file:///data/{number % 1000}.nc" for number in range(count)],
        offsets=np.arange(first, first + count, dtype="u8"),
        lengths=np.ones(count, "u8"),
        validate_containers=False,
    )


@pytest.mark.long
@pytest.mark.timeout(480)
@pytest.mark.parametrize("encoding", ["msgpack", "json", "binary"])
def test_a_million_references(encoding: str, tmp_path: Path) -> None:
    count = 1_000_000
    old = new_repository(tmp_path, encoding)
    with old.transaction("main", message="a million") as store:
        zarr.create_array(store, name="big", shape=(count,), chunks=(1,), dtype="i1")
        set_references(store, count, 0)
    found = measure(tmp_path)
    assert found.report.chunk_references == count
    assert found.peak_megabytes < MOST_MEGABYTES


def commit_chunk(repo: icefloe.Repository, number: int) -> None:
    """A commit of one chunk, without Zarr, which would take most of the time."""
    handle = repo.handle
    work = Workspace(handle, run_blocking(session.open_writable(handle, "main")))
    chunk = np.array([number, 0], "<i4").tobytes()
    run_blocking(operations.set_key(work, "small/c/0", chunk))
    run_blocking(commit.commit(work, f"commit {number}", None))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_thousand_snapshots(tmp_path: Path) -> None:
    """Ten of them rewrite a manifest of 100,000 references; the others write a chunk object."""
    count, snapshots = 100_000, 10_000
    old = new_repository(tmp_path, "msgpack")
    with old.transaction("main", message="create") as store:
        zarr.create_array(store, name="big", shape=(count,), chunks=(1,), dtype="i1")
        zarr.create_array(
            store, name="small", shape=(4,), chunks=(2,), dtype="i4", compressors=None
        )
    for number in range(1, snapshots):
        if number % 1000 == 1:
            with old.transaction("main", message=f"commit {number}") as store:
                set_references(store, count, number)
        else:
            commit_chunk(old, number)
        if number % 100 == 0:
            old.create_branch(f"side-{number}", old.lookup_branch("main"))
            old.create_tag(f"tag-{number}", old.lookup_branch("main"))
    found = measure(tmp_path)
    assert len(found.report.snapshots) == snapshots + 1
    assert found.report.chunk_references == 10 * count + snapshots - 11
    assert found.report.chunks_copied == found.report.chunks_compared == snapshots - 11
    stages = {told.stage for told in found.told}
    assert stages >= {"read snapshots", "migrate snapshots", "compare snapshots"}
    assert len(found.told) > 2 * snapshots
    assert found.peak_megabytes < MOST_MEGABYTES
    new = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "new")))
    assert sum(1 for _ in new.ancestry(branch="main")) == snapshots + 1
    small: Any = zarr.open_array(new.readonly_session("main").store, path="small", mode="r")
    assert small[:].tolist() == [snapshots - 1, 0, 0, 0]
