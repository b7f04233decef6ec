"""`export_zarr`: one snapshot as a Zarr store, documents and chunks byte for byte.

The chunks of a manifest are copied in parts. A part that has arrived leaves a marker, so a repeated
call skips it. Documents come last, so nobody opens an incomplete store.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from zarr.core.metadata.v3 import ArrayV3Metadata

from icefloe.api.maintenance_values import reporter
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.exports.objects import (
    ExportReport,
    as_repository,
    exists,
    remove_working_folders,
    target_driver,
)
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import ManifestId, NodeId
from icefloe.maintenance.read_chunks import fetch_all
from icefloe.paths import is_internal
from icefloe.scans.pinned import pin
from icefloe.storage.driver import ConditionFailed, Driver
from icefloe.storage.keys import encode_key
from icefloe.storage.run import run_blocking

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.maintenance.progress import Report, Reporter
    from icefloe.repo.handle import RepoHandle
    from icefloe.storage.spec import Storage

_MARKERS = ".icefloe-export/"
_CHUNKS_A_PART = 1024
_BYTES_AT_ONCE = 64 << 20


class ZarrManifest(NamedTuple):
    """The chunks of one array in one manifest."""

    path: str
    manifest_id: bytes
    node_id: bytes
    size_bytes: int
    document: bytes


class ZarrExport(NamedTuple):
    """What an export has to copy."""

    manifests: list[ZarrManifest]
    documents: list[tuple[str, bytes]]
    markers: str
    """The folder of the markers of this snapshot."""


def plan_zarr(snapshot: Snapshot) -> ZarrExport:
    """What the export of a snapshot has to copy.

    The groups in which icefloe keeps its own tables are left out.

    Raises:
        InvalidInputError: a path cannot be a key of every storage.
    """
    nodes = [node for node in snapshot.nodes if not is_internal(node.path)]
    for node in nodes:
        if encode_key(node.path) != node.path:
            raise InvalidInputError(
                f"node {node.path!r} has characters that storages spell differently; rename it "
                "before it is exported"
            )
    manifests = [
        ZarrManifest(
            node.path,
            bytes(ref.id),
            bytes(node.id),
            snapshot.manifest_files[ref.id].size_bytes,
            node.user_data,
        )
        for node in nodes
        if node.array is not None
        for ref in node.array.manifests
    ]
    documents = [
        (f"{node.path.strip('/')}/zarr.json".lstrip("/"), node.user_data) for node in nodes
    ]
    return ZarrExport(
        manifests,
        sorted(documents, key=lambda one: one[0] == "zarr.json"),  # the root comes last
        f"{_MARKERS}{snapshot.id}/",
    )


def export_zarr(
    repository: Repository | str,
    target: Storage | str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    progress: Report | None = None,
) -> ExportReport:
    """Write one snapshot as a Zarr store of its own: documents and chunks, byte for byte.

    Virtual chunks are copied too. After an interruption, repeat the call for the same snapshot:
    parts that have arrived are not copied again.

    Args:
        repository: a `Repository`, or a URL as for `storage_from_url`.
        target: a storage or its URL; empty, or with the files of an interrupted call for this
            snapshot.
        branch: `main` unless another ref is given.
        as_of: with a branch, its newest snapshot at that time.
        progress: called regularly with a `Progress`. Without it, a terminal shows a bar.
        tag: the version to export, if not a branch.
        snapshot_id: the version to export, if not a branch.

    Raises:
        InvalidInputError: the target has something else in it.
    """
    opened = as_repository(repository)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    session = opened.readonly_session(snapshot_id=source.snapshot_id)
    plan = plan_zarr(session.workspace.state.snapshot)
    driver = target_driver(target, outside=opened.storage)
    with reporter(progress) as report:
        return run_blocking(_export(opened.handle, driver, plan, report))


async def _export(
    handle: RepoHandle, driver: Driver, plan: ZarrExport, report: Reporter
) -> ExportReport:
    await begin_zarr(driver, plan.markers)
    objects = size = 0
    for done, one in enumerate(plan.manifests):
        report.tell("copying manifests' chunks", done, len(plan.manifests))
        async for copied in copy_chunks(handle, driver, one, plan.markers):
            objects += copied.objects
            size += copied.num_bytes
    finished = await finish_zarr(driver, plan)
    report.tell("copying manifests' chunks", len(plan.manifests), len(plan.manifests))
    return ExportReport(objects + finished.objects, size + finished.num_bytes)


# -- steps, shared with tasks of a cluster


async def begin_zarr(driver: Driver, markers: str) -> None:
    """Refuse a target that is neither empty nor from an export of the same snapshot."""
    try:
        await driver.put_if(markers + "started", b"", previous=None)
    except ConditionFailed:
        return
    others = [found.key for found in await driver.list("") if not found.key.startswith(markers)]
    if others:
        await driver.delete_many([markers + "started"])
        raise InvalidInputError(
            f"the target is not empty (it has {others[0]!r}), and no export of this snapshot was "
            "begun there; choose an empty place"
        )


async def copy_chunks(
    handle: RepoHandle, driver: Driver, one: ZarrManifest, markers: str
) -> AsyncIterator[ExportReport]:
    """Copy the chunks of a manifest that have not arrived yet, part by part."""
    manifest_id = ManifestId(one.manifest_id)
    refs = (await handle.assets.manifest(manifest_id, one.size_bytes)).find(NodeId(one.node_id))
    if refs is None:
        return
    encode = ArrayV3Metadata.from_dict(json.loads(one.document)).encode_chunk_key
    folder = one.path.strip("/")
    for first in range(0, len(refs), _CHUNKS_A_PART):
        marker = f"{markers}{manifest_id}.{one.node_id.hex()}.{first}"
        some = refs.take(slice(first, first + _CHUNKS_A_PART))
        keys = [f"{folder}/{encode(tuple(at))}".lstrip("/") for at in some.index.tolist()]
        if await exists(driver, marker):
            there = await driver.head_many(keys)
            if np.array_equal(there.size_bytes, some.length.astype(np.int64)):
                continue
        size = 0
        for rows in slices(some.length, _BYTES_AT_ONCE):
            found = await fetch_all(handle, [some.row(at) for at in rows])
            objects = []
            for at, data in zip(rows, found, strict=True):
                if isinstance(data, IcechunkError):
                    raise data
                objects.append((keys[at], bytes(data)))
                size += len(data)
            await driver.put_many(objects)
        await driver.sync()
        await driver.put(marker, b"")
        yield ExportReport(len(some), size)


async def finish_zarr(driver: Driver, plan: ZarrExport) -> ExportReport:
    """Write the documents, the root's last, and remove the markers."""
    await driver.put_many(plan.documents[:-1])
    await driver.sync()
    await driver.put_many(plan.documents[-1:])
    await driver.sync()
    started = plan.markers + "started"
    markers = [found.key for found in await driver.list(_MARKERS) if found.key != started]
    await driver.delete_many(markers)
    await driver.delete_many([started])  # a repeated call needs it until everything else is done
    remove_working_folders(driver, plan.markers, _MARKERS)
    return ExportReport(len(plan.documents), sum(len(data) for _, data in plan.documents))


def slices(length: Any, most: int) -> Iterator[list[int]]:
    """Rows in order, in groups of about so many bytes."""
    piece = np.cumsum(length.astype(np.int64)) // most
    for number in np.unique(piece).tolist():
        yield np.flatnonzero(piece == number).tolist()
