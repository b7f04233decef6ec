"""What icefloe logs, how the logs are switched on, and the spans it makes for OpenTelemetry."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import observe
from tests.proxy import Seen, misbehaving_proxy
from tests.servers import S3Server

TOPICS = [
    observe.STORAGE,
    observe.CACHE,
    observe.COMMIT,
    observe.REPOSITORY,
    observe.MAINTENANCE,
]


@pytest.fixture
def switched_back() -> Iterator[None]:
    yield
    observe.set_levels({})
    logger = logging.getLogger("icefloe")
    for handler in [*logger.handlers]:
        if isinstance(handler, observe.StderrHandler):
            logger.removeHandler(handler)


def lines_of(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    name = f"icefloe.{topic}"
    return [record.getMessage() for record in caplog.records if record.name == name]


def write(session: icefloe.Session, name: str) -> None:
    array: Any = zarr.create_array(session.store, name=name, shape=(4,), chunks=(2,), dtype="i4")
    array[:] = 7


# --- what is logged ----------------------------------------------------------------------------


def test_every_request_is_a_line(s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    storage = s3_server.storage("logged")
    caplog.set_level(logging.DEBUG, "icefloe.storage")
    before = s3_server.requests()
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    write(session, "a")
    session.commit("first")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    assert zarr.open_array(reader.store, path="a", mode="r")[0] == 7
    after = s3_server.requests()
    made = sum(after["methods"].values()) - sum(before["methods"].values())
    lines = lines_of(caplog, "storage")
    assert len(lines) == made
    assert any(re.fullmatch(r"get repo in s3://.*/logged: \S+ ms, \d+ bytes", at) for at in lines)
    assert any(line.startswith("put snapshots/") for line in lines)
    assert "test-secret" not in caplog.text


def test_commits_rebases_and_refs_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "icefloe")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    setup = repo.writable_session("main")
    write(setup, "a")
    base = setup.commit("first")
    late = repo.writable_session("main")
    write(late, "b")
    with repo.transaction("main", message="in between") as store:
        zarr.open_array(store, path="a")[:] = 8
    tip = late.commit("late", rebase_with=icefloe.ConflictDetector())
    repo.create_tag("v1", tip)
    repo.create_branch("dev", base)
    repo.delete_branch("dev")
    assert lines_of(caplog, "repository") == [
        f"created a repository of spec version 2 in {tmp_path}",
        f"tag 'v1' created at {tip}",
        f"branch 'dev' created at {base}",
        "branch 'dev' deleted",
    ]
    commits = lines_of(caplog, "commit")
    assert f"rebased from {base} over 1 of 1 commits to 'main', 0 conflicts left" in commits
    assert commits[-1] == f"committed {tip} to 'main' of {tmp_path}"


def test_what_was_in_memory_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    write(session, "a")
    tip = session.commit("first")
    caplog.set_level(logging.DEBUG, "icefloe.cache")
    repo.readonly_session(snapshot_id=tip)
    assert lines_of(caplog, "cache") == [
        "the repo object has not changed",
        f"snapshot {tip} was in memory",
    ]


def test_a_second_try_is_logged(s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "icefloe.storage")
    lost: list[Seen] = []

    def fault(seen: Seen) -> str:
        if seen.method == "PUT" and seen.path.endswith("/repo") and not lost:
            lost.append(seen)
            return "lose request"
        return ""

    with misbehaving_proxy(s3_server) as proxy:
        proxy.fault = fault
        icefloe.Repository.create(proxy.storage("tried-again"))
    assert lost
    [line] = lines_of(caplog, "storage")
    assert re.match(r"writing again in 0\.\d\d s: StorageError: cannot write 'repo'", line)


def test_long_calls_say_when_they_start_and_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    caplog.set_level(logging.INFO, "icefloe.maintenance")
    repo.verify()
    started, done = lines_of(caplog, "maintenance")
    assert started == "verify: started"
    assert re.fullmatch(r"verify: done after \d\.\d s", done)


# --- switching them on -------------------------------------------------------------------------


@pytest.mark.usefixtures("switched_back")
def test_one_line_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    icefloe.log_to_stderr("info,storage=debug")
    icefloe.log_to_stderr("info,icefloe.storage=debug")  # again: no line twice
    icefloe.Repository.create(icefloe.in_memory_storage())
    shown = capsys.readouterr().err
    assert shown.count("INFO icefloe.repository: created a repository") == 1
    assert observe.STORAGE.isEnabledFor(logging.DEBUG)
    assert not observe.CACHE.isEnabledFor(logging.DEBUG)
    icefloe.log_to_stderr("off")
    icefloe.Repository.create(icefloe.in_memory_storage())
    assert capsys.readouterr().err == ""
    assert not observe.STORAGE.isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize("levels", ["loud", "storage=", "storage=loud", "info;debug"])
def test_a_level_that_does_not_exist_is_named(levels: str) -> None:
    with pytest.raises(icefloe.InvalidInputError, match=r"is no level of the logs .* debug, info"):
        icefloe.log_to_stderr(levels)


PROGRAM = "import icefloe; icefloe.Repository.create(icefloe.in_memory_storage())"


@pytest.mark.parametrize(("levels", "num_lines"), [("", 0), ("error", 0), ("info", 1)])
def test_the_environment_switches_them_on(levels: str, num_lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "ICEFLOE_LOG": levels},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert len(done.stderr.splitlines()) == num_lines, done.stderr


def test_every_topic_is_in_the_documentation() -> None:
    for topic in TOPICS:
        assert f"`{topic.name}`" in (icefloe.log_to_stderr.__doc__ or "")


# --- what they cost when nobody listens --------------------------------------------------------


def test_a_request_that_nobody_looks_at_costs_microseconds() -> None:
    def one() -> None:
        with observe.StorageCall("get", "key", "place") as request:
            request.nbytes = 1

    assert min(timeit.repeat(one, number=1000, repeat=5)) / 1000 < 20e-6
    assert not any(topic.isEnabledFor(logging.INFO) for topic in TOPICS)


# --- OpenTelemetry -----------------------------------------------------------------------------

TRACED = """
import sys, icefloe, zarr
assert "opentelemetry" not in sys.modules
icefloe.Repository.create(icefloe.in_memory_storage())
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
storage = icefloe.s3_storage(
    bucket="testbucket", prefix="traced", endpoint_url=sys.argv[1], region="us-east-1",
    allow_http=True, force_path_style=True, access_key_id="test", secret_access_key="test-secret",
)
with trace.get_tracer("program").start_as_current_span("program"):
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    session.commit("first")
    reader = repo.readonly_session("main")
    late = repo.writable_session("main")
    zarr.create_group(late.store, path="g")
    repo.reset_branch("main", icefloe.FIRST_SNAPSHOT_ID.text)
    try:
        late.commit("late")
    except icefloe.ConflictError:
        pass
names = {span.context.span_id: span.name for span in spans.get_finished_spans()}
for span in spans.get_finished_spans():
    parent = names[span.parent.span_id] if span.parent else "-"
    print(parent, span.name, span.status.status_code.name, "icefloe.bytes" in span.attributes)
"""


def test_operations_and_requests_are_spans(s3_server: S3Server) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the package opentelemetry-sdk")
    done = subprocess.run(
        [sys.executable, "-c", TRACED, s3_server.endpoint_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = [tuple(line.split()) for line in done.stdout.splitlines()]
    assert ("-", "program", "UNSET", "False") in rows
    for operation in ("create", "writable_session", "readonly_session", "commit"):
        assert ("program", f"icefloe.{operation}", "UNSET", "False") in rows
    assert ("program", "icefloe.commit", "ERROR", "False") in rows
    assert ("icefloe.commit", "icefloe.storage.put", "UNSET", "True") in rows
    # The storage is asked whether it refuses a condition that does not hold.
    assert ("icefloe.create", "icefloe.storage.put", "ERROR", "True") in rows
    # Chunks are written by Zarr's event loop, files of a commit by threads: none is an orphan.
    assert [row for row in rows if row[0] == "-"] == [("-", "program", "UNSET", "False")]
