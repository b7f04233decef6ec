"""What runs beside a collection: operations on a small repository, and what must hold afterwards.

After every order of their requests whatever a branch or tag leads to can be read. A commit
happened as a whole, or its writer was told why not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import zarr

import icefloe
from icefloe.api.handles import Handles
from icefloe.changes.conflicts import BasicConflictSolver, VersionSelection
from icefloe.errors import ConflictError, ErrorKind, IcechunkError
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet
from icefloe.format.manifest import decode_manifest
from icefloe.format.snapshot import decode_snapshot
from icefloe.ids import FIRST_SNAPSHOT_ID, ChunkId, ManifestId, SnapshotId
from icefloe.maintenance import expire, gc, incremental, live
from icefloe.maintenance import upgrade as upgrading
from icefloe.maintenance.expire import Rules
from icefloe.maintenance.gc import Options
from icefloe.maintenance.progress import Reporter
from icefloe.repo import commit, forks, lifecycle, refs
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import Request
from icefloe.testing.schedule import Case, StepDriver
from tests.places import fresh_storage
from tests.safety.worlds import (
    NATIVE_CHUNK,
    copy_of,
    driver_of,
    open_handle,
    read_objects,
    write_objects,
)
from tests.servers import S3Server

Work = Callable[[RepoHandle], Coroutine[Any, Any, Any]]
BESIDE = "beside"


def silent() -> Reporter:
    return Reporter(lambda _: None)


def cut() -> int:
    return Clock().now_us() + 86_400_000_000


# -- operations


async def collects(handle: RepoHandle) -> Any:
    return await gc.collect_garbage(handle, Options(cut()), silent())


async def collects_shortly(handle: RepoHandle) -> Any:
    options = Options(cut(), full_every=100)
    return await incremental.collect_garbage(handle, options, silent())


async def runs_plan(handle: RepoHandle) -> Any:
    plan = await gc.plan_garbage(handle, Options(cut()), silent())
    return await gc.run_plan(handle, plan, Options(cut()), silent())


async def expires(handle: RepoHandle) -> Any:
    return await expire.expire_snapshots(handle, Rules(older_than=cut()))


async def upgrades(handle: RepoHandle, *, deletes: bool = True) -> None:
    await upgrading.upgrade(handle, dry_run=False, delete_unused_v1_files=deletes, report=silent())


async def set_chunk(handle: RepoHandle, state: SessionState, at: int, value: int) -> None:
    data = value.to_bytes(8, "little") * NATIVE_CHUNK
    await operations.set_key(Workspace(handle, state), f"native/c/{at}", data)


async def commits(handle: RepoHandle) -> SnapshotId:
    state = await sessions.open_writable(handle, "main")
    await set_chunk(handle, state, 1, 77)
    return await commit.commit(Workspace(handle, state), BESIDE, None)


async def rebases(handle: RepoHandle) -> SnapshotId:
    """A commit that gets in although others were first."""
    state = await sessions.open_writable(handle, "main")
    await set_chunk(handle, state, 3, 76)
    solver = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    return await commit.commit(Workspace(handle, state), "rebased", None, rebase_with=solver)


async def amends(handle: RepoHandle) -> SnapshotId:
    state = await sessions.open_writable(handle, "side")
    await set_chunk(handle, state, 2, 78)
    return await commit.amend(Workspace(handle, state), BESIDE, None)


async def flushes(handle: RepoHandle) -> SnapshotId:
    state = await sessions.open_writable(handle, "side")
    await set_chunk(handle, state, 2, 79)
    return await commit.flush(Workspace(handle, state), BESIDE, None)


async def flushes_and_tags(handle: RepoHandle) -> SnapshotId:
    found = await flushes(handle)
    await refs.create_tag(handle, "kept", found)
    return found


async def deletes_branch(handle: RepoHandle) -> None:
    await handle.format.delete_branch(handle, "side")


async def tags_side(handle: RepoHandle) -> SnapshotId:
    """A tag at the tip of `side`, which may lose its branch meanwhile."""
    found = await handle.format.lookup_branch(handle, "side")
    await refs.create_tag(handle, "kept", found)
    return found


async def merges(handle: RepoHandle) -> SnapshotId:
    """A fork of a session that has written already; both write; the session commits."""
    state = await sessions.open_writable(handle, "main")
    await set_chunk(handle, state, 0, 70)
    fork = await forks.fork_session(Workspace(handle, state))
    await set_chunk(handle, fork, 1, 71)
    changes = await forks.fork_changes(Workspace(handle, fork))
    await forks.merge_forks(Workspace(handle, state), [changes])
    return await commit.commit(Workspace(handle, state), BESIDE, None)


async def resets(handle: RepoHandle) -> None:
    tip = await handle.format.lookup_tag(handle, "old")
    await handle.format.reset_branch(handle, "main", tip, None)


# -- worlds


class Place(NamedTuple):
    """Where repositories are made."""

    kind: str
    folder: Path
    server: S3Server | None = None

    def storage(self) -> Storage:
        """An empty storage."""
        number = len(list(self.folder.iterdir())) if self.kind == "local" else 0
        return fresh_storage(self.kind, self.folder / str(number), self.server)


def furnished_with_garbage(spec: int) -> dict[str, bytes]:
    """The objects of a repository with a branch that was reset and a session that was left.

    It has the memory of a collection that ran before and deleted nothing.
    """
    storage = copy_of(spec, "memory", Path())
    repo = icefloe.Repository.open(storage)
    repo.garbage_collect(datetime.fromtimestamp(1, UTC), incremental=True)
    repo.reset_branch("side", repo.lookup_tag("old"))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="native", mode="r+")[0] = -5
    session = repo.writable_session("side")
    zarr.open_array(session.store, path="native", mode="r+")[0] = -6
    session.commit("second on side again")
    return read_objects(storage)


def handle_over(storage: Storage, driver: Driver) -> RepoHandle:
    """A handle of its own, as another process has, that has been opened already."""
    opened = open_handle(storage)
    return lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())


def race(place: Place, spec: int, *works: Work) -> Callable[[], Case[Storage]]:
    objects = furnished_with_garbage(spec)

    def make() -> Case[Storage]:
        storage = place.storage()
        write_objects(storage, objects)
        return Case(storage, [start(storage, work) for work in works])

    def start(storage: Storage, work: Work) -> Coroutine[Any, Any, Any]:
        return work(handle_over(storage, StepDriver(driver_of(storage))))

    return make


# -- what must hold


def check_sound(storage: Storage, *, has_orphans: bool = True) -> RepoHandle:
    """Everything that a ref leads to, or `repo` lists, is there and as it should be."""
    handle = open_handle(storage)
    repo = icefloe.Repository(Handles(handle, is_blocking=True))
    report = repo.verify()  # chunks here are not compressed as their arrays say
    assert report.is_healthy, str(report)
    assert has_orphans or not report.findings, str(report)
    return handle


def check_present(storage: Storage) -> RepoHandle:
    """The part of `check_sound` that a collection can break, in a tenth of the time."""
    handle = open_handle(storage)
    driver = driver_of(storage)
    there = {info.key for info in run_blocking(driver.list(""))}
    if handle.format.has_repo_object:
        table = run_blocking(handle.assets.repo_object()).info.snapshots
        tips = [SnapshotId(row.tobytes()) for row in table.id]
        logs = {SnapshotId(row.tobytes()) for row in table.columns.pruned_id}
    else:
        tips = list(run_blocking(live.ref_tips(handle)).values())
        logs = set()
    waiting, seen = tips, set[SnapshotId]()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            parent, keys = _needs(bytes(run_blocking(driver.get(layout.snapshot_key(one)))))
            waiting += [parent] if parent and not handle.format.has_repo_object else []
            assert keys <= there, keys - there
            for key in keys:
                chunks = _chunks(bytes(run_blocking(driver.get(key))))
                assert chunks <= there, chunks - there
    logs |= seen - {FIRST_SNAPSHOT_ID}
    assert {layout.transaction_log_key(one) for one in logs} <= there
    return handle


@cache
def _needs(data: bytes) -> tuple[SnapshotId | None, frozenset[str]]:
    snapshot = decode_snapshot(data)
    ids = IdSet.union(
        [IdSet.of(snapshot.manifest_files.id), IdSet.of(snapshot.nodes.used_manifests())]
    )
    keys = {layout.manifest_key(ManifestId(row.tobytes())) for row in ids.rows}
    return snapshot.parent_id, frozenset(keys)


@cache
def _chunks(data: bytes) -> frozenset[str]:
    rows = decode_manifest(data).native_chunk_ids()
    return frozenset(layout.chunk_key(ChunkId(row.tobytes())) for row in rows)


class Race(NamedTuple):
    """Operations at the same time."""

    specs: tuple[int, ...]
    works: tuple[Work, ...]

    def can_switch(self, request: Request) -> bool:
        """Whether something else may happen ahead of a request.

        Objects that are written once are read by one operation at a time, unless others rewrite or
        delete them.
        """
        is_alone = sum(work in DELETE_OR_REWRITE for work in self.works) < 2
        is_read = request.method in ("get", "head") and request.key.startswith(WRITTEN_ONCE)
        return not (is_alone and is_read)

    def check(self, storage: Storage, results: dict[int, Any], *, is_quick: bool = False) -> None:
        """Nothing in use is missing. A writer was told, or its snapshot is where it belongs."""
        handle = check_present(storage) if is_quick else check_sound(storage)
        is_undone = {resets, expires} & set(self.works)
        for number, result in results.items():
            ref = LANDS_IN.get(self.works[number])
            if isinstance(result, IcechunkError):
                is_told = result.kind == ErrorKind.OBJECTS_COLLECTED or upgrades in self.works
                # Nothing led to the snapshot.
                is_told |= self.works[number] in (flushes_and_tags, tags_side)
                assert is_told or isinstance(result, ConflictError), result
                assert result.kind != ErrorKind.OBJECT_NOT_FOUND or upgrades in self.works
            elif ref and not is_undone:
                assert result in _line(handle, *ref), results


WRITTEN_ONCE = ("snapshots/", "manifests/", "transactions/", "chunks/")
DELETE_OR_REWRITE = (collects, collects_shortly, runs_plan, expires)
LANDS_IN: dict[Work, tuple[str, str]] = {
    commits: ("branch", "main"),
    rebases: ("branch", "main"),
    merges: ("branch", "main"),
    amends: ("branch", "side"),
    flushes_and_tags: ("tag", "kept"),
    tags_side: ("tag", "kept"),
}


def _line(handle: RepoHandle, kind: str, name: str) -> list[SnapshotId]:
    lookup = handle.format.lookup_branch if kind == "branch" else handle.format.lookup_tag
    tip = run_blocking(lookup(handle, name))
    return [entry.id for entry in run_blocking(handle.format.ancestry(handle, tip))]


RACES = {
    "commit": Race((1, 2), (collects, commits)),
    "commit with rebase": Race((1, 2), (collects, rebases, commits)),
    "amend": Race((2,), (collects, amends)),
    "flush": Race((1, 2), (collects, flushes)),
    "flush and tag": Race((1, 2), (collects, flushes_and_tags)),
    "tag what a deleted branch had": Race((1, 2), (collects, deletes_branch, tags_side)),
    "fork and merge": Race((1, 2), (collects, merges)),
    "expiration": Race((1, 2), (collects, expires)),
    "collection": Race((1, 2), (collects, collects)),
    "collection by plan": Race((1, 2), (runs_plan, commits)),
    "reset and commit": Race((1, 2), (collects, resets, commits)),
    "expiration and commit": Race((1, 2), (collects, expires, commits)),
    "collection and commit": Race((1, 2), (collects, collects, commits)),
    "short and commit": Race((1, 2), (collects_shortly, commits)),
    "short and rebase": Race((1, 2), (collects_shortly, rebases, commits)),
    "short and amend": Race((2,), (collects_shortly, amends)),
    "short, flush and tag": Race((1, 2), (collects_shortly, flushes_and_tags)),
    "short and tag": Race((1, 2), (collects_shortly, deletes_branch, tags_side)),
    "short and merge": Race((1, 2), (collects_shortly, merges)),
    "short and expiration": Race((1, 2), (collects_shortly, expires, commits)),
    "short and reset": Race((1, 2), (collects_shortly, resets, commits)),
    "short and full": Race((1, 2), (collects_shortly, collects)),
    "short and short": Race((1, 2), (collects_shortly, collects_shortly, commits)),
    "short and upgrade": Race((1,), (collects_shortly, upgrades)),
    "upgrade": Race((1,), (collects, upgrades)),
    "upgrade and commit": Race((1,), (collects, upgrades, commits)),
    "upgrade and merge": Race((1,), (collects, upgrades, merges)),
}
