"""The answers of the server, by address: what they hold, and what bad input gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.ui import PageServer
from tests.ui.asking import ask, value
from tests.ui.conftest import make_weather, serving


@pytest.fixture(scope="module")
def tip(weather: icefloe.Repository) -> str:
    return weather.lookup_branch("main")


def test_repository(server: PageServer, tip: str) -> None:
    told = value(server, "repository")
    assert told["name"] == "weather"
    assert (told["snapshots"], told["branches"], told["tags"]) == (5, 2, 1)
    assert (told["spec_version"], told["status"], told["main"]) == (2, "online", tip)


def test_history_is_a_graph_with_refs(server: PageServer, weather: icefloe.Repository) -> None:
    told = value(server, "history")
    rows = told["rows"]
    messages = [row["message"].split("\n")[0] for row in rows]
    assert messages == ["an experiment", "hour 2", "hour 1", "first", "Repository initialized"]
    assert [(row["branches"], row["tags"]) for row in rows] == [
        (["dev"], []),
        (["main"], []),
        ([], []),
        ([], ["v1"]),
        ([], []),
    ]
    # `dev` starts a lane, `main` another; both meet in the row of "first".
    assert [row["lane"] for row in rows] == [0, 1, 1, 0, 0]
    assert [row["passing"] for row in rows] == [[], [0], [0], [], []]
    assert [row["joining"] for row in rows] == [[], [], [], [1], []]
    assert [row["child"] for row in rows] == [False, False, True, True, True]
    assert [row["parent"] for row in rows] == [True, True, True, True, False]
    page = value(server, "history", offset=1, limit=2)
    assert (page["total"], page["rows"]) == (5, rows[1:3])
    assert value(server, "history", offset=99)["rows"] == []


def test_a_line_is_what_the_slider_goes_through(server: PageServer, tip: str) -> None:
    told = value(server, "line", snapshot=tip, offset=1, limit=2)
    assert told["total"] == 4
    assert [row["message"].split("\n")[0] for row in told["rows"]] == ["hour 1", "first"]


def test_snapshot(server: PageServer, weather: icefloe.Repository) -> None:
    told = value(server, "snapshot", snapshot=weather.lookup_tag("v1"))
    assert told["message"] == "first\n\nwith a second line"
    assert told["metadata"] == {"author": "ana"}
    assert (told["groups"], told["arrays"], told["first_array"]) == (2, 4, "/surface/t2m")
    assert (told["tags"], told["branches"], told["row"]) == (["v1"], [], 3)


def test_refs_are_found_by_a_part_of_their_name(server: PageServer) -> None:
    names = [(row["kind"], row["name"]) for row in value(server, "refs")["rows"]]
    assert names == [("branch", "main"), ("branch", "dev"), ("tag", "v1")]
    assert value(server, "refs", q="V", limit=1)["total"] == 2
    assert [row["name"] for row in value(server, "refs", q="V", limit=1)["rows"]] == ["dev"]


def test_children_come_in_pages_groups_first(server: PageServer, tip: str) -> None:
    told = value(server, "children", snapshot=tip, path="/")
    assert [(row["path"], row["children"]) for row in told["rows"]] == [
        ("/surface", 3),
        ("/depth", 0),
    ]
    page = value(server, "children", snapshot=tip, path="/surface", offset=1, limit=1)
    assert (page["total"], [row["name"] for row in page["rows"]]) == (3, ["station"])
    assert value(server, "children", snapshot=tip, path="/depth")["rows"] == []


def test_search_looks_for_a_part_of_the_path(server: PageServer, tip: str) -> None:
    told = value(server, "search", snapshot=tip, q="T2M")
    assert [(row["path"], row["shape"]) for row in told["rows"]] == [("/surface/t2m", [4, 6, 8])]
    assert value(server, "search", snapshot=tip, q="zzz") == {"total": 0, "rows": []}


def test_node(server: PageServer, tip: str) -> None:
    array = value(server, "node", snapshot=tip, path="/surface/t2m")
    assert (array["type"], array["data_type"], array["shape"]) == ("array", "float32", [4, 6, 8])
    assert (array["chunk_shape"], array["num_chunks"]) == ([1, 3, 4], [4, 2, 2])
    assert array["dimension_names"] == ["time", "lat", "lon"]
    assert array["attributes"]["units"] == "K"
    group = value(server, "node", snapshot=tip, path="/")
    assert (group["type"], group["attributes"]) == ("group", {"title": "made up"})


def test_operations(server: PageServer) -> None:
    told = value(server, "operations")
    kinds = [row["operation"] for row in told["rows"]]
    assert kinds[:2] == ["NewCommit", "NewCommit"]
    assert kinds[-1] == "RepoInitialized"
    assert (told["supported"], told["total"]) == (True, len(kinds))
    assert value(server, "operations", offset=1, limit=1)["rows"] == told["rows"][1:2]


@pytest.mark.parametrize(
    ("address", "given", "status"),
    [
        ("history", {"offset": "-1"}, 400),
        ("history", {"offset": "x"}, 400),
        ("history", {"limit": "0"}, 400),
        ("history", {"limit": "100000"}, 400),
        ("line", {}, 400),
        ("line", {"snapshot": "nonsense"}, 400),
        ("line", {"snapshot": "0" * 20}, 404),
        ("snapshot", {}, 400),
        ("snapshot", {"snapshot": "0" * 20}, 404),
        ("snapshot", {"snapshot": "../../x"}, 400),
        ("children", {"snapshot": "0" * 20}, 404),
        ("node", {"path": "/"}, 400),
        ("search", {}, 400),
    ],
)
def test_bad_input_says_what_is_wrong(
    server: PageServer, address: str, given: dict[str, Any], status: int
) -> None:
    reply = ask(server, f"/api/{address}", **given)
    assert reply.status == status
    assert reply.value["error"]


@pytest.fixture
def own() -> Iterator[tuple[icefloe.Repository, PageServer]]:
    """A repository that a test may change."""
    repo = make_weather()
    with serving(repo) as running:
        yield repo, running


def test_a_new_commit_is_seen(
    own: tuple[icefloe.Repository, PageServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, server = own
    before = value(server, "history")
    with repo.transaction("main", message="a later one") as store:
        zarr.open_group(store).create_group("later")
    monkeypatch.setattr("icefloe.ui.opened._FRESH_SECONDS", -1)
    after = value(server, "history")
    assert after["total"] == before["total"] + 1
    assert after["version"] != before["version"]
    assert after["rows"][0]["message"] == "a later one"


@pytest.mark.parametrize("spec_version", [1, 2])
def test_an_empty_repository(spec_version: int) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    with serving(repo) as server:
        told = value(server, "repository")
        assert (told["snapshots"], told["spec_version"]) == (1, spec_version)
        assert value(server, "snapshot", snapshot=told["main"])["first_array"] is None
        assert value(server, "children", snapshot=told["main"])["rows"] == []
        assert value(server, "operations")["supported"] is (spec_version == 2)
