"""`verify` on Spark: the checks of `icefloe.maintenance.verify`, spread over tasks.

Snapshots are checked by one stage, manifests by the next. Chunk objects meet their listing in a
join, sources are brought together by location and asked once. Inline and virtual chunks are read by
the task that has their manifest. Native chunks become rows, because manifests of later commits
mostly refer to the same objects: each is read once, for the manifest with the smallest id, as in
one process. The driver gets counts, and of each kind as many findings as are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial, reduce
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest import ArrayManifest
from icefloe.ids import ChunkId, ManifestId, NodeId, ObjectId, SnapshotId
from icefloe.maintenance import checks
from icefloe.maintenance.check_refs import History, read_history
from icefloe.maintenance.findings import (
    DEFAULT_KEPT,
    Finding,
    FindingKind,
    FindingLog,
    VerifyReport,
)
from icefloe.maintenance.live import require_spec_1_or_2
from icefloe.maintenance.verify import (
    Told,
    VerifyOptions,
    arrays_in_use,
    check_history,
    check_manifests,
    check_snapshots,
    check_sources,
    is_read_in_place,
    note_strays,
    object_detail,
    object_problems,
    read_chunks,
    told_by,
)
from icefloe.repo.handle import RepoHandle
from icefloe.scans.scan import columns, index_column
from icefloe.spark.maintenance.engine import RepositoryRows, in_folders, one_batch
from icefloe.spark.readers import opened
from icefloe.spark.tasks import Batches
from icefloe.spark.versions import to_arrow
from icefloe.storage.run import run_blocking

_REFERENCES = columns(
    "chunk_id binary?, offset bigint?, length bigint?, manifest_id binary?, node_id binary?, "
    "path string?, index index?, form string?"
)
"""One row per reference to a native chunk. `form` has a digest for each of the forms that the chunk
must decode with."""

_FINDINGS = columns("what string?, kind string?, object string?, path string?, detail string?")
_COUNTS = columns("number bigint?")
_ROWS = pa.unify_schemas(
    [_FINDINGS, _COUNTS, checks.SAID, checks.NATIVE, checks.SOURCES, _REFERENCES]
)
"""What tasks hand on. `what` says which columns count: `finding`, `said`, `native`, `source`,
`reference`, and `checked` (so many of `kind`, in `number`)."""


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

    >>> icefloe.spark.maintenance.verify(spark, repo).is_healthy
    True
    """
    repo = opened(spark, repository)
    require_spec_1_or_2(repo.handle, "verification")
    options = VerifyOptions(read_chunks, virtual_sources, orphans, max(1, max_findings))
    log = FindingLog(options.max_findings)
    history = run_blocking(read_history(repo.handle, log))
    run_blocking(note_strays(repo.handle.driver, log))
    return run_blocking(check_history(_SparkVerifier(spark, repo, options, log), history))


async def verify_history(spark: SparkSession, repo: Repository, history: History) -> VerifyReport:
    """Check the snapshots of a repository that cannot be opened yet, and all they refer to."""
    verifier = _SparkVerifier(spark, repo, VerifyOptions(orphans=False), FindingLog())
    return await check_history(verifier, history)


