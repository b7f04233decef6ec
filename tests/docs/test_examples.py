"""The examples people read are run: docstrings and the tour; documents are in `test_pages.py`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.docstrings import make_world, modules, run_examples
from tools import run_notebook

ROOT = Path(__file__).parents[2]
OF_SPARK = ("icefloe.spark", "icefloe.blocks")
"""tests/spark runs the examples of these, with its session."""
MODULES = [name for name in modules() if not name.startswith(OF_SPARK)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_world(folder := tmp_path_factory.mktemp("world"))
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_examples(name, world, tmp_path, monkeypatch)


def test_the_tutorial_shows_what_its_cells_print(tmp_path: Path, monkeypatch: Any) -> None:
    """Outputs kept in the notebook are those of a run; `tools/run_notebook.py` renews them."""
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    monkeypatch.chdir(tmp_path)
    outputs = run_notebook.run(notebook["cells"])
    kept = [cell.get("outputs", []) for cell in notebook["cells"]]
    assert [list(map(_text, each)) for each in outputs] == [list(map(_text, each)) for each in kept]
    assert sum(_text(output) == "picture" for each in kept for output in each) == 2


def _text(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text")})
    return "picture" if "image/png" in data else "".join(data["text/plain"])


def run_example(*arguments: str) -> str:
    """What an example prints."""
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_tour_runs() -> None:
    assert "1CECHNKREP0F1RSTCMT0" in run_example("examples/tour.py")


def test_the_demo_runs_and_keeps_its_results(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for _ in range(2):  # the second run replaces the first
        printed = run_example("examples/demo.py", str(folder))
    assert "day 7: 277" in printed
    assert f"icefloe ui {folder}/weather" in printed
    assert (folder / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert "Correct 7 January" in (folder / "index.html").read_text()
    printed = run_example("examples/demo.py", str(folder), "--spark")
    assert "4 files added, 10 known already" in printed
    assert "all 806,400 values are those of the 14 files" in printed


def test_the_demo_removes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(AssertionError, match="files that no demo has written"):
        run_example("examples/demo.py", str(tmp_path))
    assert (tmp_path / "thesis.txt").exists()
