"""`verify` on Spark: the checks of `icefloe.maintenance`, spread over tasks.

Snapshots are checked by one stage, manifests by the next. Chunk objects meet their listing in a
join, sources are brought together by location and asked once. The driver gets counts, and of each
kind as many findings as are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.format import layout
from icefloe.ids import ManifestId, ObjectId, SnapshotId
from icefloe.maintenance.check_files import (
    ManifestToCheck,
    check_fetched_manifest,
    check_fetched_snapshot,
    get_all,
    missing_pruned_log,
)
from icefloe.maintenance.check_manifest import SOURCES, ListedFile, Use
from icefloe.maintenance.check_refs import History, read_history
from icefloe.maintenance.check_snapshot import entries_of, uses_of
from icefloe.maintenance.check_sources import check_sources
from icefloe.maintenance.findings import (
    DEFAULT_KEPT,
    Finding,
    FindingKind,
    FindingLog,
    VerifyReport,
)
from icefloe.maintenance.live import require_spec_1_or_2
from icefloe.maintenance.object_table import length_detail, missing_detail, orphan_detail
from icefloe.maintenance.verify import note_strays
from icefloe.scans.pinned import as_repository
from icefloe.spark.maintenance.stages import (
    Batches,
    WorkerRepository,
    id_rows,
    kept,
    list_objects,
    num_tasks,
    run_task,
)
from icefloe.spark.maintenance.verify_chunks import (
    read_here,
    read_native,
    references_of,
    users_of,
)
from icefloe.spark.reads.reading import check_session
from icefloe.storage.run import run_blocking

ROWS = pa.schema(
    [
        ("what", pa.string()),
        ("manifest_id", pa.binary()),
        ("node_id", pa.binary()),
        ("path", pa.string()),
        ("extents", pa.binary()),
        ("form", pa.string()),
        ("size_bytes", pa.int64()),
        ("num_chunk_refs", pa.int64()),
        ("chunk_id", pa.binary()),
        ("end", pa.int64()),
        ("location", pa.string()),
        ("etag", pa.string()),
        ("last_modified", pa.int64()),
        ("kind", pa.string()),
        ("object", pa.string()),
        ("detail", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("index", pa.binary()),
    ]
)
"""What tasks hand on. `what` says which columns count: `finding`, `use`, `entry`, `listed`,
`native`, `source`, `reference`, and `checked` (so many of `kind`, in `num_chunk_refs`)."""

_MANIFESTS_AT_ONCE = 16


def verify(
    spark: SparkSession,
    repository: Repository | str,
    *,
    read_chunks: bool = False,
    virtual_sources: bool = False,
    orphans: bool = True,
    max_findings: int = DEFAULT_KEPT,
) -> VerifyReport:
    """`Repository.verify` by many tasks: the same findings, for repositories of any size.

    Args:
        repository: a `Repository`, or a URL as for `storage_from_url`.
        read_chunks: read every chunk and decode it with the codecs of its array.
        virtual_sources: ask every virtual source once whether it is there, long enough and
            unchanged.
        orphans: report objects that nothing refers to.
        max_findings: how many findings of one kind are kept; all are counted.
    """
    check_session(spark)
    opened = as_repository(repository)
    require_spec_1_or_2(opened.handle, "verification")
    log = FindingLog(max(1, max_findings))
    history = run_blocking(read_history(opened.handle, log))
    run_blocking(note_strays(opened.handle.driver, log))
    job = _Job(
        spark,
        WorkerRepository.of(opened),
        history,
        reads_chunks=read_chunks,
        asks_sources=virtual_sources,
    )
    checked = job.run(log, orphans=orphans)
    return VerifyReport.of(log, checked)


def verify_history(spark: SparkSession, opened: Repository, history: History) -> VerifyReport:
    """Check the snapshots of a repository that cannot be opened yet, and all they refer to."""
    log = FindingLog()
    source = WorkerRepository.of(opened)
    job = _Job(spark, source, history, reads_chunks=False, asks_sources=False)
    return VerifyReport.of(log, job.run(log, orphans=False))


class _Job:
    """One verification."""

    def __init__(
        self,
        spark: SparkSession,
        source: WorkerRepository,
        history: History,
        *,
        reads_chunks: bool,
        asks_sources: bool,
    ) -> None:
        self.spark = spark
        self.source = source
        self.history = history
        self.reads_chunks = reads_chunks
        self.asks_sources = asks_sources

    def run(self, log: FindingLog, *, orphans: bool) -> Counter[str]:
        """Note what is found; returns how much was looked at."""
        listed = kept(list_objects(self.spark, self.source))
        snapshots = kept(self._snapshots(listed))
        manifests = kept(self._manifests(listed, snapshots))
        sources = kept(self._sources(manifests))
        objects = self._chunks(listed, manifests).union(self._pruned_logs(listed))
        if orphans:
            objects = objects.union(self._orphans(listed, snapshots))
        else:
            objects = objects.where(sf.col("kind") != FindingKind.ORPHAN.value)
        parts = [
            run_task(objects, self.source, _object_task, ROWS),
            run_task(listed.where("id is null"), self.source, _strange_task, ROWS),
            snapshots,
            manifests,
        ]
        if self.asks_sources:
            parts.append(run_task(sources, self.source, _source_task, ROWS))
        chunks = kept(self._read_chunks(listed, snapshots, manifests))
        parts.append(chunks)
        rows = reduce(DataFrame.union, parts).where("what = 'finding'")
        found = kept(rows.select("kind", "object", "path", "detail"))
        try:
            self._note(log, found)
            return self._looked(listed, sources, [snapshots, manifests, chunks])
        finally:
            for part in (found, listed, snapshots, manifests, sources, chunks):
                part.unpersist()

    def _note(self, log: FindingLog, found: DataFrame) -> None:
        counts = found.groupBy("kind").count().collect()
        order = Window.partitionBy("kind").orderBy("object", "path", "detail")
        some = found.withColumn("at", sf.row_number().over(order)).where(sf.col("at") <= log.kept)
        rows = some.toArrow().to_pylist()
        for kind, total in counts:
            mine = [
                (row["object"], row["detail"], row["path"]) for row in rows if row["kind"] == kind
            ]
            log.add_many(FindingKind(kind), total, mine)

    def _looked(
        self,
        listed: DataFrame,
        sources: DataFrame,
        stages: Sequence[DataFrame],
    ) -> Counter[str]:
        name = "sources" if self.asks_sources else "sources not checked"
        number = sf.count(sf.lit(1)).alias("number")
        total = sf.sum("num_chunk_refs").alias("number")
        parts = [
            listed.where("id is not null").select(sf.lit("objects").alias("kind")),
            sources.select(sf.lit(name).alias("kind")),
        ]
        told = [stage.where("what = 'checked'") for stage in stages]
        rows = [part.groupBy("kind").agg(number) for part in parts]
        rows += [stage.groupBy("kind").agg(total) for stage in told]
        found: Counter[str] = Counter()
        for kind, count in reduce(DataFrame.union, rows).collect():
            found[kind] += count
        return found

    # -- stages

    def _snapshots(self, listed: DataFrame) -> DataFrame:
        """Rows of what snapshots and their logs are like, and use."""
        tasks = max(1, min(num_tasks(self.spark), len(self.history.snapshots)))
        wanted = id_rows(self.spark, self.history.snapshots)
        files = _folder(listed, layout.SNAPSHOTS, "has_file")
        logs = _folder(listed, layout.TRANSACTIONS, "has_log")
        rows = wanted.join(files, "id", "left").join(logs, "id", "left").repartition(tasks, "id")
        task = partial(_snapshot_task, history=self.history, with_forms=self.reads_chunks)
        return run_task(rows, self.source, task, ROWS)

    def _manifests(self, listed: DataFrame, snapshots: DataFrame) -> DataFrame:
        """Rows of what manifests are like, and refer to."""
        said = snapshots.where("what in ('use', 'entry')").distinct()
        sizes = listed.where(sf.col("folder") == layout.MANIFESTS)
        sizes = sizes.select(sf.col("id").alias("manifest_id"), sf.col("size_bytes").alias("there"))
        rows = said.join(sizes, "manifest_id", "left").select(*ROWS.names, "there")
        tasks = num_tasks(self.spark)
        together = rows.repartition(tasks, "manifest_id").sortWithinPartitions("manifest_id")
        task = _manifest_task
        if self.reads_chunks:
            task = partial(_manifest_task, reads=True, with_virtual=self.asks_sources)
        return run_task(together, self.source, task, ROWS)

    def _read_chunks(
        self, listed: DataFrame, snapshots: DataFrame, manifests: DataFrame
    ) -> DataFrame:
        """Rows of what native chunks are like."""
        references = manifests.where("what = 'reference'")
        if not self.reads_chunks:
            return references
        uses = snapshots.where("what = 'use'")
        return read_native(self.spark, self.source, references, listed, uses, _chunks_read, ROWS)

    def _sources(self, manifests: DataFrame) -> DataFrame:
        """Every virtual source, once for each state that is expected of it."""
        grouped = manifests.where("what = 'source'").groupBy("location", "etag", "last_modified")
        found = grouped.agg(
            sf.max("end").alias("end"),
            sf.min("manifest_id").alias("manifest_id"),
            sf.min("path").alias("path"),
        )
        return found.select(*SOURCES.names)

    # -- objects beside references to them: rows of `_OBJECTS`

    def _chunks(self, listed: DataFrame, manifests: DataFrame) -> DataFrame:
        grouped = manifests.where("what = 'native'").groupBy("chunk_id")
        used = grouped.agg(
            sf.max("end").alias("end"), sf.min(sf.struct("manifest_id", "path")).alias("user")
        )
        stored = _folder(listed, layout.CHUNKS, "there", keep_size=True)
        size, end = sf.col("size_bytes"), sf.col("end")
        both = used.join(stored, used["chunk_id"] == stored["id"], "full").select(
            sf.when(size.isNull(), FindingKind.MISSING_CHUNK.value)
            .when(end.isNull(), FindingKind.ORPHAN.value)
            .when(end > size, FindingKind.SHORT_CHUNK.value)
            .when(end < size, FindingKind.LONG_CHUNK.value)
            .alias("kind"),
            sf.lit(layout.CHUNKS).alias("folder"),
            sf.coalesce("chunk_id", "id").alias("id"),
            size,
            end,
            sf.coalesce("user.path", sf.lit("")).alias("path"),
        )
        return both.where("kind is not null")

    def _orphans(self, listed: DataFrame, snapshots: DataFrame) -> DataFrame:
        manifests = snapshots.where("what in ('use', 'entry')")
        live = {
            layout.SNAPSHOTS: id_rows(self.spark, self.history.snapshots),
            layout.TRANSACTIONS: id_rows(
                self.spark, [*self.history.snapshots, *self.history.pruned]
            ),
            layout.MANIFESTS: manifests.select(sf.col("manifest_id").alias("id")),
        }
        parts = []
        for folder, ids in live.items():
            stored = _folder(listed, folder, "there", keep_size=True)
            parts.append(_objects(stored.join(ids, "id", "left_anti"), FindingKind.ORPHAN, folder))
        return reduce(DataFrame.union, parts)

    def _pruned_logs(self, listed: DataFrame) -> DataFrame:
        wanted = id_rows(self.spark, self.history.pruned)
        there = _folder(listed, layout.TRANSACTIONS, "there")
        gone = wanted.join(there, "id", "left_anti").withColumn(
            "size_bytes", sf.lit(None).cast("bigint")
        )
        return _objects(gone, FindingKind.MISSING_PRUNED_LOG, layout.TRANSACTIONS)


_OBJECTS = ("kind", "folder", "id", "size_bytes", "end", "path")


def _objects(rows: DataFrame, kind: FindingKind, folder: str) -> DataFrame:
    return rows.select(
        sf.lit(kind.value).alias("kind"),
        sf.lit(folder).alias("folder"),
        "id",
        "size_bytes",
        sf.lit(None).cast("bigint").alias("end"),
        sf.lit("").alias("path"),
    )


def _folder(listed: DataFrame, folder: str, flag: str, *, keep_size: bool = False) -> DataFrame:
    """The ids of one folder, with a column that says so."""
    found = listed.where((sf.col("folder") == folder) & sf.col("id").isNotNull())
    columns = ["id", "size_bytes"] if keep_size else ["id"]
    return found.select(*columns, sf.lit(True).alias(flag))


# -- tasks


def _rows(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=ROWS)


def _columns(what: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of another schema as rows of `ROWS`."""
    columns = {
        "what": pa.repeat(what, batch.num_rows),
        **dict(zip(batch.schema.names, batch.columns, strict=True)),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(batch.num_rows, field.type)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def _found(findings: Sequence[Finding]) -> pa.RecordBatch:
    return _rows(
        [
            {
                "what": "finding",
                "kind": str(one.kind),
                "object": one.object,
                "path": one.path,
                "detail": one.detail,
            }
            for one in findings
        ]
    )


def _looked(**numbers: int) -> pa.RecordBatch:
    return _rows(
        [
            {"what": "checked", "kind": name, "num_chunk_refs": int(number)}
            for name, number in numbers.items()
            if number
        ]
    )


def _object_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Objects that are not as references want them, as findings."""
    for batch in batches:
        rows = batch.to_pylist()
        yield _found(
            [
                Finding.of(
                    FindingKind(row["kind"]),
                    row["folder"] + ObjectId(row["id"]).text,
                    _detail(row),
                    row["path"],
                )
                for row in rows
            ]
        )


def _detail(row: Mapping[str, Any]) -> str:
    if row["kind"] == FindingKind.ORPHAN:
        return orphan_detail(row["size_bytes"])
    if row["kind"] == FindingKind.MISSING_CHUNK:
        return missing_detail(row["end"])
    if row["kind"] == FindingKind.MISSING_PRUNED_LOG:
        return missing_pruned_log(SnapshotId(row["id"])).detail
    return length_detail(row["size_bytes"], row["end"])


def _strange_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Objects whose names are no ids."""
    for batch in batches:
        keys = [row["folder"] + row["name"] for row in batch.to_pylist()]
        yield _found(
            [Finding.of(FindingKind.FOREIGN_OBJECT, key, "the name is no id") for key in keys]
        )


def _snapshot_task(
    source: WorkerRepository, batches: Batches, history: History, *, with_forms: bool
) -> Iterator[pa.RecordBatch]:
    """Check snapshots with their logs; hand on which manifests they use."""
    handle = source.handle
    for batch in batches:
        for row in batch.to_pylist():
            one = SnapshotId(row["id"])
            keys = [layout.snapshot_key(one)] if row["has_file"] else []
            keys += [layout.transaction_log_key(one)] if row["has_log"] else []
            data = dict(zip(keys, run_blocking(get_all(handle, keys)), strict=True))
            checked = check_fetched_snapshot(
                history,
                one,
                data.get(layout.snapshot_key(one)),
                data.get(layout.transaction_log_key(one)),
            )
            yield _found(checked.findings)
            yield _looked(snapshots=checked.snapshot is not None, logs=checked.num_logs)
            if checked.snapshot is not None:
                yield _columns("use", uses_of(checked.snapshot, with_forms=with_forms))
                yield _columns("entry", entries_of(checked.snapshot))


def _manifest_task(
    source: WorkerRepository, batches: Batches, *, reads: bool = False, with_virtual: bool = False
) -> Iterator[pa.RecordBatch]:
    """Check manifests; hand on what they refer to. Rows of one manifest follow each other."""
    waiting: list[tuple[ManifestToCheck, bool]] = []
    for one in _together(batches):
        waiting.append(one)
        if len(waiting) == _MANIFESTS_AT_ONCE:
            yield from _check_manifests(source, waiting, reads, with_virtual)
            waiting = []
    yield from _check_manifests(source, waiting, reads, with_virtual)


def _together(batches: Batches) -> Iterator[tuple[ManifestToCheck, bool]]:
    """Manifests with all that is said of them, and whether they are there."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for manifest_id, group in groupby(rows, key=lambda row: row["manifest_id"]):
        said = list(group)
        entries = [
            ListedFile(row["size_bytes"], row["num_chunk_refs"])
            for row in said
            if row["what"] == "entry"
        ]
        uses = [
            Use(row["node_id"], row["path"], row["extents"], row["form"])
            for row in said
            if row["what"] == "use"
        ]
        is_there = said[0]["there"] is not None
        yield ManifestToCheck(ManifestId(manifest_id), entries, uses), is_there


def _check_manifests(
    source: WorkerRepository,
    wanted: Sequence[tuple[ManifestToCheck, bool]],
    reads: bool,
    with_virtual: bool,
) -> Iterator[pa.RecordBatch]:
    keys = [layout.manifest_key(one.id) for one, is_there in wanted if is_there]
    found = dict(zip(keys, run_blocking(get_all(source.handle, keys)), strict=True))
    for one, _ in wanted:
        checked = check_fetched_manifest(one, found.pop(layout.manifest_key(one.id), None))
        yield _found(checked.findings)
        if checked.manifest is not None:
            yield _looked(manifests=1, references=checked.manifest.num_chunk_refs)
        yield _columns("native", checked.native)
        yield _columns("source", checked.sources)
        if reads and checked.manifest is not None:
            for array in checked.manifest.arrays:
                yield from _chunks_read(
                    *read_here(source, array, one.uses, with_virtual=with_virtual)
                )
                path, forms = users_of(array.node_id, one.uses)
                yield _columns("reference", references_of(one.id, array, path, forms))


def _chunks_read(found: Sequence[Finding], number: int, size: int) -> Iterator[pa.RecordBatch]:
    yield _found(found)
    yield _looked(**{"chunks read": number, "bytes read": size})


def _source_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Ask virtual sources."""
    for batch in batches:
        table = pa.Table.from_batches([batch]).cast(SOURCES)
        yield _found(run_blocking(check_sources(source.handle, table)))
