"""Expiration, collection, statistics and verification before spec version 1."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.errors import ConflictError, ErrorKind, NotFoundError, SessionStateError
from icefloe.maintenance import expire, gc
from icefloe.maintenance.expire import Rules
from icefloe.maintenance.findings import Severity
from icefloe.maintenance.gc import Options
from icefloe.maintenance.progress import Reporter
from icefloe.repo import commit, lifecycle
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver
from icefloe.testing.schedule import Case, StepDriver, some_schedules
from tests.maintenance.older_worlds import (
    CHUNK,
    CHUNKS,
    GENERATIONS,
    add_array,
    copy_of,
    create,
    damaged_copy,
    keys,
    open_repository,
    read,
    values,
    virtual_world,
    write,
)
from tests.places import KINDS, fresh_storage
from tests.safety.worlds import driver_of, open_handle, read_objects

NAMES = pytest.mark.parametrize("name", GENERATIONS)
FOLDERS = {"state file": "saic", "numbered": "samc"}


def later() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def silent() -> Reporter:
    return Reporter(lambda _: None)


def lines(repo: icefloe.Repository) -> dict[str, list[str]]:
    refs = {f"branch {name}": {"branch": name} for name in repo.list_branches()}
    refs |= {f"tag {name}": {"tag": name} for name in repo.list_tags()}
    return {name: [entry.id for entry in repo.ancestry(**ref)] for name, ref in refs.items()}


def orphans(repo: icefloe.Repository) -> list[str]:
    return [one.object for one in repo.verify().of_kind("orphan")]


# -- one repository


@NAMES
def test_old_versions_expire_and_are_collected(name: str) -> None:
    repo = open_repository(copy_of(name, icefloe.in_memory_storage()))
    line = [entry.id for entry in repo.ancestry(branch="main")]
    seen = [read(repo, branch="main"), read(repo, tag="old"), read(repo, branch="side")]
    # 4 commits of 4 chunks, one on the side, each of 20 numbers
    assert repo.chunk_storage_stats().native_bytes == (4 * CHUNKS + 1) * CHUNK * 8
    would = repo.expire_snapshots(later(), dry_run=True)
    assert lines(repo)["branch main"] == line
    assert repo.expire_snapshots(later()) == would == {line[1], line[2]}
    plan = repo.plan_garbage_collection(later())
    assert plan.num_objects("chunks") == 4 + 1 + 1  # the last of them was never committed
    summary = repo.run_garbage_collection(plan)
    assert summary.chunks_deleted == plan.num_objects("chunks")
    assert summary.manifests_deleted == plan.num_objects("manifests") > 0
    fresh = open_repository(repo.storage)
    assert [read(fresh, branch="main"), read(fresh, tag="old"), read(fresh, branch="side")] == seen
    report = fresh.verify(read_chunks=True)
    assert report.is_healthy, str(report)
    assert not orphans(fresh)
    for one in would:
        with pytest.raises(icefloe.NotFoundError):
            fresh.readonly_session(snapshot_id=one)
    session = fresh.writable_session("main")
    write(session, 5)
    session.commit("goes on")
    assert read(open_repository(repo.storage), branch="main") == values(5).tolist()


@NAMES
def test_rules_of_retention(name: str) -> None:
    repo = open_repository(copy_of(name, icefloe.in_memory_storage()))
    line = [entry.id for entry in repo.ancestry(branch="main")]
    assert repo.expire_snapshots(keep_last=4, dry_run=True) == set()
    assert repo.expire_snapshots(keep_last=1, dry_run=True) == {line[1], line[2]}
    assert repo.expire_snapshots(snapshot_ids=[line[1]], dry_run=True) == {line[1]}
    with pytest.raises(icefloe.InvalidInputError, match="points at it"):
        repo.expire_snapshots(snapshot_ids=[line[0]])
    assert repo.expire_snapshots(snapshot_ids=[line[1]]) == {line[1]}
    assert repo.expire_snapshots(keep_last=1) == {line[2]}
    if name == "numbered":
        with pytest.raises(icefloe.FormatError, match="no way to delete branches and tags"):
            repo.expire_snapshots(later(), delete_expired_tags=True)
        return
    repo.expire_snapshots(later(), delete_expired_tags=True, delete_expired_branches=True)
    assert (repo.list_tags(), repo.list_branches()) == (set(), {"main"})


@NAMES
def test_a_plan_is_saved_and_checked_when_it_runs(name: str, tmp_path: Path) -> None:
    repo = open_repository(copy_of(name, icefloe.in_memory_storage()))
    former = list(repo.ancestry(branch="main"))[1].id
    tip = repo.lookup_branch("main")
    repo.reset_branch("main", former)
    repo.plan_garbage_collection(later()).save(tmp_path / "plan")
    plan = icefloe.GarbagePlan.load(tmp_path / "plan")
    assert plan.keys("chunks") == repo.plan_garbage_collection(later()).keys("chunks")
    repo.reset_branch("main", tip)  # in use again
    assert repo.run_garbage_collection(plan).chunks_deleted == 1  # only what nobody committed
    assert open_repository(repo.storage).verify(read_chunks=True).is_healthy


@NAMES
def test_undecodable_metadata_stops_a_collection(name: str) -> None:
    storage = copy_of(name, icefloe.in_memory_storage())
    key = keys(storage, "im"[name == "numbered"] + "/")[0]
    run_blocking(driver_of(storage).put(key, b"damaged"))
    before = read_objects(storage).keys()
    with pytest.raises(icefloe.FormatError, match=key):
        open_repository(storage).garbage_collect(later())
    assert read_objects(storage).keys() == before


@NAMES
def test_names_of_others_stay(name: str) -> None:
    storage = copy_of(name, icefloe.in_memory_storage())
    foreign = [f"{folder}/notes.txt" for folder in FOLDERS[name]]
    run_blocking(driver_of(storage).put_many([(key, b"x") for key in foreign]))
    repo = open_repository(storage)
    assert repo.plan_garbage_collection(later()).num_strange == 4
    repo.garbage_collect(later())
    assert set(foreign) <= read_objects(storage).keys()


def test_chunk_files_of_other_writers_are_seen(tmp_path: Path) -> None:
    """Document 003 lets chunk files have any name."""
    storage = damaged_copy("state file", tmp_path / "r")
    repo = open_repository(storage)
    used = repo.verify()
    assert used.is_healthy
    renamed = _rename_a_chunk(storage)
    repo = open_repository(storage)
    assert repo.verify(read_chunks=True).is_healthy
    assert repo.chunk_storage_stats() == open_repository(storage).chunk_storage_stats()
    repo.garbage_collect(later())
    assert renamed in read_objects(storage)
    assert open_repository(storage).verify(read_chunks=True).is_healthy
    run_blocking(driver_of(storage).delete_many([renamed]))
    (lost,) = open_repository(storage).verify().of_kind("missing-chunk-object")
    assert lost.object == renamed


def _rename_a_chunk(storage: Storage) -> str:
    """Give a chunk file another name, in the newest manifest that refers to it."""
    repo = open_repository(storage)
    session = repo.readonly_session("main")
    assets: Any = repo.handle.assets
    ref = session.workspace.state.array("/a")[1].manifests[0]
    key = f"i/{assets.caches.inventories[ref.id].file}"
    driver = driver_of(storage)
    table = pq.read_table(io.BytesIO(bytes(run_blocking(driver.get(key)))))
    files = table["chunk_file"].to_pylist()
    data = run_blocking(driver.get(f"c/{files[0]}"))
    run_blocking(driver.put("c/of another writer", bytes(data)))
    files[0] = "of another writer"
    at = table.schema.get_field_index("chunk_file")
    table = table.set_column(at, table.schema.field(at), pa.array(files, pa.string()))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    run_blocking(driver.put(key, buffer.getvalue()))
    return "c/of another writer"


# -- any history


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["commit", "commit", "branch", "tag", "reset", "leave", "fork", "expire", "collect"]
        ),
        st.integers(0, 9),
    ),
    min_size=4,
    max_size=14,
)


@NAMES
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_what_refs_lead_to_never_changes(name: str, steps: list[tuple[str, int]]) -> None:
    live_through(name, steps)


@pytest.mark.long
@pytest.mark.timeout(1800)
@NAMES
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_what_refs_lead_to_never_changes_in_long(name: str, steps: list[tuple[str, int]]) -> None:
    live_through(name, steps)


def live_through(name: str, steps: list[tuple[str, int]]) -> None:
    """Take the steps. Whatever can be opened reads as it was written."""
    repo = create(icefloe.in_memory_storage(), name)
    session = repo.writable_session("main")
    add_array(session)
    write(session, 0)
    contents = {session.commit("first"): values(0).tolist()}
    for number, (step, drawn) in enumerate(steps):
        branches = sorted(repo.list_branches())
        branch = branches[drawn % len(branches)]
        known = [entry.id for entry in repo.ancestry(branch=branch) if entry.id in contents]
        there = [one for one in known if _is_there(repo, one)]
        if step in ("commit", "leave", "fork"):
            session = repo.writable_session(branch)
            expected = read(repo, branch=branch)
            write(session, number + 1, at=drawn % CHUNKS)
            if step == "fork":
                session.fork()
            if step == "commit":
                at = drawn % CHUNKS
                expected[at * CHUNK : (at + 1) * CHUNK] = [number + 1] * CHUNK
                contents[session.commit(f"commit {number}")] = expected
        elif step == "branch":
            repo.create_branch(f"branch{number}", there[drawn % len(there)])
        elif step == "tag":
            repo.create_tag(f"tag{number}", there[drawn % len(there)])
        elif step == "reset":
            repo.reset_branch(branch, there[drawn % len(there)])
        elif step == "expire":
            repo.expire_snapshots(keep_last=1 + drawn)
        else:
            repo.garbage_collect(later())
        repo = open_repository(repo.storage)
        for one in {one for line in lines(repo).values() for one in line}:
            if one in contents and _is_there(repo, one):
                assert read(repo, snapshot_id=one) == contents[one]
        for ref in [{"branch": one} for one in repo.list_branches()]:
            assert read(repo, **ref) == contents[repo.lookup_branch(ref["branch"])]
    repo.garbage_collect(later())
    report = open_repository(repo.storage).verify(read_chunks=True)
    assert report.is_healthy, str(report)
    assert not report.of_kind("orphan"), str(report)


def _is_there(repo: icefloe.Repository, snapshot_id: str) -> bool:
    try:
        repo.readonly_session(snapshot_id=snapshot_id)
    except icefloe.NotFoundError:
        return False
    return True


# -- beside writers


Work = Callable[[RepoHandle], Coroutine[Any, Any, Any]]


def cut() -> int:
    return Clock().now_us() + 86_400_000_000


async def collects(handle: RepoHandle) -> Any:
    return await gc.collect_garbage(handle, Options(cut()), silent())


async def expires(handle: RepoHandle) -> Any:
    return await expire.expire_snapshots(handle, Rules(older_than=cut()))


async def commits(handle: RepoHandle) -> Any:
    state = await sessions.open_writable(handle, "main")
    data = (99).to_bytes(8, "little") * CHUNK
    await operations.set_key(Workspace(handle, state), "a/c/1", data)
    return await commit.commit(Workspace(handle, state), "beside", None)


async def branches(handle: RepoHandle) -> Any:
    tip = await handle.format.lookup_branch(handle, "main")
    await handle.format.create_branch(handle, "new", tip)


def race(name: str, *works: Work) -> Callable[[], Case[Storage]]:
    def make() -> Case[Storage]:
        storage = copy_of(name, icefloe.in_memory_storage())
        return Case(storage, [start(storage, work) for work in works])

    def start(storage: Storage, work: Work) -> Coroutine[Any, Any, Any]:
        opened = open_handle(storage)
        driver = StepDriver(driver_of(storage))
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
        handle = lifecycle.make_handle(storage, driver, opened.format, config, Clock())
        return work(handle)

    return make


def check_outcome(storage: Storage, results: dict[int, Any]) -> None:
    for result in results.values():
        if isinstance(result, SessionStateError):
            assert result.kind == ErrorKind.OBJECTS_COLLECTED
        elif isinstance(result, Exception):
            assert isinstance(result, ConflictError), result
    repo = open_repository(storage)
    report = repo.verify()
    assert report.is_healthy, str(report)
    snapshots = {str(result) for result in results.values() if isinstance(result, bytes)}
    listed = {one for line in lines(repo).values() for one in line}
    assert snapshots <= listed


RACES: dict[str, tuple[Work, ...]] = {
    "commit": (collects, commits),
    "expiration": (collects, expires),
    "collection": (collects, collects),
    "expiration and commit": (collects, expires, commits),
    "branch": (collects, branches),
}


@NAMES
@pytest.mark.parametrize("race_name", RACES)
def test_nothing_in_use_is_deleted_in_any_order(name: str, race_name: str) -> None:
    for outcome in some_schedules(race(name, *RACES[race_name]), number=5, seed=7):
        check_outcome(outcome.world, outcome.results)


@pytest.mark.long
@pytest.mark.timeout(1800)
@NAMES
@pytest.mark.parametrize("race_name", RACES)
def test_nothing_in_use_is_deleted_in_many_orders(name: str, race_name: str) -> None:
    for outcome in some_schedules(race(name, *RACES[race_name]), number=300, seed=8):
        check_outcome(outcome.world, outcome.results)


@NAMES
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_whose_objects_were_collected_is_told(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, name: str
) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    repo = create(fresh_storage(kind, tmp_path, server), name)
    session = repo.writable_session("main")
    add_array(session)
    write(session, 1)
    session.commit("first")
    before = read(repo, branch="main")
    slow = repo.writable_session("main")
    write(slow, 2, at=0)
    fork = repo.writable_session("main").fork()
    write(fork, 3, at=1)
    sent = pickle.dumps(fork)
    idle = repo.writable_session("main")
    assert open_repository(repo.storage).garbage_collect(later()).chunks_deleted == 2
    with pytest.raises(SessionStateError, match="Nothing was committed") as caught:
        slow.commit("too late")
    assert caught.value.kind == ErrorKind.OBJECTS_COLLECTED
    late = open_repository(repo.storage).writable_session("main")
    late.merge(pickle.loads(sent))
    with pytest.raises(SessionStateError) as caught:
        late.commit("too late as well")
    assert caught.value.kind == ErrorKind.OBJECTS_COLLECTED
    assert read(open_repository(repo.storage), branch="main") == before
    if kind == "s3":
        return  # its clock has whole seconds: what follows would have to wait for the next one
    write(idle, 4, at=2)  # after the collection
    idle.commit("written afterwards")
    assert read(open_repository(repo.storage), branch="main")[2 * CHUNK] == 4


@NAMES
@pytest.mark.parametrize("work", [collects, expires], ids=["collect", "expire"])
def test_a_crash_after_any_request_does_no_harm(name: str, work: Work) -> None:
    whole = copy_of(name, icefloe.in_memory_storage())
    run_blocking(work(open_handle(whole)))
    tips = {one: line[0] for one, line in lines(open_repository(whole)).items()}
    number = 0
    while True:
        storage = copy_of(name, icefloe.in_memory_storage())
        opened = open_handle(storage)
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(work(handle))
        check_outcome(storage, {})
        is_done = not driver.num_refused
        run_blocking(work(open_handle(storage)))  # it can be done again
        assert {one: line[0] for one, line in lines(open_repository(storage)).items()} == tips
        assert kept(storage) == kept(whole)
        if is_done:
            break
        number += 1
    assert number >= 2


def kept(storage: Storage) -> set[str]:
    return {key for key in read_objects(storage) if key[0] in "saimc" and key[1] == "/"}


# -- damages


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]


def in_use(storage: Storage, folder: str) -> str:
    """A file of the folder that the tip of `main` needs."""
    repo = open_repository(storage)
    session = repo.readonly_session("main")
    assets: Any = repo.handle.assets
    snapshot = session.workspace.state.snapshot
    if folder == "c":
        ref = session.workspace.state.array("/a")[1].manifests[0]
        manifest = run_blocking(assets.manifest(ref.id, 0))
        return str(assets.chunk_key(manifest.arrays[0].refs.row(0).chunk_id))
    kind = {"s": "snapshots", "a": "attributes", "i": "manifests", "m": "manifests"}[folder]
    wanted = assets.files_of(snapshot)[kind]
    stored = run_blocking(assets.list_objects(kind))
    return str(stored.take(wanted.contains(stored.id)).all_keys()[0])


KINDS_OF = {
    "s": "damaged-snapshot",
    "a": "damaged-snapshot",
    "i": "damaged-manifest",
    "m": "damaged-manifest",
}
DAMAGES = [
    (name, folder, how)
    for name, folders in FOLDERS.items()
    for folder in folders
    for how in ("cut", "missing", "other")
]


@pytest.mark.parametrize(("name", "folder", "how"), DAMAGES)
def test_damages_are_found_and_named(tmp_path: Path, name: str, folder: str, how: str) -> None:
    storage = damaged_copy(name, tmp_path / "r")
    assert open_repository(storage).verify(read_chunks=True).is_healthy
    key = in_use(storage, folder)
    path = tmp_path / "r" / key
    expected = KINDS_OF.get(folder, "undecodable-chunk")
    if how == "missing":
        path.unlink()
        expected = {"s": "dangling-ref", "c": "missing-chunk-object"}.get(folder, expected)
        if folder in "im":
            expected = "missing-manifest"
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        expected = "short-chunk-object" if folder == "c" else expected
    elif folder == "c":
        return  # uncompressed bytes of any value decode
    else:
        path.write_bytes(b"something else")
    report = icefloe.Repository.verify_storage(storage, read_chunks=True)
    found = {str(kind) for kind in report.counts if kind.severity != Severity.INFO}
    assert expected in found, str(report)
    assert any(key in one.object or key in one.detail for one in report.of_kind(expected))


def test_a_damaged_state_file_is_reported(tmp_path: Path) -> None:
    storage = damaged_copy("state file", tmp_path / "r")
    path = tmp_path / "r" / "state.json"
    path.write_bytes(path.read_bytes()[:-40])
    report = icefloe.Repository.verify_storage(storage)
    assert [one.object for one in report.of_kind("damaged-repo-object")] == ["state.json"]


def test_a_damaged_ref_is_reported(tmp_path: Path) -> None:
    storage = damaged_copy("numbered", tmp_path / "r")
    newest = keys(storage, "r/side/")[0]
    (tmp_path / "r" / newest).write_bytes(b"{}")
    report = open_repository(storage).verify()
    assert [one.object for one in report.of_kind("damaged-ref")] == ["branch 'side'"]


@NAMES
def test_swapped_manifests_and_two_damages_at_once(tmp_path: Path, name: str) -> None:
    storage = damaged_copy(name, tmp_path / "r")
    repo = open_repository(storage)
    session = repo.writable_session("main")
    add_array(session, "b")
    session.commit("another array")
    first = in_use(storage, "im"[name == "numbered"])
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b", mode="r+")[:] = 1
    session.commit("filled")
    assets: Any = repo.handle.assets
    snapshot = repo.readonly_session("main").workspace.state.snapshot
    kind_files = assets.files_of(snapshot)["manifests"]
    stored = run_blocking(assets.list_objects("manifests"))
    both = stored.take(kind_files.contains(stored.id)).all_keys()
    other = next(key for key in both if key != first)
    (tmp_path / "r" / other).write_bytes((tmp_path / "r" / first).read_bytes())
    (tmp_path / "r" / in_use(storage, "c")).unlink()
    report = open_repository(storage).verify()
    found = {str(kind) for kind in report.counts if kind.severity != Severity.INFO}
    assert "missing-chunk-object" in found, str(report)
    assert found & {"damaged-manifest", "array-not-in-manifest", "wrong-manifest-id"}, str(report)


@NAMES
def test_virtual_sources_are_asked(tmp_path: Path, name: str) -> None:
    repo, source = virtual_world(name, tmp_path)
    assert repo.verify(virtual_sources=True, read_chunks=True).is_healthy
    assert repo.chunk_storage_stats().virtual_bytes == CHUNK * CHUNKS * 8
    source.write_bytes(source.read_bytes()[:-1])
    assert repo.verify(virtual_sources=True).of_kind("short-source")
    source.unlink()
    assert repo.verify(virtual_sources=True).of_kind("missing-source")
    assert repo.verify().is_healthy


def test_snapshots_behind_an_expired_one_without_message_stay() -> None:
    repo = create(icefloe.in_memory_storage(), "numbered")
    line = []
    for number, message in enumerate(["first", "", "third"]):
        session = repo.writable_session("main")
        if number == 0:
            add_array(session)
        write(session, number)
        line.append(session.commit(message))
    repo.expire_snapshots(snapshot_ids=[line[1]])
    repo = open_repository(repo.storage)
    repo.garbage_collect(later())
    assert read(repo, snapshot_id=line[0]) == values(0).tolist()
    assert repo.verify(read_chunks=True).is_healthy


@NAMES
def test_flushes_and_refs_after_a_collection_are_refused(name: str) -> None:
    repo = create(icefloe.in_memory_storage(), name)
    session = repo.writable_session("main")
    add_array(session)
    write(session, 1)
    session.commit("first")
    flushing = repo.writable_session("main")
    write(flushing, 2, at=0)
    flushed = flushing.flush("flushed")
    slow = repo.writable_session("main")
    write(slow, 3, at=0)
    open_repository(repo.storage).garbage_collect(later())
    with pytest.raises(SessionStateError) as caught:
        slow.flush("too late")
    assert caught.value.kind == ErrorKind.OBJECTS_COLLECTED
    with pytest.raises(NotFoundError):
        repo.create_branch("new", flushed)
    with pytest.raises(NotFoundError):
        repo.create_tag("new", flushed)
    with pytest.raises(NotFoundError):
        repo.reset_branch("main", flushed)
    assert open_repository(repo.storage).list_branches() == {"main"}
