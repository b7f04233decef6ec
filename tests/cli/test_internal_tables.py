"""icefloe's own tables: hidden where people look, whole for programs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.changes.diff import Diff, without_internal
from icefloe.paths import is_internal
from tests.cli.calling import here, opened, told

LOOKS = [
    ["tree"],
    ["show"],
    ["diff"],
    ["blame"],
    ["stats"],
    ["sql"],
    ["sql", "SELECT path FROM data__nodes"],
    ["sql", "SELECT path FROM data__chunks"],
    ["sql", "SELECT path FROM data__changes"],
]


@pytest.fixture
def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group made of a file, with another file that has a problem."""
    monkeypatch.chdir(tmp_path)
    values = {"t2m": (("time", "x"), np.arange(6.0).reshape(2, 3))}
    xr.Dataset(values, {"time": [0, 1]}).to_netcdf("a.nc", engine="h5netcdf")
    Path("b.nc").write_bytes(b"not a file of any kind")
    icefloe.ingest(
        ["a.nc", "b.nc"], "weather", group="era5", concat_dim="time", on_error="quarantine"
    )
    return tmp_path / "weather"


def test_a_path_is_internal_by_one_of_its_names() -> None:
    assert is_internal("/.icefloe")
    assert is_internal("/era5/.icefloe/sources")
    assert is_internal(".icefloe/sources")
    assert not any(map(is_internal, ["/", "/era5", "/a.icefloe", "/.icefloes/a", ""]))


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_commands_hide_internal_tables_unless_all_is_given(
    ingested: Path, words: list[str]
) -> None:
    command, *rest = words
    for options in ([], ["--json"]):
        done = here(command, ingested, *rest, *options)
        assert done.returncode == 0, done.stderr
        assert ".icefloe" not in done.stdout
        assert "era5" in done.stdout
        assert ".icefloe" in here(command, ingested, *rest, *options, "--all").stdout


def test_internal_tables_that_are_named_are_shown(ingested: Path) -> None:
    paths = [row["path"] for row in told("tree", ingested, "era5/.icefloe/problems")]
    assert paths[0] == "/era5/.icefloe/problems"
    assert len(paths) > 1
    assert told("blame", ingested, paths[1])
    found = here("sql", ingested, "--all", "SELECT * FROM data_era5__icefloe_sources")
    assert "a.nc" in found.stdout
    refused = here("sql", ingested, "SELECT * FROM data_era5__icefloe_sources")
    assert refused.returncode == 2
    assert "--all" in refused.stderr


def test_counts_agree_with_what_is_shown(ingested: Path) -> None:
    info, shown = told("info", ingested), told("tree", ingested)
    assert info["groups"] + info["arrays"] == len(shown)
    one = told("stats", ingested)["snapshots"][0]
    every = told("stats", ingested, "--all")["snapshots"][0]
    assert one["total"] == every["total"]
    assert sum(row["chunks"] for row in one["arrays"]) < one["total"]["chunks"]
    assert "icefloe's own tables" in here("stats", ingested).stdout


def test_changes_of_internal_tables_alone_are_said_to_be_hidden(ingested: Path) -> None:
    with opened(ingested).transaction("main", message="books") as store:
        zarr.open_group(store, path="era5/.icefloe").attrs["a"] = 1
    for command in ("show", "diff"):
        assert "no changes but to icefloe's own tables" in here(command, ingested).stdout
    assert ".icefloe" in here("diff", ingested, "--all").stdout
    undone = here("undo", ingested)
    assert "no changes but to icefloe's own tables" in undone.stdout


def test_a_diff_without_internal_tables_keeps_the_rest() -> None:
    chunks = {"/a": [[0]], "/.icefloe/b": [[1]]}
    moves = [("/.icefloe/a", "/.icefloe/b"), ("/.icefloe/a", "/b"), ("/c", "/d")]
    whole = Diff({"/g", "/.icefloe"}, {"/.icefloe/a"}, updated_chunks=chunks, moved_nodes=moves)
    assert without_internal(whole) == Diff(
        {"/g"}, updated_chunks={"/a": [[0]]}, moved_nodes=moves[1:]
    )


