"""`export_zarr`: one snapshot as a Zarr store, documents and chunks byte for byte.

The chunks of a manifest are copied in parts. A part that has arrived leaves a marker, so a repeated
call skips it. Documents come last, so nobody opens an incomplete store.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from functools import partial
from typing import NamedTuple

import numpy as np
from zarr.core.metadata.v3 import ArrayV3Metadata

from icefloe.api.maintenance_values import reporter
from icefloe.api.repository import Repository
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.exports.objects import (
    ExportReport,
    ManifestOfArray,
    Places,
    manifests_of,
    remove_working_folders,
    together,
    total,
)
from icefloe.format.snapshot import Snapshot
from icefloe.maintenance.engine import Engine, LocalEngine
from icefloe.maintenance.progress import Report
from icefloe.maintenance.read_chunks import fetch_batches
from icefloe.paths import is_internal
from icefloe.scans.scan import as_repository, pin
from icefloe.storage.driver import ConditionFailed, Driver, encode_key
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

_MARKERS = ".icefloe-export/"
_CHUNKS_A_PART = 1024


class ZarrExport(NamedTuple):
    """What an export has to copy."""

    manifests: list[ManifestOfArray]
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
    documents = [
        (f"{node.path.strip('/')}/zarr.json".lstrip("/"), node.user_data) for node in nodes
    ]
    return ZarrExport(
        manifests_of(snapshot, nodes),
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

    >>> report = icefloe.export_zarr(repo, "weather.zarr", tag="v1")
    >>> zarr.open_group("weather.zarr", mode="r")["t2m"].shape
    (4, 8, 8)
    """
    opened = as_repository(repository, is_shared=False)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    session = opened.readonly_session(snapshot_id=source.snapshot_id)
    with reporter(progress) as report:
        engine = LocalEngine(Places.of(opened, target), report)
        return run_blocking(copy_snapshot(engine, session.workspace.state.snapshot))


async def copy_snapshot(engine: Engine[Places], snapshot: Snapshot) -> ExportReport:
    """Copy the chunks of a snapshot, then its documents."""
    plan, driver = plan_zarr(snapshot), engine.here.target
    await begin_zarr(driver, plan.markers)
    work = partial(copy_chunks, plan.markers)
    copied = await total(engine.map("copying manifests' chunks", work, plan.manifests))
    return together(copied, await finish_zarr(driver, plan))


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
    markers: str, places: Places, manifests: Iterable[ManifestOfArray]
) -> AsyncIterator[ExportReport]:
    """Copy the chunks of manifests that have not arrived yet."""
    for one in manifests:
        yield await total(_copy_parts(places, one, markers))


async def _copy_parts(
    places: Places, one: ManifestOfArray, markers: str
) -> AsyncIterator[ExportReport]:
    """Copy the chunks of a manifest, part by part."""
    handle, driver = places
    refs = await one.refs(handle)
    if refs is None:
        return
    encode = ArrayV3Metadata.from_dict(json.loads(one.document)).encode_chunk_key
    folder = one.path.strip("/")
    for first in range(0, len(refs), _CHUNKS_A_PART):
        marker = f"{markers}{one.manifest_id}.{one.node_id.hex()}.{first}"
        some = refs.take(slice(first, first + _CHUNKS_A_PART))
        keys = [f"{folder}/{encode(tuple(at))}".lstrip("/") for at in some.index.tolist()]
        if (await driver.head_many([marker])).size_bytes[0] >= 0:
            there = await driver.head_many(keys)
            if np.array_equal(there.size_bytes, some.length.astype(np.int64)):
                continue
        size = 0
        async for rows, found in fetch_batches(handle, some):
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
