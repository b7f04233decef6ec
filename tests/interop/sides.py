"""Both libraries behind one interface, and everything that can be seen through either.

The names are the same in both, so most of this is one program that is given the module. Import
it only after `pytest.importorskip`: it needs official Icechunk 2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import icechunk
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from tests.servers import BUCKET, S3Server

Seen = dict[str, Any]

SIDES: dict[str, Any] = {"official": icechunk, "icefloe": icefloe}


@dataclass(frozen=True)
class Place:
    """Where the repository is: a folder, or a prefix on a server."""

    folder: Path | None = None
    server: S3Server | None = None
    prefix: str = ""

    def storage(self, library: ModuleType) -> Any:
        if self.folder is not None:
            return library.local_filesystem_storage(str(self.folder))
        assert self.server is not None
        return library.s3_storage(
            bucket=BUCKET,
            prefix=self.prefix,
            region="us-east-1",
            endpoint_url=self.server.endpoint_url,
            allow_http=True,
            force_path_style=True,
            access_key_id="test",
            secret_access_key="test-secret",
        )

    def create(self, library: Any, spec: int) -> Any:
        return library.Repository.create(
            self.storage(library), config=first_config(library), spec_version=spec
        )

    def open(self, library: Any) -> Any:
        return library.Repository.open(self.storage(library))

    def saved_config(self, library: Any) -> dict[str, Any]:
        return plain_config(library.Repository.fetch_config(self.storage(library)))


SPLIT_SIZE = 2
"""Chunks in one manifest, for arrays whose name starts with `split`."""


def first_config(library: Any) -> Any:
    """Small enough numbers that a short test crosses every limit."""
    arrays, axes = library.ManifestSplitCondition, library.ManifestSplitDimCondition
    rules = {arrays.name_matches("^split"): {axes.Axis(0): SPLIT_SIZE}}
    splitting = library.ManifestSplittingConfig.from_dict(rules)
    return library.RepositoryConfig(
        inline_chunk_threshold_bytes=64,
        num_updates_per_repo_info_file=5,
        manifest=library.ManifestConfig(splitting=splitting),
    )


def plain_config(config: Any) -> dict[str, Any]:
    """What either library says about a saved configuration, in the same words."""
    splitting = None if config.manifest is None else config.manifest.splitting
    sizes = () if splitting is None else splitting.to_dict().items()
    return {
        "inline": config.inline_chunk_threshold_bytes,
        "page": config.num_updates_per_repo_info_file,
        "requests": config.max_concurrent_requests,
        "splitting": [
            (_words(rule), [(_words(axis), size) for axis, size in axes.items()])
            for rule, axes in sizes
        ],
    }


def _words(condition: Any) -> str:
    """A condition as both print it, apart from capitals, quotes and the module's name."""
    text = re.sub(r"^.*?Manifest", "Manifest", repr(condition))
    return re.sub(r"""['"_]|regex=""", "", text).lower()


# -- what can be seen


def seen(repo: Any, known: Collection[str] = ()) -> Seen:
    """Everything a repository shows, as plain values that can be compared.

    What is inside the `known` snapshots is left out: they never change and were compared before.
    """
    branches = {name: repo.lookup_branch(name) for name in repo.list_branches()}
    tags = {name: repo.lookup_tag(name) for name in repo.list_tags()}
    tips = set(branches.values()) | set(tags.values())
    histories = {tip: _history(repo, tip) for tip in sorted(tips)}
    pairs = {
        (entry["parent"], entry["id"])
        for history in histories.values()
        for entry in history
        if entry["parent"] is not None and entry["id"] not in known
    }
    new = sorted(tips.difference(known))
    found: Seen = {
        "spec": _version(repo),
        "branches": branches,
        "tags": tags,
        "histories": histories,
        "contents": {tip: keys_and_values(repo, tip) for tip in new},
        "manifests": {tip: _manifests(repo, tip) for tip in new},
        "diffs": {pair: _diff(repo, *pair) for pair in sorted(pairs)},
    }
    if found["spec"] > 1:
        found |= {
            "metadata": repo.get_metadata(),
            "status": _status(repo.get_status()),
            # Official lists them in no particular order.
            "flags": {
                flag.name: (flag.id, flag.default_enabled, flag.setting, flag.enabled)
                for flag in repo.feature_flags()
            },
            "operations": [_update(entry) for entry in repo.ops_log()],
        }
    return found


