"""The documentation site: it builds without a warning, and every page is in its navigation."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
        timeout=300,
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
    "snapshot": "first-repository",
    "branch": "first-repository",
    "tag": "first-repository",
    "commit": "first-repository",
    "diff": "first-repository",
    "history": "first-repository",
    "tutorial": "tutorial",
    "notebook": "tutorial",
    "rollback": "versions",
    "revert": "versions",
    "undo": "versions",
    "merge": "versions",
    "cherry-pick": "versions",
    "conflict": "many-writers",
    "rebase": "many-writers",
    "virtual datasets": "virtual-data",
    "garbage collection": "maintenance",
    "expire": "maintenance",
    "verify": "maintenance",
    "backup": "maintenance",
    "corrupt": "troubleshooting",
    "disk space": "maintenance",
    "concurrent writes": "many-writers",
    "benchmark": "performance",
    "lineage": "spark-datasets",
    "docker": "web-page",
    "conda": "install",
    "restore": "maintenance",
    "migrate": "migration",
    "API reference": "reference/api",
    "credentials": "credentials",
    "S3": "credentials",
    "NetCDF": "ingest-recipes",
    "GRIB": "ingest-recipes",
    "Zarr": "ingest-recipes",
    "backfill": "backfill",
    "xarray": "xarray-dask",
    "dask": "xarray-dask",
    "Spark": "spark",
    "SQL": "spark-read",
    "streaming": "spark-write",
    "climatology": "spark-datasets",
    "Kubernetes": "platforms/kubernetes",
    "Databricks": "platforms/databricks",
    "YARN": "platforms/yarn",
    "command line": "command-line",
    "checkout": "git-users",
    "FAQ": "faq",
    "Windows": "install",
    "error": "troubleshooting",
    "logging": "logging",
}
"""What people type, and a page that has to be among the first three hits."""


class _QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are no news."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a server: browsers run no search on pages that are opened from disk."""
    handler = functools.partial(_QuietFiles, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_search_finds_the_usual_words(address: str, tmp_path: Path) -> None:
    """The box of the page itself, as a reader uses it."""
    hits: dict[str, list[str]] = {}
    with running_browser(require_browser(), tmp_path) as browser:
        page = browser.open(f"{address}/index.html")
        page.click(".md-search__input")
        for words in SEARCHES:
            # A word that no page has takes away the hits of the search before.
            for typed, state in (("qqqqq", "=== 0"), (words, "> 0")):
                page.evaluate("document.querySelector('.md-search__input').select()")
                page.type(typed)
                page.press("End")
                page.wait(f"({_FIRST_HITS}).length {state}")
            hits[words] = page.evaluate(_FIRST_HITS)
    missed = {words: hits[words] for words, wanted in SEARCHES.items() if wanted not in hits[words]}
    assert missed == {}


_FIRST_HITS = """[...document.querySelectorAll('.md-search-result__item')].slice(0, 3)
    .map((hit) => new URL(hit.querySelector('a').href).pathname.slice(1, -'.html'.length))"""


class _Links(HTMLParser):
    """The links of a page and the names that links can lead to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.targets.add(value)
            if name in {"id", "name"} and value:
                self.anchors.add(value)


KNOWN_HOSTS = {
    "conda.github.io",
    "docs.aws.amazon.com",
    "docs.cloud.google.com",
    "docs.databricks.com",
    "icechunk.io",
    "jcristharif.com",  # venv-pack
    "keepachangelog.com",
    "learn.microsoft.com",
    "spark.apache.org",
    "squidfunk.github.io",  # the theme names its maker
    "virtualizarr.readthedocs.io",
}
"""Addresses of others that exist; icefloe has none yet, so any other one would be a guess."""
KNOWN_OWNERS = ("awslabs", "databricks", "microsoft")
"""Whose repositories on github.com pages may link to."""


def test_links_of_the_built_site_lead_somewhere(site: Path) -> None:
    pages = {page: _Links(page.read_text()) for page in site.rglob("*.html")}
    broken = set()
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme in {"http", "https"}:
                owner = url.path.split("/")[1:2] if url.hostname == "github.com" else []
                if url.hostname not in KNOWN_HOSTS and not set(owner) & set(KNOWN_OWNERS):
                    broken.add((page.name, target))
            elif not url.scheme and page.name != "404.html":
                file = (page.parent / unquote(url.path)).resolve() if url.path else page
                file = file / "index.html" if file.is_dir() else file
                anchor = unquote(url.fragment)
                if not file.exists() or (
                    anchor and file in pages and anchor not in pages[file].anchors
                ):
                    broken.add((page.name, target))
    assert sum(len(links.targets) for links in pages.values()) > 1000
    assert broken == set()
