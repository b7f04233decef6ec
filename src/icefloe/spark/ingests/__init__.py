"""Files into arrays: the engine of an ingest on Spark."""
