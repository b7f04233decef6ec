"""What the tries of one commit share: work that is done already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icefloe.changes.build import CommitPlan
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.prepared import NewManifest
from icefloe.changes.split_grid import Box
from icefloe.changes.splits import SplitRewrite
from icefloe.ids import ManifestId, NodeId
from icefloe.repo.handle import RepoHandle, SeenTip
from icefloe.repo.write_manifests import write_manifests

_Key = tuple[NodeId, Box, tuple[ManifestId, ...]]


@dataclass(slots=True)
class CommitWork:
    """Work of earlier tries that a later one need not do again."""

    looks_first: bool = False
    """Look at the branch before every upload."""
    is_at_tip: bool = False
    """The session was found to be at the tip of its branch when this try started."""
    seen: SeenTip | None = None
    """What the last look at the branch found, for whoever publishes the commit."""
    # A split's manifests by what it was made of: the old manifests, and the session's edits, which
    # are the same as long as they are the same object.
    _made: dict[_Key, tuple[object, list[NewManifest]]] = field(default_factory=dict)

    async def write_manifests(
        self, handle: RepoHandle, plan: CommitPlan, changes: ChangeSet
    ) -> dict[NodeId, list[NewManifest]]:
        """Write the manifests of the plan that were not written by an earlier try."""
        done: dict[NodeId, list[NewManifest]] = {}
        missing: dict[NodeId, list[SplitRewrite]] = {}
        for node_id, array_plan in plan.arrays.items():
            edits = _edits(changes, node_id)
            for rewrite in array_plan.rewrites:
                made_of, manifests = self._made.get(_key(node_id, rewrite), (None, []))
                if made_of is not edits or edits is None:
                    missing.setdefault(node_id, []).append(rewrite)
                else:
                    done.setdefault(node_id, []).extend(manifests)
            array_plan.rewrites = missing.get(node_id, [])
        made = await write_manifests(handle, plan.arrays, plan.files)
        for node_id, manifests in made.items():
            done.setdefault(node_id, []).extend(manifests)
        for node_id, rewrites in missing.items():
            self._remember(node_id, rewrites, made.get(node_id, []), _edits(changes, node_id))
        return done

    def _remember(
        self,
        node_id: NodeId,
        rewrites: Sequence[SplitRewrite],
        manifests: Sequence[NewManifest],
        edits: object,
    ) -> None:
        """Splits are made in order, and one in which nothing is left gets no manifest."""
        rest = list(manifests)
        for rewrite in rewrites:
            made = []
            while rest and _contains(rewrite.box, rest[0].ref.extents):
                made.append(rest.pop(0))
            self._made[_key(node_id, rewrite)] = edits, made
        assert not rest, f"manifests of node {node_id} are not in the order of its splits"


def _edits(changes: ChangeSet, node_id: NodeId) -> object:
    edits = changes.chunks.get(node_id)
    return None if edits is None else edits.state


def _key(node_id: NodeId, rewrite: SplitRewrite) -> _Key:
    return node_id, rewrite.box, tuple(ref.id for ref in rewrite.sources)


def _contains(outer: Sequence[tuple[int, int]], inner: Sequence[tuple[int, int]]) -> bool:
    return all(
        first <= start and stop <= last
        for (first, last), (start, stop) in zip(outer, inner, strict=True)
    )


def with_rebase_attempts(metadata: Mapping[str, Any] | None, number: int) -> dict[str, Any]:
    """Commit metadata that says how often the session was rebased."""
    noted = dict(metadata or {})
    inner = noted.get(_NOTES)
    notes = dict(inner) if isinstance(inner, Mapping) else {}
    return {**noted, _NOTES: {**notes, "rebase_attempts": number}}


_NOTES = "__icechunk"
