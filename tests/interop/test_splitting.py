"""Both libraries cut arrays into the same manifests, and go on with what the other one cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("icechunk", minversion="2", reason="official needs Python 3.12")

import zarr

import icefloe
from tests.interop.sides import SIDES

Layout = dict[str, list[tuple[Any, int]]]

UNSPLIT = 2**32 - 1


def rule_sets(library: Any) -> dict[str, dict[Any, dict[Any, int]]]:
    arrays, axes = library.ManifestSplitCondition, library.ManifestSplitDimCondition
    return {
        "one axis": {arrays.AnyArray(): {axes.Axis(0): 3}},
        "every axis": {arrays.AnyArray(): {axes.Any(): 2}},
        "axis before any": {arrays.AnyArray(): {axes.Axis(1): 4, axes.Any(): 3}},
        "any before axis": {arrays.AnyArray(): {axes.Any(): 3, axes.Axis(1): 4}},
        "by dimension name": {arrays.AnyArray(): {axes.DimensionName("^t"): 2}},
        "two rules about one array": {
            arrays.name_matches("wind"): {axes.Axis(1): 2},
            arrays.AnyArray(): {axes.Axis(0): 5, axes.Axis(1): 1},
        },
        "path or name": {
            arrays.path_matches("^/model/") | arrays.name_matches("^flat$"): {axes.Axis(0): 2}
        },
        "path and name": {
            arrays.and_conditions([arrays.path_matches("model"), arrays.name_matches("wind")]): {
                axes.Any(): 3
            }
        },
        "a regex that does not compile": {arrays.name_matches("("): {axes.Any(): 1}},
        "larger than the array": {arrays.AnyArray(): {axes.Any(): 1000}},
        "never": {arrays.AnyArray(): {axes.Any(): UNSPLIT}},
        "none": {},
    }


def config(library: Any, name: str) -> Any:
    splitting = library.ManifestSplittingConfig.from_dict(rule_sets(library)[name])
    manifest = library.ManifestConfig(splitting=splitting)
    if library is icefloe:
        manifest.max_shared_refs_per_array = 0  # official has one manifest per array
    return library.RepositoryConfig(inline_chunk_threshold_bytes=64, manifest=manifest)


def layout(folder: Path) -> Layout:
    """The boxes of all manifests and how many references each file has, as icefloe reads them."""
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder)))
    snapshot = repo.readonly_session("main")._state.snapshot
    return {
        node.path: sorted(
            (ref.extents, snapshot.manifest_files[ref.id].num_chunk_refs)
            for ref in node.array.manifests
        )
        for node in snapshot.nodes
        if node.array is not None
    }


def history(library: Any, folder: Path, name: str) -> list[Layout]:
    """The same commits through either library; the layout after each of them."""
    storage = library.local_filesystem_storage(str(folder))
    repo = library.Repository.create(storage, config(library, name))
    found = []

    def commit(change: Any) -> None:
        session = repo.writable_session("main")
        change(zarr.open_group(session.store, mode="a"))
        session.commit("a change")
        found.append(layout(folder))

    def make(group: Any) -> None:
        flat = group.create_array("flat", shape=(11,), chunks=(1,), dtype="i4")
        wind = group.create_array(
            "model/wind",
            shape=(7, 6),
            chunks=(1, 1),
            dtype="i4",
            dimension_names=["time", "level"],
        )
        group.create_array("single", shape=(), dtype="i4")[...] = 1
        group.create_array("hollow", shape=(9,), chunks=(1,), dtype="i4")[4] = 1
        flat[:] = 1
        wind[1:6, 1:] = 2

    def touch(group: Any) -> None:
        group["flat"][4] = 7
        group["model/wind"][6, 0] = 7

    def grow(group: Any) -> None:
        group["flat"].resize((14,))
        group["flat"][11:] = 3
        group["model/wind"].resize((7, 9))
        group["model/wind"][2, 6:] = 5

    def shrink(group: Any) -> None:
        group["flat"].resize((5,))
        group["model/wind"].resize((4, 9))

    def label(group: Any) -> None:
        group["flat"].attrs["units"] = "m"

    for change in (make, touch, grow, label, shrink):
        commit(change)
    other = "every axis" if name != "every axis" else "one axis"
    repo = library.Repository.open(storage, config(library, other))
    commit(touch_again)
    # Of a split that changed its borders official may leave several manifests; icefloe joins them.
    after = found.pop()
    found.append({path: [((), sum(count for _, count in after[path]))] for path in after})
    repo.rewrite_manifests("cut anew", branch="main", metadata={"by": "test"})
    found.append(layout(folder))
    repo.rewrite_manifests("again", branch="main", commit_method="amend")
    found.append(layout(folder))
    first = next(iter(repo.ancestry(branch="main")))
    found.append({"metadata": [(first.metadata, 0)]})
    return found


def touch_again(group: Any) -> None:
    group["flat"][1] = 9


@pytest.mark.parametrize("name", list(rule_sets(icefloe)))
def test_the_same_commits_give_the_same_manifests(name: str, tmp_path: Path) -> None:
    official, ours = (history(SIDES[side], tmp_path / side, name) for side in SIDES)
    assert ours == official


@pytest.mark.parametrize("spec", [1, 2])
def test_official_reads_and_goes_on_with_an_array_that_was_split_by_its_size(
    spec: int, tmp_path: Path
) -> None:
    storages = {
        side: library.local_filesystem_storage(str(tmp_path)) for side, library in SIDES.items()
    }
    settings = icefloe.ManifestConfig(max_refs_per_manifest=16)
    repo = icefloe.Repository.create(
        storages["icefloe"], icefloe.RepositoryConfig(manifest=settings), spec_version=spec
    )
    values = np.arange(1, 101, dtype="i4")

    def write(repo: Any, first: int, last: int) -> None:
        session = repo.writable_session("main")
        array = zarr.open_array(
            session.store, path="a", mode="a", shape=(first,), chunks=(1,), dtype="i4"
        )
        array.resize((last,))
        array[first:last] = values[first:last]
        session.commit("more")

    def check(count: int) -> None:
        for side, library in SIDES.items():
            store = library.Repository.open(storages[side]).readonly_session("main").store
            read = zarr.open_array(store, path="a", mode="r")[:]
            assert np.array_equal(np.asarray(read), values[:count]), side

    write(repo, 0, 10)
    assert len(layout(tmp_path)["/a"]) == 1
    write(repo, 10, 50)
    boxes = [box for (box,), _ in layout(tmp_path)["/a"]]
    assert boxes == [(0, 16), (16, 32), (32, 48), (48, 50)]
    write(repo, 50, 60)
    assert [box for (box,), _ in layout(tmp_path)["/a"]][:3] == boxes[:3]
    check(60)
    official = SIDES["official"].Repository.open(storages["official"])  # skips the option
    write(official, 60, 70)
    check(70)
    write(icefloe.Repository.open(storages["icefloe"]), 70, 100)  # the option was saved
    assert [count for _, count in layout(tmp_path)["/a"]] == [16] * 6 + [4]
    check(100)


@pytest.mark.parametrize(
    "grid", [(2**27,), (2**16, 2**16), (64, 2**26), (16, 2**13, 2**13)], ids=str
)
def test_official_reads_sparse_references_of_a_huge_grid_from_few_manifests(
    grid: tuple[int, ...], tmp_path: Path
) -> None:
    """A manifest for every split would be half a million of them."""
    storages = {
        side: library.local_filesystem_storage(str(tmp_path)) for side, library in SIDES.items()
    }
    settings = icefloe.ManifestConfig(max_refs_per_manifest=64)
    repo = icefloe.Repository.create(
        storages["icefloe"], icefloe.RepositoryConfig(manifest=settings)
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=grid, chunks=(1,) * len(grid), dtype="i4")
    session.commit("an array")
    random = np.random.default_rng(11)
    index = np.unique(np.stack([random.integers(0, side, 500) for side in grid], axis=1), axis=0)
    random.shuffle(index)
    for first, last in ((0, 60), (60, 300), (300, 301), (301, len(index))):
        session = repo.writable_session("main")
        array: Any = zarr.open_array(session.store, path="a")
        for row in index[first:last].tolist():
            array[tuple(row)] = 1 + sum(row) % 1000
        session.commit("more")
        counts = [count for _, count in layout(tmp_path)["/a"]]
        assert sum(counts) == last
        assert max(counts) <= 64
        assert len(counts) <= max(1, 2 * last / 64)
    for side, library in SIDES.items():
        store = library.Repository.open(storages[side]).readonly_session("main").store
        array = zarr.open_array(store, path="a", mode="r")
        for row in index.tolist():
            assert array[tuple(row)] == 1 + sum(row) % 1000, side
