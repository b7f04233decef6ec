"""Arrays as DataFrames."""
