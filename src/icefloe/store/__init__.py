"""The Zarr store over a session."""
