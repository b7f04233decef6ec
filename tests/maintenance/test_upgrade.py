"""Spec version 1 becomes version 2 where it is: as official does it, whatever goes wrong."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, FormatError, SessionStateError
from icefloe.format import layout
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import FaultyDriver
from icefloe.testing.schedule import Case, StepDriver, some_schedules
from tests.maintenance.histories import make_history, open_official, open_ours
from tests.maintenance.races import collects, commits, upgrades
from tests.places import KINDS, fresh_storage
from tests.safety.worlds import contents, copy_of, driver_of, open_handle, portrait


def shown(storage: Storage) -> Any:
    return {key: portrait(storage)[key] for key in ("branches", "tags", "config", "retired tags")}


@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_there_after_an_upgrade(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, deletes: bool
) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    storage = fresh_storage(kind, tmp_path, server)
    made = copy_of(1, "memory", tmp_path, has_config=True)
    objects = {entry.key: entry for entry in run_blocking(driver_of(made).list(""))}
    for key in objects:
        data = bytes(run_blocking(driver_of(made).get(key)))
        run_blocking(driver_of(storage).put(key, data))
    before = shown(storage)
    stale = icefloe.Repository.open(storage)
    session = stale.writable_session("main")
    zarr.open_array(session.store, path="inline", mode="r+")[0] = 9
    dry = icefloe.upgrade_icechunk_repository(stale, dry_run=True)
    assert dry.spec_version == 1
    repo = icefloe.upgrade_icechunk_repository(stale, dry_run=False, delete_unused_v1_files=deletes)
    assert repo.spec_version == 2
    assert shown(storage) == before
    left = [entry.key for entry in run_blocking(driver_of(storage).list(layout.REFS))]
    assert bool(left) != deletes
    # Who opened it before cannot go on unnoticed.
    with pytest.raises(icefloe.IcechunkError):
        session.commit("invisible")
    with pytest.raises(RuntimeError, match="invalidated by upgrade_icechunk_repository"):
        stale.create_branch("invisible", repo.lookup_tag("old"))
    assert shown(storage) == before
    if deletes:
        with pytest.raises(SessionStateError) as caught:
            icefloe.upgrade_icechunk_repository(repo, dry_run=False)
        assert caught.value.kind == ErrorKind.INVALID_REPOSITORY_MIGRATION
    else:  # what is left can be deleted later
        icefloe.upgrade_icechunk_repository(repo, dry_run=False)
        assert run_blocking(driver_of(storage).list(layout.REFS)) == []
        assert shown(storage) == before


def test_a_stale_handle_is_told_to_open_the_repository_again() -> None:
    stale = icefloe.Repository.open(copy_of(1, "memory", Path()))
    session = stale.writable_session("main")
    zarr.open_array(session.store, path="inline", mode="r+")[0] = 9
    icefloe.upgrade_icechunk_repository(
        icefloe.Repository.open(stale.storage), dry_run=False, delete_unused_v1_files=False
    )
    with pytest.raises(FormatError, match="open it again") as caught:
        session.commit("invisible")
    assert caught.value.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION


@pytest.mark.parametrize("seed", range(3))
def test_the_result_is_that_of_official(official: Any, tmp_path: Path, seed: int) -> None:
    made = make_history(official, tmp_path / "made", 1, seed)
    shutil.copytree(made.folder, tmp_path / "theirs")
    official.upgrade_icechunk_repository(
        open_official(official, tmp_path / "theirs"), dry_run=False
    )
    icefloe.upgrade_icechunk_repository(open_ours(made.folder), dry_run=False)
    theirs = open_official(official, tmp_path / "theirs").inspect_repo_info()
    ours = open_official(official, made.folder).inspect_repo_info()
    for each in (theirs, ours):
        del each["header"], each["latest_updates"][0]["updated_at"]
    assert ours == theirs
    session = open_official(official, made.folder).writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("new", shape=(2,), dtype="i4")[:] = 1
    session.commit("official goes on")


def test_names_that_are_not_ascii_stay(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path / "repository", durable=False)
    repo = icefloe.Repository.create(storage, spec_version=1)
    tip = repo.lookup_branch("main")
    names = ["Zürich", "naïve ~ name", "数据"]
    for name in names:
        repo.create_branch(name, tip)
        repo.create_tag(f"v {name}", tip)
    upgraded = icefloe.upgrade_icechunk_repository(repo, dry_run=False)
    assert upgraded.list_branches() == {"main", *names}
    assert upgraded.list_tags() == {f"v {name}" for name in names}


@pytest.mark.parametrize("deletes", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_crash_after_any_request_does_no_harm(deletes: bool) -> None:
    whole = copy_of(1, "memory", Path(), has_config=True)
    expected = shown(whole)
    number = 0
    while True:
        storage = copy_of(1, "memory", Path(), has_config=True)
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        opened = open_handle(storage)
        handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(upgrades(handle, deletes=deletes))
        if number % 4 == 0 or not driver.num_refused:  # a look at everything takes its time
            assert shown(storage) == expected
        with contextlib.suppress(SessionStateError):  # it may be done already
            run_blocking(upgrades(open_handle(storage)))
        assert shown(storage) == expected
        assert open_handle(storage).format.has_repo_object
        assert run_blocking(driver_of(storage).list(layout.REFS)) == []
        if not driver.num_refused:
            break
        number += 1
    assert number > 10


def check_upgrade_race(number: int, seed: int) -> None:
    """A commit of version 1 is in the new repository, or its writer was told."""

    def make() -> Case[Storage]:
        storage = copy_of(1, "memory", Path())

        def start(work: Any) -> Any:
            opened = open_handle(storage)
            driver = StepDriver(driver_of(storage))
            return work(
                lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
            )

        return Case(storage, [start(upgrades), start(commits), start(collects)])

    for outcome in some_schedules(make, number=number, seed=seed):
        handle = open_handle(outcome.world)
        line = [
            one.message
            for one in run_blocking(
                handle.format.ancestry(
                    handle, run_blocking(handle.format.lookup_branch(handle, "main"))
                )
            )
        ]
        for tip in run_blocking(handle.format.branches(handle)).values():
            contents(handle, tip.text)
        has_landed = not isinstance(outcome.results[1], Exception)
        if handle.format.has_repo_object or has_landed:
            assert ("beside" in line) == has_landed, outcome.results


def test_no_commit_gets_lost_beside_an_upgrade() -> None:
    check_upgrade_race(15, 3)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_commit_gets_lost_beside_many_upgrades() -> None:
    check_upgrade_race(800, 4)
