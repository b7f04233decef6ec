"""Plans of collections: looked at, kept, approved, run later, interrupted; and what goes wrong."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.assets.assets import StoredObjects, list_folder
from icefloe.errors import ErrorKind, StorageError
from icefloe.format import layout
from icefloe.format.layout import KINDS
from icefloe.maintenance.gc import Pace, delete_objects
from icefloe.maintenance.progress import Progress, Reporter
from icefloe.storage.run import run_blocking
from icefloe.testing.wrapping import WrappingDriver

ROWS = 200


def tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def repository() -> icefloe.Repository:
    """Two commits of an array and one that was reset away."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(4 * ROWS,), chunks=(ROWS,), dtype="<i8"
    )
    array[:] = np.arange(1, 1 + 4 * ROWS)
    first = session.commit("first")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 5
    session.commit("second")
    repo.create_branch("kept for now", repo.lookup_branch("main"))
    repo.reset_branch("main", first)
    repo.delete_branch("kept for now")
    return repo


def test_a_plan_is_shown_saved_loaded_and_run(tmp_path: Path) -> None:
    repo = repository()
    plan = repo.plan_garbage_collection(tomorrow())
    assert [plan.num_objects(kind) for kind in KINDS] == [1, 1, 1, 4]
    assert plan.num_forgotten == 1
    shown = str(plan)
    assert repo.storage.url in shown
    assert all(kind.replace("_", " ") in shown for kind in KINDS)
    plan.save(tmp_path / "plan")
    loaded = icefloe.GarbagePlan.load(tmp_path / "plan")
    assert str(loaded) == shown
    assert loaded.keys("chunks") == plan.keys("chunks")
    summary = repo.run_garbage_collection(loaded)
    assert summary.bytes_deleted == plan.num_bytes()
    assert summary.chunks_deleted == 4
    again = repo.run_garbage_collection(loaded)  # a run that broke off is repeated
    assert again.bytes_deleted == 0
    (tmp_path / "other").write_bytes(b"no plan")
    with pytest.raises(icefloe.FormatError, match="other"):
        icefloe.GarbagePlan.load(tmp_path / "other")
    with pytest.raises(icefloe.InvalidInputError, match="this one is in"):
        repository().run_garbage_collection(loaded)


def test_what_came_into_use_since_the_plan_was_made_stays() -> None:
    repo = repository()
    lost = repo.plan_garbage_collection(tomorrow()).keys("snapshots")
    plan = repo.plan_garbage_collection(tomorrow())
    repo.create_tag("rescued", lost[0].removeprefix(layout.SNAPSHOTS))
    assert repo.run_garbage_collection(plan).bytes_deleted == 0
    array = zarr.open_array(repo.readonly_session(tag="rescued").store, path="a", mode="r")
    assert (np.asarray(array[:]) == 5).all()


@pytest.mark.parametrize("folder", [layout.SNAPSHOTS, layout.MANIFESTS])
def test_a_file_that_cannot_be_read_stops_a_collection(folder: str) -> None:
    repo = repository()
    key = layout.SNAPSHOTS + repo.lookup_branch("main")
    if folder == layout.MANIFESTS:
        key = layout.MANIFESTS + repo.list_manifest_files(repo.lookup_branch("main"))[0].id
    driver = repo.handle.driver
    good = bytes(run_blocking(driver.get(key)))
    before = len(run_blocking(driver.list(layout.CHUNKS)))
    run_blocking(driver.put(key, good[:60] + bytes(len(good) - 60)))
    for dry_run in (True, False):
        with pytest.raises(icefloe.FormatError, match=key):
            icefloe.Repository.open(repo.storage).garbage_collect(tomorrow(), dry_run=dry_run)
    assert len(run_blocking(driver.list(layout.CHUNKS))) == before


# -- deleting goes wrong


class Stubborn(WrappingDriver):
    """Some requests to delete fail, in a way that is asked for."""

    def __init__(self, inner: object, folder: str, kind: ErrorKind, times: int) -> None:
        super().__init__(inner)  # type: ignore[arg-type]
        self.folder, self.kind, self.times = folder, kind, times

    async def before(self, method: str, key: str) -> None:
        if method == "delete" and key.startswith(self.folder) and self.times:
            self.times -= 1
            raise StorageError(f"cannot delete {key}", self.kind)


