"""Maintenance by many tasks: each function gives the answer of its twin in one process.

    icefloe.spark.maintenance.verify(spark, repo)
    icefloe.spark.maintenance.garbage_collect(spark, repo, older_than)
    icefloe.spark.maintenance.storage_stats(spark, repo)
    icefloe.spark.maintenance.rewrite_manifests(spark, repo, "split by size", branch="main")
    icefloe.spark.maintenance.materialize(spark, repo)
    icefloe.spark.maintenance.export_zarr(spark, repo, "s3://bucket/copy.zarr")

Objects and references are rows of DataFrames. The driver holds refs, snapshots and results.
"""

from icefloe.exports.objects import ExportReport
from icefloe.exports.virtual_to_native import MaterializeReport
from icefloe.spark.maintenance.collect import garbage_collect, storage_stats
from icefloe.spark.maintenance.copies import (
    export_parquet,
    export_repository,
    export_zarr,
    materialize,
    rewrite_manifests,
)
from icefloe.spark.maintenance.verify import verify

__all__ = [
    "ExportReport",
    "MaterializeReport",
    "export_parquet",
    "export_repository",
    "export_zarr",
    "garbage_collect",
    "materialize",
    "rewrite_manifests",
    "storage_stats",
    "verify",
]
