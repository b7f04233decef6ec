"""Repositories with a long past, made by writing their `repo` object.

Real commits would take minutes. What is read or built upon is real: the array, the last commits
with their files, and the snapshot in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from benchmarks.arrays import REAL_COMMITS, num_snapshots
from benchmarks.data import Corpus
from icefloe.format.operations_log import Update, UpdateKind
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId

_A_SECOND = 1_000_000
_A_PAGE = 1000


def make_history(corpus: Corpus, dataset: str) -> None:
    """One branch of many snapshots, one tag for each of them, and an entry of the log for each."""
    root = corpus / dataset
    before = _real_commits(root, REAL_COMMITS)
    is_read = dataset == "history"
    describe = _commit_metadata if is_read else _no_metadata
    line = lengthened(before, num_snapshots(dataset, corpus.rows), describe)
    _add_snapshot_file(root, before.branches["main"], line[len(line) // 2].id)
    tags = {}
    if is_read:
        tags = {f"version-{number}": info.id for number, info in enumerate(line)}
    _write(root, replace(before, tags=tags, snapshots=SnapshotTable.from_infos(line)), line)


def _real_commits(root: Path, count: int) -> RepoInfo:
    """A new repository with commits of one chunk each."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(root, durable=False))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(1000,), chunks=(1,), dtype="int32")
    session.commit("an array")
    for number in range(count - 1):
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="a")
        array[number] = number + 1
        session.commit(f"chunk {number}")
    return decode_repo_info((root / "repo").read_bytes())


def _no_metadata(_number: int) -> dict[str, Any]:
    return {}


def _commit_metadata(number: int) -> dict[str, Any]:
    """What a program that commits on a schedule may say about a commit."""
    source = {"files": [f"part-{number:06}.nc", "grid.nc"], "hours": number / 8}
    return {"author": f"user {number % 17}", "run": number, "source": source}


def lengthened(
    info: RepoInfo, count: int, describe: Callable[[int], dict[str, Any]] = _no_metadata
) -> list[SnapshotInfo]:
    """The line of `main`, oldest first, with made-up snapshots after its first: a second apart.

    `describe` makes their metadata.
    """
    real = [info.snapshots[info.branches["main"]]]
    while (parent := real[-1].parent_id) is not None:
        real.append(info.snapshots[parent])
    first, *rest = reversed(real)
    raw = np.random.default_rng(4).integers(0, 256, (max(count - len(real), 0), 12), np.uint8)
    made_up = [
        replace(
            first,
            id=SnapshotId(row.tobytes()),
            message=f"commit {number}",
            metadata=describe(number),
        )
        for number, row in enumerate(raw)
    ]
    line = [first, *made_up, *rest]
    newest = real[0].flushed_at
    return [
        replace(
            one,
            parent_id=line[at - 1].id if at else None,
            flushed_at=newest - (len(line) - 1 - at) * _A_SECOND,
        )
        for at, one in enumerate(line)
    ]


def _add_snapshot_file(root: Path, source: SnapshotId, target: SnapshotId) -> None:
    snapshot = decode_snapshot((root / "snapshots" / source.text).read_bytes())
    data = encode_snapshot(replace(snapshot, id=target), spec_version=2)
    (root / "snapshots" / target.text).write_bytes(data)


def _write(root: Path, info: RepoInfo, line: list[SnapshotInfo]) -> None:
    """The `repo` object with the newest page of the log, and copies with the other pages."""
    entries = [
        Update(UpdateKind.NEW_COMMIT, one.flushed_at, {"branch": "main", "new_snap_id": one.id})
        for one in reversed(line[1:])
    ]
    entries.append(Update(UpdateKind.REPO_INITIALIZED, line[0].flushed_at))
    pages = [entries[at : at + _A_PAGE] for at in range(0, len(entries), _A_PAGE)]
    if not info.tags:
        pages = pages[:1]  # of the longest history nobody reads the log
    folder = root / "overwritten"
    folder.mkdir(exist_ok=True)
    for number, page in enumerate(pages):
        before = f"repo.{number + 1:014d}.{line[0].id.text}" if number + 1 < len(pages) else None
        data = encode_repo_info(replace(info, latest_updates=page, repo_before_updates=before))
        name = f"repo.{number:014d}.{line[0].id.text}"
        (folder / name if number else root / "repo").write_bytes(data)
