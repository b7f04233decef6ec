"""Compares a migrated repository with its source: nodes, references and bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence

import numpy as np

from icefloe.errors import FormatError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.snapshot.file import ManifestFiles
from icefloe.format.snapshot.nodes import Node
from icefloe.ids import ChunkId, ManifestId, NodeId
from icefloe.maintenance.findings import Severity, VerifyReport
from icefloe.maintenance.live import GrowingIdSet
from icefloe.maintenance.migration.converted_refs import native_objects
from icefloe.maintenance.migration.new_history import MovedSnapshot, NewHistory
from icefloe.maintenance.progress import Reporter
from icefloe.repo.handle import RepoHandle

Pair = tuple[frozenset[ManifestId], frozenset[ManifestId]]


class Comparison:
    """What has been compared so far, so that nothing is read twice."""

    def __init__(self, source: RepoHandle, target: RepoHandle, *, has_copies: bool) -> None:
        self.source = source
        self.target = target
        self.num_chunks = 0
        self._has_copies = has_copies
        self._seen: set[tuple[NodeId, Pair]] = set()
        self._compared = GrowingIdSet()

    async def snapshot(
        self, moved: MovedSnapshot, only: Container[ManifestId] | None = None
    ) -> None:
        """Compare the nodes of one snapshot, and the references of arrays not seen before.

        With `only`, references are compared of arrays with one of these manifests in the target.
        """
        before = await self.source.assets.snapshot(moved.source_id)
        after = await self.target.assets.snapshot(moved.info.id)
        ours, theirs = list(before.nodes), list(after.nodes)
        if [(n.path, n.id, n.user_data) for n in ours] != [
            (n.path, n.id, n.user_data) for n in theirs
        ]:
            raise _differs(f"snapshot {moved.info.id}: the nodes differ")
        for old, new in zip(ours, theirs, strict=True):
            key = (old.id, (_ids(old), _ids(new)))
            is_compared = only is None or any(each in only for each in _ids(new))
            if key in self._seen or not is_compared:
                continue
            self._seen.add(key)
            refs = await _refs(self.source, before.manifest_files, old)
            copied = await _refs(self.target, after.manifest_files, new)
            await self.references(refs, copied, f"snapshot {moved.info.id}, array {old.path!r}")

    async def references(self, refs: ChunkRefs, copied: ChunkRefs, where: str) -> None:
        """Compare the references of one array, and the chunk objects that were copied for it."""
        if not _same(refs, copied):
            raise _differs(f"{where}: the chunk references differ")
        if self._has_copies:
            await self._objects(refs, where)

    async def _objects(self, refs: ChunkRefs, where: str) -> None:
        objects = native_objects(refs)
        new = np.flatnonzero(~self._compared.contains(objects.chunk_id)).tolist()
        for batch in objects.batches(new):
            ids = [ChunkId(objects.chunk_id[at].tobytes()) for at in batch]
            keys = [objects.key[at] for at in batch]
            there = [
                self.source.assets.chunk_key(one) if key is None else key
                for one, key in zip(ids, keys, strict=True)
            ]
            here = [self.target.assets.chunk_key(one) for one in ids]
            if await _digests(self.source, there) != await _digests(self.target, here):
                raise _differs(f"{where}: chunk objects differ, one of {', '.join(here[:3])}")
        self.num_chunks += len(new)
        self._compared.add(objects.chunk_id[new])


async def compare(
    source: RepoHandle,
    target: RepoHandle,
    history: NewHistory,
    reporter: Reporter,
    *,
    has_copies: bool,
    only: Container[ManifestId] | None = None,
) -> int:
    """Read every snapshot of both, with manifests and copied chunks.

    With `only`, of the manifests of the target only these are read. Returns how many chunk objects
    were compared.

    Raises:
        FormatError: something differs; nothing has been published yet.
    """
    comparison = Comparison(source, target, has_copies=has_copies)
    for done, moved in enumerate(history.moved):
        reporter.tell("compare snapshots", done, len(history.moved))
        await comparison.snapshot(moved, only)
    return comparison.num_chunks


def _ids(node: Node) -> frozenset[ManifestId]:
    return frozenset() if node.array is None else frozenset(ref.id for ref in node.array.manifests)


async def _refs(handle: RepoHandle, files: ManifestFiles, node: Node) -> ChunkRefs:
    """All references of an array, read without the caches."""
    if node.array is None:
        return ChunkRefs.empty(0)
    wanted = [(ref.id, files[ref.id].size_bytes) for ref in node.array.manifests]
    found = [manifest.find(node.id) for manifest in await handle.assets.load_manifests(wanted)]
    return ChunkRefs.joined(found, len(node.array.shape))


def _same(before: ChunkRefs, after: ChunkRefs) -> bool:
    """Check for the same chunks with the same extents. Native chunks may have become virtual."""
    if not np.array_equal(before.index, after.index):
        return False
    is_inline = before.kind == ChunkKind.INLINE
    if not np.array_equal(is_inline, after.kind == ChunkKind.INLINE):
        return False
    if is_inline.any() and _inline(before, is_inline) != _inline(after, is_inline):
        return False
    return np.array_equal(before.offset, after.offset) and np.array_equal(
        before.length, after.length
    )


def _inline(refs: ChunkRefs, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[bytes]:
    assert refs.inline is not None
    found: list[bytes] = refs.inline.take(np.flatnonzero(rows)).to_list()
    return found


async def _digests(handle: RepoHandle, keys: Sequence[str]) -> list[bytes]:
    """A digest of every object, so that two sets of objects need not be in memory together."""
    blobs = await handle.driver.get_many([(key, None) for key in keys])
    return [hashlib.blake2b(blob, digest_size=16).digest() for blob in blobs]


def require_healthy(report: VerifyReport) -> list[str]:
    """Refuse a repository in which `verify` found errors. Returns its warnings.

    Raises:
        FormatError: there are errors; nothing has been published yet.
    """
    for kind in report.counts:
        if kind.severity == Severity.ERROR:
            first = report.of_kind(kind)[0]
            raise FormatError(
                f"the migrated repository is not healthy: {kind}, {first.object} {first.path}: "
                f"{first.detail}. Nothing has been published; the source is as it was. With "
                "check=False it is published as it is, and Repository.verify lists all findings"
            )
    return [
        f"{row.kind}: {row.object} {row.path}: {row.detail}"
        for row in report.findings
        if row.severity == Severity.WARNING
    ]


def _differs(what: str) -> FormatError:
    return FormatError(
        f"the migrated repository is not what its source is: {what}. Nothing has been published; "
        "the source is as it was"
    )
