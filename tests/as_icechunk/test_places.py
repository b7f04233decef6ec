"""Typical programs give the same results with either library, on S3 and in a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.as_icechunk.programs import AS_ICECHUNK
from tests.servers import S3Server

pytest.importorskip("icechunk", minversion="2")

PROGRAM = Path(__file__).with_name("typical_program.py")


def told(by: tuple[str, ...], *arguments: str) -> dict[str, str]:
    """What the program prints, by its parts."""
    done = subprocess.run(
        [sys.executable, *by, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"ICECHUNK_LOG": "off"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["directory", "s3"])
def test_a_typical_program_gives_the_same(tmp_path: Path, s3_server: S3Server, place: str) -> None:
    folders = [tmp_path / "theirs", tmp_path / "ours"]
    for folder in folders:
        folder.mkdir()
    endpoint = [s3_server.endpoint_url] if place == "s3" else []
    original = told((), str(folders[0]), *endpoint)
    ours = told(AS_ICECHUNK, str(folders[1]), *endpoint)
    assert ours == original
    assert len(ours) == 8
