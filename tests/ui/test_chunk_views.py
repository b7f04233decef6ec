"""Chunk maps, differences of snapshots and sizes: through the API and through the server."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.api.chunk_map import ChunkMap, LegendEntry
from icefloe.ui import PageServer
from tests.ui.asking import ask, value
from tests.ui.conftest import serving

T2M = "/surface/t2m"


@pytest.fixture(scope="module")
def tip(weather: icefloe.Repository) -> str:
    return weather.lookup_branch("main")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    """One array of five chunks: native, inline, virtual, and two that are missing."""
    place: Path = tmp_path_factory.mktemp("files")
    (place / "data.bin").write_bytes(bytes(100))
    prefix = f"file://{place}/"
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=5)
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(place)))
    )
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(50,), chunks=(10,), dtype="u1", compressors=None
    )
    array[:10] = 1
    session.store.set_virtual_ref("a/c/2", f"{prefix}data.bin", offset=7, length=10)
    session.commit("native and virtual")
    session = icefloe.Repository.open(
        repo.storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=512)
    ).writable_session("main")
    zarr.open_array(session.store, path="a")[10:20] = 2
    session.commit("inline")
    return repo


def test_a_map_tells_kinds_of_chunks_apart(mixed: icefloe.Repository) -> None:
    found = mixed.readonly_session("main").chunk_map("/a")
    assert found.counts == {"native": 1, "inline": 1, "virtual": 1, "missing": 2}
    assert found.cells.tolist() == [[1, 2, 3, 0, 0]]
    assert [entry.label for entry in found.legend] == ["native", "inline", "virtual"]


def test_a_map_tells_who_wrote_a_chunk(mixed: icefloe.Repository) -> None:
    found = mixed.readonly_session("main").chunk_map("/a", by="commit")
    newest, older, _ = mixed.ancestry(branch="main")
    assert [entry.snapshot_id for entry in found.legend] == [newest.id, older.id]
    assert found.cells.tolist() == [[2, 1, 2, 0, 0]]
    limited = mixed.readonly_session("main").chunk_map("/a", by="commit", max_commits=1)
    assert [entry.label for entry in limited.legend][-1] == "an older commit"
    assert limited.cells.tolist() == [[2, 1, 2, 0, 0]]


def test_commits_of_chunks_survive_expiration_and_overwriting() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="make") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    for at in (1, 2, 1):
        with repo.transaction("main", message=f"write {at}") as store:
            zarr.open_array(store, path="a")[at] = at + 10
    session = repo.readonly_session("main")
    by = session.chunk_map("/a", by="commit")
    titles = [entry.label.split(" ", 3)[-1] for entry in by.legend]
    assert titles == ["write 1", "write 2", "make"]
    assert by.cells.tolist() == [[3, 1, 2, 3]]
    ids = [info.id for info in repo.ancestry(branch="main")]
    repo.expire_snapshots(snapshot_ids=[ids[1]])
    again = repo.readonly_session("main").chunk_map("/a", by="commit")
    # What the expired commit wrote counts for the one that followed it.
    assert again.cells.tolist() == [[2, 1, 1, 2]]


def test_svg_is_well_formed_and_escapes_names() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    name = "<script>alert('1')</script>&"
    with repo.transaction("main", message="<b>bold</b>") as store:
        zarr.create_array(
            store, name=name.replace("/", "_"), shape=(400, 400), chunks=(1, 1), dtype="i1"
        )[:2] = 1
    session = repo.readonly_session("main")
    path = "/" + name.replace("/", "_")
    for by in ("kind", "commit"):
        drawn = session.chunk_map(path, by=by).to_svg()
        root = ElementTree.fromstring(drawn)
        assert {child.tag.rpartition("}")[2] for child in root.iter()} <= {
            "svg",
            "text",
            "g",
            "rect",
        }
        assert path in "".join(root.itertext())
        assert len(drawn) < 200_000
    assert "<b>bold</b>" in "".join(root.itertext())
    for graph in (repo.ancestry_graph().to_svg(), repo.ancestry_graph().to_html()):
        assert "<b>bold" not in graph
        assert "&lt;b&gt;bold&lt;/b&gt;" in graph
    ElementTree.fromstring(repo.ancestry_graph().to_svg())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"axes": ("time",)}, "expected 2 different dimensions"),
        ({"axes": ("time", "time")}, "expected 2 different"),
        ({"axes": ("time", "depth")}, "it has time, lat, lon"),
        ({"axes": (0, 3)}, "expected 0 to 2"),
        ({"at": {"time": 4}}, "has 4"),
        ({"at": {"lat": 0}}, "does not show"),
        ({"by": "size"}, "expected 'kind' or 'commit'"),
    ],
)
def test_a_map_that_cannot_be_made_is_refused(
    weather: icefloe.Repository, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(icefloe.InvalidInputError, match=message):
        weather.readonly_session("main").chunk_map(T2M, **given)


def test_coarser_cells_keep_what_is_most_frequent() -> None:
    cells = np.array([[1, 1, 0, 0, 2], [1, 2, 0, 0, 0], [0, 0, 3, 2, 2]], np.int64)
    index = np.argwhere(cells)
    legend = tuple(LegendEntry(number, "", "", 0) for number in (1, 2, 3))
    chunk_map = ChunkMap("/a", (), (3, 5), index, cells[cells != 0], legend, "")
    found, factors = chunk_map.coarser(2)
    assert factors == (2, 3)
    assert found.tolist() == [[1, 2], [3, 2]]
    assert chunk_map.coarser(5)[0].tolist() == chunk_map.cells.tolist() == cells.tolist()


SPARSE = """
import resource, sys
import icefloe
from icefloe.ui.pages import chunk_map_page
from icefloe.ui.opened import OpenedRepository
from icefloe.ui.query import Query

repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
session = repo.readonly_session("main")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for by in ("kind", "commit"):
    found = session.chunk_map("/a", by=by)
    assert found.grid == (10**6, 10**6), found.grid
    assert found.counts["missing"] == 10**12 - 2, found.counts
    assert "1" in found.to_svg()
    query = Query({"snapshot": [session.snapshot_id], "path": ["/a"], "by": [by]})
    page = chunk_map_page(OpenedRepository(repo, "sparse"), query)
    assert sum(cell != 0 for row in page["cells"] for cell in row) == 2
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_of_a_chunk_map_is_by_chunks_not_by_grid(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path))
    with repo.transaction("main", message="two chunks") as store:
        array = zarr.create_array(
            store, name="a", shape=(10**6, 10**6), chunks=(1, 1), dtype="i1", fill_value=0
        )
        array[0, 0] = 1
        array[999_999, 999_999] = 1
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60_000, f"{done.stdout} kB more"


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((1, 4, 4), ("t", "x")),
        ((1, 2, 4), ("t", "y")),
        ((4, 2, 4), ("y", "x")),
        ((1, 1, 1), ("y", "x")),
        ((4, 4, 2), ("y", "x")),
        ((4, 2, 2), ("y", "x")),
    ],
)
def test_a_map_shows_the_dimensions_with_several_chunks(
    chunks: tuple[int, ...], expected: tuple[str, str]
) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="a") as store:
        zarr.create_array(
            store, name="a", shape=(4, 4, 4), chunks=chunks, dtype="i1", dimension_names="tyx"
        )[:] = 1
    found = repo.readonly_session("main").chunk_map("/a")
    assert found.dimensions == expected
    with serving(repo) as server:
        told = value(server, "chunk-map", snapshot=repo.lookup_branch("main"), path="/a")
    assert told["dimensions"] == list(expected)


# --- the server


def test_the_map_of_the_page(server: PageServer, tip: str) -> None:
    told = value(server, "chunk-map", snapshot=tip, path=T2M, axes="0,2", at="0,1,0")
    assert told["cells"] == [[2, 2], [2, 2], [2, 2], [0, 0]]
    assert (told["grid"], told["missing"], told["dimensions"]) == ([4, 2], 2, ["time", "lon"])
    told = value(server, "chunk-map", snapshot=tip, path=T2M, axes="0,2", by="commit")
    assert told["cells"] == [[3, 3], [2, 2], [1, 1], [0, 0]]
    assert value(server, "chunk-map", snapshot=tip, path="/depth")["cells"] == [[2]]
    drawn = ask(server, "/api/chunk-map.svg", snapshot=tip, path=T2M)
    assert drawn.headers["Content-Type"] == "image/svg+xml"
    ElementTree.fromstring(drawn.body)


