"""A session as a Zarr store."""

from icefloe.store.zarr_store import IcechunkStore

__all__ = ["IcechunkStore"]
