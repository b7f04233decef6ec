"""Maintenance by many tasks: each function gives the answer of its twin in one process.

    icefloe.spark.maintenance.verify(spark, repo)
    icefloe.spark.maintenance.garbage_collect(spark, repo, older_than)
    icefloe.spark.maintenance.storage_stats(spark, repo)
    icefloe.spark.maintenance.rewrite_manifests(spark, repo, "split anew", branch="main")
    icefloe.spark.maintenance.materialize(spark, repo)
    icefloe.spark.maintenance.export_zarr(spark, repo, "s3://bucket/copy.zarr")

Objects and references are rows of DataFrames. The driver holds refs, snapshots and results.
"""

from icefloe.exports.objects import ExportReport
from icefloe.exports.virtual_to_native import MaterializeReport
from icefloe.spark.maintenance.collect_rows import garbage_collect
from icefloe.spark.maintenance.count_bytes import storage_stats
from icefloe.spark.maintenance.export import export_parquet, export_repository, export_zarr
from icefloe.spark.maintenance.materialize import materialize
from icefloe.spark.maintenance.rewrite_pieces import rewrite_manifests
from icefloe.spark.maintenance.verify_rows import verify

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
