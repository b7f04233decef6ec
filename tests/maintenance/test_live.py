"""What is in use, found by walking the repository, is what a slow reading of it finds."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.assets.assets import list_folder
from icefloe.errors import FormatError, SnapshotNotFoundError
from icefloe.format import layout
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.live import Limits
from icefloe.storage.run import run_blocking

ROWS = 200  # numbers of 8 bytes: a chunk above the size up to which it is kept inline


def repository(spec: int) -> icefloe.Repository:
    """Four commits on two branches and a tag; every commit replaces one chunk of two arrays."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    for name in ("one", "two"):
        array = top.create_array(name, shape=(4 * ROWS,), chunks=(ROWS,), dtype="<i8")
        array[:] = np.arange(1, 1 + 4 * ROWS)
    first = session.commit("first")
    repo.create_branch("side", first)
    repo.create_tag("kept", first)
    for number, branch in enumerate(("main", "side", "main")):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="one", mode="r+")[number * ROWS] = -number - 1
        session.commit(f"{number} on {branch}")
    return repo


@pytest.mark.parametrize("spec", [1, 2])
@pytest.mark.parametrize("limits", [Limits(), Limits(1, 1, 1)])
def test_everything_reachable_is_found(spec: int, limits: Limits) -> None:
    repo = repository(spec)
    handle = repo.handle
    tips = run_blocking(live.ref_tips(handle))
    assert {name: tip.text for name, tip in tips.items()} == {
        "branch.main": repo.lookup_branch("main"),
        "branch.side": repo.lookup_branch("side"),
        "tag.kept": repo.lookup_tag("kept"),
    }
    snapshots = run_blocking(live.reachable_snapshots(handle, tips.values()))
    lines = [entry.id for branch in ("main", "side") for entry in repo.ancestry(branch=branch)]
    assert {SnapshotId(row.tobytes()).text for row in snapshots.rows} == set(lines)
    files = run_blocking(live.manifest_files(handle, snapshots, limits))
    by_hand = {info.id for line in lines for info in repo.list_manifest_files(line)}
    assert {one.text for one in files} == by_hand
    chunks = run_blocking(live.chunk_ids(handle, files, limits))
    # Nothing was ever thrown away, so what is stored is what is in use.
    stored = {
        kind: run_blocking(list_folder(handle.driver, folder))
        for kind, folder in layout.KINDS.items()
    }
    assert chunks.size == len(stored["chunks"]) == 4 + 4 + 3
    assert chunks.contains(stored["chunks"].id).all()
    assert len(stored["snapshots"]) == snapshots.size
    assert snapshots.contains(stored["snapshots"].id).all()
    assert {key.removeprefix("manifests/") for key in stored["manifests"].all_keys()} == by_hand


@pytest.mark.parametrize("spec", [1, 2])
def test_a_file_that_is_missing_or_broken_is_named(spec: int) -> None:
    repo = repository(spec)
    handle = repo.handle
    tip = SnapshotId.parse(repo.lookup_branch("main"))
    snapshots = run_blocking(live.reachable_snapshots(handle, [tip]))
    files = run_blocking(live.manifest_files(handle, snapshots))
    manifest = layout.manifest_key(next(iter(files)))
    run_blocking(handle.driver.put(manifest, b"no manifest" * 99))
    with pytest.raises(FormatError, match=manifest):
        run_blocking(live.chunk_ids(handle, files))
    key = layout.snapshot_key(tip)
    run_blocking(handle.driver.delete_many([key]))
    with pytest.raises(SnapshotNotFoundError, match=key):
        run_blocking(live.manifest_files(handle, snapshots))


def test_names_that_are_no_ids_are_told_apart() -> None:
    repo = repository(2)
    driver = repo.handle.driver
    known = len(run_blocking(list_folder(driver, layout.CHUNKS)))
    names = ["notes.txt", "1cechnkrep0f1rstcmt0", "1CECHNKREP0F1RSTCMT1", "1CECHNKREP0F1RSTCMT00"]
    run_blocking(driver.put_many([(layout.CHUNKS + name, b"x") for name in names]))
    found = run_blocking(list_folder(driver, layout.CHUNKS))
    assert (len(found), set(found.strange_names)) == (known, set(names))