def stored(repo: icefloe.Repository) -> dict[str, StoredObjects]:
    driver = repo.handle.driver
    return {kind: run_blocking(list_folder(driver, folder)) for kind, folder in KINDS.items()}


def test_later_phases_are_skipped_when_one_had_failures() -> None:
    repo = repository()
    objects = stored(repo)
    driver = Stubborn(repo.handle.driver, layout.MANIFESTS, ErrorKind.IO, 1)
    report = Reporter(lambda _: None)
    summary = run_blocking(delete_objects(driver, objects, Pace(), report))
    assert summary.snapshots_deleted == len(objects["snapshots"])
    assert summary.objects_failed_to_delete == len(objects["manifests"])
    assert summary.skipped_phases == ["chunks"]
    assert "cannot delete" in summary.delete_errors[0]
    assert len(stored(repo)["chunks"]) == len(objects["chunks"])


def test_throttled_requests_are_made_again() -> None:
    repo = repository()
    driver = Stubborn(repo.handle.driver, layout.CHUNKS, ErrorKind.THROTTLED, 3)
    summary = run_blocking(delete_objects(driver, stored(repo), Pace(), Reporter(lambda _: None)))
    assert summary.throttled_batches == 3
    assert (summary.objects_failed_to_delete, summary.skipped_phases) == (0, [])
    assert not any(map(len, stored(repo).values()))


def test_failures_in_a_row_end_a_collection() -> None:
    repo = repository()
    driver = Stubborn(repo.handle.driver, layout.SNAPSHOTS, ErrorKind.IO, 99)
    with pytest.raises(StorageError, match="in a row") as caught:
        run_blocking(delete_objects(driver, stored(repo), Pace(1, 1), Reporter(lambda _: None)))
    assert caught.value.kind == ErrorKind.GC_DELETES_FAILING


# -- progress


def test_progress_is_told_to_a_function() -> None:
    told: list[Progress] = []
    repository().garbage_collect(tomorrow(), progress=told.append)
    stages = [each.stage for each in told]
    assert stages.index("listing") < stages.index("reading manifests")
    assert stages[-1] == "deleting chunks"
    last = told[-1]
    assert last.done == last.total == 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_and_anything_else_nothing() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        report = Reporter(None, stream)
        for done in range(11):
            report.tell("reading manifests", done, 10)
        report.finish()
    assert "reading manifests" in terminal.getvalue()
    assert "10 / 10" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert file.getvalue() == ""


@pytest.mark.parametrize("spec", [1, 2])
def test_a_cut_just_after_a_snapshot_file_deletes_its_log_too(spec: int) -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=spec)
    first = repo.lookup_branch("main")
    for _ in range(5):
        snapshot_id = repo.writable_session("main").commit("again", allow_empty=True)
        repo.reset_branch("main", first)
        [found] = [
            one
            for one in storage.list_objects_metadata(prefix="snapshots")
            if one.key == snapshot_id
        ]
        summary = repo.garbage_collect(found.created_at + timedelta(microseconds=1))
        assert (summary.snapshots_deleted, summary.transaction_logs_deleted) == (1, 1)


@pytest.mark.filterwarnings("ignore:the expiration cuts")
def test_files_that_expiration_rewrites_keep_the_order_of_the_history(tmp_path: Path) -> None:
    """Collection compares the times of files. Random ids must not decide about their order."""
    storage = icefloe.local_filesystem_storage(tmp_path)
    repo = icefloe.Repository.create(storage, spec_version=1)
    root = repo.lookup_branch("main")
    repo.writable_session("main").commit("old", allow_empty=True)
    cut = datetime.now(UTC)
    tips = []
    for name in "ecafbd":
        repo.create_branch(name, repo.lookup_branch("main"))
        tips.append(repo.writable_session(name).commit("new", allow_empty=True))
    repo.reset_branch("main", tips[0])
    assert len(repo.expire_snapshots(cut)) == 1
    for tip in tips:
        assert repo.lookup_snapshot(tip).parent_id == root
    written = {one.key: one.created_at for one in storage.list_objects_metadata(prefix="snapshots")}
    assert sorted(tips, key=written.__getitem__) == tips
