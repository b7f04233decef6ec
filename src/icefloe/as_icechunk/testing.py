"""A storage that answers late."""

from icefloe.testing.latency import LatencyStorage

__all__ = ["LatencyStorage"]
