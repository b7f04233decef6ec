"""Incremental collections delete what a full one would, but for orphans, and nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.format import layout
from icefloe.maintenance import incremental
from icefloe.maintenance.gc import Options
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import FaultyDriver
from tests.maintenance import races
from tests.places import KINDS, fresh_storage
from tests.safety.worlds import driver_of, read_objects, write_objects

SPECS = pytest.mark.parametrize("spec", [1, 2])
DAY = timedelta(days=1)
NOT_YET = datetime.fromtimestamp(1, UTC)
OLD_ENOUGH = datetime(2100, 1, 1, tzinfo=UTC)
CELLS = 24


def repository(storage: Storage, spec: int) -> icefloe.Repository:
    """An array with an object for each chunk, in manifests of four."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    config.manifest = icefloe.ManifestConfig(max_refs_per_manifest=4)
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(CELLS,), chunks=(1,), dtype="<i8", compressors=None
    )
    array[:] = np.arange(1, CELLS + 1)
    session.commit("first")
    return repo


def change(repo: icefloe.Repository, at: int, branch: str = "main", *, amends: bool = False) -> str:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a", mode="r+")[at] = random.getrandbits(40)
    return session.amend("amended") if amends else session.commit("changed")


def shortly(repo: icefloe.Repository, older_than: datetime = OLD_ENOUGH) -> icefloe.GCSummary:
    """A collection that has to be incremental."""
    found = repo.garbage_collect(older_than, incremental=True, full_every=1000)
    assert (found.looked_for_orphans, found.full_because) == (False, "")
    return found


def remember(repo: icefloe.Repository, older_than: datetime = OLD_ENOUGH) -> None:
    found = repo.garbage_collect(older_than, incremental=True, full_every=1)
    assert found.looked_for_orphans


def data_files(storage: Storage) -> set[str]:
    return {key for key in read_objects(storage) if key.startswith(tuple(layout.KINDS.values()))}


def twin(storage: Storage) -> icefloe.Repository:
    copy = icefloe.in_memory_storage()
    write_objects(copy, read_objects(storage))
    return icefloe.Repository.open(copy)


def numbers(found: icefloe.GCSummary) -> list[int]:
    kinds = ("chunks", "manifests", "snapshots", "transaction_logs")
    return [found.bytes_deleted, *(getattr(found, f"{kind}_deleted") for kind in kinds)]


# -- what goes


def expired(repo: icefloe.Repository) -> None:
    for at in range(3):
        change(repo, at)
    repo.expire_snapshots(OLD_ENOUGH, keep_last=1)


def expired_of_old(repo: icefloe.Repository) -> None:
    repo.expire_snapshots(OLD_ENOUGH)


