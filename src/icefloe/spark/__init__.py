"""Spark on repositories: arrays as DataFrames, tables of metadata, a stream of changes.

    spark = icefloe.spark.session()
    df = icefloe.spark.read(spark, repo, variables=["t2m"], where={"lat": (40, 60)})
    icefloe.spark.write_dataset(spark, dataset, repo, append_dim="time")

`spark.read.format("icefloe").load(url)` works as well, without registration; it takes credentials
from the environment.
"""

try:
    import pyspark  # noqa: F401
except ImportError as error:  # pragma: no cover - an environment without the extra
    raise ImportError('icefloe.spark needs pyspark: pip install "icefloe[spark]"') from error

from icefloe.spark.reading import read
from icefloe.spark.regions import Region
from icefloe.spark.runtime import session
from icefloe.spark.tables import table
from icefloe.spark.write_dataset import write_dataset
from icefloe.spark.write_regions import write_regions
from icefloe.spark.write_table import write_table

__all__ = ["Region", "read", "session", "table", "write_dataset", "write_regions", "write_table"]
