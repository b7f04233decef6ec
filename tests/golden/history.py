"""Scenarios about the repo object of spec version 2: ops log, refs, status, flags, moves.

Arrays matter little here; each repository holds one or two tiny ones.
"""

import datetime as dt
from pathlib import Path
from typing import Any

from tests.golden.basics import METADATA, create_array
from tests.golden.official import create_repository, icechunk, open_repository, put, zarr
from tests.golden.recorder import Recorder

GROUP = b'{"zarr_format":3,"node_type":"group"}'
LONG_AGO = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def add_group(repo: Any, name: str, *, branch: str = "main") -> Any:
    """A writable session with one new group in it."""
    session = repo.writable_session(branch)
    put(session.store, f"{name}/zarr.json", GROUP)
    return session


def write_history(root: Path, spec: int, record: Recorder) -> None:
    """One update of every kind, except migration, with the ops log in a single file."""
    repo = create_repository(root, spec=spec)
    labels = record.labels
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    create_array(top, "array", (4,), chunks=(2,))[:] = 1
    labels["first"] = session.commit("first")
    repo.set_metadata(METADATA)
    repo.update_metadata({"zero": "no longer a number", "új": [1, 2, 3, 4, 5]})

    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+")["array"][0:2] = 2
    labels["replaced by amend"] = session.commit("typpo", metadata={"reviewed": False})
    session = repo.writable_session("main")
    open_group = zarr.open_group(session.store, mode="r+")
    open_group["array"].attrs["amended"] = True
    open_group.create_group("amended")
    labels["amended"] = session.amend("typo", metadata={"reviewed": True})
    labels["empty"] = repo.writable_session("main").commit("nothing new", allow_empty=True)
    labels["flushed"] = add_group(repo, "flushed").flush("detached", metadata={"flush": 1})
    labels["rebased"] = _commit_after_race(repo)
    labels["merged"] = _commit_merged_fork(repo)

    _change_refs(repo, labels, record)
    repo.set_feature_flag("create_tag", False)
    repo.set_feature_flag("create_tag", None)
    repo.set_feature_flag("delete_tag", False)
    repo.set_feature_flag("move_node", True)
    availability = icechunk.RepoAvailability
    stop = icechunk.RepoStatus(availability.read_only, LONG_AGO, "moving house – Umzug")
    repo.set_status(stop)
    repo.set_status(icechunk.RepoStatus(availability.online))
    released = repo.expire_snapshots(LONG_AGO)
    record.results["released"] = sorted(released)
    repo.garbage_collect(LONG_AGO)
    config = repo.config
    config.inline_chunk_threshold_bytes = 100
    open_repository(root, config=config).save_config()


def _commit_after_race(repo: Any) -> Any:
    ours = add_group(repo, "ours")
    add_group(repo, "theirs").commit("first to arrive")
    solver = icechunk.BasicConflictSolver()
    return ours.commit("second to arrive", metadata={"kept": 1}, rebase_with=solver)


def _commit_merged_fork(repo: Any) -> Any:
    # Forking a session that has changes leaves a snapshot file that no repo object mentions.
    session = add_group(repo, "before the fork")
    fork = session.fork()
    zarr.open_group(fork.store, mode="r+")["array"][2:4] = 3
    session.merge(fork)
    return session.commit("merged from a fork")


def _change_refs(repo: Any, labels: dict[str, str], record: Recorder) -> None:
    repo.create_tag("v1", labels["first"])
    repo.create_tag("größe/v2", labels["amended"])
    repo.create_tag("withdrawn", labels["first"])
    repo.delete_tag("withdrawn")
    record.deleted_tags.append("withdrawn")
    repo.create_branch("dev/ürün", labels["first"])
    labels["dev"] = add_group(repo, "on dev", branch="dev/ürün").commit("on dev")
    repo.create_branch("reset", labels["merged"])
    repo.reset_branch("reset", labels["first"], from_snapshot_id=labels["merged"])
    repo.create_branch("short-lived", labels["empty"])
    repo.delete_branch("short-lived")


def write_paged_ops_log(root: Path, spec: int, record: Recorder) -> None:
    """An ops log of 11 entries in pages of three, so several backups are needed to read it."""
    config = icechunk.RepositoryConfig(num_updates_per_repo_info_file=3)
    repo = create_repository(root, spec=spec, config=config)
    record.labels["first"] = add_group(repo, "group").commit("first")
    for number in range(1, 6):
        repo.create_tag(f"tag {number}", record.labels["first"])
    repo.delete_tag("tag 3")
    record.deleted_tags.append("tag 3")
    repo.create_branch("branch", record.labels["first"])
    repo.delete_branch("branch")
    record.labels["last"] = add_group(repo, "another").commit("last")


def write_moves(root: Path, spec: int, record: Recorder) -> None:
    """Rearranged nodes: an array, a group with everything below it, a swap, an amended move."""
    repo = create_repository(root, spec=spec)
    labels = record.labels
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    create_array(top, "lone", (4,), chunks=(2,))[:] = 1
    create_array(top, "old/inner/array", (2, 2), chunks=(1, 1))[0, 1] = 2
    top.create_group("old-er")
    create_array(top, "left", (1,))
    create_array(top, "right", (2,))
    labels["before"] = session.commit("before")
    labels["array"] = _commit_moves(repo, [("/lone", "/old/größe")])
    labels["group"] = _commit_moves(repo, [("/old", "/new")])
    swap = [("/left", "/aside"), ("/right", "/left"), ("/aside", "/right")]
    labels["swap"] = _commit_moves(repo, swap)
    labels["replaced by amend"] = _commit_moves(repo, [("/new/inner", "/a")])
    session = repo.rearrange_session("main")
    session.move("/a", "/z")
    session.move("/old-er", "/new/old-er")
    labels["amended"] = session.amend("moved twice")
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+")["z/array"][1, 1] = 5
    labels["written after"] = session.commit("a moved array is written")


def _commit_moves(repo: Any, moves: list[tuple[str, str]]) -> Any:
    session = repo.rearrange_session("main")
    for source, destination in moves:
        session.move(source, destination)
    return session.commit(f"move {moves}")
