"""Scanning sources on the executors: descriptions come back, references stay there.

A scan gives one row for what a source is, or for why it cannot be read, and one for the references
of each of its variables. The frame is kept by Spark, so that a file is opened once: the driver
takes the descriptions, and the references are placed later where they are.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.format.columns.arrow_columns import batch_of, pack_table
from icefloe.spark.writes.map_items import map_items, tasks_for
from icefloe.virtual.ingest.comparing import Digests, digest_file, files_to_read
from icefloe.virtual.ingest.scanning import scan_each
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.model.shared_parts import Joiner, Splitter
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan, Problem

FILES_PER_TASK = 100

SCHEMA = pa.schema(
    [
        ("location", pa.string()),
        ("path", pa.string()),
        ("data", pa.binary()),
        ("reason", pa.string()),
    ]
)
_PART = "#"  # begins the key of a part that descriptions share, and no location
_Row = tuple[str, str | None, bytes | None, str | None]
DDL = "location string, path string, data binary, reason string"


def scan_frame(
    spark: SparkSession,
    locations: Sequence[str],
    options: IngestOptions,
    access: SourceAccess,
    known: Mapping[str, SourceVersion] | None = None,
    num_tasks: int | None = None,
) -> DataFrame:
    """The rows of a scan. In virtual mode they are kept by Spark: `unpersist` them.

    Of sources that are `known` in the version they have, only that is looked at.
    """
    work = partial(_scan_task, options, access)
    items = [(location, (known or {}).get(location)) for location in locations]
    tasks = num_tasks or tasks_for(spark, len(items), FILES_PER_TASK)
    frame = map_items(spark, items, work, DDL, tasks)
    return frame.persist() if options.mode == "virtual" else frame


def descriptions_of(
    frame: DataFrame, locations: Sequence[str]
) -> tuple[list[SourceDescription], list[Problem]]:
    """What the scan found, in the order the sources were given."""
    rows = frame.where("path IS NULL").select("location", "data", "reason").toArrow()
    return read_rows(rows, locations)


def read_rows(
    rows: pa.Table, locations: Sequence[str]
) -> tuple[list[SourceDescription], list[Problem]]:
    """What the rows of a scan say, without those of references."""
    joiner = Joiner()
    for key, data, _ in _each(rows):
        if key.startswith(_PART):
            joiner.add(bytes.fromhex(key.removeprefix(_PART)), data)
    by_location: dict[str, SourceDescription | str] = {}
    for location, data, reason in _each(rows):
        if not location.startswith(_PART):
            by_location[location] = joiner.join(location, data) if reason is None else reason
    found, problems = [], []
    for location in locations:
        item = by_location.pop(location)
        if isinstance(item, str):
            problems.append(Problem(location, item))
        else:
            found.append(item)
    return found, problems


def _each(rows: pa.Table) -> Iterator[tuple[str, bytes, str | None]]:
    """Rows one by one: never all of them are objects of Python."""
    for batch in rows.to_batches():
        yield from zip(*map(pa.Array.to_pylist, batch.columns), strict=True)


def digest_all(
    spark: SparkSession, plan: IngestPlan, access: SourceAccess, num_tasks: int | None = None
) -> tuple[Digests, dict[str, str]]:
    """The digests that a plan wants, and files that turn out to be damaged, with the reasons."""
    items = files_to_read(plan.uncompared, plan.sources)
    tasks = num_tasks or tasks_for(spark, len(items), FILES_PER_TASK)
    frame = map_items(spark, items, partial(_digest_task, access), DDL, tasks)
    digests: Digests = {}
    damaged: dict[str, str] = {}
    for row in frame.toArrow().to_pylist():
        if row["reason"] is None:
            digests[row["location"], row["path"]] = row["data"]
        else:
            damaged[row["location"]] = row["reason"]
    return digests, damaged


def _digest_task(
    access: SourceAccess, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for item in batch.column("item"):
            source, paths = pickle.loads(item.as_py())
            found, reason = digest_file(source, paths, access)
            if reason is not None:
                yield _rows([(source.location, None, None, reason)])
            else:
                yield _rows([(*key, digest, None) for key, digest in found.items()])


def _scan_task(
    options: IngestOptions, access: SourceAccess, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    splitter = Splitter()
    for batch in batches:
        items = [pickle.loads(item.as_py()) for item in batch.column("item")]
        for location, found in scan_each(items, options, access):
            yield pack_source(location, found, splitter)
    yield pack_parts(splitter.finish())


def pack_source(
    location: str, found: SourceDescription | str, splitter: Splitter
) -> pa.RecordBatch:
    """The rows of one source."""
    if isinstance(found, str):
        return _rows([(location, None, None, found)])
    rows: list[_Row] = [(location, None, splitter.split(found), None)]
    rows += _part_rows(splitter.fresh())
    for path, table in (found.references or {}).items():
        rows.append((location, path, pack_table(table), None))
    return _rows(rows)


def pack_parts(parts: Iterable[tuple[bytes, bytes]]) -> pa.RecordBatch:
    """The rows of parts that descriptions share."""
    return _rows(_part_rows(parts))


def _part_rows(parts: Iterable[tuple[bytes, bytes]]) -> list[_Row]:
    return [(_PART + key.hex(), None, data, None) for key, data in parts]


def _rows(rows: Sequence[_Row]) -> pa.RecordBatch:
    return batch_of(SCHEMA, rows)
