"""Which tests the installed Spark can run."""

from __future__ import annotations

from importlib.util import find_spec

import pyspark
import pytest

SPARK_VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
needs_data_sources = pytest.mark.skipif(
    find_spec("pyspark.sql.datasource") is None, reason="Spark 4.0 brought data sources in Python"
)