class _SparkVerifier(RepositoryRows):
    """The steps of a verification. Each adds rows that are made when it is finished."""

    def __init__(
        self, spark: SparkSession, repository: Repository, options: VerifyOptions, log: FindingLog
    ) -> None:
        super().__init__(spark, repository)
        self.options = options
        self.log = log
        self.stages: list[DataFrame] = []
        """Rows of findings and counts, and of what later stages need."""
        self.parts: list[DataFrame] = []
        """Rows of findings alone."""

    def _check(self, rows: DataFrame, task: Any) -> DataFrame:
        return self.run(rows, task, _ROWS)

    async def list_objects(self, history: History) -> None:
        self.history = history
        self.listed = self.keep(self.stored())

    async def check_snapshots(self, history: History) -> None:
        """Rows of what snapshots and their logs are like, and use."""
        wanted = self.id_rows(history.snapshots)
        files = self._folder(layout.SNAPSHOTS).select("id", sf.lit(True).alias("has_file"))
        logs = self._folder(layout.TRANSACTIONS).select("id", sf.lit(True).alias("has_log"))
        both = wanted.join(files, "id", "left").join(logs, "id", "left")
        rows = self.by_snapshot(both, len(history.snapshots))
        task = partial(_snapshot_task, history, self.options.read_chunks)
        self.snapshots = self.keep(self._check(rows, task))
        self.stages.append(self.snapshots)

    async def check_manifests(self) -> None:
        """Rows of what manifests are like, and refer to; then of what native chunks are like."""
        said = self.snapshots.where("what = 'said'").select(*checks.SAID.names).distinct()
        sizes = self._folder(layout.MANIFESTS).toDF("manifest_id", "stored_bytes")
        rows = said.join(sizes, "manifest_id", "left").select(*checks.SAID.names, "stored_bytes")
        together = self.spread(rows, "manifest_id")
        task = partial(_manifest_task, self.options)
        checked = self._check(together.sortWithinPartitions("manifest_id"), task)
        self.manifests = self.keep(checked)
        self.stages.append(self.manifests)
        if self.options.read_chunks:
            self.stages.append(self.keep(self._read_native()))

    def _read_native(self) -> DataFrame:
        """Read every native chunk once, if its object is long enough."""
        forms = self.snapshots.where("what = 'said' and form is not null")
        by_digest = {_digest(row[0]): row[0] for row in forms.select("form").distinct().collect()}
        order = sf.struct("manifest_id", "node_id", "index", "length", "path", "form")
        references = self.manifests.where("what = 'reference'").groupBy("chunk_id", "offset")
        stored = self._folder(layout.CHUNKS).toDF("chunk_id", "there")
        once = references.agg(sf.min(order).alias("first")).join(stored, "chunk_id")
        rows = once.where("offset + first.length <= there").select("chunk_id", "offset", "first.*")
        rows = self.spread(rows, "chunk_id").sortWithinPartitions("manifest_id", "node_id", "index")
        return self._check(rows.select(*_REFERENCES.names), partial(_read_task, by_digest))

    async def check_sources(self) -> None:
        """Every virtual source, once for each state that is expected of it."""
        sources = self.manifests.where("what = 'source'")
        found = sources.groupBy("location", "etag", "last_modified").agg(
            sf.max("end").alias("end"),
            sf.min("manifest_id").alias("manifest_id"),
            sf.min("path").alias("path"),
        )
        self.sources = self.keep(found.select(*checks.SOURCES.names))
        if self.options.virtual_sources:
            self.parts.append(self._check(self.sources, _source_task))

    async def check_objects(self) -> None:
        """Objects that are not as references want them."""
        history = self.history
        manifests = self.snapshots.where("what = 'said'").select(sf.col("manifest_id").alias("id"))
        used = {
            layout.SNAPSHOTS: self.id_rows(history.snapshots),
            layout.TRANSACTIONS: self.id_rows([*history.snapshots, *history.pruned]),
            layout.MANIFESTS: manifests,
        }
        stored = self.listed.where(sf.col("id").isNotNull() & (sf.col("folder") != layout.CHUNKS))
        pruned = in_folders({layout.TRANSACTIONS: self.id_rows(history.pruned)})
        parts = {
            FindingKind.FOREIGN_OBJECT: self.listed.where("id is null"),
            FindingKind.MISSING_PRUNED_LOG: pruned.join(stored, ["folder", "id"], "left_anti"),
            FindingKind.ORPHAN: stored.join(in_folders(used), ["folder", "id"], "left_anti"),
        }
        objects = self._chunks()
        for kind, rows in parts.items():
            some = rows.withColumn("kind", sf.lit(kind.value))
            objects = objects.unionByName(some, allowMissingColumns=True)
        if not self.options.orphans:
            objects = objects.where(sf.col("kind") != FindingKind.ORPHAN.value)
        chosen = objects.select("kind", "folder", "id", "name", "size_bytes", "end", "path")
        self.parts.append(self._check(chosen, _object_task))

    def finish(self) -> VerifyReport:
        rows = reduce(DataFrame.union, [*self.stages, *self.parts]).where("what = 'finding'")
        found = self.keep(rows.select("kind", "object", "path", "detail"))
        try:
            self._note(found)
            return VerifyReport.of(self.log, self._looked())
        finally:
            self.forget()

    def _note(self, found: DataFrame) -> None:
        counts = found.groupBy("kind").count().collect()
        order = Window.partitionBy("kind").orderBy("object", "path", "detail")
        numbered = found.withColumn("at", sf.row_number().over(order))
        rows = to_arrow(numbered.where(sf.col("at") <= self.log.kept)).to_pylist()
        for kind, total in counts:
            mine = [
                (row["object"], row["detail"], row["path"]) for row in rows if row["kind"] == kind
            ]
            self.log.add_many(FindingKind(kind), total, mine)

    def _looked(self) -> Counter[str]:
        name = "sources" if self.options.virtual_sources else "sources not checked"
        one = sf.lit(1).alias("number")
        told = reduce(DataFrame.union, self.stages).where("what = 'checked'")
        rows = told.select("kind", "number")
        rows = rows.union(self.listed.where("id is not null").select(sf.lit("objects"), one))
        rows = rows.union(self.sources.select(sf.lit(name), one))
        return Counter(dict(rows.groupBy("kind").agg(sf.sum("number")).collect()))

    # -- objects beside references to them

    def _folder(self, folder: str) -> DataFrame:
        """The ids and sizes of one folder."""
        found = self.listed.where((sf.col("folder") == folder) & sf.col("id").isNotNull())
        return found.select("id", "size_bytes")

    def _chunks(self) -> DataFrame:
        grouped = self.manifests.where("what = 'native'").groupBy("chunk_id")
        used = grouped.agg(
            sf.max("end").alias("end"),
            sf.min(sf.when(sf.col("end") > 0, sf.struct("manifest_id", "path"))).alias("user"),
        )
        stored = self._folder(layout.CHUNKS)
        both = used.join(stored, used["chunk_id"] == stored["id"], "full")
        size, end = (sf.coalesce(name, sf.lit(-1)) for name in ("size_bytes", "end"))
        problems = object_problems(size, end).items()
        return both.select(
            sf.coalesce(*(sf.when(which, kind.value) for kind, which in problems)).alias("kind"),
            sf.lit(layout.CHUNKS).alias("folder"),
            sf.coalesce("chunk_id", "id").alias("id"),
            "size_bytes",
            "end",
            "user.path",
        ).where("kind is not null")


