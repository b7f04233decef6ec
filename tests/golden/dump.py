"""Asks official Icechunk everything it can tell about a repository, as one JSON document.

Values are kept as official code gives them. Only this is done to them: sets and chunk rows are
sorted, times become microseconds since the epoch, bytes become base64 or a SHA-256, an
explanatory sentence is dropped. Where an official call fails, its exception class and kind
stand in place of the value.
"""

import argparse
import asyncio
import base64
import datetime as dt
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden.official import VERSION, get, icechunk, open_repository, zarr

Json = dict[str, Any]

# Code of virtual chunks in the `kinds` column of the official chunk iterator.
VIRTUAL = 2

DIFF_SETS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_groups",
    "updated_arrays",
)


def dump_repository(root: Path) -> Json:
    """Everything official code reports about the repository below `root`, which is not changed."""
    if VERSION < (2, 3):
        raise RuntimeError(f"expectations need icechunk >= 2.3, this is {icechunk.__version__}")
    repo = open_repository(root)
    spec = int(repo.spec_version)
    branches = sorted(repo.list_branches())
    tags = sorted(repo.list_tags())
    snapshot_ids = _object_names(root, "snapshots")
    return {
        "dumped_by": {"icechunk": str(icechunk.__version__), "zarr": str(zarr.__version__)},
        "spec_version": spec,
        "branches": {name: repo.lookup_branch(name) for name in branches},
        "tags": {name: _attempt(repo.lookup_tag, name) for name in tags},
        "ancestry": {
            "branches": {name: _ancestry(repo, branch=name) for name in branches},
            "tags": {name: _attempt(_ancestry, repo, tag=name) for name in tags},
        },
        "repo_state": _repo_state(repo, spec),
        "overwritten": _overwritten_states(root, spec),
        "ops_log": [_update(entry) for entry in repo.ops_log()] if spec >= 2 else None,
        "storage_stats": _attempt(_storage_stats, repo),
        "snapshots": {name: _snapshot(repo, name) for name in snapshot_ids},
        "manifests": {
            name: repo.inspect_manifest(name) for name in _object_names(root, "manifests")
        },
        "transaction_logs": {
            name: _attempt(_transaction_log, repo, name)
            for name in _object_names(root, "transactions")
        },
    }


def _object_names(root: Path, folder: str) -> list[str]:
    return sorted(path.name for path in (root / folder).glob("*"))


def _attempt(call: Callable[..., Any], *values: Any, **options: Any) -> Any:
    try:
        return call(*values, **options)
    except icechunk.IcechunkError as error:
        # Not the message: it can hold paths of this machine.
        return {"error": type(error).__name__, "kind": str(error.kind)}


def _microseconds(instant: dt.datetime) -> int:
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _snapshot_info(info: Any) -> Json:
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at_us": _microseconds(info.written_at),
        "message": info.message,
        "metadata": info.metadata,
    }


def _lookup_snapshot(repo: Any, snapshot_id: str) -> Json:
    return _snapshot_info(repo.lookup_snapshot(snapshot_id))


def _ancestry(repo: Any, **ref: str) -> list[Json]:
    return [_snapshot_info(info) for info in repo.ancestry(**ref)]


def _repo_state(repo: Any, spec: int) -> Json:
    state: Json = {"config": _config_value(icechunk.Repository.fetch_config(repo.storage))}
    if spec >= 2:
        state["inspect"] = repo.inspect_repo_info()
        state["metadata"] = repo.get_metadata()
        state["status"] = _status(repo.get_status())
        state["feature_flags"] = [
            {
                "id": flag.id,
                "name": flag.name,
                "default_enabled": flag.default_enabled,
                "setting": flag.setting,
                "enabled": flag.enabled,
            }
            for flag in sorted(repo.feature_flags(), key=lambda flag: flag.id)
        ]
    return state


