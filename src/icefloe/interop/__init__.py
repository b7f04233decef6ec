"""Neighbours: xarray and dask. A module here imports the one it is about, and nothing else does."""
