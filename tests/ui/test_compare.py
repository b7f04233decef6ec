"""Two snapshots side by side: where values differ, and in a browser what is shown first."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.ui import PageServer, pictures
from tests.ui.asking import ask, value
from tests.ui.browser import Browser
from tests.ui.conftest import serving
from tests.ui.test_pictures import picture, read_png


def with_objects() -> icefloe.Repository:
    """A repository in which chunks that are written again are other chunks."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    return icefloe.Repository.create(icefloe.in_memory_storage(), config)


def make_series() -> tuple[icefloe.Repository, list[str]]:
    """A packed series: corrected at two steps, written again, moved, appended to."""
    repo = with_objects()
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    t2m = root.create_array(
        "t2m",
        shape=(10, 3, 4),
        chunks=(5, 3, 2),
        dtype="i2",
        dimension_names=["time", "lat", "lon"],
    )
    t2m.attrs.update(scale_factor=0.1, add_offset=270.0, units="K", _FillValue=-1)
    t2m[...] = np.arange(120).reshape(10, 3, 4)
    time = root.create_array("time", data=np.arange(10), chunks=(20,), dimension_names=["time"])
    time.attrs["units"] = "hours since 2020-01-01"
    root.create_array("name", data=np.array(["a", "b"], "U4"), dimension_names=["station"])
    root.create_array("run", shape=(), dtype="i4")[...] = 1
    commits = [session.commit("ten hours")]

    def change(message: str, **arrays: Any) -> None:
        with repo.transaction("main", message=message) as store:
            for name, edit in arrays.items():
                edit(zarr.open_array(store, path=name))
        commits.append(repo.lookup_branch("main"))

    def correct(array: zarr.Array[Any]) -> None:
        array[3, 1, 2] = 500
        array[7, 0, :2] = [-1, 501]

    def rewrite(array: zarr.Array[Any]) -> None:
        array[:5] = array[:5]

    def append(array: zarr.Array[Any]) -> None:
        array.append(array[:2])

    change("two corrections", t2m=correct)
    change("the same again", t2m=rewrite)
    change("another offset", t2m=lambda array: array.attrs.update(add_offset=271.0))
    change("two more hours", t2m=append, time=lambda array: array.append(np.array([10, 11])))
    change(
        "small ones",
        run=lambda array: array.__setitem__(..., 2),
        name=lambda array: array.__setitem__(1, "c"),
    )
    return repo, commits


@pytest.fixture(scope="module")
def series() -> Any:
    repo, commits = make_series()
    with serving(repo) as server:
        yield server, commits


def steps(server: PageServer, first: str, second: str, path: str, axes: str) -> Any:
    both = {"from": first, "snapshot": second}
    return value(server, "changed-steps", **both, path=path, axes=axes)


def test_steps_that_differ_are_listed_with_the_first_place_of_each(series: Any) -> None:
    server, commits = series
    found = steps(server, commits[0], commits[1], "/t2m", "1,2")
    assert [(step["at"], step["changed"]) for step in found["steps"]] == [
        ([3, 1, 2], 1),
        ([7, 0, 0], 2),
    ]
    first, second = found["steps"]
    assert (first["before"], first["after"]) == pytest.approx((274.2, 320.0))
    assert (second["before"], second["after"]) == (pytest.approx(278.4), None)
    assert (found["units"], found["next"], found["total"]) == ("K", None, 2)
    along_lat = steps(server, commits[0], commits[1], "/t2m", "0,2")
    assert [step["at"] for step in along_lat["steps"]] == [[7, 0, 0], [3, 1, 2]]
    everywhere = steps(server, commits[0], commits[1], "/t2m", "")
    assert [step["at"] for step in everywhere["steps"]] == [[3, 1, 2], [7, 0, 0], [7, 0, 1]]


