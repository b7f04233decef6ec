"""`icefloe ui` in a process of its own: started, asked, interrupted."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import icefloe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where: Path = tmp_path_factory.mktemp("ui") / "weather"
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(where)))
    return where


@contextmanager
def command(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "icefloe", "ui", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=300)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_page_is_served_until_it_is_interrupted(place: Path) -> None:
    with command(f"{place}@main", "--port", "0", "--no-browser") as process:
        said = first_line(process)
        found = re.fullmatch(
            rf"{re.escape(str(place))} is at (http://127\.0\.0\.1:\d+/)(#.*)\n", said
        )
        assert found is not None, said
        tip = icefloe.Repository.open(icefloe.local_filesystem_storage(str(place))).lookup_branch(
            "main"
        )
        assert found[2] == f"#/history?snapshot={tip}"
        with urlopen(f"{found[1]}api/repository", timeout=300) as answer:
            assert answer.status == 200
            assert str(place).encode() in answer.read()
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(found[1], headers={"Host": "evil.example"}), timeout=300)
        assert refused.value.code == 421
        refused.value.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_port_that_is_taken_is_named(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command(place, "--port", str(port), "--no-browser") as process:
            _, told = process.communicate(timeout=30)
            assert process.returncode == 1
            assert f"cannot listen on 127.0.0.1 port {port}" in told
            assert "--port 0" in told


def test_another_address_is_warned_about(place: Path) -> None:
    with command(place, "--host", "0.0.0.0", "--port", "0", "--no-browser") as process:
        assert "http://127.0.0.1:" in first_line(process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=300)
        assert "Anyone who can reach 0.0.0.0 can read this repository." in told


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nowhere",), 3, "nowhere"),
        (("PLACE@nothing",), 3, "'nothing' is neither a branch"),
        (("PLACE", "--port", "99999"), 2, "99999"),
        (("PLACE", "--host", "no.such.host.invalid"), 1, "cannot listen on no.such.host.invalid"),
    ],
)
def test_what_goes_wrong_first(
    place: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    named = [word.replace("PLACE", str(place)) for word in words]
    named[0] = named[0] if named[0] != "nowhere" else str(tmp_path / "nowhere")
    with command(*named, "--no-browser") as process:
        _, told = process.communicate(timeout=30)
        assert process.returncode == code, told
        assert message in told
        assert "Traceback" not in told
