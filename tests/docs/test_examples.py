"""The examples people read are run: README, docstrings and the tour."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import icefloe

ROOT = Path(__file__).parents[2]
MODULES = [module.name for module in pkgutil.walk_packages(icefloe.__path__, "icefloe.")]


def test_the_readme_shows_what_really_happens() -> None:
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_tour_runs_to_its_end() -> None:
    run = subprocess.run(
        [sys.executable, "examples/tour.py"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    assert "1CECHNKREP0F1RSTCMT0" in run.stdout
