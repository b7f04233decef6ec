"""Prefetching small manifests, together with the first one that a session reads.

Readers of a dataset read its coordinates first: small arrays with one manifest each. The first read
of a manifest also fetches the others that the settings select, in the same round trip. A session
that reads no chunk fetches nothing.
"""

from __future__ import annotations

from icefloe.changes.preload import plan_preload
from icefloe.errors import IcechunkError
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import ManifestFileInfo, Snapshot
from icefloe.ids import ManifestId
from icefloe.observe import CACHE
from icefloe.repo.handle import RepoHandle


async def load_manifest(
    handle: RepoHandle, snapshot: Snapshot, wanted: ManifestFileInfo, *, is_first: bool
) -> Manifest:
    """Load a manifest that is not in the cache. The first load of a session prefetches others."""
    files = snapshot.manifest_files
    ahead = _plan(handle, snapshot) if is_first and len(files) > 1 else []
    requests = [(wanted.id, wanted.size_bytes)]
    requests += [(key, files[key].size_bytes) for key in ahead if key != wanted.id]
    if len(requests) > 1:
        try:
            return (await handle.assets.manifests(requests))[0]
        except IcechunkError as error:
            # The other manifests are optional. A read that needs one of them raises its error.
            CACHE.warning("manifests could not be fetched ahead: %s", error)
    return await handle.assets.manifest(wanted.id, wanted.size_bytes)


def _plan(handle: RepoHandle, snapshot: Snapshot) -> list[ManifestId]:
    if handle.settings.caching.num_chunk_refs == 0:
        return []  # the cache is off
    files, settings = snapshot.manifest_files, handle.settings.manifest.preload
    planned = plan_preload(snapshot.nodes, files, settings)
    return [key for key in planned if key in files and key not in handle.assets.caches.manifests]