def test_chunks_with_the_same_values_are_no_step(series: Any) -> None:
    server, commits = series
    changes = value(server, "changes", **{"from": commits[1], "snapshot": commits[2]})
    assert [(row["path"], row["chunks"]) for row in changes["rows"]] == [("/t2m", 2)]
    found = steps(server, commits[1], commits[2], "/t2m", "1,2")
    assert (found["steps"], found["compared"], found["next"]) == ([], 2, None)


def test_attributes_alone_change_values(series: Any) -> None:
    server, commits = series
    found = steps(server, commits[2], commits[3], "/t2m", "1,2")
    assert [step["at"][0] for step in found["steps"]] == list(range(10))
    assert [step["changed"] for step in found["steps"]] == [12] * 7 + [11] + [12] * 2
    where = {
        "from": commits[2],
        "snapshot": commits[3],
        "path": "/t2m",
        "axes": "1,2",
        "at": "0,0,0",
    }
    assert picture(server, "difference", **where)[0]["largest"] == pytest.approx(1)


def test_what_was_appended_differs_from_nothing(series: Any) -> None:
    server, commits = series
    found = steps(server, commits[3], commits[4], "/t2m", "1,2")
    assert [(step["at"], step["changed"]) for step in found["steps"]] == [
        ([10, 0, 0], 12),
        ([11, 0, 0], 12),
    ]
    assert found["steps"][0]["before"] is None
    where = {"path": "/t2m", "axes": "1,2", "at": "10,0,0", "shape": "12,3,4"}
    about, pixels = picture(
        server, "difference", **{"from": commits[3]}, snapshot=commits[4], **where
    )
    assert (about["appeared"], about["changed"]) == (12, 0)
    assert (pixels == pictures.APPEARED).all()
    about, pixels = picture(server, snapshot=commits[3], **where)
    assert (about["values"], pixels.shape) == (0, (3, 4))
    told = value(server, "values", snapshot=commits[3], path="/t2m", at="10,0,0", shape="12,3,4")
    assert told["value"] is None
    times = steps(server, commits[3], commits[4], "/time", "")
    ten = np.datetime64("2020-01-01T10", "us").astype(int)
    assert (times["steps"][0]["before"], times["steps"][0]["after"]) == (None, ten)
    # The other way round, what was cut off vanished.
    back = steps(server, commits[4], commits[3], "/t2m", "1,2")
    assert back["steps"][0]["after"] is None


def test_texts_and_single_values_are_compared(series: Any) -> None:
    server, commits = series
    run = steps(server, commits[4], commits[5], "/run", "")
    assert run["steps"] == [{"at": [], "changed": 1, "before": 1, "after": 2}]
    name = steps(server, commits[4], commits[5], "/name", "")
    assert name["steps"] == [{"at": [1], "changed": 1, "before": "b", "after": "c"}]


def test_many_chunks_are_compared_part_by_part() -> None:
    repo = with_objects()
    with repo.transaction("main", message="zeros") as store:
        array = zarr.create_array(store, name="a", shape=(600, 2, 2), chunks=(1, 2, 2), dtype="i4")
        array[...] = 1
    first = repo.lookup_branch("main")
    with repo.transaction("main", message="ones") as store:
        zarr.open_array(store, path="a")[...] = np.where(np.arange(600) < 590, 1, 2)[:, None, None]
    given = {"from": first, "snapshot": repo.lookup_branch("main"), "path": "/a", "axes": "1,2"}
    with serving(repo) as server:
        seen: list[int] = []
        offset: int | None = 0
        rounds = 0
        while offset is not None:
            found = value(server, "changed-steps", **given, offset=offset)
            seen += [step["at"][0] for step in found["steps"]]
            offset, rounds = found["next"], rounds + 1
    assert (seen, rounds) == (list(range(590, 600)), 3)