def _version(repo: Any) -> int:
    return int(re.sub(r"\D", "", str(repo.spec_version))[:1])


def _history(repo: Any, tip: str) -> list[dict[str, Any]]:
    return [
        {
            "id": entry.id,
            "parent": entry.parent_id,
            "message": entry.message,
            "metadata": entry.metadata,
            "time": entry.written_at,
        }
        for entry in repo.ancestry(snapshot_id=tip)
    ]


def keys_and_values(repo: Any, snapshot_id: str) -> dict[str, bytes]:
    """Every key of the Zarr store with its bytes: all metadata, attributes and chunks."""
    return sync(_keys_and_values(repo.readonly_session(snapshot_id=snapshot_id).store))


async def _keys_and_values(store: Any) -> dict[str, bytes]:
    found = {}
    async for key in store.list():
        value = await store.get(key, default_buffer_prototype())
        assert value is not None, f"{key} is listed but not there"
        found[key] = bytes(value.to_bytes())
    return found


def _manifests(repo: Any, snapshot_id: str) -> list[tuple[str, int, int]]:
    files = repo.list_manifest_files(snapshot_id)
    return sorted((file.id, file.size_bytes, file.num_chunk_refs) for file in files)


def _diff(repo: Any, older: str, newer: str) -> dict[str, Any]:
    diff = repo.diff(from_snapshot_id=older, to_snapshot_id=newer)
    names = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays")
    return {
        **{name: set(getattr(diff, name)) for name in (*names, "updated_groups", "updated_arrays")},
        "chunks": {path: sorted(map(tuple, rows)) for path, rows in diff.updated_chunks.items()},
        "moves": list(diff.moved_nodes),
    }


def _status(status: Any) -> tuple[str, str | None, Any]:
    availability = str(status.availability).rpartition(".")[2]
    return availability, status.limited_availability_reason, status.set_at


FIELDS = ("name", "branch", "previous_snap_id", "new_snap_id", "id", "new_value", "status")


def _update(entry: Any) -> dict[str, Any]:
    fields = {name: getattr(entry.kind, name) for name in FIELDS if hasattr(entry.kind, name)}
    if "status" in fields:
        fields["status"] = _status(fields["status"])
    return {
        "kind": type(entry.kind).__name__.rpartition("_")[2],
        "time": entry.updated_at,
        "backup": entry.backup_path,
        **fields,
    }


def arrays_at(repo: Any, snapshot_id: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Values and attributes of every array, read by Zarr."""
    store = repo.readonly_session(snapshot_id=snapshot_id).store
    top = zarr.open_group(store, mode="r")
    return {
        path: (node[...], dict(node.attrs))
        for path, node in top.members(max_depth=None)
        if isinstance(node, zarr.Array)
    }


def differences(ours: Any, theirs: Any, path: str = "") -> Iterable[str]:
    """Where two of these plain values differ, for the message of a failed test."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys(), key=str):
            if key not in ours or key not in theirs:
                yield f"{path}/{key}: only in {'icefloe' if key in ours else 'official'}"
            else:
                yield from differences(ours[key], theirs[key], f"{path}/{key}")
    elif ours != theirs:
        yield f"{path}: icefloe {ours!r}, official {theirs!r}"


def assert_same(official: Seen, ours: Seen, where: str) -> None:
    found = list(differences(ours, official))
    assert not found, where + ":\n" + "\n".join(found[:10])
