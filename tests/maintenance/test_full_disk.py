"""Collections in a directory on a full disk: they give up their reserve, or say what to do."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import StorageError
from icefloe.repo.gc_guard import collected_before
from icefloe.storage.run import run_blocking

DISK_BYTES = 8 << 20
FAR = timedelta(days=1)
SPECS = pytest.mark.parametrize("spec", [1, 2])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little space."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=300, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program mount")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], timeout=300, check=True)


def repository(place: Path, spec: int) -> icefloe.Repository:
    """With a commit, and chunks that a session has left."""
    storage = icefloe.local_filesystem_storage(place / "repository")
    repo = icefloe.Repository.create(storage, spec_version=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    options: dict[str, Any] = {"chunks": (50_000,), "dtype": "<i8", "compressors": None}
    top.create_array("a", shape=(100_000,), **options)[:] = np.arange(100_000)
    session.commit("first")
    leave_garbage(repo)
    return repo


def leave_garbage(repo: icefloe.Repository) -> None:
    array: Any = zarr.open_array(repo.writable_session("main").store, path="a", mode="r+")
    array[:] = np.random.default_rng(0).integers(0, 9, 100_000)


def fill(place: Path) -> int:
    """Use up the space to the last byte."""
    descriptor = os.open(place / "filling", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    size = 1 << 20
    while size:
        try:
            os.write(descriptor, bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size //= 2
    os.close(descriptor)
    return (place / "filling").stat().st_size


def collect(repo: icefloe.Repository) -> icefloe.GCSummary:
    return icefloe.Repository.open(repo.storage).garbage_collect(datetime.now(UTC) + FAR)


def check_whole(repo: icefloe.Repository) -> None:
    opened = icefloe.Repository.open(repo.storage)
    array: Any = zarr.open_array(opened.readonly_session("main").store, path="a", mode="r")
    assert (array[:] == np.arange(100_000)).all()
    assert opened.verify().is_healthy


@SPECS
def test_a_full_disk_can_be_collected_after_the_first_collection(disk: Path, spec: int) -> None:
    repo = repository(disk, spec)
    collect(repo)
    reserve = disk / "repository" / ".icefloe" / "reserve"
    assert reserve.stat().st_size == 1 << 18 or spec == 2
    for _ in range(2):
        (disk / "filling").unlink(missing_ok=True)
        leave_garbage(repo)
        fence = run_blocking(collected_before(repo.handle))
        fill(disk)
        with pytest.raises(StorageError, match="No space left"):
            repo.create_branch("new", repo.lookup_branch("main"))  # the disk is full indeed
        assert collect(repo).chunks_deleted == 2
        assert run_blocking(collected_before(repo.handle)) > fence, "the fence was raised"
        assert reserve.exists(), "for the next time"
        check_whole(repo)


@SPECS
def test_a_first_collection_on_a_full_disk_says_what_to_do(disk: Path, spec: int) -> None:
    repo = repository(disk, spec)
    chunks = sorted((disk / "repository" / "chunks").iterdir())
    fill(disk)
    with pytest.raises(StorageError, match=r"Free about a megabyte .* outside the repository"):
        collect(repo)
    assert sorted((disk / "repository" / "chunks").iterdir()) == chunks, "nothing was deleted"
    check_whole(repo)
    os.truncate(disk / "filling", (disk / "filling").stat().st_size - (1 << 20))
    assert collect(repo).chunks_deleted == 2
    check_whole(repo)


@SPECS
def test_a_write_that_finds_no_space_gives_up_the_reserve_once(
    tmp_path: Path, spec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without a file system of its own: only the reserve makes room."""
    repo = repository(tmp_path, spec)
    collect(repo)
    leave_garbage(repo)
    reserve = tmp_path / "repository" / ".icefloe" / "reserve"
    write, num_refused = os.write, 0

    def full(descriptor: int, data: Any) -> int:
        nonlocal num_refused
        if reserve.exists() and len(memoryview(data)) < 1 << 18:
            num_refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    assert collect(repo).chunks_deleted == 2
    monkeypatch.undo()
    assert num_refused == 1
    assert reserve.exists()
    check_whole(repo)