def test_no_difference_is_neutral_in_colour(series: Any) -> None:
    server, commits = series
    where: dict[str, Any] = {"path": "/t2m", "axes": "1,2"}
    for at, first, second in (("0,0,0", 1, 2), ("3,0,0", 0, 1), ("7,0,0", 0, 1)):
        given: dict[str, Any] = {"from": commits[first], "snapshot": commits[second], "at": at}
        reply = ask(server, "/api/difference", **where, **given)
        pixels, palette = read_png(reply.body)
        about = json.loads(reply.headers["X-Icefloe-About"])
        assert about["low"] == -about["high"]
        red, green, blue, opacity = palette[pixels[2, 3]].tolist()  # a place that is the same
        assert (red, opacity) == (green, 255)
        assert green == blue


# --- icefloe's own tables


def make_ingested() -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    for number in (1, 2):
        with repo.transaction("main", message=f"ingest {number}") as store:
            root = zarr.open_group(store, mode="a")
            table = root.require_array("era5/.icefloe/sources/url", shape=(9, 9, 9), dtype="i4")
            table[0] = number
            root.require_array("era5/t2m", shape=(4, 4), dtype="i4")[0] = number
    return repo


def test_own_tables_are_hidden_unless_all_is_given() -> None:
    repo = make_ingested()
    tip, first = (info.id for info in list(repo.ancestry(branch="main"))[:2])
    own = "/era5/.icefloe/sources/url"
    with serving(repo) as server:

        def seen(**options: Any) -> Any:
            about = value(server, "snapshot", snapshot=tip, **options)
            children = value(server, "children", snapshot=tip, path="/era5", **options)
            search = value(server, "search", snapshot=tip, q="ICEFLOE", **options)
            changes = value(server, "changes", **{"from": first}, snapshot=tip, **options)
            sizes = value(server, "sizes", snapshot=tip, **options)
            return (
                (about["groups"], about["arrays"], about["first_array"], about["internal"]),
                [row["name"] for row in children["rows"]],
                search["total"],
                ([row["path"] for row in changes["rows"]], changes["total"], changes["internal"]),
                [row["path"] for row in sizes["rows"]],
            )

        assert seen() == ((2, 1, "/era5/t2m", 3), ["t2m"], 0, (["/era5/t2m"], 1, 1), ["/era5/t2m"])
        assert seen(all=1) == (
            (4, 2, own, 3),
            [".icefloe", "t2m"],
            3,
            ([own, "/era5/t2m"], 2, 1),
            [own, "/era5/t2m"],
        )
        # A table that is named is shown.
        assert value(server, "node", snapshot=tip, path=own)["type"] == "array"


def test_the_switch_for_own_tables(browser: Browser) -> None:
    with serving(make_ingested()) as server:
        page = browser.open(f"{server.url}#/data")
        page.see(".node .path", "/era5/t2m")
        assert not [text for text in page.texts(".entry") if "icefloe" in text]
        page.click(".all input")
        page.see(".entry", ".icefloe")
        page.wait("location.hash.includes('all=1')")
        page.press("3")
        page.see(".change", "/era5/.icefloe/sources/url")
        page.press("4")
        page.see(".size-row", "/era5/.icefloe/sources/url")
        page.click(".all input")
        page.wait("document.querySelectorAll('.size-row').length === 1")
        page.see(".card", "without icefloe's own tables")
        page.press("3")
        page.see(".bar", "1 change")
        assert page.problems() == []
        page.close()


# --- in a browser


