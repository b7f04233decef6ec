"""`export_*`: a snapshot as plain Zarr or Parquet, a repository with its history elsewhere.

Tasks copy objects from storage to storage; the driver sees how many there were. All of it can be
repeated after it was broken off: what has arrived is not copied again.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from os import getpid
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from zarr.core.metadata.v3 import ArrayV3Metadata

from icefloe.api.handles import driver_for
from icefloe.api.repository import Repository
from icefloe.assets.assets import object_metadata
from icefloe.errors import ConflictError, ErrorKind, IcechunkError, InvalidInputError, StorageError
from icefloe.format import layout
from icefloe.format.columns.id_set import IdSet
from icefloe.format.repo_info.file import decode_repo_info
from icefloe.ids import ManifestId, ObjectId
from icefloe.maintenance.check_snapshot import binary_column
from icefloe.maintenance.listing import list_folder
from icefloe.maintenance.read_chunks import fetch_all
from icefloe.scans.pinned import as_repository, pin
from icefloe.spark.maintenance.live_rows import chunk_id_rows, manifest_rows
from icefloe.spark.maintenance.stages import (
    Batches,
    WorkerRepository,
    id_rows,
    kept,
    num_tasks,
    run_task,
)
from icefloe.spark.reads.reading import check_session, read
from icefloe.spark.writes.task_errors import as_raised
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.driver import ConditionFailed, Driver
from icefloe.storage.keys import encode_key
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

_MARKERS = ".icefloe-export/"
"""Where an export to Zarr notes which parts have arrived; gone when it is complete."""
_CHUNKS_A_PART = 1024
_BYTES_AT_ONCE = 64 << 20
_COPIED = pa.schema([("objects", pa.int64()), ("bytes", pa.int64())])


class ExportReport(NamedTuple):
    """How many objects were copied by this run, and their bytes."""

    objects: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Target:
    """A storage in the form that travels."""

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, storage: Storage | str) -> _Target:
        found = storage_from_url(storage) if isinstance(storage, str) else storage
        return cls(pickle.dumps(found))

    @property
    def driver(self) -> Driver:
        return _driver(getpid(), self.pickled)


@lru_cache(maxsize=8)
def _driver(process: int, pickled: bytes) -> Driver:
    return driver_for(pickle.loads(pickled), None, blocking=True)


def _total(rows: DataFrame) -> ExportReport:
    with as_raised():
        found = rows.agg(sf.sum("objects"), sf.sum("bytes")).collect()[0]
    return ExportReport(int(found[0] or 0), int(found[1] or 0))


# -- Parquet


def export_parquet(
    spark: SparkSession,
    repository: Repository | str,
    path: str,
    *,
    mode: str = "errorifexists",
    **options: Any,
) -> None:
    """The cells of a group as Parquet files; `options` are those of `icefloe.spark.read`."""
    read(spark, repository, **options).write.mode(mode).parquet(path)


# -- plain Zarr


def export_zarr(
    spark: SparkSession,
    repository: Repository | str,
    target: Storage | str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> ExportReport:
    """One snapshot as a Zarr store of its own: documents and chunks, byte for byte.

    Virtual chunks are copied as well. Repeat a call that was broken off, for the same snapshot:
    parts that have arrived are not copied again. Documents come last, so that nobody opens half a
    store.

    Args:
        target: a storage or its URL; empty, or what an earlier call for this snapshot has left.
    """
    check_session(spark)
    opened = as_repository(repository)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    place = _Target.of(target)
    state = source.open().workspace.state
    done = f"{_MARKERS}{source.snapshot_id}/"
    _require_own(place.driver, done)
    parts = [
        {
            "path": node.path,
            "manifest_id": bytes(ref.id),
            "node_id": bytes(node.id),
            "size_bytes": state.snapshot.manifest_files[ref.id].size_bytes,
            "document": node.user_data,
        }
        for node in state.snapshot.nodes
        if node.array is not None
        for ref in node.array.manifests
    ]
    for node in state.snapshot.nodes:
        _require_plain(node.path)
    report = ExportReport(0, 0)
    if parts:
        rows = spark.createDataFrame(pa.Table.from_pylist(parts, _PARTS))
        rows = rows.repartition(min(len(parts), num_tasks(spark)), "manifest_id", "path")
        task = partial(_zarr_task, target=place, done=done)
        report = _total(run_task(rows, WorkerRepository.of(opened), task, _COPIED))
    documents = [
        (f"{node.path.strip('/')}/zarr.json".lstrip("/"), node.user_data)
        for node in state.snapshot.nodes
    ]
    driver = place.driver
    run_blocking(driver.put_many(sorted(documents, key=lambda one: -len(one[0]))))
    run_blocking(driver.sync())
    markers = [found.key for found in run_blocking(driver.list(_MARKERS))]
    run_blocking(driver.delete_many(markers))
    size = sum(len(data) for _, data in documents)
    return ExportReport(report.objects + len(documents), report.num_bytes + size)


_PARTS = pa.schema(
    [
        ("path", pa.string()),
        ("manifest_id", pa.binary()),
        ("node_id", pa.binary()),
        ("size_bytes", pa.int64()),
        ("document", pa.binary()),
    ]
)


def _require_own(driver: Driver, done: str) -> None:
    """A target is empty, or has the marks of an export of the same snapshot."""
    try:
        run_blocking(driver.put_if(done + "started", b"", previous=None))
    except ConditionFailed:
        return
    others = [
        found.key for found in run_blocking(driver.list("")) if not found.key.startswith(done)
    ]
    if others:
        run_blocking(driver.delete_many([done + "started"]))
        raise InvalidInputError(
            f"the target is not empty (it has {others[0]!r}), and no export of this snapshot was "
            "begun there; choose an empty place"
        )


def _require_plain(path: str) -> None:
    if encode_key(path) != path:
        raise InvalidInputError(
            f"node {path!r} has characters that storages spell differently; rename it before it is "
            "exported"
        )


def _zarr_task(
    source: WorkerRepository, batches: Batches, target: _Target, done: str
) -> Iterator[pa.RecordBatch]:
    handle, driver = source.handle, target.driver
    for batch in batches:
        for row in batch.to_pylist():
            loaded = handle.assets.manifest(ManifestId(row["manifest_id"]), row["size_bytes"])
            refs = run_blocking(loaded).find(row["node_id"])
            if refs is None:
                continue
            encode = ArrayV3Metadata.from_dict(json.loads(row["document"])).encode_chunk_key
            path = row["path"].strip("/")
            for first in range(0, len(refs), _CHUNKS_A_PART):
                name = f"{done}{ManifestId(row['manifest_id'])}.{row['node_id'].hex()}.{first}"
                if _exists(driver, name):
                    continue
                some = refs.take(slice(first, first + _CHUNKS_A_PART))
                size = 0
                for rows in _slices(some.length):
                    wanted = [some.row(at) for at in rows]
                    objects = []
                    found = run_blocking(fetch_all(handle, wanted))
                    for at, data in zip(rows, found, strict=True):
                        if isinstance(data, IcechunkError):
                            raise data
                        key = f"{path}/{encode(tuple(some.index[at].tolist()))}"
                        objects.append((key.lstrip("/"), bytes(data)))
                        size += len(data)
                    run_blocking(driver.put_many(objects))
                run_blocking(driver.put(name, b""))
                yield _copied(len(some), size)


def _slices(length: Any) -> Iterator[list[int]]:
    piece = np.cumsum(length.astype(np.int64)) // _BYTES_AT_ONCE
    for number in np.unique(piece).tolist():
        yield np.flatnonzero(piece == number).tolist()


def _exists(driver: Driver, key: str) -> bool:
    try:
        run_blocking(driver.head(key))
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return False
        raise
    return True


def _copied(objects: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"objects": objects, "bytes": size}], schema=_COPIED)


# -- the repository with its history


def export_repository(
    spark: SparkSession, repository: Repository | str, target: Storage | str
) -> ExportReport:
    """Copy a repository of spec version 2 with its history to another storage.

    Repeat it to bring the copy up to date, or to go on where a run was broken off: objects never
    change, so what has arrived is not copied again. The `repo` object comes last. Virtual chunks
    stay where they are.

    Raises:
        ConflictError: somebody has committed to the copy; nothing of it is overwritten.
    """
    check_session(spark)
    opened = as_repository(repository)
    handle = opened.handle
    handle.family.require_repo_object("copying a repository with its history")
    place = _Target.of(target)
    current = run_blocking(handle.assets.repo_object())
    previous = _previous_copy(place.driver, current.info)
    source = WorkerRepository.of(opened)
    ids = IdSet.of(current.info.snapshots.id)
    snapshots = [row.tobytes() for row in ids.rows]
    logs = [*snapshots, *(row.tobytes() for row in current.info.snapshots.pruned_id)]
    manifests = kept(manifest_rows(spark, source, ids))
    rows = {
        layout.SNAPSHOTS: id_rows(spark, snapshots),
        layout.TRANSACTIONS: id_rows(spark, sorted(set(logs))),
        layout.MANIFESTS: manifests.select("id"),
        layout.CHUNKS: chunk_id_rows(spark, source, manifests),
    }
    wanted = None
    for folder, part in rows.items():
        named = part.select(sf.lit(folder).alias("folder"), "id")
        wanted = named if wanted is None else wanted.union(named)
    assert wanted is not None
    there = list_target(spark, source, place)
    missing = wanted.join(there, ["folder", "id"], "left_anti")
    missing = missing.repartition(num_tasks(spark), "id")
    report = _total(run_task(missing, source, partial(_copy_task, target=place), _COPIED))
    manifests.unpersist()
    backups = _copy_backups(handle.driver, place.driver)
    run_blocking(place.driver.sync())
    try:
        run_blocking(
            place.driver.put_if(
                layout.REPO,
                current.data,
                previous=previous,
                metadata=object_metadata(current.data),
            )
        )
    except ConditionFailed:
        raise _not_ours("it was changed while it was brought up to date") from None
    return ExportReport(
        report.objects + backups.objects + 1,
        report.num_bytes + backups.num_bytes + len(current.data),
    )


def _previous_copy(driver: Driver, info: Any) -> Any:
    """The version of the copy's repo object, if it is an earlier state of this repository."""
    try:
        data, version = run_blocking(driver.get_versioned(layout.REPO))
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return None
        raise
    copy = decode_repo_info(data, layout.REPO)
    mine = {entry.updated_at for entry in info.latest_updates}
    if copy.latest_updates[0].updated_at not in mine and info.repo_before_updates is None:
        raise _not_ours("its newest operation never happened in the repository")
    tips = [*copy.branches.values(), *copy.tags.values()]
    if any(tip not in info.snapshots for tip in tips):
        raise _not_ours("it has snapshots that the repository does not have")
    return version