def test_programs_see_internal_tables(ingested: Path, tmp_path: Path) -> None:
    repo = opened(ingested)
    first, last = [entry.id for entry in repo.ancestry(branch="main")][::-1]
    changed = repo.diff(from_snapshot_id=first, to_snapshot_id=last)
    assert "/era5/.icefloe/sources" in changed.new_groups
    group = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert "era5/.icefloe/sources" in dict(group.members(max_depth=None))
    for copy in (icefloe.export_repository, lambda repo, to: here("clone", ingested, to)):
        target = tmp_path / getattr(copy, "__name__", "copy").strip("<>")
        copy(repo, str(target))
        assert "/era5/.icefloe/sources" in here("tree", target, "--all", "--json").stdout


def test_trees_of_xarray_have_no_internal_tables(ingested: Path) -> None:
    tree = xr.open_datatree(str(ingested), engine="icefloe")
    assert [node.path for node in tree.subtree] == ["/", "/era5"]
    assert tree["era5/t2m"].shape == (2, 3)
    groups = xr.open_groups(str(ingested), engine="icefloe")
    assert sorted(groups) == ["/", "/era5"]
    below = opened(ingested).to_xarray_tree(group="era5")
    assert [node.path for node in below.subtree] == ["/"]
    books = opened(ingested).to_xarray_tree(group="era5/.icefloe")
    assert {"/sources", "/problems"} <= {node.path for node in books.subtree}


def test_an_internal_table_with_a_dimension_of_the_data_is_no_obstacle(tmp_path: Path) -> None:
    """A tree cannot be made of groups whose dimensions of one name differ in size."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    with repo.transaction("main", message="m") as store:
        for path, size in (("file", 2), (".icefloe/sources/file", 3)):
            array = zarr.create_array(
                store, name=path, shape=(size,), dtype="i8", dimension_names=["file"]
            )
            array[:] = range(size)
    assert repo.to_xarray_tree().sizes == {"file": 2}


def test_a_finished_export_has_none_of_our_working_folders(ingested: Path, tmp_path: Path) -> None:
    repo, plain, cells = opened(ingested), tmp_path / "plain.zarr", tmp_path / "cells"
    icefloe.export_zarr(repo, str(plain))
    assert {path.name for path in plain.iterdir()} == {"zarr.json", "era5"}
    assert not [path for path in plain.rglob("*") if ".icefloe" in path.name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened_plain = zarr.open_group(plain, mode="r", use_consolidated=False)
        assert "era5/t2m" in dict(opened_plain.members(max_depth=None))
    icefloe.export_parquet(repo, str(cells), group="era5")
    assert not [path for path in cells.iterdir() if path.is_dir()]
    assert pq.read_table(cells).num_rows == 6


def test_an_interrupted_export_goes_on_and_leaves_no_folders(
    ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plain.zarr"
    with monkeypatch.context() as patched:
        patched.setattr("icefloe.exports.plain_zarr.finish_zarr", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            icefloe.export_zarr(opened(ingested), str(target))
    assert (target / ".icefloe-export").is_dir()
    # A process that was killed leaves an unfinished file, too.
    (target / ".icefloe/tmp/0123456789abcdef-0").write_bytes(b"half")
    icefloe.export_zarr(opened(ingested), str(target))
    assert not [path for path in target.rglob("*") if ".icefloe" in path.name]


def test_an_export_deletes_no_foreign_file(ingested: Path, tmp_path: Path) -> None:
    target = tmp_path / "plain.zarr"
    foreign = [target / ".icefloe/tmp/notes.txt", target / ".icefloe/locks/keys/00"]
    for path in foreign:
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
    icefloe.export_zarr(opened(ingested), str(target))
    assert [path.read_text() for path in foreign] == ["years of work"] * 2


async def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
