"""The page in a real browser: every view opened, clicked and looked at. No console errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zarr

import icefloe
from icefloe.ui import PageServer
from tests.ui.asking import value
from tests.ui.browser import Browser, Page
from tests.ui.conftest import make_weather, serving


@pytest.fixture
def page(browser: Browser, server: PageServer) -> Iterator[Page]:
    opened = browser.open(server.url)
    opened.see(".commit")
    yield opened
    assert opened.problems() == []
    # Nothing comes from anywhere else: the page works without a network.
    assert [url for url in opened.requests() if not url.startswith((server.url, "blob:"))] == []
    opened.close()


def test_history(page: Page) -> None:
    assert page.text("#facts") == "spec 2 · 5 snapshots · 2 branches · 1 tag"
    page.see(".commit", "an experiment")
    # A list draws the rows in sight, and again when its size settles.
    page.wait("document.querySelectorAll('.commit').length === 5")
    page.see(".snapshot h2", "hour 2")
    page.click(".commit", "first")
    page.see(".snapshot h2", "first")
    page.see(".snapshot pre", "with a second line")
    assert "author: ana" in page.text(".snapshot .json")
    page.press("ArrowUp")
    page.see(".snapshot h2", "hour 1")
    page.see("#version", "hour 1")
    page.press("Enter")
    page.see(".view.data")


def test_data(page: Page) -> None:
    page.press("2")
    page.see(".node .path", "/surface/t2m")  # the array with most dimensions comes first
    page.see(".row[aria-selected=true]", "t2m")
    page.press("ArrowUp")
    page.see(".node .path", "/surface/station")
    page.click(".entry.group[title='/surface'] .twist")
    page.wait("document.querySelectorAll('.entry').length === 3")
    page.click(".entry.group .twist[aria-label=Open]")
    page.click(".entry", "lat")
    page.see(".node .path", "/surface/lat")
    page.click("#filter")
    page.type("STAT")
    page.see(".entry", "/surface/station")
    assert len(page.texts(".entry")) == 1


def test_operations(page: Page) -> None:
    page.click("#tabs a", "Operations")
    page.see(".operation", "Tag created")


def test_a_version_is_chosen_by_name(page: Page) -> None:
    page.press("v")
    page.see(".picker .choice", "dev")
    page.type("v1")
    page.wait("document.querySelectorAll('.picker .choice').length === 1")
    page.press("Enter")
    page.see(".snapshot h2", "first")
    page.see("#version", "v1")


def drawn(page: Page, at_least: int = 1) -> None:
    """Wait until the picture of the data view has been drawn so many times."""
    page.wait(f"Number(document.querySelector('.plane')?.dataset.drawn ?? 0) >= {at_least}")


def drag(page: Page, selector: str, by: tuple[float, float]) -> None:
    x, y = page.place(selector)
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", x + by[0], y + by[1], button="left", buttons=1)
    page.mouse("mouseReleased", x + by[0], y + by[1], button="left", clickCount=1)


def test_a_picture_its_sliders_and_values(page: Page) -> None:
    page.press("2")
    drawn(page)
    assert "min 0 · mean 23.5 · max 47" in page.text(".plane-facts")
    assert page.texts(".ruler.down .ends span") == ["50 °N", "30 °N", "0 °N"]
    x, y = page.place(".frame")
    page.mouse("mouseMoved", x - 5, y - 5)
    page.see(".pointed", "19 K at lat 30 °N, lon 3 [0, 2, 3]")
    # A click shows the values of all times at this place.
    page.click(".frame")
    page.see(".profile", "time at lat 20 °N, lon 4")
    page.see(".profile .plane-facts", "min 28 · mean 109.33 · max 200")
    # Another time: hour 1 has one value everywhere, hour 3 none.
    set_slider(page, "input[aria-label=time]", 1)
    page.see(".plane-facts", "min 100 · mean 100 · max 100")
    set_slider(page, "input[aria-label=time]", 3)
    page.see(".plane-facts", "48 of 48 without a value")
    # Older versions: hour 1 was not there at first.
    set_slider(page, "input[aria-label=time]", 1)
    page.see(".plane-facts", "min 100")
    set_slider(page, "input.versions", 1)
    page.see(".plane-facts", "48 of 48 without a value")
    page.see("#version", "first")
    page.press("]")
    page.see(".plane-facts", "min 100")
    page.see(".version-slider", "hour 1")


def set_slider(page: Page, selector: str, value: int) -> None:
    page.see(selector)
    page.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); e.value = {value};"
        "e.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_a_part_of_a_picture_other_dimensions_and_colours(page: Page) -> None:
    page.press("2")
    drawn(page)
    drag(page, ".frame", (90, 60))
    drawn(page, 2)
    page.see(".toolbar button", "Whole plane")
    assert "max 47" not in page.text(".plane-facts")
    page.click(".toolbar button", "Whole plane")
    page.see(".plane-facts", "min 0 · mean 23.5 · max 47")
    choose(page, "select[aria-label='Y axis']", "0")
    page.see(".plane-facts", "8 of 32 without a value")
    choose(page, "select[aria-label=Colours]", "ember")
    page.wait("document.querySelector('.colourbar img').src.endsWith('scale=ember')")
    page.evaluate("document.querySelector('input[aria-label=highest]').value = '50'")
    page.evaluate(
        "document.querySelector('input[aria-label=highest]').dispatchEvent(new Event('change'))"
    )
    page.see(".colourbar", "50")


def choose(page: Page, selector: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); e.value = {value!r};"
        "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_arrays_without_a_plane(page: Page) -> None:
    page.press("2")
    drawn(page)
    page.click(".entry", "lat")
    page.see(".line-plot", "min 0 · mean 25 · max 50")
    page.click(".entry", "station")
    page.see(".line-plot table", "c")
    page.click(".entry", "depth")
    page.see(".line-plot .scalar", "7")
    page.click(".tabs button", "Metadata")
    page.see(".metadata", "int32")
    page.click(".entry", "surface")
    page.see(".metadata", "No attributes.")


def test_chunks(page: Page) -> None:
    page.press("2")
    drawn(page)
    page.click(".tabs button", "Chunks")
    page.see(".chunk-view .plane-facts", "time × lon: 4 × 2 chunks")
    page.see(".legend-line", "inline")
    assert page.texts(".legend-line")[-1].split() == ["missing", "2"]
    x, y = page.place("canvas.cells")
    page.mouse("mouseMoved", x - 3, y - 3)
    page.see(".chunk-view .pointed", "Chunk 1, 0, 0 inline, 48 B")
    page.click(".toolbar .check", "commit")
    page.see(".legend-line", "hour 2")
    assert len(page.texts(".legend-line")) == 4
    colours = page.evaluate(
        "(() => { const c = document.querySelector('canvas.cells'), pen = c.getContext('2d');"
        "const all = pen.getImageData(0, 0, c.width, c.height).data;"
        "return [...Array(4).keys()].map((row) => { const at = 4 * (Math.floor((row + .5) *"
        "c.height / 4) * c.width + 4); return all.slice(at, at + 4).join(); }); })()"
    )
    assert len(set(colours)) == 4
    page.click(".legend-line a", "hour 2")
    page.see(".snapshot h2", "hour 2")


def test_compare(page: Page) -> None:
    page.click(".commit", "an experiment")
    page.see(".snapshot h2", "an experiment")
    page.click(".actions button", "What changed")
    page.see(".change", "/extra")
    page.see(".change", "1 chunk")
    page.see(".compare-body .plane-facts", "12 of 48 values differ here, by up to 24")
    page.wait("document.querySelectorAll('.plane[data-drawn]').length === 3")
    assert page.evaluate("document.querySelectorAll('.marks rect.changed').length") == 1
    assert page.texts(".plane figcaption") == ["Difference: after − before", "Before", "After"]
    page.click(".change", "/extra")
    page.see(".node .metadata", "Only the later snapshot has it.")
    # The other way round, and two versions of which neither is an ancestor of the other.
    page.click("button[aria-label=Swap]")
    page.see(".change", "removed")
    page.click(".compared:first-child .version")
    page.type("main")
    page.wait("document.querySelectorAll('.picker .choice').length === 1")
    page.press("Enter")
    page.see(".compared:first-child", "hour 2")
    page.see(".change", "8 chunks")


def test_sizes(page: Page) -> None:
    page.press("4")
    page.see(".size-row", "/surface/t2m")
    page.see(".size-row", "12 of 16 chunks")
    assert "/surface/t2m" in page.texts(".size-row")[0]
    page.click(".card button", "Count")
    page.see(".card", "freed if it expires")
    page.click(".card button", "Count")
    page.see(".card", "stored here")
    page.click(".size-row", "t2m")
    page.press("Enter")
    page.see(".chunk-view")


def test_theme_and_help(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.click("#theme")
    after = page.evaluate(ground)
    assert before != after
    page.call("Page.reload")
    page.see(".commit")
    assert page.evaluate(ground) == after  # it is remembered
    page.press("?")
    page.see("dialog.help", "filter the tree")
    page.press("Escape")
    page.wait("!document.querySelector('dialog')")


def test_the_address_keeps_the_state(page: Page) -> None:
    page.press("2")
    drawn(page)
    page.click(".entry", "lat")
    page.see(".line-plot svg")
    page.call("Page.reload")
    page.see(".node .path", "/surface/lat")
    page.press("5")
    page.see(".operation")
    page.evaluate("history.back()")
    page.see(".node .path", "/surface/lat")


def test_an_old_snapshot_is_scrolled_to(browser: Browser, server: PageServer) -> None:
    rows = value(server, "history")["rows"]
    page = browser.open(f"{server.url}#/history?snapshot={rows[-1]['id']}", height=200)
    page.see(".row[aria-selected=true]", "Repository initialized")
    assert page.evaluate("document.querySelector('.list').scrollTop") > 0
    page.close()


def test_a_server_that_is_gone_is_told(browser: Browser) -> None:
    with serving(make_weather()) as short_lived:
        page = browser.open(short_lived.url)
        page.see(".commit")
        page.call("Network.setBlockedURLs", urls=["*/api/*"])
        page.press("5")
        page.see(".failure", "Is `icefloe ui` still running?")
        page.call("Network.setBlockedURLs", urls=[])
        page.click(".failure button", "Try again")
        page.see(".operation")
        page.close()


def test_an_array_that_an_older_snapshot_lacks(browser: Browser, server: PageServer) -> None:
    rows = value(server, "history")["rows"]
    dev = rows[0]["id"]
    page = browser.open(f"{server.url}#/data?snapshot={dev}&path=/extra")
    page.see(".node .path", "/extra")
    page.press("[")
    page.see(".failure", "node not found: '/extra'")
    page.click("a", "Go to the root group")
    page.see(".node .path", "/")
    page.see(".json", "made up")
    page.close()


def test_an_empty_repository(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with serving(repo) as server:
        page = browser.open(server.url)
        page.see(".snapshot", "This snapshot has no arrays yet.")
        page.press("2")
        page.see(".empty", "Nothing here yet")
        page.press("3")
        page.see(".empty", "Choose two different versions.")
        page.press("4")
        page.see(".empty", "This snapshot has no arrays.")
        page.press("5")
        page.see(".operation", "Repository created")
        # What is written meanwhile is shown when the repository is read again.
        with repo.transaction("main", message="now there is something") as store:
            zarr.create_array(store, name="a", shape=(3,), dtype="i4")[:] = 1
        page.press("1")
        page.wait("!!document.querySelector('.commit')")
        monkeypatch.setattr("icefloe.ui.opened._FRESH_SECONDS", -1)  # instead of two seconds
        page.press("r")
        page.see(".commit", "now there is something")
        page.see("#facts", "2 snapshots")
        assert page.problems() == []
        page.close()
