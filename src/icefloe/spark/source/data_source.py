"""The data source `icefloe`: read, written, and both as streams.

Spark runs `schema`, `partitions` and `read` in different processes, so a reader carries all it
needs: the scan, with the snapshot pinned when the query was planned.

Options: the URL is given to `load`; `branch`, `tag`, `snapshot` or `as-of`; `group`, `variables`,
`dims`, `columns`, `layout`, `where`, `missing`, `decode`, `split-size`, `min-partitions` as in
`icefloe.spark.read`; `table` for a table of metadata, with `start-snapshot` for `changes`, and
`max-commits-per-trigger` in a stream. Options for writing are in `source/writer.py` and
`stream_sink.py`. Credentials come from the environment; options are shown in plans.

No reader has `pushFilters`. Spark 4.1 to 4.3 keep what a source makes of one query's filters, and
give it to all queries of the same frame: rows would be missing. Conditions that spare chunks go
into the option `where`. The option `pushdown` is accepted and does nothing.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from icefloe.errors import InvalidInputError
from icefloe.scans.choose_scan import plan_read
from icefloe.scans.metadata.tables import TABLES, check_ref, check_table, plan_table
from icefloe.scans.options import KNOWN_OPTIONS, ReadOptions, options_from_text, truth
from icefloe.scans.pinned import REF_OPTIONS, PinnedSnapshot, pin_options
from icefloe.scans.scan import Scan
from icefloe.spark.runtime.tasks import be_quiet_about_pipes, prepare_worker
from icefloe.spark.source.change_stream import ChangeStreamReader
from icefloe.spark.source.stream_sink import StreamSink
from icefloe.spark.source.writer import RowsWriter, target_of
from icefloe.spark.spark_types import spark_schema

be_quiet_about_pipes()  # at import: the processes that find a source and plan run no task

# What Spark adds by itself when a table is created in SQL.
_SPARK_OPTIONS = ("path", "provider", "owner", "location", "serialization.format")
_CARRIED = "icefloe.options"
_TABLE_OPTIONS = ("start-snapshot", "max-commits-per-trigger")
_OWN_OPTIONS = frozenset((*REF_OPTIONS, *KNOWN_OPTIONS, "table", "pushdown", *_TABLE_OPTIONS))


class IcefloeDataSource(DataSource):
    """Arrays and metadata of a repository as tables."""

    @classmethod
    def name(cls) -> str:
        return "icefloe"

    def schema(self) -> StructType:
        check_options(self.options)
        if truth("pushdown", self.options.get("pushdown", "false")):
            warnings.warn(
                "option pushdown of the icefloe data source does nothing, because Spark would use "
                "the filters of one query for others; conditions in the option where spare chunks",
                stacklevel=2,
            )
        source = pin_options(self.options)
        if is_table(self.options):
            check_table(self.options["table"])
            found = spark_schema(TABLES[self.options["table"]])
        else:
            found = spark_schema(plan_read(source, options_from_text(self.options)).schema)
        return with_options(found, self.options) if is_created(self.options) else found

    def reader(self, schema: StructType) -> DataSourceReader:
        given = {**options_in(schema), **self.options}
        check_options(given)
        source = pin_options(given)
        options = options_from_text(given)
        if not is_table(given) and options.layout == "cells":
            # A schema given by the user chooses columns; Spark has no other way to say so.
            options = replace(options, columns=tuple(schema.names))
        return ScanReader(plan_options(source, given, options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if self.options.get("table") != "changes":
            raise InvalidInputError(
                "arrays cannot be read as a stream; give option table=changes for what commits did"
            )
        return ChangeStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RowsWriter(target_of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        sink: DataSourceStreamWriter = StreamSink(self.options, schema, overwrite=overwrite)
        return sink


class ScanReader(DataSourceReader):
    """Reads a scan, which is made at once: Spark pickles a reader before it asks for partitions."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        check_schema(schema, scan)
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._scan.num_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        if partition.value is not None:  # which stands for an empty list of partitions
            yield from self._scan.read(partition.value)


def is_table(options: Mapping[str, str]) -> bool:
    """Whether options ask for a table of metadata."""
    return "table" in options


def plan_options(source: PinnedSnapshot, given: Mapping[str, str], options: ReadOptions) -> Scan:
    """The scan that options ask for."""
    if not is_table(given):
        return plan_read(source, options)
    name = given["table"]
    check_table(name)
    refs = {key: given[key] for key in (*REF_OPTIONS, "start-snapshot") if key in given}
    check_ref(name, refs)
    branch = given.get("branch") or (None if refs.keys() & {"tag", "snapshot"} else "main")
    return plan_table(
        source,
        name,
        branch,
        start=given.get("start-snapshot"),
        min_partitions=options.min_partitions,
    )


def check_options(options: Mapping[str, str]) -> None:
    """Refuse options that are not known, which would otherwise be misspelt in silence.

    A table that SQL has created brings its properties along; its options are those that come a
    second time, as `option.name`.
    """
    names = [key.lower() for key in options]
    if is_created(options):
        names = [name.removeprefix("option.") for name in names if name.startswith("option.")]
    for key in names:
        if key not in _OWN_OPTIONS and key not in _SPARK_OPTIONS:
            raise InvalidInputError(
                f"unknown option {key!r} of the icefloe data source; options are "
                f"{', '.join(sorted(_OWN_OPTIONS))}"
            )


def is_created(options: Mapping[str, str]) -> bool:
    """Whether SQL is creating a table."""
    return "provider" in options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema whose columns carry the options of a table.

    A table that SQL has created is read without them: Spark keeps the schema, and hands that on.
    """
    own = {key: options[key] for key in (*sorted(_OWN_OPTIONS), "path") if key in options}
    fields = [
        StructField(field.name, field.dataType, field.nullable, {_CARRIED: json.dumps(own)})
        for field in schema
    ]
    return StructType(fields)


def options_in(schema: StructType) -> dict[str, str]:
    """The options that a schema carries, if it is that of a table that SQL has created."""
    texts = [field.metadata.get(_CARRIED) for field in schema if field.metadata]
    found: dict[str, str] = json.loads(texts[0]) if texts and texts[0] else {}
    return found


def check_schema(wanted: StructType, scan: Scan) -> None:
    """A schema given by the user has to have the columns' own types."""
    found = {field.name: field.dataType for field in spark_schema(scan.schema)}
    for field in wanted:
        if field.name not in found:
            raise InvalidInputError(
                f"no column {field.name!r}; columns are {', '.join(map(repr, found))}"
            )
        if found[field.name] != field.dataType:
            raise InvalidInputError(
                f"column {field.name!r} is {found[field.name].simpleString()}, the schema says "
                f"{field.dataType.simpleString()}; give that, and cast afterwards"
            )
