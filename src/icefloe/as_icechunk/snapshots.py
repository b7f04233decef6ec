"""What history is made of."""

from icefloe.api.ancestry_graph import AncestryGraph
from icefloe.api.values import ManifestFileInfo, SnapshotInfo
from icefloe.changes.diff import Diff

__all__ = ["AncestryGraph", "Diff", "ManifestFileInfo", "SnapshotInfo"]
