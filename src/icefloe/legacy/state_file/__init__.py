"""The first generation: a state file, and Parquet files for everything else."""
