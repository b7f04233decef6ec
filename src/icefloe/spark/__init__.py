"""Spark on repositories: arrays as DataFrames, tables of metadata, a stream of changes.

    spark = icefloe.spark.session()
    df = icefloe.spark.read(spark, repo, variables=["t2m"], where={"lat": (40, 60)})
    icefloe.spark.write_dataset(spark, dataset, repo, append_dim="time")
    icefloe.spark.ingest(spark, "s3://bucket/2024/*.nc", repo, concat_dim="time", append=True)

`spark.read.format("icefloe").load(url)` works as well, without registration; it takes credentials
from the environment.
"""

try:
    import pyspark  # noqa: F401
except ImportError as error:  # pragma: no cover - an environment without the extra
    raise ImportError('icefloe.spark needs pyspark: pip install "icefloe[spark]"') from error

from icefloe.geometry import Region
from icefloe.spark.ingests.ingest import ingest, run_recipe
from icefloe.spark.metadata.attach import Attached, attach
from icefloe.spark.metadata.tables import table
from icefloe.spark.migration.migrate_on_spark import migrate_repository
from icefloe.spark.reads.reading import read
from icefloe.spark.rows.write_stream import write_stream
from icefloe.spark.rows.write_table import write_table
from icefloe.spark.runtime.spark_session import session
from icefloe.spark.writes.write_dataset import write_dataset
from icefloe.spark.writes.write_regions import write_regions
from icefloe.virtual.ingest.recipe import load_recipe
from icefloe.virtual.ingest.report import IngestReport

__all__ = [
    "Attached",
    "IngestReport",
    "Region",
    "attach",
    "ingest",
    "load_recipe",
    "migrate_repository",
    "read",
    "run_recipe",
    "session",
    "table",
    "write_dataset",
    "write_regions",
    "write_stream",
    "write_table",
]
