"""Datasets with a state file, the first generation: read and written."""
