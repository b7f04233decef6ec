"""A file of a directory that has not changed is not read again, and every change is noticed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage import local
from icefloe.storage.driver import ConditionFailed, Driver, Version
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import local_filesystem_storage

AT_REST_NS = 50_000_000
KEY = "repo"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(local, "AT_REST_NS", AT_REST_NS)
    return local_filesystem_storage(tmp_path, durable=False).driver(blocking=True)


@pytest.fixture
def num_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a file was opened so far."""
    opened = []
    original = os.open

    def counting(path: str, *arguments: int) -> int:
        opened.append(path)
        return original(path, *arguments)

    monkeypatch.setattr(os, "open", counting)
    return lambda: len(opened)


def settle() -> None:
    time.sleep(2 * AT_REST_NS / 1e9)


def read(driver: Driver) -> Version:
    return run_blocking(driver.get_versioned(KEY))[1]


def changed(driver: Driver, version: Version) -> bytes | None:
    found = run_blocking(driver.get_if_changed(KEY, version))
    return None if found is None else found[0]


def replace_by_rename(path: Path, data: bytes) -> None:
    aside = path.with_name("aside")
    aside.write_bytes(data)
    aside.rename(path)


def replace_in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def replace_with_old_time(path: Path, data: bytes) -> None:
    """As `cp --preserve` does."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


REPLACEMENTS = [replace_by_rename, replace_in_place, replace_with_old_time]


def test_a_file_at_rest_is_not_read_again(
    driver: Driver, tmp_path: Path, num_reads: Callable[[], int]
) -> None:
    if not os.major(tmp_path.stat().st_dev):
        pytest.skip("the temporary directory is on no block device, so every file is read")
    (tmp_path / KEY).write_bytes(b"one")
    settle()
    version = read(driver)
    before = num_reads()
    assert changed(driver, version) is None
    assert num_reads() == before
    assert changed(driver, Version("another")) == b"one"
    assert num_reads() == before + 1


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_a_file_at_rest_that_changes_is_read(
    driver: Driver, tmp_path: Path, replace: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / KEY
    path.write_bytes(b"one")
    settle()
    version = read(driver)
    replace(path, b"two")
    assert changed(driver, version) == b"two"


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_quick_changes_of_the_same_size_are_all_noticed(
    driver: Driver, tmp_path: Path, replace: Callable[[Path, bytes], None]
) -> None:
    """Times of files stand still for some milliseconds, and inodes are used again at once."""
    path = tmp_path / KEY
    path.write_bytes(b"%08d" % 0)
    version = read(driver)
    for number in range(1, 300):
        data = b"%08d" % number
        replace(path, data)
        assert changed(driver, version) == data
        version = read(driver)


def test_a_file_that_is_gone_is_missed(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / KEY).write_bytes(b"one")
    settle()
    version = read(driver)
    (tmp_path / KEY).unlink()
    with pytest.raises(StorageError) as caught:
        changed(driver, version)
    assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND


def test_a_conditional_write_reads_what_it_replaces(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the state of a file does not tell that it has changed."""
    path = tmp_path / KEY
    path.write_bytes(b"one")
    monkeypatch.setattr(local, "_state", lambda _: (0, 0, 0, 0, 0))
    settle()
    version = read(driver)
    replace_by_rename(path, b"two")
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if(KEY, b"three", previous=version))
    assert path.read_bytes() == b"two"
    assert changed(driver, version) == b"two"  # a writer that tries again gets on


def test_only_a_file_at_rest_has_a_state_that_later_writes_change(tmp_path: Path) -> None:
    """A second write may come before the clock of the file system moves on."""
    path = tmp_path / KEY
    path.write_bytes(b"one")
    assert local.state_at_rest(path.as_posix()) is None
    os.utime(path, (0, 0))  # the time of the change is that of the call
    assert local.state_at_rest(path.as_posix()) is None


def test_files_without_a_block_device_are_always_read() -> None:
    """Network file systems may show the state of a file from a cache."""
    if not Path("/proc/version").exists():
        pytest.skip("there is no /proc on this system")
    assert local.state_at_rest("/proc/version") is None