def _not_ours(why: str) -> ConflictError:
    return ConflictError(
        message=f"the target is no earlier state of the repository: {why}; export to another place"
    )


def list_target(spark: SparkSession, source: WorkerRepository, target: _Target) -> DataFrame:
    """What is at the target already."""
    folders = (layout.SNAPSHOTS, layout.TRANSACTIONS, layout.MANIFESTS, layout.CHUNKS)
    table = pa.table({"folder": pa.array(folders, pa.string())})
    rows = spark.createDataFrame(table, "folder string").repartitionByRange(4, "folder")
    return run_task(rows, source, partial(_list_task, target=target), _THERE)


_THERE = pa.schema([("folder", pa.string()), ("id", pa.binary())])


def _list_task(
    source: WorkerRepository, batches: Batches, target: _Target
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for folder in batch.column(0).to_pylist():
            found = run_blocking(list_folder(target.driver, folder))
            ids = binary_column(found.id, np.full(len(found), ObjectId.size))
            yield pa.RecordBatch.from_arrays([pa.repeat(folder, len(found)), ids], schema=_THERE)


def _copy_task(
    source: WorkerRepository, batches: Batches, target: _Target
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = [row["folder"] + ObjectId(row["id"]).text for row in batch.to_pylist()]
        size = _copy_keys(source.handle.driver, target.driver, keys)
        yield _copied(len(keys), size)


def _copy_keys(source: Driver, target: Driver, keys: Sequence[str]) -> int:
    """Copy objects, some at a time; returns how many bytes."""
    total = 0
    for first in range(0, len(keys), _OBJECTS_AT_ONCE):
        some = keys[first : first + _OBJECTS_AT_ONCE]
        blobs = [
            bytes(data) for data in run_blocking(source.get_many([(key, None) for key in some]))
        ]
        metadata = [pair for pair in zip(some, blobs, strict=True) if not _is_chunk(pair[0])]
        chunks = [pair for pair in zip(some, blobs, strict=True) if _is_chunk(pair[0])]
        run_blocking(target.put_many(chunks))
        run_blocking(target.put_many(metadata, describe=object_metadata))
        total += sum(map(len, blobs))
    return total


_OBJECTS_AT_ONCE = 32


def _is_chunk(key: str) -> bool:
    return key.startswith(layout.CHUNKS)


def _copy_backups(source: Driver, target: Driver) -> ExportReport:
    """The former repo objects that continue the operations log."""
    there = {found.key for found in run_blocking(target.list(layout.OVERWRITTEN))}
    names = [found.key for found in run_blocking(source.list(layout.OVERWRITTEN))]
    missing = [key for key in names if key not in there]
    return ExportReport(len(missing), _copy_keys(source, target, missing))
