"""What a reader has to authorise: the containers of a snapshot's virtual chunks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.config import stores
from icefloe.config.virtual_urls import parse
from icefloe.errors import InvalidInputError
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session_view import all_chunks, load_manifests
from icefloe.repo.workspace import Workspace
from icefloe.store.location_columns import match_containers

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RequiredAccess:
    """One container, or one prefix without a container, and its chunks."""

    url_prefix: str
    """What to authorise: a key of `authorize_virtual_chunk_access`."""
    num_chunks: int
    num_bytes: int
    is_authorized: bool
    has_container: bool
    """Whether the configuration has a container. Without one these chunks cannot be read."""
    name: str | None = None
    store: str | None = None
    """The kind of store: S3, Gcs, Azure, Http, LocalFileSystem, ..."""
    endpoint_url: str | None = None
    """The endpoint of requests, if the configuration has one."""


async def required_access(workspace: Workspace) -> list[RequiredAccess]:
    """Every prefix of a session's virtual chunks, the one with most chunks first."""
    handle, state = workspace
    access = handle.assets.virtual.access
    containers = list(access.containers)
    counts, sizes = Counter[int](), Counter[int]()
    lost_counts, lost_sizes = Counter[str](), Counter[str]()
    view = state.view
    nodes = view.all_nodes()
    await load_manifests(handle, view, nodes)
    for node in nodes:
        if node.array is None:
            continue
        refs = await all_chunks(handle, view, node)
        is_virtual = refs.kind == ChunkKind.VIRTUAL
        if refs.location is None or not is_virtual.any():
            continue
        used, row_of = np.unique(refs.location.codes[is_virtual], return_inverse=True)
        count = np.bincount(row_of)
        size = np.bincount(row_of, weights=refs.length[is_virtual].astype(np.float64))
        values = refs.location.values.strings().take(used).to_arrow()
        number = _numbers(values, handle)
        for at in np.unique(number).tolist():
            rows = number == at
            if at >= 0:
                counts[at] += int(count[rows].sum())
                sizes[at] += int(size[rows].sum())
                continue
            for row in np.flatnonzero(rows).tolist():
                place = _place(values[row].as_py())
                lost_counts[place] += int(count[row])
                lost_sizes[place] += int(size[row])
    found = [
        RequiredAccess(
            containers[at].url_prefix,
            counts[at],
            sizes[at],
            access.is_authorized(containers[at]),
            has_container=True,
            name=containers[at].name,
            store=type(containers[at].store).__name__,
            endpoint_url=_endpoint(containers[at].store),
        )
        for at in counts
    ]
    found += [
        RequiredAccess(place, lost_counts[place], lost_sizes[place], False, has_container=False)
        for place in lost_counts
    ]
    return sorted(found, key=lambda each: (-each.num_chunks, each.url_prefix))


def _numbers(values: pa.Array, handle: RepoHandle) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    containers = handle.assets.virtual.access.containers
    try:
        number: np.ndarray[tuple[int], np.dtype[np.int32]] = match_containers(
            values, containers
        ).number
    except InvalidInputError:
        # Another writer stored a location that is not a URL. Handle the locations one by one.
        number = np.full(len(values), -1, np.int32)
        for row in range(len(values)):
            try:
                number[row] = match_containers(values.slice(row, 1), containers).number[0]
            except InvalidInputError:
                continue
    return number


def _place(location: str) -> str:
    try:
        url = parse(location)
    except InvalidInputError:
        return location
    return f"{url.scheme}://{url.authority}/"


def _endpoint(store: stores.ObjectStoreConfig) -> str | None:
    if isinstance(store, stores.S3 | stores.S3Compatible):
        return store.options.endpoint_url
    if isinstance(store, stores.Tigris):
        return store.opts.endpoint_url
    if isinstance(store, stores.Azure):
        return f"account {store.opts.get('account')}"
    return None
