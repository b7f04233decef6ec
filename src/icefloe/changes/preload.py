"""Which manifests a session is likely to need, decided from the snapshot alone."""

from __future__ import annotations

import numpy as np

from icefloe.config.resolved import ResolvedPreload
from icefloe.format.snapshot.file import ManifestFiles
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.ids import ManifestId


def plan_preload(
    nodes: NodeTable, files: ManifestFiles, settings: ResolvedPreload
) -> list[ManifestId]:
    """Manifests to prefetch, in the order of the nodes.

    The first `max_arrays_to_scan` arrays are considered. A manifest is selected if `preload_if`
    holds and the references of all selected manifests stay within `max_total_refs`.
    """
    if settings.max_total_refs == 0 or settings.max_arrays_to_scan == 0:
        return []
    taken: dict[ManifestId, None] = {}
    total = 0
    rows = np.flatnonzero(nodes.is_array)[: settings.max_arrays_to_scan].tolist()
    first = 0
    for array, row in enumerate(rows):
        last = first + int(nodes.num_manifests[array])
        ids, first = nodes.manifest_id[first:last], last
        path = nodes.path[row]
        if not len(ids) or not settings.preload_if.matches(path, None):
            continue
        counts = files.num_refs(ids)
        # The manifests of an array have few distinct sizes; the condition is evaluated once for
        # each.
        sizes = np.unique(counts).tolist()
        matching = [size for size in sizes if settings.preload_if.matches(path, size)]
        for at in np.flatnonzero(np.isin(counts, matching)).tolist():
            if total + int(counts[at]) > settings.max_total_refs:
                continue
            manifest_id = ManifestId(ids[at].tobytes())
            if manifest_id not in taken:
                taken[manifest_id] = None
                total += int(counts[at])
    return list(taken)