def test_compare_opens_at_the_first_place_that_differs(browser: Browser, series: Any) -> None:
    server, commits = series
    page = browser.open(f"{server.url}#/compare?from={commits[0]}&snapshot={commits[1]}")
    page.see(".steps", "2 steps differ".upper())
    page.see(".steps", "First: 274.2 K → 320 K at time 2020-01-01 03:00, lat 1, lon 2 [3, 1, 2]")
    page.see(".slider-value", "2020-01-01 03:00 4 of 10")
    page.see(".compare-body > .plane-facts", "1 of 12 values differ here, by up to 45.8 K")
    assert page.texts(".step[aria-pressed=true]") == ["time 2020-01-01 03:00 1"]
    page.click(".step", "07:00")
    page.see(
        ".compare-body > .plane-facts",
        "1 of 12 values differ here, by up to 41.6 K; 1 of 12 values vanished",
    )
    page.see(".slider-value", "2020-01-01 07:00 8 of 10")
    page.see(".colourbar", "vanished")
    # What was appended is the first place, although the earlier snapshot lacks it.
    page.evaluate(f"location.hash = '#/compare?from={commits[3]}&snapshot={commits[4]}&path=/t2m'")
    page.see(".compare-body > .plane-facts", "12 of 12 values appeared here")
    page.see(".slider-value", "2020-01-01 10:00 11 of 12")
    page.wait("document.querySelectorAll('.plane[data-drawn]').length === 3")
    x, y = page.place(".plane .frame")
    page.mouse("mouseMoved", x + 1, y + 1)
    page.see(".pointed", "missing → ")
    page.click(".change", "/time")
    page.see(".steps td", "2020-01-01 10:00")
    page.evaluate(f"location.hash = '#/compare?from={commits[1]}&snapshot={commits[2]}'")
    page.see(".node", "2 chunks were written again, with the same values.")
    assert page.problems() == []
    page.close()


def test_compare_shows_the_chunk_that_differs_of_a_large_plane(browser: Browser) -> None:
    repo = with_objects()
    with repo.transaction("main", message="zeros") as store:
        zarr.create_array(store, name="a", shape=(3, 1600, 1600), chunks=(1, 400, 400), dtype="i1")
    first = repo.lookup_branch("main")
    with repo.transaction("main", message="two") as store:
        array = zarr.open_array(store, path="a")
        array[1, 901, 1001] = 5
        array[2, 1, 1] = 6
    with serving(repo) as server:
        tip = repo.lookup_branch("main")
        page = browser.open(f"{server.url}#/compare?from={first}&snapshot={tip}")
        page.see(".compare-body > .plane-facts", "1 of 160,000 values differ here, by up to 5")
        assert page.texts(".ruler.across .ends")[0].split() == ["800", "999", "1,199"]
        page.click(".step", "dimension 0 2")
        page.see(".compare-body > .plane-facts", "1 of 160,000 values differ here, by up to 6")
        page.click(".toolbar button", "Whole plane")
        page.see(".plane-facts", "every 3 × 3th value")
        assert page.problems() == []
        page.close()


def test_the_read_out_is_decoded_and_has_its_unit(browser: Browser, series: Any) -> None:
    server, commits = series
    page = browser.open(f"{server.url}#/data?snapshot={commits[1]}&path=/t2m")
    page.wait("Number(document.querySelector('.plane')?.dataset.drawn ?? 0) >= 1")
    page.see(".plane-facts", "min 270 · mean 270.55 · max 271.1")
    x, y = page.place(".frame")
    page.mouse("mouseMoved", x + 2, y + 2)
    page.see(".pointed", "270.6 K at lat 1, lon 2 [0, 1, 2]")
    page.click(".frame")
    page.see(".profile .plane-facts", "max 320 · K")
    page.close()


@pytest.mark.parametrize("view", ["history", "data", "compare", "sizes", "operations"])
def test_every_view_works_at_390_pixels(browser: Browser, series: Any, view: str) -> None:
    server, commits = series
    page = browser.open(f"{server.url}#/{view}?snapshot={commits[1]}", width=390, height=844)
    ready = {"data": ".plane[data-drawn]", "compare": ".step", "sizes": ".view[data-done]"}
    page.wait(f"!!document.querySelector('{ready.get(view, '.row')}')")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    cut = page.evaluate(
        "[...document.querySelectorAll('#tabs a, header button, .toolbar > *, .slider-value, "
        ".step, .plane, .bar')]"
        ".filter((e) => e.getBoundingClientRect().right > 390).map((e) => e.className)"
    )
    assert cut == []
    page.click("#tabs a", "Operations")
    page.see(".operation", "Commit")
    assert page.problems() == []
    page.close()
