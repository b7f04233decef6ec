"""Scenarios about expiration, garbage collection and migration.

`collect` and `migrate` change a repository that is already there; make_golden.py hands them a
copy.
"""

import datetime as dt
import time
from pathlib import Path
from typing import Any

from tests.golden.basics import create_array
from tests.golden.history import add_group
from tests.golden.official import create_repository, icechunk, open_repository, zarr
from tests.golden.recorder import Recorder


def write_expired(root: Path, spec: int, record: Recorder) -> None:
    """Five commits on main, a tag and a branch; all but the last two commits expire.

    main:  one - two (tag) - three - four - five
    side:                    three - side
    """
    repo = create_repository(root, spec=spec)
    labels = record.labels
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    create_array(top, "array", (600,), chunks=(600,))[:] = 1
    labels["one"] = session.commit("one")
    labels["two"] = _overwrite(repo, 2, "two")
    repo.create_tag("two", labels["two"])
    labels["three"] = add_group(repo, "three").commit("three")
    repo.create_branch("side", labels["three"])
    labels["side"] = add_group(repo, "side", branch="side").commit("side")
    labels["four"] = add_group(repo, "four").commit("four")
    labels["five"] = add_group(repo, "five").commit("five")
    keep_from = repo.lookup_snapshot(labels["four"]).written_at
    record.results["older_than"] = keep_from.isoformat()
    record.results["released"] = sorted(repo.expire_snapshots(keep_from))


def _overwrite(repo: Any, value: int, message: str) -> Any:
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+")["array"][:] = value
    return session.commit(message)


def collect(root: Path, spec: int, record: Recorder) -> None:
    """Expire again, now with refs, leave garbage of several kinds behind and collect it."""
    repo = open_repository(root)
    labels = record.labels
    labels["flushed"] = add_group(repo, "flushed").flush("flushed, then forgotten")
    if spec >= 2:
        session = repo.writable_session("main")
        zarr.open_group(session.store, mode="r+")["array"][:] = 7
        labels["replaced by amend"] = session.commit("six, with a mistake")
        labels["amended"] = add_group(repo, "six").amend("six")
    else:
        labels["six"] = _overwrite(repo, 7, "six")
    # A chunk uploaded by a session that never commits.
    abandoned = repo.writable_session("main")
    zarr.open_group(abandoned.store, mode="r+")["array"][:] = 8
    repo.create_branch("to be expired", labels["amended" if spec >= 2 else "six"])
    repo.reset_branch("to be expired", repo.lookup_branch("side"))
    five = next(info for info in repo.ancestry(branch="main") if info.message == "five")
    released = repo.expire_snapshots(
        five.written_at, delete_expired_branches=True, delete_expired_tags=True
    )
    record.results["released"] = sorted(released)
    record.deleted_tags.append("two")
    # The cut has to be later than the files' modification times, which may be coarse.
    time.sleep(1.5)
    cut = dt.datetime.now(dt.UTC)
    summary = repo.garbage_collect(cut)
    names = ("bytes", "chunks", "manifests", "snapshots", "attributes", "transaction_logs")
    record.results["collected"] = {
        f"{name}_deleted": getattr(summary, f"{name}_deleted") for name in names
    }


def migrate(root: Path, spec: int, record: Recorder) -> None:
    """Upgrade a spec-1 repository in place, then commit on top of the old files."""
    if spec != 2:
        raise ValueError(f"official icechunk migrates to spec version 2, not to {spec}")
    repo = icechunk.upgrade_icechunk_repository(open_repository(root), dry_run=False)
    session = repo.writable_session("main")
    top = zarr.open_group(session.store, mode="r+")
    top["größe/深い/naïve array"].attrs["migrated"] = True
    top["hypercube"][0, 1, 0, 0] = 77
    record.labels["after"] = session.commit("after the migration", metadata={"after": [1, 2]})
