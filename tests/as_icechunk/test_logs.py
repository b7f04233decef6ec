"""`set_logs_filter` and ICECHUNK_LOG switch on what really happens: requests, commits, rebases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PROGRAM = """
import sys
import icechunk, zarr

folder, directives = sys.argv[1], sys.argv[2:]
for number, directive in enumerate(directives or [None]):
    if directive is not None:
        icechunk.set_logs_filter(directive)
    storage = icechunk.local_filesystem_storage(f"{folder}/{number}")
    repo = icechunk.Repository.create(storage)
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i4")
    array[:] = 1
    session.commit("first")
    late = repo.writable_session("main")
    zarr.create_array(late.store, name="b", shape=(1,), dtype="i4")
    with repo.transaction("main", message="in between") as store:
        zarr.open_array(store, path="a")[:] = 2
    late.commit("late", rebase_with=icechunk.ConflictDetector())
    repo.garbage_collect(repo.lookup_snapshot(late.snapshot_id).written_at)
    print("--", file=sys.stderr)
"""


def logged(folder: Path, *directives: str, **environment: str) -> tuple[list[str], str]:
    """What a program writes to stderr after each directive, and all it writes to stdout."""
    folder.mkdir(exist_ok=True)
    file = folder / "program.py"
    file.write_text(dedent(PROGRAM))
    command = [sys.executable, "-m", "icefloe.as_icechunk", str(file), str(folder), *directives]
    kept = {name: value for name, value in os.environ.items() if "_LOG" not in name}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=kept | environment
    )
    return done.stderr.split("--\n")[:-1], done.stdout


def topics(text: str) -> set[str]:
    return set(re.findall(r" icefloe\.(\w+): ", text))


def test_directives_choose_what_is_logged(tmp_path: Path) -> None:
    quiet, storage, commits, everything, error, others = logged(
        tmp_path,
        "warn",
        "icechunk::storage::s3=debug",
        "off,icechunk::session[commit{id=1}]=debug",
        "info,icechunk=trace",
        "",
        "aws_config=trace,object_store=debug",
    )[0]
    assert quiet == error == others == ""
    assert topics(storage) == {"storage"}
    assert re.search(r"write snapshots/\w+ in \S+", storage)
    assert topics(commits) == {"commit"}
    assert "rebased from" in commits
    assert "committed" in commits
    assert topics(everything) >= {"storage", "commit", "repository", "maintenance"}


@pytest.mark.parametrize(
    ("environment", "stderr_topics", "stdout_topics"),
    [
        ({}, set(), set()),
        ({"ICECHUNK_LOG": "icechunk::session=info"}, {"commit"}, set()),
        (
            {"ICECHUNK_LOG": "icechunk::ops=info", "ICECHUNK_LOG_TO_STDOUT": "1"},
            set(),
            {"maintenance"},
        ),
    ],
)
def test_the_environment_decides_at_first(
    tmp_path: Path,
    environment: dict[str, str],
    stderr_topics: set[str],
    stdout_topics: set[str],
) -> None:
    stderr, stdout = logged(tmp_path, **environment)
    assert topics("".join(stderr)) == stderr_topics
    assert topics(stdout) == stdout_topics
