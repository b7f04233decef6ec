"""What users of official Icechunk do, on the storage that the command line names.

    python [-m icefloe.as_icechunk] typical_program.py FOLDER [S3 ENDPOINT]

Prints a line of JSON for each part, with what could be seen. It runs with either library.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import xarray as xr
import zarr
from icechunk.dask import store_dask
from icechunk.distributed import merge_sessions
from icechunk.xarray import to_icechunk


def new_storage(prefix: str = "") -> ic.Storage:
    name = prefix or uuid.uuid4().hex
    if len(sys.argv) == 2:
        return ic.local_filesystem_storage(f"{sys.argv[1]}/{name}")
    return ic.s3_storage(
        bucket="testbucket",
        prefix=name,
        region="us-east-1",
        endpoint_url=sys.argv[2],
        allow_http=True,
        force_path_style=True,
        access_key_id="test",
        secret_access_key="test-secret",
    )


def error_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
    """The class of an error, its kind, the builtin classes it is, and its first words."""
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - what is raised is the result
        builtins = [each.__name__ for each in type(error).__mro__ if each.__module__ == "builtins"]
        return [type(error).__name__, str(getattr(error, "kind", None)), builtins]
    return []


def small_repo(**options: Any) -> Any:
    repo = ic.Repository.create(new_storage(), **options)
    with repo.transaction("main", message="first") as store:
        root = zarr.group(store)
        array = root.create_array("group/a", shape=(8, 4), chunks=(2, 2), dtype="i4", fill_value=0)
        array[:] = np.arange(32).reshape(8, 4)
        root.attrs["title"] = "typical"
    return repo


def read(session: Any, path: str = "group/a") -> Any:
    array: Any = zarr.open_array(session.store, path=path, mode="r")
    return array[:].tolist()


def history() -> Any:
    repo = small_repo()
    first = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="group/a")[0] = -1
    status = repr(session.status())
    second = session.commit("second", metadata={"author": "me", "n": 1})
    repo.create_tag("v1", snapshot_id=first)
    repo.create_branch("dev", snapshot_id=first)
    with repo.transaction("dev", message="on dev") as store:
        zarr.create_array(store, name="b", shape=(2,), dtype="f8")
    diff = repo.diff(from_tag="v1", to_branch="main")
    found = {
        "status": status,
        "ancestry": [(each.message, each.metadata) for each in repo.ancestry(branch="main")],
        "branches": sorted(repo.list_branches()),
        "tags": sorted(repo.list_tags()),
        "chunks": {path: sorted(map(list, at)) for path, at in diff.updated_chunks.items()},
        "before": read(repo.readonly_session(tag="v1"))[0],
        "after": read(repo.readonly_session("main"))[0],
        "then": read(repo.readonly_session(branch="main", as_of=datetime.now(UTC)))[0],
        "ops": [type(each.kind).__name__ for each in repo.ops_log()],
    }
    repo.reset_branch("dev", second)
    repo.delete_tag("v1")
    found["again"] = error_of(repo.create_tag, "v1", snapshot_id=first)
    found["dev"] = repo.lookup_branch("dev") == second
    return found


def conflicts() -> Any:
    repo = small_repo()
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(ours.store, path="group/a")[0, 0] = 100
    zarr.open_array(theirs.store, path="group/a")[0, 0] = 200
    theirs.commit("theirs")
    found = {"commit": error_of(ours.commit, "ours")}
    found["rebase"] = error_of(ours.rebase, ic.ConflictDetector())
    try:
        ours.rebase(ic.ConflictDetector())
    except ic.RebaseFailedError as error:
        found["conflicts"] = [
            [str(each.conflict_type), each.path, each.conflicted_chunks] for each in error.conflicts
        ]
    solver = ic.BasicConflictSolver(on_chunk_conflict=ic.VersionSelection.UseOurs)
    ours.commit("ours", rebase_with=solver)
    found["value"] = read(repo.readonly_session("main"))[0][0]
    return found


def errors() -> Any:
    repo = small_repo()
    reader = repo.readonly_session("main")
    group = zarr.open_group(reader.store, mode="r")
    return {
        "branch": error_of(repo.readonly_session, branch="nope"),
        "tag": error_of(repo.lookup_tag, "nope"),
        "snapshot": error_of(repo.readonly_session, snapshot_id="0" * 20),
        "bad id": error_of(repo.readonly_session, snapshot_id="x"),
        "exists": error_of(repo.create_branch, "main", repo.lookup_branch("main")),
        "no changes": error_of(repo.writable_session("main").commit, "nothing"),
        "read only": error_of(group.create_group, "new"),
        "read only commit": error_of(reader.commit, "nothing"),
        "create twice": error_of(ic.Repository.create, repo.storage),
        "open nothing": error_of(ic.Repository.open, new_storage("nothing-here")),
        "delete main": error_of(repo.delete_branch, "main"),
        "node": error_of(repo.rearrange_session("main").move, "/nope", "/b"),
        "pickle": error_of(pickle.dumps, repo.writable_session("main")),
    }


def write_rows(fork: Any, row: int) -> Any:
    zarr.open_array(fork.store, path="group/a")[row] = row
    return fork


def workers() -> Any:
    repo = small_repo()
    session = repo.writable_session("main")
    fork = session.fork()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        forks = list(pool.map(write_rows, [fork] * 4, range(0, 8, 2)))
    session.merge(merge_sessions(*forks))
    session.commit("by workers")
    loaded = pickle.loads(pickle.dumps(repo.readonly_session("main")))
    return {
        "rows": read(loaded),
        "repo": read(pickle.loads(pickle.dumps(repo)).readonly_session("main")),
    }


def datasets() -> Any:
    repo = ic.Repository.create(new_storage())
    times = np.arange(4)
    dataset = xr.Dataset({"t2m": (("time", "x"), np.ones((4, 3)))}, {"time": times})
    session = repo.writable_session("main")
    to_icechunk(dataset, session, encoding={"t2m": {"chunks": (1, 3)}})
    session.commit("written")
    session = repo.writable_session("main")
    to_icechunk(dataset.assign_coords(time=times + 4), session, append_dim="time")
    session.commit("appended")
    session = repo.writable_session("main")
    to_icechunk(2 * dataset.isel(time=[1]).drop_vars("time"), session, region={"time": slice(1, 2)})
    session.commit("region")
    session = repo.writable_session("main")
    fork = session.fork()
    target = zarr.open_array(fork.store, path="t2m")
    fives: Any = xr.DataArray(np.full((8, 3), 5.0)).chunk({"dim_0": 1}).data
    session.merge(store_dask(sources=[fives], targets=[target]))
    before = repo.readonly_session("main")
    session.commit("by dask")
    sums = [
        float(xr.open_zarr(each.store, consolidated=False).t2m.sum())
        for each in (before, repo.readonly_session("main"))
    ]
    return {"sums": sums}


def maintenance() -> Any:
    repo = small_repo(config=ic.RepositoryConfig(inline_chunk_threshold_bytes=0))
    for number in range(3):
        with repo.transaction("main", message=f"{number}") as store:
            zarr.open_array(store, path="group/a")[:] = number
    later = datetime.now(UTC) + timedelta(seconds=1)
    expired = repo.expire_snapshots(
        older_than=repo.lookup_snapshot(repo.lookup_branch("main")).written_at
    )
    stats = repo.chunk_storage_stats()
    summary = repo.garbage_collect(later)
    moved = repo.rearrange_session("main")
    moved.move("/group/a", "/group/b")
    moved.commit("moved")
    shifted = repo.writable_session("main")
    shifted.shift_array("/group/b", (1, 0))
    shifted.commit("shifted")
    repo.rewrite_manifests("rewritten", branch="main")
    config = ic.Repository.fetch_config(repo.storage)
    assert config is not None
    return {
        "expired": len(expired),
        "native": stats.native_bytes,
        "collected": [summary.chunks_deleted, summary.snapshots_deleted, summary.manifests_deleted],
        "value": read(repo.readonly_session("main"), "group/b"),
        "history": [each.message for each in repo.ancestry(branch="main")],
        "config": config.inline_chunk_threshold_bytes,
    }


def virtual() -> Any:
    folder = Path(sys.argv[1])
    (folder / "source.bin").write_bytes(bytes(range(64)))
    prefix = f"file://{folder}/"
    config = ic.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        ic.VirtualChunkContainer(prefix, ic.local_filesystem_store(str(folder)))
    )
    access = ic.containers_credentials({prefix: ic.credentials.LocalFileSystemAccess})
    storage = new_storage()
    repo = ic.Repository.create(storage, config, authorize_virtual_chunk_access=access)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="v", shape=(4,), chunks=(2,), dtype="u1", compressors=None
    )
    session.store.set_virtual_ref("v/c/0", f"{prefix}source.bin", offset=8, length=2)
    specs = [ic.VirtualChunkSpec([1], f"{prefix}source.bin", 16, 2)]
    session.store.set_virtual_refs("/v", specs, validate_containers=True)
    session.commit("virtual")
    stranger = ic.Repository.open(storage).readonly_session("main")
    return {
        "values": read(repo.readonly_session("main"), "v"),
        "locations": len(session.all_virtual_chunk_locations()),
        "stranger": error_of(read, stranger, "v"),
    }


def awaited() -> Any:
    async def program() -> Any:
        storage = new_storage()
        repo = await ic.Repository.create_async(storage)
        session = await repo.writable_session_async("main")
        await asyncio.to_thread(zarr.create_array, session.store, name="a", shape=(2,), dtype="i4")
        await session.commit_async("async")
        messages = [each.message async for each in repo.async_ancestry(branch="main")]
        return {"messages": messages, "exists": await ic.Repository.exists_async(storage)}

    return asyncio.run(program())


if __name__ == "__main__":
    for part in (history, conflicts, errors, workers, datasets, maintenance, virtual, awaited):
        print(part.__name__, json.dumps(part(), sort_keys=True, default=str))  # noqa: T201
