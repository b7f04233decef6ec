"""Processes forked after a storage was used: they go on, or are told why they cannot."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from icefloe.storage.run import run_blocking
from icefloe.storage.spec import local_filesystem_storage
from tests.servers import S3Server

ROOT = Path(__file__).parents[2]

# The child must end by itself: a call into an inherited obstore would wait for ever.
PROGRAM = """
import os, pickle, signal, sys
from icefloe.errors import StorageError
from icefloe.storage.run import run_blocking
from icefloe.storage.urls import storage_from_url

storages = pickle.load(sys.stdin.buffer)
first = storages[0].driver(blocking=True)
objects = [(f"chunks/{number}", b"x" * 2_000_000) for number in range(4)]
run_blocking(first.put_many(objects))
run_blocking(first.put_if("repo", b"1", previous=None))
run_blocking(first.sync())
child = os.fork()
if child == 0:
    signal.alarm(30)
    for storage in storages:
        try:
            driver = storage.driver(blocking=True)
            run_blocking(driver.put_many(objects))
            _, version = run_blocking(driver.get_versioned("repo"))
            run_blocking(driver.put_if("repo", b"2", previous=version))
            run_blocking(driver.sync())
            print("child wrote", flush=True)
        except StorageError as error:
            print("child was told:", error, flush=True)
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
print("parent still reads", bytes(run_blocking(first.get("repo"))), flush=True)
"""

UNUSED_PROGRAM = """
import os, pickle, signal, sys
from icefloe.storage.run import run_blocking

storage = pickle.load(sys.stdin.buffer)
child = os.fork()
if child == 0:
    signal.alarm(30)
    print("child reads", bytes(run_blocking(storage.driver(blocking=True).get("repo"))), flush=True)
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
"""

MEMORY_PROGRAM = PROGRAM.replace(
    "pickle.load(sys.stdin.buffer)",
    "[storage_from_url('memory://shelf')]",
)

# Another thread holds every lock there is while the process forks.
LOCKS_PROGRAM = """
import os, signal, sys, tempfile, threading
import icefloe, zarr
from icefloe.storage import directory
from icefloe.storage import memory
from icefloe.storage import spec
from icefloe.virtual.formats import grib

folder = tempfile.mkdtemp()
repository = icefloe.Repository.create(icefloe.local_filesystem_storage(folder))
session = repository.writable_session("main")
array = zarr.create_array(session.store, name="a", shape=(2,), chunks=(1,), dtype="i4")
array[:] = 7
locks = [
    session._state.lock,
    spec._drivers._lock,
    directory._directories._lock,
    memory._registry._lock,
    grib._ECCODES,
]
are_held, may_end = threading.Event(), threading.Event()

def hold():
    for lock in locks:
        lock.__enter__()
    are_held.set()
    may_end.wait(60)
    for lock in locks:
        lock.__exit__(None, None, None)

thread = threading.Thread(target=hold)
thread.start()
are_held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(30)
    icefloe.in_memory_storage()
    with grib._ECCODES:
        pass
    opened = icefloe.Repository.open(icefloe.local_filesystem_storage(folder))
    print("child found", opened.list_branches(), flush=True)
    keys = session.store.get_sync("a/zarr.json")
    session.commit("from the child")
    print("child committed", flush=True)
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
may_end.set()
thread.join(60)
"""


COMMIT_PROGRAM = """
import os, signal, sys, tempfile, threading
import icefloe, zarr

folder = tempfile.mkdtemp()
config = icefloe.RepositoryConfig(packing=icefloe.PackingConfig(), inline_chunk_threshold_bytes=0)
repository = icefloe.Repository.create(icefloe.local_filesystem_storage(folder), config)
session = repository.writable_session("main")
array = zarr.create_array(session.store, name="a", shape=(4,), chunks=(1,), dtype="i4")
array[:] = 7
state = session._state
is_sealed, may_end = threading.Event(), threading.Event()

def commit():
    with state.sealed():
        with state.lock:
            state.packs.close(state.changes)
            state.packs.take()
        is_sealed.set()
        may_end.wait(60)

thread = threading.Thread(target=commit)
thread.start()
is_sealed.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(30)
    assert state.packs.num_taken == 0
    array[1] = 8
    session.commit("from the child")
    stored = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    print("child committed", stored[:].tolist(), flush=True)
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
may_end.set()
thread.join(60)
"""


def run(program: str, sent: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        input=pickle.dumps(sent),
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_directory_goes_on_working_after_a_fork(tmp_path: Path) -> None:
    said = run(PROGRAM, [local_filesystem_storage(tmp_path / "repo")])
    assert "child wrote" in said
    assert "child ended with 0" in said
    assert "parent still reads b'2'" in said


def test_memory_goes_on_working_after_a_fork() -> None:
    said = run(MEMORY_PROGRAM, None)
    assert "child wrote" in said
    assert "child ended with 0" in said
    assert "parent still reads b'1'" in said  # the child has a copy


def test_a_child_that_inherited_connections_is_told_to_be_spawned(s3_server: S3Server) -> None:
    said = run(PROGRAM, [s3_server.storage(), s3_server.storage()])
    # Both the storage that was used and another one.
    assert said.count("child was told: process ") == 2
    assert "'spawn'" in said
    assert "child ended with 0" in said
    assert "parent still reads b'1'" in said


def test_a_fork_before_the_first_use_does_no_harm(s3_server: S3Server) -> None:
    storage = s3_server.storage()
    run_blocking(storage.driver(blocking=True).put("repo", b"0"))
    said = run(UNUSED_PROGRAM, storage)
    assert "child reads b'0'" in said
    assert "child ended with 0" in said


def test_a_child_does_not_wait_for_locks_that_threads_of_its_parent_held() -> None:
    said = run(LOCKS_PROGRAM, None)
    assert "child found {'main'}" in said
    assert "child committed" in said
    assert "child ended with 0" in said


def test_a_child_goes_on_with_a_session_that_its_parent_was_committing() -> None:
    said = run(COMMIT_PROGRAM, None)
    assert "child committed [7, 8, 7, 7]" in said
    assert "child ended with 0" in said
