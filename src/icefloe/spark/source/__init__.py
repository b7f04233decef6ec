"""The data source `icefloe`: Spark's own interfaces for reading and writing."""
