"""`export_repository`: a repository with its history in another storage, brought up to date again.

Objects named by ids are copied first. The heads (`repo`, or the ref files of version 1) are written
last, each by a conditional write. The copy has a note of the heads that exports have written, so
a copy that another program changed is recognised, and nothing of it is overwritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from icefloe.api.maintenance_values import reporter
from icefloe.api.repository import Repository
from icefloe.assets.assets import StoredObjects, arrived, list_folder, object_metadata
from icefloe.errors import ConflictError, FormatError
from icefloe.exports.objects import (
    ExportReport,
    Places,
    Sized,
    copy_objects,
    together,
)
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet
from icefloe.format.layout import KINDS
from icefloe.format.ref_files import decode_ref_file
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.engine import Engine, LocalEngine
from icefloe.maintenance.progress import Report
from icefloe.repo.gc_guard import require_not_migrated
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.scans.scan import as_repository
from icefloe.storage.driver import ConditionFailed, Driver, Version, find_object
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

NOTE = "icefloe/copied.json"
"""Hashes of the heads that exports have written, by key."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The heads of the source, and the state of the target."""

    heads: Mapping[str, bytes]
    """By key, in the order in which they are written. The last one makes a new copy visible."""
    there: Mapping[str, tuple[bytes, Version]]
    """The heads of the target."""
    note: Mapping[str, list[str]]
    note_version: Version | None
    snapshots: IdSet
    logs: IdSet
    rewrites_snapshots: bool
    """Whether files of snapshots may have changed since they were copied: in version 1, where an
    expiration writes some of them again."""


def export_repository(
    repository: Repository | str, target: Storage | str, *, progress: Report | None = None
) -> ExportReport:
    """Copy a repository of spec version 1 or 2 with its history to another storage.

    Repeat the call to bring the copy up to date, or to continue after an interruption: objects that
    have arrived with all their bytes are not copied again. Refs come last. Virtual chunks stay
    where they are.

    Args:
        repository: a `Repository`, or a URL as for `storage_from_url`.
        target: a storage or its URL: empty, or with an earlier copy.
        progress: called regularly with a `Progress`. Without it, a terminal shows a bar.

    Raises:
        ConflictError: the target has another repository, or another program changed the copy.
        InvalidInputError: the target is the repository itself, or a place inside of it.

    >>> report = icefloe.export_repository(repo, "copy")
    """
    opened = as_repository(repository, is_shared=False)
    with reporter(progress) as report:
        return run_blocking(copy_repository(LocalCopy(Places.of(opened, target), report)))


class CopyEngine(Engine[Places], Protocol):
    """Copies in this process, or by the tasks of a cluster."""

    async def copy_missing(self, plan: CopyPlan) -> ExportReport:
        """Copy the objects in use that are not at the target with all their bytes."""


async def copy_repository(engine: CopyEngine) -> ExportReport:
    """Copy what is missing, then the heads."""
    handle, target = engine.here
    plan = await plan_copy(handle, target)
    copied = await engine.copy_missing(plan)
    return together(copied, await finish_copy(handle, target, plan))


class LocalCopy(LocalEngine[Places]):
    """Copies in this process, one kind of object after the other."""

    async def copy_missing(self, plan: CopyPlan) -> ExportReport:
        """Copy the objects in use that are not at the target with all their bytes."""
        handle, target = self.here
        files = await live.manifest_files(handle, plan.snapshots)
        wanted = {
            "snapshots": plan.snapshots,
            "transaction_logs": plan.logs,
            "manifests": IdSet.of(files.id),
            "chunks": await live.chunk_ids(handle, files),
        }
        copied = ExportReport(0, 0)
        for kind, folder in KINDS.items():
            stored = await list_folder(handle.driver, folder)
            there = await list_folder(target, folder)
            missing, total = _missing(plan, kind, stored, there, wanted[kind])
            told = self.report.each(f"copying {kind.replace('_', ' ')}", missing, total)
            copied = together(copied, await copy_objects(handle.driver, target, told))
        return copied


def _missing(
    plan: CopyPlan, kind: str, stored: StoredObjects, there: StoredObjects, wanted: IdSet
) -> tuple[Iterator[Sized], int]:
    """The objects to copy, and their number.

    One that is in use and not listed is asked for, and named by the error. Logs may be missing: the
    first snapshot has none, and those of expired ones go.
    """
    if kind != "snapshots" or not plan.rewrites_snapshots:
        wanted = wanted.minus(arrived(there, stored))
    listed = stored.take(wanted.contains(stored.id))
    lost = wanted.minus(IdSet.of(listed.id if kind != "transaction_logs" else wanted.rows))
    ids = np.concatenate([lost.rows, listed.id])
    sizes = np.concatenate([np.zeros(lost.size, np.int64), listed.size_bytes])
    found = zip(live.each_key(stored.folder, ids), sizes, strict=True)
    return (Sized(key, int(size)) for key, size in found), len(ids)


