"""A directory as a storage: what lies on the disk, and what the promises in `local.py` rest on."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icefloe.errors import ErrorKind, InvalidInputError, StorageError, UnknownOutcomeError
from icefloe.storage import directory, local
from icefloe.storage.driver import ConditionFailed, Driver, Span, microseconds
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import local_filesystem_storage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "not" / "yet" / "there"


@pytest.fixture
def driver(root: Path) -> Driver:
    return local_filesystem_storage(root).driver(blocking=True)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_looking_does_not_create_the_directory(driver: Driver, root: Path) -> None:
    assert run_blocking(driver.is_empty())
    assert run_blocking(driver.list("refs/")) == []
    run_blocking(driver.delete_many(["a"]))
    run_blocking(driver.sync())
    with pytest.raises(StorageError) as caught:
        run_blocking(driver.get("repo"))
    assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND
    assert not root.parent.parent.exists()


def test_objects_are_plain_files_and_nothing_else_is_left(driver: Driver, root: Path) -> None:
    run_blocking(driver.put("chunks/A", b"1"))
    version = run_blocking(driver.put_if("repo", b"2", previous=None))
    run_blocking(driver.put_if("repo", b"3", previous=version))
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if("repo", b"4", previous=version))
    found = files(root)
    assert [name for name in found if not name.startswith(".icefloe/locks/")] == [
        "chunks/A",
        "repo",
    ]
    assert (root / "repo").read_bytes() == b"3"


def test_its_own_files_are_out_of_reach(driver: Driver) -> None:
    run_blocking(driver.put_if("repo", b"1", previous=None))
    assert [info.key for info in run_blocking(driver.list(""))] == ["repo"]
    assert run_blocking(driver.list(".icefloe/locks/")) == []
    with pytest.raises(InvalidInputError, match=r"its own files"):
        run_blocking(driver.put(".icefloe/locks/x", b"1"))


def test_a_file_that_official_icechunk_is_still_writing_is_not_listed(
    driver: Driver, root: Path
) -> None:
    run_blocking(driver.put("chunks/A", b"1"))
    (root / "chunks" / "B#1").write_bytes(b"half")
    assert [info.key for info in run_blocking(driver.list(""))] == ["chunks/A"]


def test_unfinished_files_of_the_dead_are_removed_after_a_day(driver: Driver, root: Path) -> None:
    temporary = root / ".icefloe" / "tmp"
    temporary.mkdir(parents=True)
    old, young, foreign = f"{'0a' * 8}-1", f"{'0a' * 8}-2", "notes.txt"
    for name, age_hours in ((old, 25), (young, 23), (foreign, 25)):
        (temporary / name).write_bytes(b"half")
        os.utime(temporary / name, (time.time() - age_hours * 3600,) * 2)
    folder = temporary / f"{'0a' * 8}-3"
    folder.mkdir()
    os.utime(folder, (0, 0))
    run_blocking(driver.put("chunks/A", b"1"))
    assert files(temporary) == sorted([young, foreign])
    assert folder.is_dir()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    driver = local_filesystem_storage(tmp_path / "file" / "repo").driver(blocking=True)
    for attempt in (
        driver.put("chunks/A", b"1"),
        driver.put_if("repo", b"1", previous=None),
    ):
        with pytest.raises(StorageError, match=r"file/repo") as caught:
            run_blocking(attempt)
        assert caught.value.kind == ErrorKind.IO
    assert run_blocking(driver.is_empty())


def test_a_full_disk_leaves_the_old_file(
    driver: Driver, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = run_blocking(driver.put_if("repo", b"old", previous=None))

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for attempt in (driver.put("repo", b"new"), driver.put_if("repo", b"new", previous=version)):
        with pytest.raises(StorageError, match="No space left") as caught:
            run_blocking(attempt)
        assert caught.value.kind == ErrorKind.IO
    monkeypatch.undo()
    assert run_blocking(driver.get_versioned("repo")) == (b"old", version)
    assert files(root / ".icefloe" / "tmp") == []


def test_new_objects_are_written_in_place_and_old_ones_replaced_as_a_whole(
    driver: Driver, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocking(driver.put_new([("chunks/A", b"first"), ("chunks/B", b"second")]))
    assert not (root / ".icefloe" / "tmp").exists()
    reader = (root / "chunks" / "A").open("rb")
    run_blocking(driver.put_new([("chunks/A", b"again")]))
    assert reader.read() == b"first"
    assert bytes(run_blocking(driver.get("chunks/A"))) == b"again"
    reader.close()

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        run_blocking(driver.put_new([("chunks/C", b"third")]))
    monkeypatch.undo()
    assert files(root / "chunks") == ["A", "B"]


# --- durability --------------------------------------------------------------------------------


def path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


@pytest.fixture
def fsynced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were made durable, in order."""
    seen: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        seen.append(path_of(descriptor))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return seen


