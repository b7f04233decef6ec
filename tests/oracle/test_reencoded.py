"""Official code finds a repository unchanged after icefloe wrote all of its metadata anew.

It opens the copy, gives the same answers to every question, and commits on top of it.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from icefloe.format.envelope import WRITER_NAME
from tests.golden import names, repository_path
from tests.oracle.reencode import reencode_repository

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

# These import the official library, so they have to wait for the line above.
from tests.golden.dump import VIRTUAL, dump_repository  # noqa: E402
from tests.golden.official import get, open_repository, put, zarr  # noqa: E402
from tests.oracle.fresh import open_with_files, write_repository  # noqa: E402

Json = dict[str, Any]

LONG_AGO = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)

every_golden_repository = pytest.mark.parametrize("name", names())
both_versions = pytest.mark.parametrize("spec", [1, 2])


# --- the same answers ------------------------------------------------------------------------


def pop_headers(value: Any, found: list[Json]) -> None:
    """Take the headers out of a dump, wherever they are."""
    if isinstance(value, dict):
        if "file_type" in value.get("header", {}):
            found.append(value.pop("header"))
        for item in value.values():
            pop_headers(item, found)
    elif isinstance(value, list):
        for item in value:
            pop_headers(item, found)


def comparable(root: Path) -> tuple[Json, list[Json]]:
    """What official code says, apart from what writing anew is allowed to change; headers.

    Allowed are: sizes of manifests, whether locations are compressed, and the order of nodes
    and coordinates in files of old releases, which did not follow the format's.
    """
    dump = json.loads(json.dumps(dump_repository(root)))
    headers: list[Json] = []
    pop_headers(dump, headers)
    for manifest in dump["manifests"].values():
        del manifest["size_bytes"], manifest["compression"]
    for snapshot in dump["snapshots"].values():
        for info in snapshot["inspect"]["manifests"]:
            del info["size_bytes"]
        snapshot["inspect"]["nodes"].sort(key=lambda node: node["path"])
    for log in dump["transaction_logs"].values():
        for array in log.get("updated_chunks", ()):
            array["chunks"].sort()
    return dump, headers


def drop_lost_nodes(original: Json, copy: Json) -> None:
    """Leave out nodes that official code finds only in the copy, where they are in order."""
    for key, snapshot in original["snapshots"].items():
        for path, node in list(snapshot["nodes"].items()):
            if "zarr_json" in node and node["zarr_json"] is None:
                assert copy["snapshots"][key]["nodes"][path]["zarr_json"] is not None
                del snapshot["nodes"][path], copy["snapshots"][key]["nodes"][path]


def check_same_answers(original: Path, copy: Path) -> None:
    expected, headers = comparable(original)
    found, our_headers = comparable(copy)
    drop_lost_nodes(expected, found)
    for key in expected:
        assert found[key] == expected[key], key
    assert len(our_headers) == len(headers) > 0
    for ours, theirs in zip(our_headers, headers, strict=True):
        assert ours["written_by"] == WRITER_NAME
        for key in ("spec_version", "file_type", "compression"):
            assert ours[key] == theirs[key]


@every_golden_repository
def test_official_gives_the_same_answers_about_a_reencoded_golden_repository(
    name: str, tmp_path: Path
) -> None:
    reencode_repository(repository_path(name), tmp_path / "copy")
    check_same_answers(repository_path(name), tmp_path / "copy")


@both_versions
def test_official_gives_the_same_answers_about_a_reencoded_fresh_repository(
    spec: int, tmp_path: Path
) -> None:
    write_repository(tmp_path / "original", tmp_path / "files", spec)
    reencode_repository(tmp_path / "original", tmp_path / "copy")
    check_same_answers(tmp_path / "original", tmp_path / "copy")


@both_versions
def test_official_reads_virtual_chunks_through_reencoded_references(
    spec: int, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    expected = write_repository(tmp_path / "original", files, spec)
    reported = dump_repository(tmp_path / "original")["manifests"].values()
    compressed = sum(manifest["compression"]["num_compressed_refs"] for manifest in reported)
    assert (compressed > 0) == (spec == 2)
    reencode_repository(tmp_path / "original", tmp_path / "copy")
    store = open_with_files(tmp_path / "copy", files).readonly_session("main").store
    keys = [key for key in expected if key.startswith("virtual/")] + list(expected)[-30:]
    assert {key: get(store, key) for key in keys} == {key: expected[key] for key in keys}


@both_versions
def test_official_still_checks_reencoded_checksums(spec: int, tmp_path: Path) -> None:
    """A time of last modification is carried along: a file newer than it is refused."""
    files = tmp_path / "files"
    write_repository(tmp_path / "original", files, spec)
    repo = open_with_files(tmp_path / "original", files)
    session = repo.writable_session("main")
    stale = icechunk.VirtualChunkSpec(
        [0, 0, 0], f"{files.as_uri()}/größe 0/0.bin", 0, 2, last_updated_at_checksum=LONG_AGO
    )
    session.store.set_virtual_refs("/virtual", [stale], validate_containers=True)
    session.commit("a checksum that fails")
    reencode_repository(tmp_path / "original", tmp_path / "copy")
    store = open_with_files(tmp_path / "copy", files).readonly_session("main").store
    with pytest.raises(icechunk.IcechunkError) as caught:
        get(store, "virtual/c/0/0/0")
    assert caught.value.kind == "virtual-chunk-modified"
    assert get(store, "virtual/c/0/1/0") is not None


# --- going on from there ---------------------------------------------------------------------


def chunk_to_overwrite(nodes: Json) -> tuple[str, list[int], int] | None:
    """Path, chunk index and size of the first chunk that is not virtual."""
    for path, node in nodes.items():
        chunks = node.get("chunks")
        if chunks and chunks["coords"] and chunks["kinds"][0] != VIRTUAL:
            return path, chunks["coords"][0], chunks["lengths"][0]
    return None


def check_commit_on_top(root: Path) -> None:
    """Official overwrites a chunk, adds an array and commits; nothing else changes."""
    # Backups play no part here, and asking about each of them would take most of the time.
    shutil.rmtree(root / "overwritten", ignore_errors=True)
    before = dump_repository(root)
    old = before["snapshots"][before["branches"]["main"]]["nodes"]
    chosen = chunk_to_overwrite(old)
    session = open_repository(root).writable_session("main")
    written = {"added/c/0": b"\x01\x02", "added/c/1": bytes(range(200)) * 4}
    group = zarr.open_group(session.store, mode="a")
    group.create_array(
        "added", shape=(802,), chunks=(800,), dtype="uint8", compressors=None, fill_value=0
    )
    if chosen is not None:
        path, index, length = chosen
        written["/".join([path.strip("/"), "c", *map(str, index)])] = b"\x5a" * length
    for key, data in written.items():
        put(session.store, key, data)
    tip = session.commit("on top", metadata={"on": "top"})

    repo = open_repository(root)
    assert repo.lookup_branch("main") == tip
    store = repo.readonly_session("main").store
    assert {key: get(store, key) for key in written} == written
    after = dump_repository(root)
    new = after["snapshots"][tip]["nodes"]
    assert new.keys() - old.keys() <= {"/", "/added"}
    for path, node in old.items():
        if chosen is not None and path == chosen[0]:
            assert new[path]["chunks"]["coords"] == node["chunks"]["coords"]
        elif path != "/":
            assert new[path] == node, path
    assert after["ancestry"]["branches"]["main"][1:] == before["ancestry"]["branches"]["main"]


@every_golden_repository
def test_official_commits_on_top_of_a_reencoded_golden_repository(
    name: str, tmp_path: Path
) -> None:
    reencode_repository(repository_path(name), tmp_path / "copy")
    check_commit_on_top(tmp_path / "copy")


@both_versions
def test_official_commits_on_top_of_a_reencoded_fresh_repository(spec: int, tmp_path: Path) -> None:
    write_repository(tmp_path / "original", tmp_path / "files", spec)
    reencode_repository(tmp_path / "original", tmp_path / "copy")
    check_commit_on_top(tmp_path / "copy")


def test_official_migrates_a_reencoded_repository(tmp_path: Path) -> None:
    # Not a golden one with a percent-encoded tag: official loses those when migrating.
    reencode_repository(repository_path("1.1.21-spec1"), tmp_path / "copy")
    before = dump_repository(tmp_path / "copy")
    icechunk.upgrade_icechunk_repository(open_repository(tmp_path / "copy"), dry_run=False)
    after = dump_repository(tmp_path / "copy")
    assert after["spec_version"] == 2
    for key in ("branches", "tags", "ancestry", "manifests"):
        assert after[key] == before[key]
