"""Takes the screenshots of the documentation, after `make demo` has made its repository.

    python -m tools.take_screenshots [FOLDER]

Every picture is taken at the width of a desktop and of a phone, and goes to FOLDER
(build/screenshots). Look at all of them after you change a page, then copy `web-page-*` to
docs/images.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import icefloe
from tests.ui.browser import Page, running_browser
from tests.ui.conftest import serving
from tools.find_browser import ADVICE, find_browser

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "build" / "demo"
SITE = ROOT / "build" / "docs"
SIZES = {"desktop": (1280, 820), "phone": (390, 844)}


def main(folder: Path) -> None:
    """Take all of them."""
    program = find_browser()
    if program is None:
        raise SystemExit(ADVICE)
    folder.mkdir(parents=True, exist_ok=True)
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(DEMO / "weather")))
    corrected, ingested = [info.id for info in repo.ancestry(branch="main")][1:3]
    with (
        tempfile.TemporaryDirectory() as profile,
        running_browser(program, Path(profile)) as browser,
        serving(repo, "build/demo/weather") as server,
    ):
        pages = {
            "landing": f"{SITE.as_uri()}/index.html",
            "demo": f"{DEMO.as_uri()}/index.html",
            "history": server.url,
            "web-page": f"{server.url}#/data?snapshot={corrected}&path=/t2m",
            "compare": f"{server.url}#/compare?snapshot={corrected}&from={ingested}&path=/t2m",
        }
        for name, url in pages.items():
            for size, (width, height) in SIZES.items():
                page = browser.open(url, width, height)
                _settle(page)
                page.screenshot(folder / f"{name}-{size}.png")
                wide = page.evaluate("document.documentElement.scrollWidth")
                note = "" if wide <= width else f", but needs {wide} pixels"
                print(f"{name}: {size}{note}")
                page.close()


def _settle(page: Page) -> None:
    """Wait for pictures; show the hour of the demo's correction where there is a slider of time."""
    later = "new Promise((done) => setTimeout(done, 1000))"
    page.evaluate(later)
    page.wait("!document.body.innerText.includes('Loading')")
    page.evaluate(
        "document.querySelectorAll('input[aria-label=time]').forEach((time) => {"
        "time.value = 51; time.dispatchEvent(new Event('input')); })"
    )
    page.evaluate(later)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "screenshots"))
