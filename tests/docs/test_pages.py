"""The examples of every document are run: Python and shell."""

from __future__ import annotations

import doctest
import re
import sys
import tomllib
from pathlib import Path

import pytest

from icefloe.cli.program import SECTIONS
from tests.docs.run_page import examples_of
from tests.docs.run_site import extras_of, pages, run_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "docs").glob("*.ipynb"))
WITH_BLOCKS = [page for page in PAGES if examples_of(page)]


def _is_long(page: Path) -> bool:
    """Pages of the site are run by `make pages`, so `make test` runs the quick ones only."""
    return page.is_relative_to(ROOT / "docs") and "spark" in page.name + extras_of(page)


@pytest.mark.timeout(600)  # one of them starts Spark
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.long] if _is_long(page) else [],
        )
        for page in WITH_BLOCKS
    ],
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if any(">>> " in code for _, _, code in examples_of(page)):
        result = doctest.testfile(str(page), module_relative=False)
        assert result.attempted > 0
        assert result.failed == 0
        return
    run = run_page(page, sys.executable, tmp_path)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert run.stdout.count(f"{page.name}:") == len(examples_of(page))


def test_the_site_has_every_page_with_examples_once() -> None:
    listed = pages()
    assert len(set(listed)) == len(listed)
    assert set(listed) == {page for page in WITH_BLOCKS if page.is_relative_to(ROOT / "docs")}
    assert {
        "spark.md",
        "spark-read.md",
        "spark-write.md",
        "spark-ingest.md",
        "command-line.md",
    } <= {page.name for page in listed}


def test_a_page_names_extras_that_exist() -> None:
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for page in pages():
        assert set(extras_of(page).split(",")) <= {"", *offered["optional-dependencies"]}, page


def test_every_command_is_on_the_page_about_the_command_line() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    for commands in SECTIONS.values():
        for name in commands:
            assert re.search(rf"(icefloe |`){name}\b", text), name


def test_no_two_pages_make_the_same_file_or_repository() -> None:
    """`make pages` runs them in one folder; here a clash is found without building anything."""
    made: dict[str, str] = {}
    for page in pages():
        for _, language, code in examples_of(page):
            names = re.findall(r'Repository\.create\([^"\n]*"([^"]+)"', code)
            names += re.findall(r'Path\(f?"([^"]+)"\)\.mkdir', code)
            if language == "sh":
                names += re.findall(r"^icefloe import .* (\S+) --concat-dim", code, re.MULTILINE)
            for name in names:
                assert made.setdefault(name, page.name) == page.name, name


def test_pages_write_nothing_outside_the_folder_of_their_reader() -> None:
    for page in pages():
        for line, _, code in examples_of(page) + examples_of(page, is_run=False):
            assert not re.search(r"[\"'=](/tmp|/var|~)/", code), f"{page.name}:{line}"


def test_every_page_is_found_from_the_index() -> None:
    found: set[Path] = set()
    waiting = [ROOT / "docs" / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.is_relative_to(ROOT / "docs") and page not in found:
            found.add(page)
            linked = re.findall(r"\]\(([^)#:]+\.(?:md|ipynb))", page.read_text())
            waiting += [(page.parent / link).resolve() for link in linked]
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - found == set()
