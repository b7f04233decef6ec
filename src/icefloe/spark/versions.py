"""What differs between the Sparks we run on, 3.5 to the newest: the only place that asks.

Vendors put methods of later versions into their Spark 3.5. So a method is looked for by its name,
not by Spark's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from inspect import signature
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

_BATCH_ROWS: Final = 1 << 16


OLDEST_JAVA: Final = 17 if int(pyspark.__version__.partition(".")[0]) >= 4 else 8
"""Spark does not start on an older Java."""


def to_arrow(rows: DataFrame) -> pa.Table:
    """The rows, on the driver: `DataFrame.toArrow`."""
    kind: Any = type(rows)  # a frame has its columns as attributes
    if hasattr(kind, "toArrow"):
        return rows.toArrow()
    if not hasattr(kind, "_collect_as_arrow"):
        raise NotImplementedError(
            f"this session of Spark Connect {pyspark.__version__} cannot collect Arrow tables: "
            "use Spark 4.0 or newer, or a session without Spark Connect"
        )
    batches = kind._collect_as_arrow(rows)  # none where there are no rows
    return pa.Table.from_batches(batches, None if batches else arrow_schema(rows.schema))


def from_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A table as a DataFrame: `createDataFrame`."""
    if hasattr(DataFrame, "toArrow"):  # the same release brought both
        return spark.createDataFrame(table)
    # Rows of whole batches, because pandas knows neither all types nor nulls of all types.
    schema = spark_schema(table.schema)
    stored = arrow_schema(schema)
    batches = table.cast(stored).to_batches(_BATCH_ROWS)
    packed = [(bytearray(batch.serialize()),) for batch in batches]
    rows = spark.createDataFrame(packed, "batch binary")
    return rows.mapInArrow(partial(_unpack, stored), schema)


def _unpack(schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        for packed in row.column(0):
            yield pa.ipc.read_record_batch(packed.as_buffer(), schema)


# -- Arrow types as Spark wants them, and the Spark types they correspond to.
#
# Spark has no unsigned numbers, no half floats, no fixed-size binary and no dictionaries.
# `scans/variables.py` widens what Zarr has of these. Element names and nullability are Spark's,
# because it compares schemas to the letter.


def spark_schema(schema: pa.Schema) -> types.StructType:
    """The Spark schema whose Arrow form is `schema`; what fields say about themselves included."""
    fields = []
    for field in schema:
        said = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
        kind = spark_type(field.type)
        fields.append(types.StructField(field.name, kind, field.nullable, said or None))
    return types.StructType(fields)


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """The Arrow form of a Spark schema; timestamps with a zone are in UTC."""
    # Spark before 4.1 assumes so, later releases want to be told.
    options: dict[str, Any] = {}
    if "timezone" in signature(to_arrow_schema).parameters:
        options["timezone"] = "UTC"
    return to_arrow_schema(schema, **options)


def spark_type(kind: pa.DataType) -> types.DataType:
    """The Spark type of one Arrow type that a scan uses."""
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type), kind.value_field.nullable)
    if pa.types.is_map(kind):
        nullable = kind.item_field.nullable
        return types.MapType(spark_type(kind.key_type), spark_type(kind.item_type), nullable)
    if pa.types.is_struct(kind):
        return spark_schema(pa.schema(list(kind)))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)
