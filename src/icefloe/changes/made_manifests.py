"""Manifests that a commit has written, kept for its next attempt.

A commit that rebases makes several attempts. The next attempt reuses the manifest of a split if its
old manifests and the session's edits are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icefloe.changes.build import CommitPlan
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.prepared import NewManifest
from icefloe.changes.split_grid import Box
from icefloe.changes.splits import SplitRewrite, SplitsPlan
from icefloe.ids import ManifestId, NodeId

_Key = tuple[NodeId, Box, tuple[ManifestId, ...]]


class MadeManifests:
    """The manifests written for each split, keyed by its old manifests and edits."""

    def __init__(self) -> None:
        self._made: dict[_Key, tuple[object, list[NewManifest]]] = {}

    def missing(self, plan: CommitPlan, changes: ChangeSet) -> dict[NodeId, SplitsPlan]:
        """The part of a plan that has not been written yet."""
        left = {}
        for node_id, array_plan in plan.arrays.items():
            edits = _edits(changes, node_id)
            rewrites = [
                rewrite
                for rewrite in array_plan.rewrites
                if edits is None or self._made_of(node_id, rewrite) is not edits
            ]
            left[node_id] = SplitsPlan(array_plan.kept, rewrites)
        return left

    def _made_of(self, node_id: NodeId, rewrite: SplitRewrite) -> object:
        edits, _ = self._made.get(_key(node_id, rewrite), (None, []))
        return edits

    def add(
        self,
        plans: Mapping[NodeId, SplitsPlan],
        written: Mapping[NodeId, Sequence[NewManifest]],
        changes: ChangeSet,
    ) -> None:
        """Keep the manifests of these plans. Those of an array are in the order of its splits.

        A split without references has no manifest.
        """
        for node_id, array_plan in plans.items():
            edits, rest = _edits(changes, node_id), list(written.get(node_id, ()))
            for rewrite in array_plan.rewrites:
                made = []
                while rest and _contains(rewrite.box, rest[0].ref.extents):
                    made.append(rest.pop(0))
                self._made[_key(node_id, rewrite)] = edits, made
            assert not rest, f"manifests of node {node_id} are not in the order of its splits"

    def of_plan(self, plan: CommitPlan) -> dict[NodeId, list[NewManifest]]:
        """The new manifests of each array of a plan that was written."""
        return {
            node_id: [
                manifest
                for rewrite in array_plan.rewrites
                for manifest in self._made[_key(node_id, rewrite)][1]
            ]
            for node_id, array_plan in plan.arrays.items()
        }


def _edits(changes: ChangeSet, node_id: NodeId) -> object:
    """The same object as long as no chunk of the array is set or deleted."""
    edits = changes.chunks.get(node_id)
    return None if edits is None else edits.state


def _key(node_id: NodeId, rewrite: SplitRewrite) -> _Key:
    return node_id, rewrite.box, tuple(ref.id for ref in rewrite.sources)


def _contains(outer: Sequence[tuple[int, int]], inner: Sequence[tuple[int, int]]) -> bool:
    return all(
        first <= start and stop <= last
        for (first, last), (start, stop) in zip(outer, inner, strict=True)
    )
