"""10,000 snapshots and 10,000 nodes: few rows are sent and drawn, and nothing waits for the rest.

Times are bounded generously, because they are those of a shared machine; counts are exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import icefloe
from icefloe.ui import PageServer
from tests.ui.asking import ask, value
from tests.ui.browser import Browser
from tests.ui.conftest import serving
from tests.ui.large import NUM_NODES, NUM_SNAPSHOTS, make_large

MOST_ROWS = 80
"""Rows that are drawn at once, whatever the length of a list."""
SECONDS = 5.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    place: Path = tmp_path_factory.mktemp("large") / "repository"
    return make_large(place)


@pytest.fixture(scope="module")
def large_server(large: icefloe.Repository) -> Iterator[PageServer]:
    with serving(large, "large") as running:
        yield running


def test_answers_are_pages(large_server: PageServer, large: icefloe.Repository) -> None:
    tip = large.lookup_branch("main")
    for address, given in (
        ("history", {}),
        ("history", {"offset": NUM_SNAPSHOTS - 100}),
        ("line", {"snapshot": tip, "offset": 5000}),
        ("children", {"snapshot": tip, "path": "/group-3"}),
        ("search", {"snapshot": tip, "q": "array"}),
        ("refs", {}),
        ("sizes", {"snapshot": tip}),
    ):
        reply = ask(large_server, f"/api/{address}", **given)
        assert reply.status == 200
        assert len(reply.body) < 100_000, address
    assert value(large_server, "history")["total"] == NUM_SNAPSHOTS
    told = value(large_server, "snapshot", snapshot=tip)
    assert told["groups"] + told["arrays"] == NUM_NODES


def test_answers_are_quick_once_the_history_is_read(large_server: PageServer) -> None:
    value(large_server, "history")
    started = time.process_time()
    for offset in range(0, NUM_SNAPSHOTS, 500):
        value(large_server, "history", offset=offset)
    assert time.process_time() - started < 1.0  # 20 pages; 0.06 s on an idle machine


def test_lanes_do_not_grow_with_the_history(large_server: PageServer) -> None:
    lanes = set()
    for offset in range(0, NUM_SNAPSHOTS, 1000):
        page = value(large_server, "history", offset=offset, limit=1000)
        lanes |= {row["lane"] for row in page["rows"]}
    assert lanes == {0, 1}  # side branches come one after the other


def test_a_late_answer_does_not_take_back_a_scroll(
    browser: Browser, large_server: PageServer
) -> None:
    page = browser.open(large_server.url)
    page.see(".snapshot h2", f"commit {NUM_SNAPSHOTS - 1}")
    page.evaluate(
        "(() => { const plain = window.fetch; window.fetch = async (...given) => {"
        " if (String(given[0]).includes('/snapshot')) await new Promise((r) => setTimeout(r, 400));"
        " return plain(...given); }; })()"
    )
    page.press("ArrowDown")
    page.see(".detail", "snapshot not found")  # only the tip has its object
    page.press("Home")
    page.evaluate("document.querySelector('.list').scrollTop = 150000")
    page.see(".snapshot h2", f"commit {NUM_SNAPSHOTS - 1}")
    assert page.evaluate("document.querySelector('.list').scrollTop") == 150000
    page.close()


def test_the_page_stays_quick(browser: Browser, large_server: PageServer) -> None:
    page = browser.open(large_server.url)
    page.see(".commit", f"commit {NUM_SNAPSHOTS - 1}")
    page.see(".bar", "10,000 snapshots")

    def quickly(action: str, selector: str, text: str) -> None:
        started = time.monotonic()
        if action.startswith("document"):
            page.evaluate(action)
        else:
            page.press(action)
        page.see(selector, text)
        assert time.monotonic() - started < SECONDS, (action, text)
        assert len(page.texts(".row")) < MOST_ROWS

    quickly("document.querySelector('.list').scrollTop = 1e9", ".commit", "the first")
    quickly("document.querySelector('.list').scrollTop = 150000", ".commit", "commit 5")
    quickly("Home", ".snapshot h2", f"commit {NUM_SNAPSHOTS - 1}")
    quickly("2", ".entry", "group-9")
    page.click(".entry.group[title='/group-2'] .twist")
    page.see(".entry", "array-0005")
    quickly("document.querySelector('.list').scrollTop = 13000", ".entry", "array-0500")
    quickly("document.querySelector('.list').scrollTop = 1e9", ".entry", "group-9")
    page.click("#filter")
    started = time.monotonic()
    page.type("array-0777")
    page.see(".entry", "/group-9/array-0777")
    assert time.monotonic() - started < SECONDS
    assert len(page.texts(".entry")) == 10
    page.click(".entry", "/group-4/array-0777")
    page.see(".node .path", "/group-4/array-0777")
    page.see(".version-slider", "9200 of 9200")
    page.click("#tabs a", "Sizes")
    page.see(".size-row", "/field")
    assert len(page.texts(".row")) < MOST_ROWS
    assert page.problems() == []
    page.close()
