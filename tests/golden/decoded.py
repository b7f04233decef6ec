"""What golden tests share: files decoded by icefloe, put into the terms of the expectations.

Everything is read once a session. Nothing here compares; the tests beside it do.
"""

from __future__ import annotations

import datetime as dt
from functools import cache
from pathlib import Path
from typing import Any

from icefloe.format.envelope import decode_header
from icefloe.format.manifest import Manifest, decode_manifest
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.ids import ManifestId, SnapshotId
from tests.golden import load_expectation, names, object_paths, repository_path

Json = dict[str, Any]

NAMES = names()
"""All golden repositories; tests take them as their parameter, so that a failure names one."""


@cache
def expectation(name: str) -> Json:
    return load_expectation(name)


def with_spec(version: int) -> list[str]:
    """Golden repositories of this spec version."""
    return [name for name in NAMES if expectation(name)["spec_version"] == version]


def spec_version(path: Path) -> int:
    """The version a metadata file was written with; a migrated repository has both."""
    return decode_header(path.read_bytes(), str(path)).spec_version


@cache
def snapshots(name: str) -> dict[str, Snapshot]:
    return {
        path.name: decode_snapshot(path.read_bytes(), f"snapshots/{path.name}")
        for path in object_paths(name, "snapshots")
    }


@cache
def manifests(name: str) -> dict[ManifestId, Manifest]:
    return {
        ManifestId.parse(path.name): decode_manifest(path.read_bytes(), f"manifests/{path.name}")
        for path in object_paths(name, "manifests")
    }


@cache
def transaction_logs(name: str) -> dict[SnapshotId, TransactionLog]:
    return {
        SnapshotId.parse(path.name): decode_transaction_log(
            path.read_bytes(), f"transactions/{path.name}"
        )
        for path in object_paths(name, "transactions")
    }


def repo_info_paths(name: str) -> list[Path]:
    """The repo object and its backups, in no particular order."""
    backups = [path for path in object_paths(name, "overwritten") if path.name.startswith("repo.")]
    current = repository_path(name) / "repo"
    return [current, *backups] if current.exists() else backups


@cache
def repo_infos(name: str) -> dict[str, RepoInfo]:
    return {
        path.name: decode_repo_info(path.read_bytes(), path.name) for path in repo_info_paths(name)
    }


def repo_states(name: str) -> Json:
    """What official code reports for each repo object, by file name."""
    expected = expectation(name)
    backups = {
        backup: state
        for backup, state in expected["overwritten"].items()
        if backup.startswith("repo.")
    }
    return {"repo": expected["repo_state"], **backups}


def microseconds(text: str) -> int:
    """An instant as `inspect` calls print it."""
    since_epoch = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since_epoch // dt.timedelta(microseconds=1)


def without_header(inspected: Json) -> Json:
    return {key: value for key, value in inspected.items() if key != "header"}
