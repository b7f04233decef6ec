"""Wheel and sdist, built once, and the environments that they are installed in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Built(NamedTuple):
    """What a release publishes."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheel and sdist of this folder."""
    folder = tmp_path_factory.mktemp("built")
    get = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    backend = ["hatchling>=1.27,<2", "--target", str(folder / "backend")]
    subprocess.run([*get, *backend], check=True, timeout=300)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder / "backend")},
        check=True,
        timeout=300,
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


class Environment(NamedTuple):
    """A Python with icefloe and one extra, and nothing of this repository."""

    python: Path
    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, or its Python, in an empty folder."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {"HOME": str(self.folder), "PATH": f"{self.python.parent}{os.pathsep}/usr/bin:/bin"}
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**kept, **own},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )


Install = Callable[[Path, str], Environment]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Makes an environment of a wheel or sdist with one extra; it is deleted after the test."""
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()

    def installed(package: Path, extra: str) -> Environment:
        make = [sys.executable, "tools/setup_env.py", f"--package={package}", f"--extras={extra}"]
        # The same Python as here: the newest may be one that an extra has no wheels for.
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run([*make, "--python", version, str(venv)], cwd=ROOT, check=True, timeout=500)
        return Environment(venv / "bin" / "python", folder)

    yield installed
    shutil.rmtree(venv, ignore_errors=True)
