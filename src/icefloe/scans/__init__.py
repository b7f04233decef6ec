"""Arrays as rows, in numbered pieces: what Spark reads, and what an export to Parquet writes."""
