"""Spark on repositories: arrays as DataFrames, tables of metadata, a stream of changes.

    spark = icefloe.spark.session()
    df = icefloe.spark.read(spark, repo, variables=["t2m"], where={"lat": (40, 60)})
    icefloe.spark.write_dataset(spark, dataset, repo, append_dim="time")
    icefloe.spark.ingest(spark, "s3://bucket/2024/*.nc", repo, concat_dim="time", append=True)

`spark.read.format("icefloe").load(url)` works as well, without registration; it takes credentials
from the environment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import pyspark  # noqa: F401
except ImportError as error:  # pragma: no cover - an environment without the extra
    raise ImportError('icefloe.spark needs pyspark: pip install "icefloe[spark]"') from error

if TYPE_CHECKING:
    from icefloe.geometry import Region
    from icefloe.spark.ingests.ingest import ingest, run_recipe
    from icefloe.spark.metadata.attach import Attached, attach
    from icefloe.spark.metadata.tables import table
    from icefloe.spark.migration.migrate_on_spark import migrate_repository
    from icefloe.spark.reads.reading import read
    from icefloe.spark.rows.write_stream import write_stream
    from icefloe.spark.rows.write_table import TableReport, write_table
    from icefloe.spark.runtime.spark_session import session
    from icefloe.spark.writes.write_dataset import DatasetReport, write_dataset
    from icefloe.spark.writes.write_items import WriteReport
    from icefloe.spark.writes.write_regions import write_regions
    from icefloe.virtual.ingest.recipe import load_recipe
    from icefloe.virtual.ingest.report import IngestReport

__all__ = [
    "Attached",
    "DatasetReport",
    "IngestReport",
    "Region",
    "TableReport",
    "WriteReport",
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

_HOME = {
    "Region": "icefloe.geometry",
    "ingest": "icefloe.spark.ingests.ingest",
    "run_recipe": "icefloe.spark.ingests.ingest",
    "Attached": "icefloe.spark.metadata.attach",
    "attach": "icefloe.spark.metadata.attach",
    "table": "icefloe.spark.metadata.tables",
    "migrate_repository": "icefloe.spark.migration.migrate_on_spark",
    "read": "icefloe.spark.reads.reading",
    "write_stream": "icefloe.spark.rows.write_stream",
    "TableReport": "icefloe.spark.rows.write_table",
    "write_table": "icefloe.spark.rows.write_table",
    "session": "icefloe.spark.runtime.spark_session",
    "DatasetReport": "icefloe.spark.writes.write_dataset",
    "write_dataset": "icefloe.spark.writes.write_dataset",
    "WriteReport": "icefloe.spark.writes.write_items",
    "write_regions": "icefloe.spark.writes.write_regions",
    "load_recipe": "icefloe.virtual.ingest.recipe",
    "IngestReport": "icefloe.virtual.ingest.report",
}
"""Workers import single modules of this package, and should not wait for all the others."""


def __getattr__(name: str) -> Any:
    """Import what a name stands for; from then on it is an ordinary attribute."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name == "maintenance":
        value = import_module("icefloe.spark.maintenance")
    else:
        raise AttributeError(f"module 'icefloe.spark' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "maintenance"])
