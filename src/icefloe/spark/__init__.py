"""Spark on repositories: arrays as DataFrames, tables of metadata, a stream of changes.

>>> spark = icefloe.spark.session()                                        # doctest: +SKIP
>>> df = icefloe.spark.read(spark, repo, variables=["t2m"], where={"lat": (40, 60)})
>>> icefloe.spark.table(spark, repo, "chunks").groupBy("kind").count()

`spark.read.format("icefloe").load(url)` works as well, without registration; it takes credentials
from the environment.
"""

try:
    import pyspark  # noqa: F401
except ImportError as error:  # pragma: no cover - an environment without the extra
    raise ImportError('icefloe.spark needs pyspark: pip install "icefloe[spark]"') from error

from icefloe.spark.reading import read
from icefloe.spark.runtime import session

__all__ = ["read", "session"]