def test_sync_makes_files_durable_and_then_their_names(
    driver: Driver, root: Path, fsynced: list[str]
) -> None:
    run_blocking(driver.put_many([(f"chunks/{number}", b"1") for number in range(5)]))
    assert fsynced == []
    run_blocking(driver.sync())
    expected = {f"{root}/chunks/{number}" for number in range(5)}
    assert set(fsynced[:5]) == expected
    # Every directory that got a new entry, up to the one that was there before.
    ancestors = {str(root / "chunks"), str(root), str(root.parent), str(root.parent.parent)}
    assert ancestors | {str(root.parent.parent.parent)} <= set(fsynced[5:])
    del fsynced[:]
    run_blocking(driver.sync())
    assert fsynced == []


def test_a_conditional_write_is_durable_when_it_returns(
    driver: Driver, root: Path, fsynced: list[str]
) -> None:
    version = run_blocking(driver.put_if("refs/branch.main/ref.json", b"1", previous=None))
    assert fsynced[0].startswith(f"{root}/.icefloe/tmp/")
    folder = root / "refs" / "branch.main"
    assert {str(folder), str(folder.parent), str(root), str(root.parent)} <= set(fsynced[1:])
    del fsynced[:]
    run_blocking(driver.put_if("refs/branch.main/ref.json", b"2", previous=version))
    assert fsynced[0].startswith(f"{root}/.icefloe/tmp/")
    assert fsynced[1:] == [str(folder)]


def test_storage_that_is_not_durable_never_waits_for_the_disk(
    root: Path, fsynced: list[str]
) -> None:
    driver = local_filesystem_storage(root, durable=False).driver(blocking=True)
    run_blocking(driver.put("chunks/A", b"1"))
    run_blocking(driver.put_if("repo", b"1", previous=None))
    run_blocking(driver.sync())
    assert fsynced == []