def reset(repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")
    change(repo, 5)
    remember(repo, NOT_YET)
    repo.reset_branch("main", before)


def lost_branch(repo: icefloe.Repository) -> None:
    repo.create_branch("side", repo.lookup_branch("main"))
    change(repo, 7, "side")
    remember(repo, NOT_YET)
    repo.delete_branch("side")


def amended(repo: icefloe.Repository) -> None:
    change(repo, 9)
    change(repo, 9, amends=True)
    change(repo, 10, amends=True)


WAYS = (expired, expired_of_old, reset, lost_branch, amended)


@SPECS
@pytest.mark.parametrize("drop", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_dropped_goes(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
    spec: int,
    drop: Callable[[icefloe.Repository], None],
) -> None:
    if drop is amended and spec == 1:
        return  # spec version 1 has no amending
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    repo = repository(fresh_storage(kind, tmp_path, server), spec)
    change(repo, 1)
    remember(repo)
    if kind == "s3":
        time.sleep(1.1)  # its clock has whole seconds: what is written next must be younger
    drop(repo)
    full = twin(repo.storage)
    wanted = full.garbage_collect(OLD_ENOUGH)
    dry = repo.garbage_collect(OLD_ENOUGH, incremental=True, full_every=1000, dry_run=True)
    assert not dry.looked_for_orphans
    found = shortly(repo)
    assert numbers(found) == numbers(dry) == numbers(wanted)
    assert found.chunks_deleted
    assert data_files(repo.storage) == data_files(full.storage)
    assert not repo.verify().findings


@SPECS
def test_many_small_steps_leave_what_full_collections_leave(spec: int) -> None:
    drawn = random.Random(spec)
    repo = repository(icefloe.in_memory_storage(), spec)
    short = 0
    for step in range(120):
        branches = sorted(repo.list_branches())
        branch = drawn.choice(branches)
        what = drawn.random()
        if what < 0.45:
            change(repo, drawn.randrange(CELLS), branch, amends=spec == 2 and what < 0.1)
        elif what < 0.55:
            ids = [info.id for info in repo.ancestry(branch=branch)][:-1]
            repo.create_branch(f"b{step}", drawn.choice(ids))
        elif what < 0.6 and branch != "main":
            repo.delete_branch(branch)
        elif what < 0.65:
            ids = [info.id for info in repo.ancestry(branch=branch)][:-1]
            repo.reset_branch(branch, drawn.choice(ids))
        elif what < 0.7:
            repo.create_tag(f"t{step}", repo.lookup_branch(branch))
        elif what < 0.78:
            keep = drawn.randrange(1, 4)
            repo.expire_snapshots(OLD_ENOUGH, keep_last=keep, keep_fork_points=True)
        else:
            full = twin(repo.storage)
            older_than = OLD_ENOUGH if drawn.random() < 0.7 else NOT_YET
            full.garbage_collect(older_than)
            found = repo.garbage_collect(older_than, incremental=True, full_every=8)
            short += not found.looked_for_orphans
            left, wanted = data_files(repo.storage), data_files(full.storage)
            assert wanted <= left, "something in use was deleted"
            if found.looked_for_orphans:
                assert wanted == left
            assert repo.verify(orphans=False).is_healthy
    assert short > 5
    repo.garbage_collect(OLD_ENOUGH)
    assert not repo.verify().findings


@SPECS
def test_orphans_wait_for_a_full_collection(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 5
    reasons = []
    for _ in range(5):
        found = repo.garbage_collect(OLD_ENOUGH, incremental=True, full_every=3)
        reasons.append((found.looked_for_orphans, found.full_because, found.chunks_deleted))
    every = "one of 3 collections is a full one"
    assert reasons == [(False, "", 0)] * 2 + [(True, every, 1)] + [(False, "", 0)] * 2
    with pytest.raises(ValueError, match="full_every is 0"):
        repo.garbage_collect(OLD_ENOUGH, incremental=True, full_every=0)


@SPECS
def test_young_snapshots_go_when_they_are_old_enough(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    for at in range(3):
        change(repo, at)
    repo.expire_snapshots(OLD_ENOUGH, keep_last=1)
    assert sum(numbers(shortly(repo, NOT_YET))) == 0
    repo.garbage_collect(NOT_YET, incremental=True, full_every=1)  # nor does a full one
    assert sum(numbers(shortly(repo, NOT_YET))) == 0
    assert shortly(repo).snapshots_deleted == 3
    assert not repo.verify().findings


@SPECS
def test_chunks_that_an_older_or_newer_manifest_still_names_stay(spec: int) -> None:
    """The manifest of a split is written again for each chunk, and names three old ones."""
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    repo.create_tag("kept", change(repo, 0))
    change(repo, 0)
    repo.expire_snapshots(OLD_ENOUGH, keep_last=1, keep_tagged=True)
    change(repo, 1)
    repo.expire_snapshots(OLD_ENOUGH, keep_last=1)
    shortly(repo)
    assert repo.verify(read_chunks=True).is_healthy
    assert not repo.verify().findings


@SPECS
def test_bytes_of_chunks_that_arrays_of_two_ranks_share_a_manifest_for(spec: int) -> None:
    """A shared manifest has a table for each rank, and its arrays are ordered by their ids."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    config.manifest = icefloe.ManifestConfig(max_shared_refs_per_array=64)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=spec)
    session = repo.writable_session("main")
    for number in range(12):
        shape, chunks = ((6,), (100,)) if number % 2 else ((6, 6), (3, 3))
        array = zarr.create_array(
            session.store,
            name=f"a{number}",
            shape=shape,
            chunks=chunks,
            dtype="<i8",
            compressors=None,
        )
        array[...] = number + 1
    session.commit("first")
    remember(repo)
    for value in (50, 60):
        session = repo.writable_session("main")
        for name in ("a1", "a3"):
            zarr.open_array(session.store, path=name, mode="r+")[...] = value
        session.commit("changed")
    repo.expire_snapshots(OLD_ENOUGH, keep_last=1)
    wanted = twin(repo.storage).garbage_collect(OLD_ENOUGH)
    found = shortly(repo)
    assert numbers(found) == numbers(wanted)
    assert found.chunks_deleted == 4


# -- without a listing, and with few requests


@SPECS
def test_nothing_is_listed(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    expired(repo)
    for full_every in (5, 1):
        driver = FaultyDriver(driver_of(repo.storage))
        handle = races.handle_over(repo.storage, driver)
        options = Options(races.cut(), full_every=full_every)
        found = run_blocking(incremental.collect_garbage(handle, options, races.silent()))
        is_full = full_every == 1
        assert found.looked_for_orphans == is_full
        listed = {one.key for one in driver.log if one.method.startswith("list")}
        assert bool(listed - {layout.REFS}) == is_full, listed


# -- when the memory is of no use


def why_full(repo: icefloe.Repository) -> str:
    full = twin(repo.storage)
    full.garbage_collect(OLD_ENOUGH)
    found = repo.garbage_collect(OLD_ENOUGH, incremental=True, full_every=1000)
    assert found.looked_for_orphans
    assert data_files(repo.storage) == data_files(full.storage)
    assert repo.verify().is_healthy
    return found.full_because


@SPECS
def test_a_damaged_memory_means_a_full_collection(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    expired(repo)
    objects = read_objects(repo.storage)
    memory = objects[layout.MEMORY]
    drawn = random.Random(3)
    damaged = [b"", memory[:40], memory[:-1], memory + b"0", b"{}"]
    for _ in range(20):
        at = drawn.randrange(len(memory))
        damaged.append(
            memory[:at] + bytes([memory[at] ^ 1 << drawn.randrange(8)]) + memory[at + 1 :]
        )
    for data in damaged:
        write_objects(repo.storage, objects | {layout.MEMORY: data})
        again = icefloe.Repository.open(repo.storage)
        assert why_full(again) == f"{layout.MEMORY} is damaged"


@SPECS
def test_another_collection_has_deleted_the_files(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    expired(repo)
    icefloe.Repository.open(repo.storage).garbage_collect(OLD_ENOUGH)
    assert "was deleted by another collection" in why_full(repo)
    expired(repo)
    shortly(repo)
    assert not repo.verify().findings


def test_a_repository_that_was_put_back() -> None:
    repo = repository(icefloe.in_memory_storage(), 2)
    older = read_objects(repo.storage)[layout.REPO]
    change(repo, 3)
    remember(repo)
    run_blocking(driver_of(repo.storage).put(layout.REPO, older))
    repo = icefloe.Repository.open(repo.storage)
    assert why_full(repo) == "the repository is older than the memory of it"


def test_an_upgrade() -> None:
    repo = repository(icefloe.in_memory_storage(), 1)
    remember(repo)
    expired(repo)
    repo = icefloe.upgrade_icechunk_repository(repo, dry_run=False)
    assert why_full(repo) == "the repository was upgraded since the last collection"


@pytest.mark.parametrize("new", [1, 2])
def test_a_migration_takes_no_memory_along(new: int) -> None:
    repo = repository(icefloe.in_memory_storage(), 1)
    change(repo, 1)
    remember(repo)
    target = icefloe.in_memory_storage()
    icefloe.migrate_repository(repo, target, spec_version=new)
    repo = icefloe.Repository.open(target)
    assert layout.MEMORY not in read_objects(target)
    expired(repo)
    assert why_full(repo).startswith("there is no memory")
    expired(repo)
    shortly(repo)
    assert not repo.verify().findings


@pytest.mark.parametrize("generation", [icefloe.StateFileDataset(), icefloe.NumberedRefs()])
def test_a_migration_in_place(generation: Any) -> None:
    storage = icefloe.in_memory_storage()
    old = icefloe.Repository.create(storage, generation=generation)
    with old.transaction("main", message="made") as store:
        zarr.create_array(store, name="a", shape=(CELLS,), chunks=(1,), dtype="<i8")[:] = 5
    with pytest.raises(icefloe.FormatError, match="an incremental collection is not possible"):
        old.garbage_collect(OLD_ENOUGH, incremental=True)
    icefloe.migrate_repository(old)
    repo = icefloe.Repository.open(storage)
    first = repo.garbage_collect(OLD_ENOUGH, incremental=True)
    assert (first.looked_for_orphans, first.full_because[:18]) == (True, "there is no memory")
    change(repo, 3)
    change(repo, 3)
    repo.expire_snapshots(OLD_ENOUGH, keep_last=1)
    shortly(repo)
    assert repo.verify(read_chunks=True, orphans=False).is_healthy


@SPECS
def test_a_copy_of_the_repository_has_no_memory(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    target = icefloe.in_memory_storage()
    icefloe.export_repository(repo, target)
    copy = icefloe.Repository.open(target)
    expired(copy)
    assert why_full(copy).startswith("there is no memory")


@SPECS
def test_the_report_says_which_kind_ran(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    expired(repo)
    short, full = shortly(repo), repo.garbage_collect(OLD_ENOUGH)
    assert (short.looked_for_orphans, full.looked_for_orphans) == (False, True)
    assert "looked_for_orphans: False" in str(short).replace('"', "")


def test_older_generations_are_refused() -> None:
    found = icefloe.Repository.create(icefloe.in_memory_storage())
    handle = found.handle
    object.__setattr__(handle.format, "name", "beta")
    with pytest.raises(icefloe.FormatError, match="an incremental collection is not possible"):
        found.garbage_collect(OLD_ENOUGH, incremental=True)


# -- cut off


@SPECS
def test_a_crash_leaves_the_next_collection_a_full_one_or_the_old_memory(spec: int) -> None:
    repo = repository(icefloe.in_memory_storage(), spec)
    remember(repo)
    change(repo, 2)
    expired(repo)
    objects = read_objects(repo.storage)
    whole = twin(repo.storage)
    whole.garbage_collect(OLD_ENOUGH)
    wanted = data_files(whole.storage)
    number = full = 0
    while True:
        storage = icefloe.in_memory_storage()
        write_objects(storage, objects)
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        try:
            run_blocking(races.collects_shortly(races.handle_over(storage, driver)))
        except icefloe.IcechunkError:
            assert driver.num_refused
        races.check_sound(storage)
        again = icefloe.Repository.open(storage)
        found = again.garbage_collect(OLD_ENOUGH, incremental=True, full_every=1000)
        full += found.looked_for_orphans
        assert data_files(storage) == wanted, f"cut after {number}: {found}"
        if not driver.num_refused:
            break
        number += 1
    assert 3 <= full < number


# -- official clients


@SPECS
def test_official_clients_in_between(official: Any, tmp_path: Path, spec: int) -> None:
    storage = fresh_storage("local", tmp_path)
    repo = repository(storage, spec)
    remember(repo)
    place = official.local_filesystem_storage(str(tmp_path / "repository"))
    reasons = []
    for turn in range(6):
        theirs = official.Repository.open(place)
        session = theirs.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[turn] = -turn - 1
        session.commit("theirs")
        change(repo, turn + 6)
        theirs = official.Repository.open(place)
        theirs.expire_snapshots(datetime.now(UTC))
        if turn in (2, 3):
            theirs.garbage_collect(datetime.now(UTC) + DAY)
            assert (tmp_path / "repository" / layout.MEMORY).exists()
        repo = icefloe.Repository.open(storage)
        found = repo.garbage_collect(OLD_ENOUGH, incremental=True, full_every=1000)
        reasons.append(bool(found.full_because))
        assert repo.verify(read_chunks=True).is_healthy
        values = zarr.open_array(
            official.Repository.open(place).readonly_session("main").store, path="a", mode="r"
        )
        assert values[turn] == -turn - 1
    assert reasons == [False, False, True, True, False, False]
    repo.garbage_collect(OLD_ENOUGH)
    assert not repo.verify().findings


def test_counts_add_up() -> None:
    drawn = random.Random(0)
    columns = [np.unique([drawn.randrange(40) for _ in range(20)]).astype("u8") for _ in range(9)]
    every = incremental.tally(columns, "u8")
    some = every.minus(incremental.tally(columns[3:], "u8"))
    wanted = incremental.tally(columns[:3], "u8")
    assert some.key.tolist() == wanted.key.tolist()
    assert some.number.tolist() == wanted.number.tolist()
    joined = np.concatenate(columns[:3]).tolist()
    assert dict(zip(some.key.tolist(), some.number.tolist(), strict=True)) == {
        key: joined.count(key) for key in joined
    }
