"""The manifests of a commit: old ones fetched together, edits laid over them, new ones written."""

from __future__ import annotations

from icefloe.changes.build import CommitPlan, NewManifest, build_manifest
from icefloe.format import layout
from icefloe.format.snapshot import Snapshot
from icefloe.ids import ManifestId, NodeId
from icefloe.repo.handle import RepoHandle


async def write_manifests(
    handle: RepoHandle, plan: CommitPlan, base: Snapshot
) -> dict[NodeId, list[NewManifest]]:
    """Write what the plan says, and return what was written for each changed array."""
    files = base.manifest_files
    needed = plan.needed()
    old = dict(
        zip(
            needed,
            await handle.assets.manifests([(key, files[key].size_bytes) for key in needed]),
            strict=True,
        )
    )
    made: dict[NodeId, list[NewManifest]] = {}
    for node_id, array_plan in plan.arrays.items():
        for rewrite in array_plan.rewrites:
            sources = (old[ref.id].find(node_id) for ref in rewrite.sources)
            manifest = build_manifest(
                node_id,
                rewrite,
                (refs for refs in sources if refs is not None),
                new_id=handle.new_id(ManifestId),
                spec_version=handle.spec_version,
                level=handle.settings.compression.level,
            )
            if manifest is not None:
                made.setdefault(node_id, []).append(manifest)
    new = [manifest for manifests in made.values() for manifest in manifests]
    await handle.assets.put_metadata_files(
        [(layout.manifest_key(manifest.ref.id), manifest.data) for manifest in new]
    )
    for item in new:  # the next commit will most likely build on them
        handle.assets.caches.manifests.put(item.ref.id, item.manifest, item.info.num_chunk_refs)
    return made
