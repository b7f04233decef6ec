"""An array of many references: what a commit touches, and what it costs, on a smaller scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from benchmarks import scale
from icefloe.repo import commit

GRID = (20, 10)
PER_ROW = GRID[0] * GRID[1]
MOST = 16_384
SPLIT = 64
"""Rows of the grid that make one split: the power of two below 16384 / 200."""


def table(first: int, last: int) -> pa.Table:
    row = np.arange((last - first) * PER_ROW)
    files = pa.array([f"s3://bucket/{number}.nc" for number in range(first, last)])
    return pa.table(
        {
            "i0": first + row // PER_ROW,
            "i1": row % PER_ROW // GRID[1],
            "i2": row % GRID[1],
            "location": pa.DictionaryArray.from_arrays(row // PER_ROW, files),
            "offset": 100 * (row % PER_ROW),
            "length": np.full(len(row), 100),
        }
    )


def open_repository(folder: Path) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(max_refs_per_manifest=MOST))
    return icefloe.Repository.open_or_create(icefloe.local_filesystem_storage(str(folder)), config)


def append(repo: icefloe.Repository, *steps: tuple[int, int]) -> None:
    """One commit of several tables."""
    session = repo.writable_session("main")
    last = max(last for _, last in steps)
    array: Any = zarr.open_array(
        session.store, path="a", mode="a", shape=(1, *GRID), chunks=(1, 1, 1), dtype="f4"
    )
    array.resize((last, *GRID))
    for start, stop in steps:
        failed = session.store.set_virtual_refs_table(
            "a", table(start, stop), validate_containers=False
        )
        assert failed is None
    session.commit("more")


def manifests(repo: icefloe.Repository) -> dict[str, tuple[int, int]]:
    _, array = repo.readonly_session("main")._state.array("/a")
    return {ref.id.text: ref.extents[0] for ref in array.manifests}


def test_many_references_are_cut_and_appends_touch_their_own_splits(tmp_path: Path) -> None:
    repo = open_repository(tmp_path)
    append(repo, *((first, first + 100) for first in range(0, 2000, 100)))
    first = manifests(repo)
    assert sorted(first.values()) == [
        (start, min(start + SPLIT, 2000)) for start in range(0, 2000, SPLIT)
    ]
    append(repo, (2000, 2020))
    second = manifests(repo)
    kept = first.keys() & second.keys()
    assert len(kept) == len(first) - 1, "only the last split was not full"
    append(repo, (2020, 2200))
    third = manifests(repo)
    assert len(second.keys() & third.keys()) == len(second) - 1
    assert sum(stop - start for start, stop in third.values()) == 2200
    # What a commit replaced is not kept, and what it wrote is.
    cached = repo.handle.assets.caches.manifests
    assert {
        text for text in (first | second | third) if icefloe.ManifestId.parse(text) in cached
    } == (set(third))


def test_one_chunk_needs_one_manifest(tmp_path: Path) -> None:
    append(open_repository(tmp_path), (0, 1000))
    repo = open_repository(tmp_path)
    session = repo.readonly_session("main")
    for at, number in (((500, 3, 3), 1), ((501, 0, 0), 1), ((999, 19, 9), 2)):
        assert session.chunk_type("/a", at) == icefloe.ChunkType.virtual
        assert len(repo.handle.assets.caches.manifests) == number


def test_tables_in_any_order_and_over_each_other_end_in_the_same_files(tmp_path: Path) -> None:
    in_order, shuffled = (open_repository(tmp_path / name) for name in ("a", "b"))
    append(in_order, (0, 700))
    append(shuffled, (300, 500), (600, 700), (0, 400), (350, 650), (100, 200))
    assert sorted(manifests(in_order).values()) == sorted(manifests(shuffled).values())
    found = []
    for repo in (in_order, shuffled):
        locations = repo.readonly_session("main").all_virtual_chunk_locations()
        assert len(locations) == 700 * PER_ROW
        found.append(sorted(locations))
    assert found[0] == found[1]


def test_a_large_manifest_is_cut_once_by_the_first_commit_that_touches_it(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    whole = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(max_refs_per_manifest=0))
    append(icefloe.Repository.create(storage, whole), (0, 500))
    repo = open_repository(tmp_path)
    assert len(manifests(repo)) == 1
    append(repo, (500, 510))
    cut = manifests(repo)
    assert len(cut) == 8
    append(repo, (510, 512))
    assert len(cut.keys() & manifests(repo).keys()) == 7


def test_memory_of_a_commit_is_bounded_by_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is written before the next is fetched, and nothing but the last is held."""
    monkeypatch.setattr(commit, "_REFS_AT_ONCE", 2 * MOST)
    repo = open_repository(tmp_path)
    written: list[int] = []
    put = type(repo.handle.assets).put_metadata_files

    async def noted(self: Any, files: Any) -> None:
        written.append(sum(key.startswith("manifests/") for key, _ in files))
        await put(self, files)

    monkeypatch.setattr(type(repo.handle.assets), "put_metadata_files", noted)
    append(repo, (0, 1000))
    counts = [count for count in written if count]
    assert sum(counts) == 16
    assert max(counts) == 2
    repo.rewrite_manifests("again", branch="main")
    assert sum(written) == 32


@pytest.mark.parametrize("side", scale.SIDES)
def test_the_benchmark_runs(side: str, tmp_path: Path) -> None:
    if side == "official":
        pytest.importorskip("icechunk", minversion="2")
    steps = list(scale.measure(side, 100_000, tmp_path))
    assert [step.step.split()[0] for step in steps] == ["hand", "commit", *["append"] * 10, "open"]
    assert all(step.written_bytes > 0 for step in steps[1:12])
    assert steps[-1].written_bytes == 0
