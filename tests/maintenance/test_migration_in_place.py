"""A migration in place during commits: none that was acknowledged is lost."""

from __future__ import annotations

from typing import Any

import pytest

import icefloe
from icefloe.errors import ConflictError, FormatError, IcechunkError
from icefloe.format import layout
from icefloe.legacy.migrate import LocalMigration, Migration, migrate
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import Request
from icefloe.testing.schedule import schedules_with_few_switches
from tests.maintenance.older_worlds import copy_of, open_repository, write
from tests.maintenance.test_older import NAMES, commits, race, silent
from tests.safety.worlds import open_handle


async def migrates(handle: RepoHandle) -> None:
    target = lifecycle.make_handle(
        handle.storage,
        handle.driver,
        lifecycle.new_format_version(2),
        icefloe.RepositoryConfig(),
        Clock(),
    )
    engine = LocalMigration(Migration(handle, target, "copy"), silent())
    await migrate(engine, dry_run=False, check=False, reporter=silent())


def check_migrated(storage: Storage, results: dict[int, Any]) -> None:
    """What was acknowledged is in the new repository, or in the old one if there is none."""
    messages = [info.message for info in open_repository(storage).ancestry(branch="main")]
    assert results[0] is None or isinstance(results[0], ConflictError), results
    assert isinstance(results[1], IcechunkError) or "beside" in messages, results
    if isinstance(results[0], ConflictError):
        run_blocking(migrates(open_handle(storage)))  # repeated, it finds nobody in its way
        again = [info.message for info in open_repository(storage).ancestry(branch="main")]
        assert again == messages
    assert open_repository(storage).spec_version == 2


def is_decisive(request: Request) -> bool:
    return request.key.startswith((layout.COLLECTED, "repo", "refs/", "r/", "state.json"))


@NAMES
def test_a_migration_in_place_loses_no_commit_in_orders_with_one_switch(name: str) -> None:
    make = race(name, migrates, commits)
    acknowledged = 0
    for outcome in schedules_with_few_switches(make, most_switches=1, can_switch=is_decisive):
        check_migrated(outcome.world, outcome.results)
        acknowledged += not isinstance(outcome.results[1], Exception)
    assert acknowledged


@NAMES
def test_a_writer_of_a_repository_that_was_migrated_is_told(name: str) -> None:
    storage = copy_of(name, icefloe.in_memory_storage())
    stale = open_repository(storage)
    session = stale.writable_session("main")
    write(session, 9, at=0)
    icefloe.migrate_repository(open_repository(storage))
    with pytest.raises(FormatError, match="open it again"):
        session.commit("invisible")
    with pytest.raises(FormatError, match="open it again"):
        stale.create_branch("invisible", stale.lookup_branch("main"))
