"""The documentation site: it builds without a warning, and every page is in its navigation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ui.browser import running_browser
from tests.ui.conftest import require_browser
from tools import docs_site

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "README.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds. Broken links and names that docstrings lack are errors."""
    pytest.importorskip("mkdocs", reason="the site is built with the extra docs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=110,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return folder


def test_every_page_is_in_the_navigation() -> None:
    listed = {file for _, pages in docs_site.sections(INDEX.read_text()) for _, file in pages}
    there = {page.relative_to(INDEX.parent).as_posix() for page in INDEX.parent.rglob("*.md")}
    there |= {notebook.name for notebook in INDEX.parent.glob("*.ipynb")}
    assert there - {"README.md"} == listed


def test_the_reference_has_methods_and_their_arguments(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text()
    for name in ("icefloe.Repository.open", "icefloe.Session.commit"):
        assert f'id="{name}"' in page
    assert "docstring" not in page.lower() or "Parameters:" in page


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    loaded = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"')
    found = {
        url
        for page in site.rglob("*.html")
        for url in loaded.findall(page.read_text())
        if 'rel="canonical"' not in url
    }
    assert found == set()


def test_a_browser_asks_no_other_server(site: Path, tmp_path: Path) -> None:
    """Scripts can load more than the tags of a page say, such as the stars of a repository."""
    with running_browser(require_browser(), tmp_path) as browser:
        page = browser.open((site / "index.html").as_uri())
        page.see(".md-content", "Version control for Zarr")
        page.evaluate("new Promise((done) => setTimeout(done, 1000))")
        asked = page.requests()
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_tutorial_is_a_page_with_its_pictures(site: Path) -> None:
    page = (site / "tutorial.html").read_text()
    pictures = re.findall(r'src="(images/tutorial-\d\.png)"', page)
    assert len(pictures) == 2
    for picture in pictures:
        assert (site / picture).read_bytes().startswith(b"\x89PNG")
    assert 'href="tutorial.ipynb"' in page
    assert (site / "tutorial.ipynb").exists()
    assert 'href="tutorial.html"' in (site / "index.html").read_text()


def test_documents_of_the_top_folder_are_pages(site: Path) -> None:
    assert 'href="project/ARCHITECTURE.html"' in (site / "index.html").read_text()
    assert "../glossary.html" in (site / "project" / "ARCHITECTURE.html").read_text()


SEARCHES = {
    "time travel": "first-repository",
    "tutorial": "tutorial",
    "notebook": "tutorial",
    "rollback": "git-users",
    "revert": "git-users",
    "undo": "versions",
    "merge": "versions",
    "cherry-pick": "versions",
    "virtual datasets": "virtual-data",
    "garbage collection": "maintenance",
    "expire": "maintenance",
    "verify": "maintenance",
    "API reference": "reference/api",
    "credentials": "credentials",
    "NetCDF": "ingest-recipes",
    "xarray": "xarray-dask",
    "dask": "xarray-dask",
    "Spark": "spark",
    "SQL": "spark-read",
    "backfill": "backfill",
    "streaming": "spark-write",
    "command line": "command-line",
    "rebase": "many-writers",
    "FAQ": "faq",
    "conflict": "troubleshooting",
    "snapshot": "glossary",
    "logging": "logging",
}
"""What people look for, and a page that the search has to find."""


def test_the_search_finds_the_usual_words(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    texts = [
        (entry["location"].partition(".html")[0], f"{entry['title']} {entry['text']}".lower())
        for entry in index["docs"]
    ]
    for words, page in SEARCHES.items():
        assert page in {name for name, text in texts if words.lower() in text}, words
