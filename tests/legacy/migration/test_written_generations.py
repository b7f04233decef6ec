"""Datasets with a state file and repositories with numbered refs, migrated; and large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import NumberedRefs, StateFileDataset
from icefloe.api.enums import NewGeneration
from icefloe.credentials import LocalFileSystemAccess
from tests.legacy.migration import describe_repository
from tests.legacy.state_file.datasets import (
    array_row,
    chunk_row,
    group_row,
    inventory,
    numbers,
    write_manifest,
    write_state,
    write_structure,
)
from tests.legacy.state_file.test_foreign_datasets import (
    FIRST,
    REFS,
    SECOND,
    check_contents,
    opened,
    write_dataset,
)
from tests.servers import S3Server

GENERATIONS: list[NewGeneration] = [
    StateFileDataset("strict"),
    StateFileDataset("wide"),
    NumberedRefs("json"),
    NumberedRefs("msgpack"),
    NumberedRefs("binary"),
    NumberedRefs("binary-uncompressed"),
]


def write_history(repo: icefloe.Repository, seed: int) -> dict[str, Any]:
    """Random commits to two branches, and tags; returns the values at every ref."""
    rng = np.random.default_rng(seed)
    with repo.transaction("main", message="create") as store:
        root = zarr.create_group(store, attributes={"title": "random", "seed": seed})
        for name, ndim in (("zero", 0), ("one", 1), ("two", 2)):
            shape = (12,) * ndim
            array = root.create_array(
                name, shape=shape, chunks=(5,) * ndim, dtype="i4", attributes={"rank": ndim}
            )
            if ndim:
                array[:4] = rng.integers(0, 100, (4, *shape[1:]))
    repo.create_branch("side", repo.lookup_branch("main"))
    for number in range(6):
        branch = ("main", "side")[int(rng.integers(2))]
        with repo.transaction(branch, message=f"step {number}", metadata={"n": number}) as store:
            group = zarr.open_group(store, mode="a")
            group.attrs["step"] = number
            at = int(rng.integers(10))
            group["two"][at : at + 2] = number  # type: ignore[index]
        if number % 2:
            repo.create_tag(f"t{number}", repo.lookup_branch(branch))
    return values(repo)


def values(repo: icefloe.Repository) -> dict[str, Any]:
    """Attributes and data at every ref, and every line of history."""
    found: dict[str, Any] = {}
    refs = [*(("branch", name) for name in sorted(repo.list_branches()))]
    refs += [("tag", name) for name in sorted(repo.list_tags())]
    for kind, name in refs:
        group = zarr.open_group(repo.readonly_session(**{kind: name}).store, mode="r")  # type: ignore[arg-type]
        found[f"{kind} {name}"] = {
            "attributes": dict(group.attrs),
            "arrays": {
                path: (np.asarray(array[...]).tolist(), dict(array.attrs))
                for path, array in group.arrays()
            },
            "history": [
                (entry.message, entry.metadata.get("n")) for entry in repo.ancestry(**{kind: name})
            ][:-1],
        }
    return found


@pytest.mark.parametrize("generation", GENERATIONS, ids=str)
def test_every_generation_that_is_written(
    generation: NewGeneration, tmp_path: Path, s3_server: S3Server
) -> None:
    old = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "old")), generation=generation
    )
    expected = write_history(old, seed=7)
    target = s3_server.storage()
    report = icefloe.migrate_repository(old, target)
    new = icefloe.Repository.open(target)
    assert values(new) == expected
    assert report.snapshots_lost == report.snapshots_without_log == []
    kept = icefloe.migrate_repository(old, chunks="keep")
    assert kept.chunks_copied == 0
    prefix = f"file://{tmp_path / 'old'}/"
    here = icefloe.Repository.open(
        old.storage, authorize_virtual_chunk_access={prefix: LocalFileSystemAccess}
    )
    assert (here.spec_version, values(here)) == (2, expected)
    steps = [entry.kind for entry in here.ops_log()]
    assert type(steps[0]).__name__ == "RepoMigrated"
    assert type(steps[-1]).__name__ == "RepoInitialized"


def test_chunks_in_every_place_that_document_003_allows(tmp_path: Path) -> None:
    write_dataset(tmp_path / "old")
    write_state(tmp_path / "old", snapshots=[FIRST, SECOND], refs=REFS)
    old = opened(tmp_path / "old", tmp_path / "old")
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    report = icefloe.migrate_repository(old, target, config=old.config)
    assert report.chunks_copied == 3  # files, of which two hold several chunks
    prefix = f"file://{tmp_path / 'old'}/"
    new = icefloe.Repository.open(
        target, authorize_virtual_chunk_access={prefix: LocalFileSystemAccess}
    )
    check_contents(new)


def described_by_both(folder: Path, prefix: str = "") -> dict[str, Any]:
    """Values, attributes and history at every ref: official and icefloe say the same."""
    official = pytest.importorskip("icechunk")
    granted = official.credentials.LocalFileSystemAccess
    theirs = official.Repository.open(
        official.local_filesystem_storage(str(folder)),
        authorize_virtual_chunk_access={prefix: granted} if prefix else None,
    )
    ours = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(folder)),
        authorize_virtual_chunk_access={prefix: LocalFileSystemAccess} if prefix else None,
    )
    found: dict[str, Any] = describe_repository.describe(theirs)
    assert found == describe_repository.describe(ours)
    return found


@pytest.mark.parametrize("version", [2, 1])
@pytest.mark.parametrize("generation", GENERATIONS, ids=str)
def test_official_reads_every_value_of_every_migrated_generation(
    generation: NewGeneration, tmp_path: Path, version: int
) -> None:
    old = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "old")), generation=generation
    )
    expected = write_history(old, seed=3)
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    icefloe.migrate_repository(old, target, spec_version=version)
    assert values(icefloe.Repository.open(target)) == expected
    assert described_by_both(tmp_path / "new").keys() == expected.keys()


def test_overlapping_inventories_are_joined_and_official_reads_every_value(tmp_path: Path) -> None:
    """The extents of two inventories overlap, and both have a chunk: the first one counts."""
    first = [chunk_row(at, 1, at, at, inline_data=numbers(at + 1)) for at in range(3)]
    second = [chunk_row(0, 1, 0, 1, inline_data=numbers(50))]
    second += [chunk_row(1, 1, 1, 1, inline_data=numbers(51))]
    apart = [chunk_row(0, 1, 3, 3, inline_data=numbers(60))]
    for name, rows in (("x", first), ("y", second), ("z", apart)):
        write_manifest(tmp_path / "old", f"{name}.parquet", rows)
    places = [inventory("x.parquet", 0, (0, 3), (0, 3)), inventory("y.parquet", 0, (0, 2), (1, 2))]
    places += [inventory("z.parquet", 0, (3, 4), (3, 4))]
    nodes = [group_row(0, "/"), array_row(1, "a", [4, 4], [1, 1], inventories=places)]
    write_structure(tmp_path / "old", "one.parquet", nodes)
    write_state(tmp_path / "old", snapshots=[FIRST])
    old = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "old"))
    expected = [[1, 50, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 60]]
    target = icefloe.local_filesystem_storage(str(tmp_path / "new"))
    report = icefloe.migrate_repository(old, target)
    assert (report.manifests, report.chunk_references) == (2, 5)
    for repo in (old, icefloe.Repository.open(target)):
        array: Any = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
        np.testing.assert_array_equal(array[:], expected)
        assert [array[at].tolist() for at in range(4)] == expected
    described_by_both(tmp_path / "new")