def test_many_unsynced_files_are_synced_early(
    driver: Driver, fsynced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MAX_PENDING", 10)
    run_blocking(driver.put_many([(f"chunks/{number}", b"1") for number in range(25)]))
    early = {path for path in fsynced if "/chunks/" in path}
    assert len(early) == 20
    run_blocking(driver.sync())
    assert len({path for path in fsynced if "/chunks/" in path}) == 25


def failing_fsync(suffix: str) -> Callable[[int], None]:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if path_of(descriptor).endswith(suffix):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    return fail


def test_a_file_the_disk_has_lost_is_reported_until_it_is_written_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocking(driver.put("chunks/A", b"1"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing_fsync("chunks/A"))
        with pytest.raises(StorageError, match="chunks/A"):
            run_blocking(driver.sync())
    # The kernel has forgotten by now; a sync that trusted it would lose data.
    with pytest.raises(StorageError, match="chunks/A") as caught:
        run_blocking(driver.sync())
    assert caught.value.kind == ErrorKind.IO
    run_blocking(driver.put("chunks/A", b"1"))
    run_blocking(driver.sync())


def test_a_commit_whose_name_may_not_last_is_unknown(
    driver: Driver, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = run_blocking(driver.put_if("repo", b"1", previous=None))
    monkeypatch.setattr(os, "fsync", failing_fsync(root.name))
    with pytest.raises(UnknownOutcomeError, match="'repo'"):
        run_blocking(driver.put_if("repo", b"2", previous=version))


def test_a_sync_waits_for_the_files_that_another_thread_is_syncing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions of a process: the second must not commit on files still in the first's hands."""
    run_blocking(driver.put("chunks/A", b"1"))
    is_syncing, may_go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        is_syncing.set()
        assert may_go_on.wait(10)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    done: list[str] = []

    def sync(name: str) -> None:
        run_blocking(driver.sync())
        done.append(name)

    first = threading.Thread(target=sync, args=("first",))
    first.start()
    assert is_syncing.wait(10)
    second = threading.Thread(target=sync, args=("second",))
    second.start()
    second.join(0.2)
    assert done == []
    may_go_on.set()
    first.join(10)
    second.join(10)
    assert sorted(done) == ["first", "second"]


def test_a_copy_of_the_object_seen_last_is_a_second_name_of_its_file(
    driver: Driver, root: Path, fsynced: list[str]
) -> None:
    version = run_blocking(driver.put_if("repo", b"old", previous=None))
    run_blocking(driver.put_new([("overwritten/1", b"old")]))  # there was no such folder
    run_blocking(driver.put_new([("overwritten/2", b"old"), ("chunks/A", b"new")]))
    assert (root / "overwritten/2").samefile(root / "repo")
    assert not (root / "chunks/A").samefile(root / "repo")
    del fsynced[:]
    run_blocking(driver.sync())
    assert set(fsynced) >= {f"{root}/overwritten", f"{root}/chunks/A"}
    assert f"{root}/overwritten/2" not in fsynced, "the disk has it under its first name"
    run_blocking(driver.put_if("repo", b"newer", previous=version))
    assert [(root / "overwritten" / name).read_bytes() for name in "12"] == [b"old", b"old"]


def test_a_copy_of_what_others_wrote_is_made_durable(
    driver: Driver, root: Path, fsynced: list[str]
) -> None:
    for number in range(3):
        (root / "overwritten").mkdir(parents=True, exist_ok=True)
        (root / "aside").write_bytes(b"same" if number else b"first")
        (root / "aside").rename(root / "repo")
        data, version = run_blocking(driver.get_versioned("repo"))
        if number == 1:
            run_blocking(driver.put_if("repo", b"same", previous=version))
            continue
        del fsynced[:]
        run_blocking(driver.put_new([(f"overwritten/{number}", data)]))
        run_blocking(driver.sync())
        assert (root / f"overwritten/{number}").samefile(root / "repo")
        assert f"{root}/overwritten/{number}" in fsynced


@pytest.mark.parametrize("how", ["replaced", "deleted", "a link", "no hard links"])
def test_a_copy_of_an_object_that_has_changed_is_written(
    how: str, driver: Driver, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocking(driver.put_if("repo", b"old", previous=None))
    run_blocking(driver.put_new([("overwritten/1", b"1")]))
    (root / "repo").unlink()
    if how == "replaced":
        (root / "repo").write_bytes(b"other")
    elif how == "a link":
        (root / "elsewhere").write_bytes(b"old")
        (root / "repo").symlink_to(root / "elsewhere")
    elif how == "no hard links":
        (root / "repo").write_bytes(b"old")

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
    run_blocking(driver.put_new([("overwritten/2", b"old")]))
    copy = root / "overwritten/2"
    assert copy.read_bytes() == b"old"
    assert not copy.is_symlink()
    assert copy.stat().st_nlink == 1
    assert run_blocking(driver.get("overwritten/2")) == b"old"


def test_files_that_wait_for_a_sync_use_few_descriptors(root: Path) -> None:
    def num_open() -> int:
        gc.collect()
        targets = map(os.path.realpath, Path("/proc/self/fd").iterdir())
        return sum(target.startswith(str(root)) for target in targets)

    driver = local_filesystem_storage(root).driver(blocking=True)
    run_blocking(driver.put_new([(f"chunks/{number}", b"1") for number in range(100)]))
    assert 0 < num_open() <= 8
    run_blocking(driver.delete_many(["chunks/0"]))
    run_blocking(driver.sync())
    assert num_open() == 0
    run_blocking(driver.put_new([("chunks/A", b"1")]))
    del driver  # a session that was never committed
    assert num_open() == 0


# --- locks -------------------------------------------------------------------------------------


def test_a_lock_that_is_never_released_ends_in_an_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOCK_TIMEOUT_SECONDS", 0.2)
    run_blocking(driver.put_if("repo", b"1", previous=None))
    held = driver._directory.locked("repo")  # type: ignore[attr-defined]
    with held, pytest.raises(StorageError, match=r"holds the lock") as caught:
        run_blocking(driver.put_if("repo", b"2", previous=None))
    assert caught.value.kind == ErrorKind.IO


def test_writers_queue_up(driver: Driver) -> None:
    order: list[str] = []

    def write(name: str) -> None:
        with driver.turn() or pytest.fail("a directory has a queue"):
            order.append(name)

    with driver.turn() or pytest.fail("a directory has a queue"):
        second = threading.Thread(target=write, args=("second",))
        second.start()
        second.join(0.1)
        # The turn is nobody's lock: objects can be written without it.
        run_blocking(driver.put_if("repo", b"1", previous=None))
        order.append("first")
    second.join(10)
    assert order == ["first", "second"]


def test_a_turn_that_does_not_come_is_not_waited_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_TURN_SECONDS", 0.05)
    first, second = driver.turn(), driver.turn()
    assert first is not None
    assert second is not None
    with first, second:
        run_blocking(driver.put_if("repo", b"1", previous=None))


def test_a_file_system_without_hard_links_is_good_enough(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    run_blocking(driver.put_if("refs/tag.a/ref.json", b"1", previous=None))
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if("refs/tag.a/ref.json", b"2", previous=None))
    assert bytes(run_blocking(driver.get("refs/tag.a/ref.json"))) == b"1"


def test_a_folder_on_another_file_system_takes_objects_like_any_other(
    driver: Driver, root: Path
) -> None:
    elsewhere = Path("/dev/shm")
    root.mkdir(parents=True)
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == root.stat().st_dev:
        pytest.skip("needs a second file system, at /dev/shm")
    with tempfile.TemporaryDirectory(dir=elsewhere) as folder:
        for name in ("chunks", "refs"):
            (Path(folder) / name).mkdir()
            (root / name).symlink_to(Path(folder) / name)
        run_blocking(driver.put("chunks/A", b"1"))
        run_blocking(driver.put_many([("chunks/A", b"2"), ("chunks/B", b"3")]))
        version = run_blocking(driver.put_if("refs/main", b"4", previous=None))
        with pytest.raises(ConditionFailed):
            run_blocking(driver.put_if("refs/main", b"5", previous=None))
        run_blocking(driver.put_if("refs/main", b"6", previous=version))
        run_blocking(driver.sync())
        listed = [info.key for info in run_blocking(driver.list(""))]
        assert listed == ["chunks/A", "chunks/B", "refs/main"]
        assert [bytes(run_blocking(driver.get(key))) for key in listed] == [b"2", b"3", b"6"]
        assert files(Path(folder)) == listed  # nothing unfinished is left


def test_all_ways_to_ask_round_times_alike(driver: Driver, root: Path) -> None:
    """A fence is compared with times from any of them."""
    run_blocking(driver.put("chunks/A", b"1"))
    time_ns = 1_700_000_000_123_456_999
    os.utime(root / "chunks" / "A", ns=(time_ns, time_ns))
    times = [
        microseconds(run_blocking(driver.head("chunks/A")).created_at),
        microseconds(run_blocking(driver.list("chunks/"))[0].created_at),
        int(run_blocking(driver.list_pages("chunks/", 1))[0].created_at[0]),
        int(run_blocking(driver.head_many(["chunks/A"])).created_at[0]),
    ]
    assert times == [time_ns // 1000] * 4


def _has_exact_times(folder: Path) -> bool:
    """Whether the kernel gives a file whose times were read the exact time of the next write."""
    for number in range(20):
        before = time.time_ns()
        with (folder / f"probe-{number}").open("wb", buffering=0) as file:
            os.fstat(file.fileno())
            file.write(b"1")
            if os.fstat(file.fileno()).st_mtime_ns < before:
                return False
    return True


def test_files_are_not_older_than_what_is_in_them(
    driver: Driver, root: Path, tmp_path: Path
) -> None:
    if not _has_exact_times(tmp_path):
        pytest.skip("this kernel or file system stamps files with the time of the last clock tick")
    older = 0
    for number in range(50):
        before = time.time_ns()
        run_blocking(driver.put_new([(f"snapshots/{number}", b"1")]))
        run_blocking(driver.put(f"snapshots/{number}", b"2"))
        run_blocking(driver.put_if(f"refs/{number}", b"1", previous=None))
        older += sum(
            (root / key).stat().st_mtime_ns < before
            for key in (f"snapshots/{number}", f"refs/{number}")
        )
    # The kernel takes the time of a tick that came between creating a file and writing it. On a
    # busy machine ticks are late. Without the exact time, nine of ten files are older.
    assert older <= 10


def test_where_deleting_is_slow_batches_are_deleted_at_once(
    driver: Driver, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"chunks/{number:02}" for number in range(40)]
    run_blocking(driver.put_many([(key, b"") for key in keys]))
    threads = set()
    unlink = os.unlink

    def slow(path: str) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.002)
        unlink(path)

    monkeypatch.setattr(os, "unlink", slow)
    batches = [keys[at : at + 4] for at in range(0, 40, 4)]
    assert list(run_blocking(driver.delete_batches(batches))) == [None] * 10
    assert len(threads) > 2
    assert not [name for name in files(root) if name.startswith("chunks/")]


def test_a_span_of_more_than_one_read_arrives_whole(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(100))
    run_blocking(driver.put("chunks/A", data))
    monkeypatch.setattr(local, "_MOST_AT_ONCE", 7)
    assert bytes(run_blocking(driver.get("chunks/A"))) == data
    assert bytes(run_blocking(driver.get("chunks/A", Span(3, 90)))) == data[3:93]
    with pytest.raises(StorageError, match="100 bytes"):
        run_blocking(driver.get("chunks/A", Span(50, 51)))
