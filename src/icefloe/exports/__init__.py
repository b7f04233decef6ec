"""Copies of a repository: a snapshot as plain Zarr or Parquet, the whole history elsewhere, and
virtual chunks as chunks of the repository.

The forms on Spark (`icefloe.spark.maintenance`) share everything here but the loops.
"""
