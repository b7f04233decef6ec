"""Ctrl-C ends a call at once, whatever it waits for: a server that never answers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import zarr

import icefloe
from tests.proxy import misbehaving_proxy
from tests.servers import S3Server

MOST_SECONDS = 5.0
"""From the signal to the end of the process; a loaded machine needs a second to shut down."""

BEFORE = """
import sys, icefloe, numpy, zarr
noise = numpy.random.default_rng(0).integers(0, 1 << 30, 4000)  # does not compress
endpoint, prefix = sys.argv[1:]
options = dict(
    endpoint_url=endpoint, region="us-east-1", allow_http=True, force_path_style=True,
    access_key_id="test", secret_access_key="test-secret",
)
storage = icefloe.s3_storage(bucket="testbucket", prefix=prefix, **options)
web = icefloe.http_storage(f"{endpoint}/testbucket/{prefix}")
def wait():
    print("ready", flush=True)
    sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Call:
    """What a program does before the server goes quiet, and the call that then waits."""

    waits: str
    before: str = ""


REPO = "repo = icefloe.Repository.open(storage)"
READER = f"{REPO}; session = repo.readonly_session('main')"
WRITER = f"""{REPO}; session = repo.writable_session("main")
array = zarr.open_array(session.store, path="a"); array[:] = noise
"""
CALLS = {
    "open": Call("icefloe.Repository.open(storage)"),
    "open, web": Call("icefloe.Repository.open(web)"),
    "create": Call("icefloe.Repository.create(storage)"),
    "exists": Call("icefloe.Repository.exists(storage)"),
    "list objects": Call("storage.list_objects()"),
    "list branches": Call("repo.list_branches()", REPO),
    "history": Call("list(repo.ancestry(branch='main'))", REPO),
    "session": Call("repo.writable_session('main')", REPO),
    "read an array": Call("zarr.open_array(session.store, path='a', mode='r')[:]", READER),
    "write an array": Call("array[:] = noise + 1", WRITER),
    "commit": Call("session.commit('never')", WRITER),
    "commit, rebasing": Call(
        "session.commit('never', rebase_with=icefloe.ConflictDetector())", WRITER
    ),
    "verify": Call("repo.verify()", REPO),
    "collect garbage": Call(
        "repo.garbage_collect(datetime.datetime.now(datetime.UTC))", f"import datetime; {REPO}"
    ),
    "scan a file": Call(
        "scan('s3://testbucket/x.nc', access=SourceAccess(options))",
        "from icefloe.virtual.formats.opening import scan\n"
        "from icefloe.virtual.sources import SourceAccess\n",
    ),
}


@pytest.fixture(scope="module")
def prefix(s3_server: S3Server) -> str:
    repo = icefloe.Repository.create(s3_server.storage("interrupted"))
    session = repo.writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="a", shape=(4000,), chunks=(1000,), dtype="i4"
    )
    array[:] = range(4000)
    session.commit("numbers")
    return "interrupted"


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_ends_a_call_that_waits_for_a_server(
    name: str, s3_server: S3Server, prefix: str
) -> None:
    call = CALLS[name]
    program = f"{BEFORE}\n{call.before}\nwait()\n{call.waits}\nprint('answered')"
    with (
        misbehaving_proxy(s3_server) as proxy,
        subprocess.Popen(
            [sys.executable, "-c", program, proxy.endpoint_url, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=300)[1]
            proxy.seen.clear()
            proxy.fault = lambda _: "no answer"
            process.stdin.write("go\n")
            process.stdin.flush()
            _until(lambda: bool(proxy.seen), process)
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=300)
            took = time.monotonic() - started
        finally:
            process.kill()
    assert error.splitlines()[-1] == "KeyboardInterrupt", error
    assert out == ""
    assert took < MOST_SECONDS


def _until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert process.poll() is None, process.communicate(timeout=300)[1]
        assert time.monotonic() < deadline, "no request came in"
        time.sleep(0.01)


CONTINUES = """

session = repo.writable_session("main")
zarr.open_array(session.store, path="a")[:] = noise + 2
wait()
try:
    session.commit("interrupted")
except KeyboardInterrupt:
    pass
sys.stdin.readline()
print(session.has_uncommitted_changes, session.commit("again") == repo.lookup_branch("main"))
"""


def test_a_session_can_go_on_after_ctrl_c(s3_server: S3Server, prefix: str) -> None:
    program = f"{BEFORE}\n{REPO}\n{CONTINUES}"
    with (
        misbehaving_proxy(s3_server) as proxy,
        subprocess.Popen(
            [sys.executable, "-c", program, proxy.endpoint_url, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            proxy.seen.clear()
            # The commit's files are not answered; the object that publishes it is never written.
            proxy.fault = lambda seen: "no answer" if seen.method == "PUT" else ""
            process.stdin.write("go\n")
            process.stdin.flush()
            _until(lambda: any(seen.method == "PUT" for seen in proxy.seen), process)
            process.send_signal(signal.SIGINT)
            proxy.fault = lambda _: ""
            out, _ = process.communicate("go on\n", timeout=300)
        finally:
            process.kill()
    assert out == "True True\n"
