"""Lets Spark find the data source `icefloe` by itself: it looks for `pyspark_*` packages.

Spark imports every such package for any data source it does not know, so nothing may fail here
that concerns others.
"""

from icefloe.spark.data_source import IcefloeDataSource as DefaultSource

__all__ = ["DefaultSource"]