async def plan_copy(handle: RepoHandle, target: Driver) -> CopyPlan:
    """Read the heads of both sides.

    Raises:
        ConflictError: the heads of the target are not those that an export has written.
    """
    handle.format.require_spec_folders("copying a repository with its history")
    note, note_version = await _read_note(target)
    there = await _heads(target)
    if handle.format.has_repo_object:
        current = await handle.assets.repo_object()
        heads, table = {layout.REPO: current.data}, current.info.snapshots
        snapshots = IdSet.of(table.id)
        logs = IdSet.union([snapshots, IdSet.of(table.columns.pruned_id)])
    else:
        heads = {key: data for key, (data, _) in (await _heads(handle.driver)).items()}
        await require_not_migrated(handle)
        snapshots = logs = await live.reachable_snapshots(handle, _tips(heads))
    for key, (data, _) in there.items():
        if data != heads.get(key) and _digest(data) not in note.get(key, ()):
            raise _not_ours(f"{key} was not written by an export")
    last = layout.REPO if layout.REPO in heads else layout.branch_key(MAIN)
    return CopyPlan(
        heads=dict(sorted(heads.items(), key=lambda item: item[0] == last)),
        there=there,
        note=note,
        note_version=note_version,
        snapshots=snapshots,
        logs=logs,
        rewrites_snapshots=not handle.format.has_repo_object,
    )


def _tips(heads: Mapping[str, bytes]) -> list[SnapshotId]:
    """The snapshots of ref files, without those of deleted tags."""
    return [
        decode_ref_file(data, key)
        for key, data in heads.items()
        if key.endswith("/ref.json") and f"{key}.deleted" not in heads
    ]


async def _heads(driver: Driver) -> dict[str, tuple[bytes, Version]]:
    """The objects that are overwritten: `repo`; in version 1 refs and the configuration."""
    found = await find_object(driver, layout.REPO, needs_bucket=False)
    if found is not None:
        return {layout.REPO: found}
    keys = [one.key for one in await driver.list(layout.REFS)]
    heads = {}
    for key in [*keys, layout.CONFIG_YAML]:
        one = await find_object(driver, key, needs_bucket=False)
        if one is not None:
            heads[key] = one
    return heads


async def finish_copy(handle: RepoHandle, target: Driver, plan: CopyPlan) -> ExportReport:
    """Write the heads, after all objects have arrived."""
    there = {found.key: found.size_bytes for found in await target.list(layout.OVERWRITTEN)}
    stored = await handle.driver.list(layout.OVERWRITTEN)
    missing = [
        Sized(one.key, one.size_bytes) for one in stored if there.get(one.key) != one.size_bytes
    ]
    backups = await copy_objects(handle.driver, target, missing)
    await target.sync()
    changed = {
        key: data
        for key, data in plan.heads.items()
        if key not in plan.there or plan.there[key][0] != data
    }
    gone = [key for key in plan.there if key not in plan.heads]
    try:
        if changed or gone:
            await _write_note(target, plan)
        for key, data in changed.items():
            await target.put_if(
                key,
                data,
                previous=plan.there.get(key, (b"", None))[1],
                metadata=object_metadata(data) if key == layout.REPO else None,
                content_type="application/json" if key.endswith(".json") else None,
            )
    except ConditionFailed:
        raise _not_ours("it was changed while it was brought up to date") from None
    await target.delete_many(gone)
    return together(backups, ExportReport(len(changed), sum(map(len, changed.values()))))


async def _read_note(target: Driver) -> tuple[dict[str, list[str]], Version | None]:
    found = await find_object(target, NOTE, needs_bucket=False)
    if found is None:
        return {}, None
    try:
        heads = json.loads(found[0])["heads"]
        return {str(key): [str(one) for one in some] for key, some in heads.items()}, found[1]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{NOTE}: expected the heads that exports have written") from error


async def _write_note(target: Driver, plan: CopyPlan) -> None:
    """Note the heads that are there and those to be written, before any of them is written."""
    heads: dict[str, list[str]] = {}
    there = [(key, data) for key, (data, _) in plan.there.items()]
    for key, data in [*there, *plan.heads.items()]:
        heads.setdefault(key, []).append(_digest(data))
    data = json.dumps({"heads": heads}, sort_keys=True).encode()
    await target.put_if(NOTE, data, previous=plan.note_version, content_type="application/json")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _not_ours(why: str) -> ConflictError:
    return ConflictError(
        message=f"the target is no earlier state of the repository: {why}; export to another place"
    )
