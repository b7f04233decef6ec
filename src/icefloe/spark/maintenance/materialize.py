"""`materialize`: virtual chunks become chunks of the repository, or arrays are stored anew.

Work is committed in parts. What is committed is native, so a run that was broken off goes on where
it stopped: it looks for virtual chunks that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import zarr
from pyspark.sql import SparkSession

from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.changes.split_grid import ChunkSpan
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.snapshot.nodes import ManifestRef, Node
from icefloe.ids import ManifestId
from icefloe.maintenance.read_chunks import fetch_all
from icefloe.scans.pinned import PinnedSnapshot, as_repository, pin
from icefloe.spark.maintenance.stages import Batches, WorkerRepository, run_task
from icefloe.spark.reads.reading import check_session
from icefloe.spark.writes.task_errors import as_raised
from icefloe.spark.writes.write_items import write_items
from icefloe.spark.writes.write_regions import write_regions
from icefloe.storage.run import run_blocking
from icefloe.store.operations import set_key

CHUNKS_A_COMMIT = 1 << 20
_CHUNKS_AN_ITEM = 256
_BYTES_AT_ONCE = 64 << 20
_COUNTS = pa.schema([("path", pa.string()), ("number", pa.int64()), ("virtual", pa.int64())])


class MaterializeReport(NamedTuple):
    """What became native, and the snapshots that say so, oldest first."""

    chunks: int
    num_bytes: int
    snapshot_ids: tuple[str, ...]


class _Item(NamedTuple):
    """Virtual chunks of one manifest of one array: the first so many, and how many."""

    path: str
    manifest: ManifestId
    size_bytes: int
    first: int
    num_chunks: int


def materialize(
    spark: SparkSession,
    repository: Repository | str,
    *,
    branch: str = "main",
    arrays: Sequence[str] | None = None,
    chunks: Mapping[str, Sequence[int]] | None = None,
    compressors: Any = None,
    message: str = "virtual chunks become native",
    chunks_a_commit: int = CHUNKS_A_COMMIT,
) -> MaterializeReport:
    """Copy virtual chunks of a branch into the repository, byte for byte.

    Arrays named in `chunks` (path: shape of chunks), and with `compressors` all chosen arrays, are
    decoded and stored anew instead, in one commit each. Repeat a call that was broken off: what is
    done is not done again.

    Args:
        arrays: paths of arrays; all that have virtual chunks when not given.
        chunks_a_commit: how many chunks go into one commit.
    """
    check_session(spark)
    opened = as_repository(repository)
    changed = {_absolute(path): tuple(shape) for path, shape in (chunks or {}).items()}
    chosen = None if arrays is None else {_absolute(path) for path in arrays}
    done: list[str] = []
    total = [0, 0]
    nodes = _arrays(opened, branch, chosen)
    for path, shape in _stored_anew(nodes, changed, compressors is not None).items():
        written = _store_anew(spark, opened, branch, path, shape, compressors, message)
        if written is not None:
            total = [total[0] + written[0], total[1] + written[1]]
            done.append(written[2])
    while True:
        session = opened.writable_session(branch)
        items, spans = _plan(spark, opened, session, chosen, chunks_a_commit)
        if not items:
            return MaterializeReport(total[0], total[1], tuple(done))
        report = write_items(spark, session, items, _copy, chunks=spans)
        total = [total[0] + report.chunks_written, total[1] + report.bytes_written]
        done.append(session.commit(message))


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def _arrays(repository: Repository, branch: str, chosen: set[str] | None) -> list[Node]:
    state = repository.readonly_session(branch).workspace.state
    nodes = [node for node in state.snapshot.nodes if node.array is not None]
    unknown = sorted((chosen or set()) - {node.path for node in nodes})
    if unknown:
        raise InvalidInputError(f"no arrays {', '.join(unknown)} on branch {branch!r}")
    return [node for node in nodes if chosen is None or node.path in chosen]


# -- byte for byte


def _plan(
    spark: SparkSession,
    repository: Repository,
    session: Session,
    chosen: set[str] | None,
    most: int,
) -> tuple[list[_Item], dict[str, ChunkSpan]]:
    """Items of up to so many virtual chunks that are left."""
    snapshot = session.workspace.state.snapshot
    nodes = [
        node
        for node in snapshot.nodes
        if node.array is not None and (chosen is None or node.path in chosen)
    ]
    refs = [
        (node, number, ref)
        for node in nodes
        if node.array is not None
        for number, ref in enumerate(node.array.manifests)
    ]
    if not refs:
        return [], {}
    sizes = {key: info.size_bytes for key, info in snapshot.manifest_files.items()}
    wanted = pa.table(
        {
            "path": pa.array([node.path for node, _, _ in refs]),
            "number": pa.array([number for _, number, _ in refs], pa.int64()),
            "manifest_id": pa.array([bytes(ref.id) for _, _, ref in refs], pa.binary()),
            "node_id": pa.array([bytes(node.id) for node, _, _ in refs], pa.binary()),
            "size_bytes": pa.array([sizes[ref.id] for _, _, ref in refs], pa.int64()),
        }
    )
    rows = spark.createDataFrame(wanted).repartition(max(1, min(len(refs), 64)), "manifest_id")
    with as_raised():
        counted = run_task(rows, WorkerRepository.of(repository), _count_task, _COUNTS).toArrow()
    left = {
        (row["path"], row["number"]): row["virtual"]
        for row in counted.to_pylist()
        if row["virtual"]
    }
    items: list[_Item] = []
    boxes: dict[str, list[ManifestRef]] = {}
    room = most
    for node, number, ref in refs:
        count = min(left.get((node.path, number), 0), room)
        room -= count
        for first in range(0, count, _CHUNKS_AN_ITEM):
            some = min(_CHUNKS_AN_ITEM, count - first)
            items.append(_Item(node.path, ref.id, sizes[ref.id], first, some))
        if count:
            boxes.setdefault(node.path, []).append(ref)
    return items, {path: _span(found, items, path) for path, found in boxes.items()}


def _span(refs: Sequence[ManifestRef], items: Sequence[_Item], path: str) -> ChunkSpan:
    count = sum(item.num_chunks for item in items if item.path == path)
    box = tuple(
        (min(side[0] for side in sides), max(side[1] for side in sides))
        for sides in zip(*(ref.extents for ref in refs), strict=True)
    )
    return ChunkSpan(count, box)


def _count_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    """How many virtual chunks manifests have."""
    assets = source.handle.assets
    for batch in batches:
        for row in batch.to_pylist():
            loaded = assets.manifest(ManifestId(row["manifest_id"]), row["size_bytes"])
            refs = run_blocking(loaded).find(row["node_id"])
            number = 0 if refs is None else int((refs.kind == ChunkKind.VIRTUAL).sum())
            told = {"path": row["path"], "number": row["number"], "virtual": number}
            yield pa.RecordBatch.from_pylist([told], schema=_COUNTS)


def _copy(fork: ForkSession, item: _Item) -> None:
    """Store the bytes of virtual chunks as chunks of the repository."""
    handle, state = fork.workspace
    node, _ = state.array(item.path)
    manifest = run_blocking(handle.assets.manifest(item.manifest, item.size_bytes))
    refs = manifest.find(node.id)
    assert refs is not None
    rows = np.flatnonzero(refs.kind == ChunkKind.VIRTUAL)[item.first : item.first + item.num_chunks]
    metadata = zarr.open_array(fork.store, path=item.path.strip("/"), mode="r").metadata
    for some in _slices(refs.take(rows)):
        found = [some.row(row) for row in range(len(some))]
        outcomes = run_blocking(fetch_all(handle, found))
        for index, data in zip(some.index.tolist(), outcomes, strict=True):
            if isinstance(data, IcechunkError):
                raise data
            key = f"{item.path.strip('/')}/{metadata.encode_chunk_key(tuple(index))}"
            run_blocking(set_key(fork.workspace, key.strip("/"), data))


def _slices(refs: ChunkRefs) -> Iterator[ChunkRefs]:
    ends = np.cumsum(refs.length.astype(np.int64))
    piece = ends // _BYTES_AT_ONCE
    for number in np.unique(piece).tolist():
        yield refs.take(np.flatnonzero(piece == number))


# -- stored anew


def _stored_anew(
    nodes: Sequence[Node], changed: Mapping[str, tuple[int, ...]], is_all: bool
) -> dict[str, tuple[int, ...] | None]:
    unknown = sorted(set(changed) - {node.path for node in nodes})
    if unknown:
        raise InvalidInputError(
            f"chunks names {', '.join(unknown)}, which are not among the arrays"
        )
    wanted = [node.path for node in nodes if is_all or node.path in changed]
    return {path: changed.get(path) for path in wanted}


def _store_anew(
    spark: SparkSession,
    repository: Repository,
    branch: str,
    path: str,
    shape: tuple[int, ...] | None,
    compressors: Any,
    message: str,
) -> tuple[int, int, str] | None:
    """Write an array again with other chunks or compressors; None if it has them already."""
    source = pin(repository, branch=branch)
    session = repository.writable_session(branch)
    name = path.strip("/")
    old = zarr.open_array(session.store, path=name, mode="r")
    options: dict[str, Any] = {}
    if compressors is not None:
        options["compressors"] = compressors
    elif old.metadata.zarr_format == 3:
        options["compressors"] = old.compressors
    new = zarr.create_array(
        session.store,
        name=name,
        shape=old.shape,
        chunks=tuple(shape or old.chunks),
        dtype=old.dtype,
        fill_value=old.fill_value,
        attributes=dict(old.attrs),
        dimension_names=getattr(old.metadata, "dimension_names", None),
        filters=old.filters,
        serializer=old.serializer or "auto",
        shards=None if shape else old.shards,
        overwrite=True,
        **options,
    )
    if new.metadata == old.metadata and not _has_virtual(repository, branch, path):
        return None
    report = write_regions(spark, session, name, partial(_read_source, source, name))
    return report.chunks_written, report.bytes_written, session.commit(f"{message}: {path}")


def _has_virtual(repository: Repository, branch: str, path: str) -> bool:
    handle, state = repository.readonly_session(branch).workspace
    node, array = state.array(path)
    for ref in array.manifests:
        size = state.snapshot.manifest_files[ref.id].size_bytes
        refs = run_blocking(handle.assets.manifest(ref.id, size)).find(node.id)
        if refs is not None and bool((refs.kind == ChunkKind.VIRTUAL).any()):
            return True
    return False


def _read_source(source: PinnedSnapshot, name: str, region: Any) -> Any:
    return zarr.open_array(source.open().store, path=name, mode="r")[region.slices]
