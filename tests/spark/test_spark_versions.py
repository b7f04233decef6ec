"""What differs between Sparks: tables from and to Arrow, and what an old one is refused with."""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe.spark.versions import from_arrow, to_arrow
from tests.spark.versions import SPARK_VERSION

TABLE = pa.table(
    {
        "n": pa.array([1, None, -(2**63)], pa.int64()),
        "b": pa.array([True, None, False]),
        "f": pa.array([float("nan"), None, 0.5], pa.float32()),
        "data": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "text": pa.array(["ü", None, ""]),
        "many": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "both": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": None}]),
    }
)


def test_tables_come_back_as_they_were(spark: SparkSession) -> None:
    found = to_arrow(from_arrow(spark, TABLE))
    assert found.column_names == TABLE.column_names
    assert repr(found.to_pylist()) == repr(TABLE.to_pylist())  # with NaN, null and the order
    none = to_arrow(from_arrow(spark, TABLE).where("n = 5"))
    assert (none.num_rows, none.schema.field("data").type) == (0, pa.binary())
    many = pa.table({"n": pa.array(range(150_000), pa.int64())})
    assert to_arrow(from_arrow(spark, many)).sort_by("n").equals(many)


def test_a_column_is_not_taken_for_a_method(spark: SparkSession) -> None:
    table = pa.table({"toArrow": [1], "_collect_as_arrow": [2]})
    assert to_arrow(from_arrow(spark, table)).to_pylist() == table.to_pylist()


def test_frames_that_cannot_be_collected_are_refused() -> None:
    frame: Any = object()
    with pytest.raises(NotImplementedError, match=r"use Spark 4\.0 or newer, or a session without"):
        to_arrow(frame)


def test_an_old_spark_is_refused_in_one_sentence() -> None:
    refusal = vars(icefloe.spark)["_refusal"]
    told = refusal("3.4.3", True)
    assert told is not None
    assert told.startswith("icefloe.spark needs Spark 3.5 or newer, and pyspark is 3.4.3: ")
    told = refusal("3.5.1", False)
    assert told is not None
    assert "pip install setuptools" in told
    for version in ("3.5.0", "3.5.2+vendor", "4.0.0.dev1", "4.3.0", "10.0"):
        assert refusal(version, True) is None
    assert refusal("4.0.0", False) is None


@pytest.mark.skipif(SPARK_VERSION >= (4, 0), reason="this Spark has data sources in Python")
def test_the_data_source_says_what_it_needs() -> None:
    with pytest.raises(ImportError, match=rf"needs Spark 4\.0.*pyspark is {pyspark.__version__}"):
        importlib.import_module("pyspark_icefloe")


def test_no_module_hides_a_name_of_the_package() -> None:
    modules = {module.rpartition(".")[2] for module in icefloe.spark.NAMES_OF}
    assert modules & set(icefloe.spark.__all__) == set()
