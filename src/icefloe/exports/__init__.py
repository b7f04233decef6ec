"""Copies of a repository: a snapshot as plain Zarr or Parquet, the whole history elsewhere, and
virtual chunks as chunks of the repository.

Each is written once against an engine: this process, or Spark (`icefloe.spark.maintenance`).
"""
