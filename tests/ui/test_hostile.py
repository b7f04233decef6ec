"""A repository made to attack whoever looks at it: everything in it is shown as text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import zarr

import icefloe
from icefloe.ui import PageServer
from tests.ui.browser import Browser, Page
from tests.ui.conftest import serving

ATTACK = "<img src=x onerror=\"window.attacked='{}'\"><script>window.attacked='{}'</script>"
REF = "a<img src=x onerror=window.attacked=1>\"'`${alert(1)}"
"""A name that refs may have; slashes are not allowed in all of them."""


def attack(where: str) -> str:
    return ATTACK.format(where, where)


@pytest.fixture(scope="module")
def hostile() -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    root = zarr.group(session.store, attributes={attack("key"): attack("attribute")})
    group = root.create_group("<b onmouseover=window.attacked=2>group")
    array = group.create_array(
        "<svg onload=window.attacked=3>",
        shape=(4, 6),
        chunks=(2, 3),
        dtype="f4",
        dimension_names=["<i>y", "javascript:window.attacked=4"],
        attributes={"units": attack("units"), "nested": {"__proto__": {"x": attack("nested")}}},
    )
    array[:] = 1
    names = group.create_array("texts", shape=(2,), dtype=str)
    names[:] = [attack("value"), "</td><script>window.attacked=5</script>"]
    session.commit(attack("message"), {attack("metadata key"): attack("metadata")})
    repo.create_tag(f"tag {REF}", repo.lookup_branch("main"))
    repo.create_branch(f"branch {REF}", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    again = zarr.open_array(session.store, path=array.path)
    again[0] = 2
    again.attrs["history"] = attack("changed")
    session.commit(f"{attack('second')}\n{attack('second line')}")
    repo.set_metadata({attack("repository"): attack("repository")})
    return repo


@pytest.fixture(scope="module")
def hostile_server(hostile: icefloe.Repository) -> Iterator[PageServer]:
    with serving(hostile, attack("name")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, hostile_server: PageServer) -> Iterator[Page]:
    opened = browser.open(hostile_server.url)
    opened.see(".commit")
    yield opened
    # Neither a script nor an attribute of the repository ran, no element of it was made, and
    # nothing was asked for that the page itself does not need.
    assert opened.evaluate("window.attacked") is None
    made = "img[src='x'], svg[onload], b[onmouseover], #main script, #main i, [onerror]"
    assert opened.evaluate(f"document.querySelectorAll({json.dumps(made)}).length") == 0
    base = hostile_server.url
    assert all(url.startswith((f"{base}api/", f"{base}static/", "blob:")) or url == base
               for url in opened.requests())  # fmt: skip
    assert opened.problems() == []
    opened.close()


def test_history_refs_and_messages_are_text(page: Page) -> None:
    page.see(".commit", attack("second"))
    page.see("#name", attack("name"))
    page.see(".badge.branch", "branch a<img")
    page.see(".snapshot h2", attack("second"))
    page.see(".snapshot pre", attack("second line"))
    page.click(".commit", attack("message"))
    page.see(".snapshot .json", attack("metadata"))
    page.press("v")
    page.see(".picker .choice", REF)
    page.press("Escape")
    page.press("5")
    page.see(".operation", REF)


def test_nodes_attributes_and_values_are_text(page: Page) -> None:
    page.press("2")
    page.see(".entry .name", "<b onmouseover=window.attacked=2>group")
    page.see(".entry .name", "<svg onload=window.attacked=3>")
    page.see(".ruler .axis-name", "javascript:window.attacked=4")
    page.see(".colourbar", attack("units"))
    page.click(".tabs button", "Chunks")
    page.see(".chunk-view .plane-facts", "<i>y × javascript:window.attacked=4")
    page.click(".toolbar .check", "commit")
    page.see(".legend-line", "<img src=x onerror")
    page.click(".tabs button", "Metadata")
    page.see(".json", attack("nested"))
    page.click(".tabs button", "Picture")
    page.click(".entry", "texts")
    page.see(".line-plot table", attack("value"))
    page.click(".entry", "<b onmouseover")
    page.click(".entry[title='/']")
    page.see(".json", attack("attribute"))
    page.click("#filter")
    page.type("<svg")
    page.see(".entry .name", "<svg onload=window.attacked=3>")


def test_differences_and_sizes_are_text(page: Page) -> None:
    page.click(".actions button", "What changed")
    page.see(".change", "<svg onload=window.attacked=3>")
    page.see(".was", "–")
    page.see(".is", "attacked='changed'")
    page.press("4")
    page.see(".size-row", "<svg onload=window.attacked=3>")


def test_an_address_cannot_bring_a_script(browser: Browser, hostile_server: PageServer) -> None:
    bad = "%3Cimg%20src%3Dx%20onerror%3D%22window.attacked%3D9%22%3E"
    page = browser.open(f"{hostile_server.url}#/data?path={bad}")
    page.see(".failure", "<img src=x onerror=")
    for rest in (
        f"/{bad}",
        f"/history?snapshot={bad}",
        f"/compare?from={bad}",
        f"/data?tab=__proto__&path={bad}",
        "/constructor",
    ):
        page.evaluate(f"location.hash = {rest!r}")
        page.wait("!!document.querySelector('.failure, .commit')")
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert page.evaluate("window.attacked") is None
    assert page.evaluate("document.querySelectorAll(\"img[src='x']\").length") == 0
    page.close()