def _config_value(value: Any) -> Any:
    """A settings object as a tree; conditions and stores, which show no fields, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        # Containers: official code keeps them in a hash map, so their order is random.
        return {key: _config_value(value[key]) for key in sorted(value)}
    kind = type(value).__name__
    if kind.endswith(("Config", "Settings", "Container")):
        names = [name for name in dir(value) if _is_field(value, name)]
        return {name: _config_value(getattr(value, name)) for name in names}
    return str(value) if kind == "CompressionAlgorithm" else repr(value)


def _status(status: Any) -> Json:
    return {
        "availability": str(status.availability).rpartition(".")[2],
        "set_at_us": _microseconds(status.set_at),
        "limited_availability_reason": status.limited_availability_reason,
    }


def _overwritten_states(root: Path, spec: int) -> Json:
    """The state each backup holds, found by putting it where official code looks."""
    current = "repo" if spec >= 2 else "config.yaml"
    states: Json = {}
    for name in _object_names(root, "overwritten"):
        if not name.startswith(f"{current}."):
            states[name] = None
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(root, copy)
            shutil.copyfile(root / "overwritten" / name, copy / current)
            states[name] = _repo_state(open_repository(copy), spec)
    return states


def _update(entry: Any) -> Json:
    kind = entry.kind
    fields = {name: getattr(kind, name) for name in dir(kind) if _is_field(kind, name)}
    if "status" in fields:
        fields["status"] = _status(fields["status"])
    return {
        "type": type(kind).__name__,
        "fields": fields,
        "updated_at_us": _microseconds(entry.updated_at),
        "backup_path": entry.backup_path,
    }


def _is_field(owner: Any, name: str) -> bool:
    # Callable covers methods and the sibling variants that official enums show as attributes.
    return not name.startswith("_") and not callable(getattr(owner, name))


def _storage_stats(repo: Any) -> Json:
    found = repo.chunk_storage_stats()
    names = ("native_bytes", "virtual_bytes", "inlined_bytes")
    return {name: getattr(found, name) for name in names}


def _transaction_log(repo: Any, snapshot_id: str) -> Json:
    log: Json = repo.inspect_transaction_log(snapshot_id)
    # A sentence for people; the other members name the logs that official code merged.
    log.get("synthetic_composite", {}).pop("note", None)
    return log


def _snapshot(repo: Any, snapshot_id: str) -> Json:
    inspected = repo.inspect_snapshot(snapshot_id)
    info = _attempt(_lookup_snapshot, repo, snapshot_id)
    parent = info.get("parent_id")
    session = _attempt(repo.readonly_session, snapshot_id=snapshot_id)
    snapshot: Json = {"inspect": inspected, "info": info, "diff_from_parent": None}
    if parent is not None:
        snapshot["diff_from_parent"] = _attempt(_diff, repo, parent, snapshot_id)
    if isinstance(session, dict):
        # Dropped from the repo object, but its file is still there.
        snapshot["nodes"] = session
        return snapshot
    snapshot["nodes"] = {node["path"]: _node(session, node) for node in inspected["nodes"]}
    return snapshot


def _diff(repo: Any, parent: str, snapshot_id: str) -> Json:
    found = repo.diff(from_snapshot_id=parent, to_snapshot_id=snapshot_id)
    diff: Json = {name: sorted(getattr(found, name)) for name in DIFF_SETS}
    diff["updated_chunks"] = {
        path: sorted(found.updated_chunks[path]) for path in sorted(found.updated_chunks)
    }
    diff["moved_nodes"] = [list(move) for move in found.moved_nodes]
    return diff


def _node(session: Any, node: Json) -> Json:
    path = str(node["path"])
    prefix = path.strip("/")
    document = get(session.store, f"{prefix}/zarr.json".lstrip("/"))
    result: Json = {
        "node_id": _attempt(session.get_node_id, path),
        "zarr_json": None if document is None else document.decode("utf-8"),
    }
    if node["node_type"] == "array":
        result["chunks"] = _attempt(_chunks, session.store, path)
    return result


async def _chunk_rows(store: Any, path: str) -> list[tuple[list[int], Json]]:
    rows = []
    async for coords, kinds, paths, offsets, lengths, inlined in store.array_chunk_iterator(path):
        for row in range(len(kinds)):
            inline = inlined.get(row)
            columns = {
                "kinds": int(kinds[row]),
                "paths": paths[row],
                "offsets": int(offsets[row]),
                "lengths": int(lengths[row]),
                "inline": None if inline is None else base64.b64encode(inline).decode("ascii"),
            }
            rows.append((coords[row].tolist(), columns))
    # The order of manifests, and so of batches, is not part of the format.
    return sorted(rows, key=lambda row: row[0])


def _chunks(store: Any, path: str) -> Json:
    """All chunk refs of an array as columns, in the order of their coordinates."""
    rows = asyncio.run(_chunk_rows(store, path))
    columns: Json = {"coords": [coords for coords, _ in rows]}
    for name in ("kinds", "paths", "offsets", "lengths", "inline"):
        columns[name] = [values[name] for _, values in rows]
    columns["sha256"] = [
        None if values["kinds"] == VIRTUAL else _sha256(store, path, coords)
        for coords, values in rows
    ]
    return columns


def _sha256(store: Any, path: str, coords: list[int]) -> str:
    key = "/".join([path.strip("/"), "c", *map(str, coords)])
    data = get(store, key)
    if data is None:
        raise RuntimeError(f"official code lists chunk {key!r} but does not find it")
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    """Write the expectations of the repository below ROOT to OUTPUT."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.write_text(json.dumps(dump_repository(arguments.root)), "utf-8")


if __name__ == "__main__":
    main()
