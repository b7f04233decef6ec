"""Arrow types as Spark wants them, and the Spark types they correspond to.

Spark has no unsigned numbers, no half floats, no fixed-size binary and no dictionaries.
`scans/coding.py` widens what Zarr has of these. Element names and nullability are Spark's, because
it compares schemas to the letter.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

_PLAIN: dict[pa.DataType, types.DataType] = {
    pa.bool_(): types.BooleanType(),
    pa.int8(): types.ByteType(),
    pa.int16(): types.ShortType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.timestamp("us", tz="UTC"): types.TimestampType(),
    pa.timestamp("us"): types.TimestampNTZType(),
    pa.duration("us"): types.DayTimeIntervalType(),
}


def spark_schema(schema: pa.Schema) -> types.StructType:
    """The Spark schema whose Arrow form is `schema`."""
    return types.StructType(
        [types.StructField(field.name, spark_type(field.type), field.nullable) for field in schema]
    )


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """The Arrow form of a Spark schema; timestamps with a zone are in UTC."""
    # Spark 4.0 assumes so, later releases want to be told.
    options: dict[str, Any] = {}
    if "timezone" in signature(to_arrow_schema).parameters:
        options["timezone"] = "UTC"
    return to_arrow_schema(schema, **options)


def spark_type(kind: pa.DataType) -> types.DataType:
    """The Spark type of one Arrow type that a scan uses."""
    found = _PLAIN.get(kind)
    if found is not None:
        return found
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type), kind.value_field.nullable)
    if pa.types.is_map(kind):
        nullable = kind.item_field.nullable
        return types.MapType(spark_type(kind.key_type), spark_type(kind.item_type), nullable)
    if pa.types.is_struct(kind):
        return spark_schema(pa.schema(list(kind)))
    raise TypeError(f"no Spark type stands for Arrow's {kind}")
