"""Incremental collection of a large repository on S3, beside a full one.

`python -m benchmarks.collecting_again [OBJECTS]` makes a repository with so many chunk objects
(300,000) and 20 snapshots on the S3 server of the tests. Then it overwrites 1 % of the chunks,
expires what is older than the newest 20 snapshots and collects, ten times. The first collection is
a full one that leaves a memory, the next nine are incremental, and one more is full again.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.ids import encode_base32_rows
from icefloe.storage.run import run_blocking
from tests.servers import S3Server, s3_server_process

DEFAULT_OBJECTS, CHURN, SNAPSHOTS, TIMES, SIZE = 300_000, 100, 20, 10, 8
_AT_ONCE = 5000


def run(objects: int) -> list[str]:
    """The lines of a table."""
    with s3_server_process() as server:
        storage = server.storage()
        repo = icefloe.Repository.create(storage)
        drawn = np.random.default_rng(1)
        session = repo.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(objects,), chunks=(1,), dtype="<i8")
        session.commit("array")
        _write(repo, storage, drawn, 0, objects)
        some = objects // CHURN
        for number in range(SNAPSHOTS):
            _write(repo, storage, drawn, number * some, some)
        lines = [
            f"{'collection':16} {'requests':>9} {'wall s':>9} {'CPU s':>9} {'chunks deleted':>15}"
        ]
        for number in range(TIMES + 1):
            _write(repo, storage, drawn, (SNAPSHOTS + number) * some % objects, some)
            repo.expire_snapshots(datetime.now(UTC) + timedelta(days=1), keep_last=SNAPSHOTS)
            every = 1 if number == TIMES else 100
            lines.append(_collected(server, storage, number, every))
        size = len(run_blocking(storage.driver(blocking=True).get(layout.MEMORY)))
        return [*lines, f"the memory has {size:,} bytes"]


def _collected(server: S3Server, storage: icefloe.Storage, number: int, every: int) -> str:
    repo = icefloe.Repository.open(storage)
    before, wall, cpu = _requests(server), time.perf_counter(), time.process_time()
    later = datetime.now(UTC) + timedelta(days=1)
    found = repo.garbage_collect(later, incremental=True, full_every=every)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    kind = "full" if found.looked_for_orphans else "incremental"
    requests = _requests(server) - before
    name = f"{number + 1}, {kind}"
    return f"{name:16} {requests:9,} {wall:9.2f} {cpu:9.2f} {found.chunks_deleted:15,}"


def _requests(server: S3Server) -> int:
    return sum(server.requests()["methods"].values())


def _write(repo: icefloe.Repository, storage: Any, drawn: Any, first: int, count: int) -> None:
    """Commit new objects for some neighbouring chunks, without writing each through Zarr."""
    ids = np.frombuffer(drawn.bytes(12 * count), np.uint8).reshape(-1, 12)
    driver = storage.driver(blocking=True)
    for at in range(0, count, _AT_ONCE):
        keys = [layout.CHUNKS + name for name in encode_base32_rows(ids[at : at + _AT_ONCE])]
        run_blocking(driver.put_many([(key, bytes(SIZE)) for key in keys]))
    index = np.arange(first, first + count, dtype=np.uint32).reshape(-1, 1)
    none = np.zeros(count, np.uint64)
    session = repo.writable_session("main")
    state = session.workspace.state
    with state.writing():
        refs = ChunkRefs.native(index, ids, none, none + np.uint64(SIZE))
        state.changes.edits(state.node("/a")).set_table(refs)
    session.commit("churn")


if __name__ == "__main__":
    print("\n".join(run(int(sys.argv[1]) if sys.argv[1:] else DEFAULT_OBJECTS)))
