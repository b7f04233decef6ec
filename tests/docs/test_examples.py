"""The examples people read are run: docstrings and the tour; documents are in `test_pages.py`."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import icefloe

ROOT = Path(__file__).parents[2]
PACKAGE = Path(icefloe.__file__).parent
# Importing as_icechunk changes what objects of this process call themselves, on purpose; and
# programs are run, not imported.
MODULES = sorted(
    ".".join(["icefloe", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py" and path.relative_to(PACKAGE).parts[0] != "as_icechunk"
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    ("program", "says"),
    [("tour.py", "1CECHNKREP0F1RSTCMT0"), ("first_repository.py", "now: [290. 290. 290. 290.]")],
)
def test_a_program_runs_to_its_end(program: str, says: str) -> None:
    run = subprocess.run(
        [sys.executable, f"examples/{program}"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