# -- tasks


def _columns(what: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of another schema as rows of `_ROWS`."""
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    given["what"] = pa.repeat(what, batch.num_rows)
    arrays = [
        given[field.name] if field.name in given else pa.nulls(batch.num_rows, field.type)
        for field in _ROWS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROWS)


def _rows(told: Told) -> pa.RecordBatch:
    """What a check has to say, as rows of `_ROWS`."""
    rows: list[dict[str, Any]] = [{"what": "finding", **one._asdict()} for one in told.findings]
    rows += [
        {"what": "checked", "kind": name, "number": number}
        for name, number in told.counts.items()
        if number
    ]
    parts = [pa.RecordBatch.from_pylist(rows, schema=_ROWS)]
    parts += [_columns(what, batch) for what, batch in told.rows.items()]
    return checks.concat_batches(parts)


async def _object_task(handle: RepoHandle, batches: Batches) -> AsyncIterator[pa.RecordBatch]:
    """Objects that are not as references want them, as findings."""
    for batch in batches:
        found = []
        for row in batch.to_pylist():
            kind = FindingKind(row["kind"])
            key = row["folder"] + (row["name"] or ObjectId(row["id"]).text)
            detail = object_detail(kind, row["size_bytes"], row["end"])
            found.append(Finding.of(kind, key, detail, row["path"] or ""))
        yield _rows(Told(found))


async def _snapshot_task(
    history: History, with_forms: bool, handle: RepoHandle, batches: Batches
) -> AsyncIterator[pa.RecordBatch]:
    """Check snapshots with their logs; hand on which manifests they use."""
    rows = (row for batch in batches for row in batch.to_pylist())
    wanted = ((SnapshotId(row["id"]), bool(row["has_file"]), bool(row["has_log"])) for row in rows)
    async for told in check_snapshots(handle, history, wanted, with_forms=with_forms):
        yield _rows(told)


async def _manifest_task(
    options: VerifyOptions, handle: RepoHandle, batches: Batches
) -> AsyncIterator[pa.RecordBatch]:
    """Check manifests; hand on what they refer to. Rows of one manifest follow each other."""
    async for checked, one in check_manifests(handle, checks.manifests_to_check(batches)):
        yield _rows(told_by(checked))
        if checked.manifest is None or not options.read_chunks:
            continue
        for array, path, forms in arrays_in_use(checked.manifest, one.uses):
            refs = array.refs.take(np.flatnonzero(is_read_in_place(array.refs, options)))
            yield _rows(await read_chunks(handle, array.node_id, path, refs, forms))
            yield _columns("reference", _references_of(one.id, array, path, forms))


async def _source_task(handle: RepoHandle, batches: Batches) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        table = pa.Table.from_batches([batch]).cast(checks.SOURCES)
        yield _rows(Told(await check_sources(handle, table)))


# -- reading chunks


def _digest(form: str) -> str:
    """A short name of a form."""
    return sha256(form.encode()).hexdigest()[:32]


def _references_of(
    manifest_id: ManifestId, array: ArrayManifest, path: str, forms: Sequence[str]
) -> pa.RecordBatch:
    """The native chunks of an array in a manifest, as rows of `_REFERENCES`."""
    refs = array.refs.take(np.flatnonzero(array.refs.kind == ChunkKind.NATIVE))
    found = refs.to_arrow().set_column(0, "index", index_column(refs.index))
    same = {"manifest_id": bytes(manifest_id), "node_id": bytes(array.node_id), "path": path}
    for name, value in {**same, "form": ",".join(map(_digest, forms))}.items():
        found = found.append_column(name, pa.repeat(value, len(refs)))
    return one_batch(found, _REFERENCES)


async def _read_task(
    forms: Mapping[str, str], handle: RepoHandle, batches: Batches
) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        for (_, node_id), group in groupby(batch.to_pylist(), itemgetter("manifest_id", "node_id")):
            rows = list(group)
            wanted = sorted(forms[name] for name in rows[0]["form"].split(",") if name)
            refs = _native_refs(rows)
            told = await read_chunks(handle, NodeId(node_id), rows[0]["path"], refs, wanted)
            yield _rows(told)


def _native_refs(rows: Sequence[Mapping[str, Any]]) -> ChunkRefs:
    ids = np.frombuffer(b"".join(row["chunk_id"] for row in rows), np.uint8)
    names = ("index", "offset", "length")
    index, offset, length = (np.array([row[name] for row in rows], np.int64) for name in names)
    return ChunkRefs.native(
        index.reshape(len(rows), -1), ids.reshape(-1, ChunkId.size), offset, length
    )
