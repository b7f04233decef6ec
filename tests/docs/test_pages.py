"""The Python blocks of every document are run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.run_page import PREPARED, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WITH_BLOCKS = [page for page in PAGES if blocks_of(page)]


@pytest.mark.timeout(600)  # one of them starts Spark
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if any(">>> " in code for _, code in blocks_of(page)):
        result = doctest.testfile(str(page), module_relative=False)
        assert result.attempted > 0
        assert result.failed == 0
        return
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "docs" / "run_page.py"), str(page), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        check=False,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert run.stdout.count(f"{page.name}:") == len(blocks_of(page))


def test_every_page_that_needs_preparing_exists_and_has_blocks() -> None:
    assert set(PREPARED) <= {page.name for page in WITH_BLOCKS}
    assert {"README.md", "spark.md"} <= {page.name for page in WITH_BLOCKS}


def test_every_page_is_found_from_the_index() -> None:
    found: set[Path] = set()
    waiting = [ROOT / "docs" / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.is_relative_to(ROOT / "docs") and page not in found:
            found.add(page)
            linked = re.findall(r"\]\(([^)#:]+\.md)", page.read_text())
            waiting += [(page.parent / link).resolve() for link in linked]
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - found == set()
