"""Chunks in objects that are not the repository's own."""

from icefloe.config import VirtualChunkContainer
from icefloe.store.virtual_refs import VirtualChunkSpec

__all__ = ["VirtualChunkContainer", "VirtualChunkSpec"]
