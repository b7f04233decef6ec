"""Writing the manifests of a commit: fetch the old ones, apply the edits, write the new ones.

This is done in batches that fit into memory, so a commit may have any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

from icefloe.changes.build import ManifestFile, build_manifests
from icefloe.changes.prepared import NewManifest
from icefloe.changes.splits import SplitRewrite, SplitsPlan
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.ids import ManifestId, NodeId
from icefloe.records import NamedTuple
from icefloe.repo.handle import RepoHandle

_REFS_AT_ONCE = 1 << 20
_FILES_AT_ONCE = 1 << 10


class _Task(NamedTuple):
    """The manifest of one split, or of several that share one, to be written."""

    node_id: NodeId
    rewrite: SplitRewrite

    def num_refs(self, files: ManifestFiles) -> int:
        """An upper bound of the references that it needs in memory."""
        return self.rewrite.num_edits + files.refs_in([ref.id for ref in self.rewrite.sources])


async def write_manifests(
    handle: RepoHandle, arrays: Mapping[NodeId, SplitsPlan], files: ManifestFiles
) -> dict[NodeId, list[NewManifest]]:
    """Write the manifests of the plans; returns the new ones of each array."""
    tasks = [
        _Task(node_id, rewrite)
        for node_id, array_plan in arrays.items()
        for rewrite in array_plan.rewrites
    ]
    # A large manifest that is cut is a source of many batches. It is dropped after the last one.
    uses = Counter(ref.id for task in tasks for ref in task.rewrite.sources)
    held: dict[ManifestId, Manifest] = {}
    made: dict[NodeId, list[NewManifest]] = {}
    most_files = handle.settings.manifest.max_concurrent_manifest_fetches_during_commit
    for batch in _batches(tasks, files, most_files or _FILES_AT_ONCE):
        sources = [ref.id for task in batch for ref in task.rewrite.sources]
        missing = [key for key in dict.fromkeys(sources) if key not in held]
        wanted = [(key, files[key].size_bytes) for key in missing]
        held.update(zip(missing, await handle.assets.manifests(wanted), strict=True))
        built = [(task.node_id, file) for task in batch for file in _build(handle, task, held)]
        await handle.assets.put_metadata_files(
            [(handle.assets.manifest_key(file.new.ref.id), file.data) for _, file in built]
        )
        for node_id, file in built:
            made.setdefault(node_id, []).append(file.new)
            handle.assets.caches.keep_manifest(file.manifest)
        uses.subtract(sources)
        held = {key: manifest for key, manifest in held.items() if uses[key]}
    return made


def forget_replaced(handle: RepoHandle, before: Snapshot, after: Snapshot) -> None:
    """Drop replaced manifests from the cache, because they are rarely read again."""
    replaced = before.manifest_files.not_in(after.manifest_files)
    handle.assets.caches.manifests.drop(replaced)


def _batches(tasks: list[_Task], files: ManifestFiles, most_files: int) -> Iterator[list[_Task]]:
    if len(tasks) == 1:
        yield tasks
        return
    batch: list[_Task] = []
    num_refs = 0
    for task in tasks:
        size = task.num_refs(files)
        if batch and (num_refs + size > _REFS_AT_ONCE or len(batch) >= most_files):
            yield batch
            batch, num_refs = [], 0
        batch.append(task)
        num_refs += size
    if batch:
        yield batch


def _build(handle: RepoHandle, task: _Task, held: dict[ManifestId, Manifest]) -> list[ManifestFile]:
    found = (held[ref.id].find(task.node_id) for ref in task.rewrite.sources)
    return build_manifests(
        task.node_id,
        task.rewrite,
        (refs for refs in found if refs is not None),
        new_id=partial(handle.new_id, ManifestId),
        encode=handle.assets.encode_manifest,
    )
