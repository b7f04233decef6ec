"""A repository that was opened through a symbolic link stays in the directory it was opened in."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.storage.locations import HttpLocation
from tests.servers import serving

PROGRAM = """
import pickle, sys, numpy, zarr
session = pickle.load(open(sys.argv[1], "rb"))
zarr.open_array(session.store, path="a")[4:8] = numpy.arange(4, 8)
pickle.dump(session, open(sys.argv[1], "wb"))
"""


def switch(link: Path, target: Path) -> None:
    """Point the link elsewhere in one step, as deployments do."""
    new = link.with_name("switched")
    new.symlink_to(target)
    new.replace(link)


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def make(folder: Path, generation: Any = None, spec: int = 2) -> None:
    config = None if generation else icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(folder),
        config,
        spec_version=None if generation else spec,
        generation=generation,
    )
    with repo.transaction("main", message="made") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4", fill_value=-1)


GENERATIONS = {
    "spec 2": None,
    "spec 1": None,
    "numbered": icefloe.NumberedRefs(),
    "state file": icefloe.StateFileDataset(),
}


@pytest.fixture
def link(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A link to the first of two copies of a repository."""
    make(tmp_path / "one", GENERATIONS[request.param], 1 if request.param == "spec 1" else 2)
    subprocess.run(["cp", "-a", tmp_path / "one", tmp_path / "two"], check=True)
    (tmp_path / "current").symlink_to(tmp_path / "one")
    return tmp_path / "current"


def write_blocking(session: icefloe.Session) -> None:
    zarr.open_array(session.store, path="a")[4:8] = np.arange(4, 8)


def write_by_pickle(session: icefloe.Session) -> None:
    fork = pickle.loads(pickle.dumps(session.fork()))
    write_blocking(fork)
    session.merge(pickle.loads(pickle.dumps(fork)))


def write_in_forked_process(session: icefloe.Session) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    fork = session.fork()

    def work() -> None:
        write_blocking(fork)
        theirs.send_bytes(pickle.dumps(fork))

    worker = context.Process(target=work)
    worker.start()
    session.merge(pickle.loads(ours.recv_bytes()))
    worker.join(60)
    assert worker.exitcode == 0


def write_in_new_process(session: icefloe.Session, folder: Path) -> None:
    file = folder / "fork.pickle"
    file.write_bytes(pickle.dumps(session.fork()))
    subprocess.run([sys.executable, "-c", PROGRAM, file], check=True, timeout=300)
    session.merge(pickle.loads(file.read_bytes()))


WRITERS: dict[str, Callable[..., None]] = {
    "blocking": write_blocking,
    "pickled": write_by_pickle,
    "forked": write_in_forked_process,
    "new process": write_in_new_process,
}


@pytest.mark.parametrize(
    ("link", "writer", "is_open"),
    [
        *((name, "blocking", is_open) for name in GENERATIONS for is_open in (True, False)),
        *((name, "pickled", True) for name in GENERATIONS),
        ("spec 2", "forked", True),
        ("spec 2", "new process", True),
    ],
    indirect=["link"],
)
def test_a_switched_link_does_not_split_a_repository(
    link: Path, tmp_path: Path, writer: str, is_open: bool
) -> None:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(link))
    session = repo.writable_session("main") if is_open else None
    other = listing(tmp_path / "two")
    switch(link, tmp_path / "two")
    session = session or repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:4] = np.arange(4)
    arguments = (tmp_path,) if writer == "new process" else ()
    WRITERS[writer](session, *arguments)
    committed = session.commit("after the switch")

    assert listing(tmp_path / "two") == other
    direct = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "one"))
    assert direct.lookup_branch("main") == committed
    assert direct.verify(read_chunks=True).is_healthy
    values = zarr.open_array(direct.readonly_session("main").store, path="a", mode="r")[:]
    assert np.array_equal(values, np.arange(8))
    assert repo.reopen().lookup_branch("main") == committed, "reopen means the same repository"
    assert pickle.loads(pickle.dumps(repo)).lookup_branch("main") == committed


def test_opening_again_follows_the_link(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make(tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "one")
    storage = icefloe.local_filesystem_storage(link)
    first = icefloe.Repository.open(storage)
    switch(link, tmp_path / "two")
    second = icefloe.Repository.open(storage)
    for repo, name in ((first, "one"), (second, "two")):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a")[:] = 1
        committed = session.commit(name)
        direct = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / name))
        assert direct.lookup_branch("main") == committed
    assert first.storage == storage
    assert first.storage.url == str(link), "messages have the path that the user gave"
    assert not first.storage.is_same_place(second.storage)


def test_a_directory_that_becomes_a_link_is_still_the_same(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "moved")
    (tmp_path / "one").symlink_to(tmp_path / "moved")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = np.arange(8)
    committed = session.commit("moved")
    direct = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "moved"))
    assert direct.lookup_branch("main") == committed
    assert direct.verify(read_chunks=True).is_healthy


def test_the_data_of_a_state_file_are_bound_too(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "one")
    make(tmp_path / "state", icefloe.StateFileDataset(store_root="../current"))
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "state"))
    session = repo.writable_session("main")
    write_blocking(session)
    switch(tmp_path / "current", tmp_path / "two")
    write_in_new_process(session, tmp_path)
    session.commit("after the switch")
    assert listing(tmp_path / "two") == set()


@pytest.mark.parametrize("kind", ["repository", "session"])
def test_a_process_without_the_directory_writes_nowhere(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "one")
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "one"))
    pickled = pickle.dumps(repo if kind == "repository" else repo.writable_session("main").fork())
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    with pytest.raises(icefloe.StorageError, match="is missing here; its processes need the same"):
        pickle.loads(pickled)
    assert not (tmp_path / "one").exists()


def test_a_redirect_that_changes_does_not_split_a_repository() -> None:
    class Redirects(BaseHTTPRequestHandler):
        target = "one"
        asked = 0

        def do_GET(self) -> None:
            type(self).asked += 1
            self.send_response(302)
            self.send_header("Location", f"http+icechunk://127.0.0.1:9/{self.target}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            return

    with serving(Redirects) as url:
        storage = icefloe.redirect_storage(url)
        bound = storage.bound()
        Redirects.target = "two"
        again = pickle.loads(pickle.dumps(bound))
        assert [one.target for one in (bound, again, storage.bound())] == [
            HttpLocation(f"http://127.0.0.1:9/{name}") for name in ("one", "one", "two")
        ]
        for blocking in (True, False):
            assert again.driver(blocking=blocking).location == again.target.url
        assert Redirects.asked == 2
