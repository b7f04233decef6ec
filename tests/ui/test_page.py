"""The page in a real browser: every view opened, clicked and looked at. No console errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icefloe.ui import PageServer
from tests.ui.browser import Browser, Page


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
    assert len(page.texts(".commit")) == 5
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