def test_one_chunk(mixed: icefloe.Repository) -> None:
    with serving(mixed) as server:
        where: dict[str, Any] = {"snapshot": mixed.lookup_branch("main"), "path": "/a"}
        native = value(server, "chunk", **where, index="0")
        assert (native["kind"], native["length"], native["offset"]) == ("native", 10, 0)
        assert native["object"].startswith("chunks/")
        assert value(server, "chunk", **where, index="1") == {"kind": "inline", "length": 10}
        virtual = value(server, "chunk", **where, index="2")
        assert (virtual["kind"], virtual["offset"]) == ("virtual", 7)
        assert virtual["object"].endswith("/data.bin")
        assert value(server, "chunk", **where, index="4") == {"kind": "missing"}
        # Nobody authorised this server to read virtual chunks, so it says so and reads none.
        reply = ask(server, "/api/values", **where, axes="0", at="0")
        assert reply.status in (400, 502)
        assert "authori" in reply.value["error"]


def test_changes_between_any_two_snapshots(
    server: PageServer, weather: icefloe.Repository, tip: str
) -> None:
    first, dev = weather.lookup_tag("v1"), weather.lookup_branch("dev")
    told = value(server, "changes", **{"from": first}, snapshot=tip)
    assert [(row["path"], row["changes"], row["chunks"]) for row in told["rows"]] == [
        (T2M, ["chunks"], 8)
    ]
    # Neither is an ancestor of the other.
    told = value(server, "changes", **{"from": tip}, snapshot=dev)
    assert [(row["path"], row["changes"], row["chunks"]) for row in told["rows"]] == [
        ("/extra", ["added"], 0),
        (T2M, ["chunks"], 9),
    ]
    assert value(server, "changes", **{"from": tip}, snapshot=tip)["rows"] == []
    cells = value(server, "changed-chunks", **{"from": first}, snapshot=tip, path=T2M, axes="0,2")
    assert cells == {"total": 8, "cells": [[1, 0], [1, 1], [2, 0], [2, 1]]}
    assert value(server, "changed-chunks", **{"from": tip}, snapshot=tip, path=T2M)["total"] == 0


def test_moved_nodes_are_told_as_moved() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="make") as store:
        zarr.create_array(store, name="old", shape=(4,), dtype="i4")[:] = 1
    before = repo.lookup_branch("main")
    session = repo.rearrange_session("main")
    session.move("/old", "/new")
    session.commit("rename")
    with serving(repo) as server:
        found = {"from": before, "snapshot": repo.lookup_branch("main")}
        [row] = value(server, "changes", **found)["rows"]
        assert (row["path"], row["changes"], row["moved_from"]) == ("/new", ["moved"], "/old")


def test_sizes_and_totals(server: PageServer, tip: str) -> None:
    told = value(server, "sizes", snapshot=tip)
    assert told["total"] == 4
    rows = {row["path"]: row for row in told["rows"]}
    t2m = rows[T2M]
    assert (t2m["chunks"], t2m["grid"], t2m["inline"], t2m["native"]) == (12, 16, 12 * 48, 0)
    page = value(server, "sizes", snapshot=tip, offset=2, limit=1)
    assert page["rows"] == told["rows"][2:3]
    totals = value(server, "totals")
    assert totals["inline"] > t2m["inline"]
    # The newest commit rewrote the manifest, whose inline chunks no other snapshot uses. Arrays
    # that shared the old one moved along.
    moved = sum(row["inline"] for row in told["rows"] if row["path"] != T2M)
    assert value(server, "exclusive", snapshot=tip) == {"bytes": 12 * 48 + moved}


@pytest.mark.parametrize(
    ("address", "given", "status"),
    [
        ("chunk-map", {"path": "/surface"}, 400),
        ("chunk-map", {"path": "/no"}, 404),
        ("chunk-map", {"path": T2M, "axes": "0,9"}, 400),
        ("chunk-map", {"path": T2M, "at": "0"}, 400),
        ("chunk-map", {"path": T2M, "at": "0,9,0", "axes": "0,2"}, 400),
        ("chunk-map", {"path": T2M, "by": "size"}, 400),
        ("chunk-map.svg", {"path": "/no"}, 404),
        ("chunk", {"path": T2M}, 400),
        ("chunk", {"path": T2M, "index": "0,0"}, 400),
        ("chunk", {"path": T2M, "index": "99999999999,0,0"}, 400),
        ("changes", {}, 400),
        ("changes", {"from": "x"}, 400),
        ("changed-chunks", {"from": "0" * 20, "path": T2M}, 404),
        ("sizes", {"offset": "x"}, 400),
    ],
)
def test_bad_input_says_what_is_wrong(
    server: PageServer, tip: str, address: str, given: dict[str, Any], status: int
) -> None:
    reply = ask(server, f"/api/{address}", **{"snapshot": tip, **given})
    assert reply.status == status, reply.body
    assert reply.value["error"]
