"""Arrays as rows, in numbered partitions: what Spark reads, and an export to Parquet writes.

- `scan`: the protocol, its options, and a repository pinned to one snapshot
- `cells`, `chunk_rows`, `variables`, `where`: rows of cells and of chunks, types, conditions
- `metadata_rows`, `metadata_tables`: tables about a repository
"""
