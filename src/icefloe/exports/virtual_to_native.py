"""`materialize`: virtual chunks become chunks of the repository, or arrays are rewritten.

Work is committed in parts. Committed chunks are native, so a repeated call only looks for the
virtual chunks that are left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray

from icefloe import geometry
from icefloe.api.maintenance_values import reporter
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.conflicts import ConflictDetector
from icefloe.display import counted, qualified, size_text
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.exports.objects import ManifestOfArray, manifests_of
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.nodes import Node
from icefloe.format.snapshot import Snapshot
from icefloe.ids import ChunkId
from icefloe.maintenance.engine import Engine, LocalEngine
from icefloe.maintenance.progress import Report
from icefloe.maintenance.read_chunks import fetch_batches
from icefloe.repo import commit
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace
from icefloe.scans.scan import as_repository
from icefloe.storage.run import each_blocking, run_blocking

CHUNKS_A_COMMIT = 1 << 20
_CHUNKS_AN_ITEM = 256
_BYTES_AT_ONCE = 64 << 20
MESSAGE = "virtual chunks become native"


class MaterializeReport(NamedTuple):
    """The chunks that became native, their bytes, and the ids of the commits, oldest first."""

    chunks: int
    num_bytes: int
    snapshot_ids: tuple[str, ...]

    def __repr__(self) -> str:
        copied = f"{counted(self.chunks, 'chunk')} copied, {size_text(self.num_bytes)}"
        made = ", ".join(self.snapshot_ids) or "none"
        return f"<{qualified('MaterializeReport')}> {copied}; commits: {made}"


class VirtualChunks(NamedTuple):
    """Some virtual chunks of a manifest: `num_chunks` of them, after the first `first`."""

    manifest: ManifestOfArray
    first: int
    num_chunks: int


class Wishes(NamedTuple):
    """The checked arguments of a call."""

    arrays: frozenset[str] | None
    chunks: Mapping[str, tuple[int, ...]]
    compressors: Any

    @classmethod
    def of(
        cls,
        arrays: Iterable[str] | None,
        chunks: Mapping[str, Sequence[int]] | None,
        compressors: Any,
    ) -> Wishes:
        return cls(
            None if arrays is None else frozenset(map(_absolute, arrays)),
            {_absolute(path): tuple(shape) for path, shape in (chunks or {}).items()},
            compressors,
        )

    def chosen(self, snapshot: Snapshot) -> list[Node]:
        """The arrays in question."""
        nodes = [node for node in snapshot.nodes if node.array is not None]
        unknown = sorted((self.arrays or frozenset()) - {node.path for node in nodes})
        if unknown:
            raise InvalidInputError(f"there are no arrays {', '.join(unknown)} on the branch")
        return [node for node in nodes if self.arrays is None or node.path in self.arrays]

    def stored_anew(self, snapshot: Snapshot) -> dict[str, tuple[int, ...] | None]:
        """The arrays to decode and encode again, with the shape of their chunks if it changes."""
        nodes = self.chosen(snapshot)
        unknown = sorted(self.chunks.keys() - {node.path for node in nodes})
        if unknown:
            raise InvalidInputError(
                f"chunks names {', '.join(unknown)}, which are not among the arrays"
            )
        is_all = self.compressors is not None
        wanted = [node.path for node in nodes if is_all or node.path in self.chunks]
        return {path: self.chunks.get(path) for path in wanted}


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def materialize(
    repository: Repository | str,
    *,
    branch: str = "main",
    arrays: Sequence[str] | None = None,
    chunks: Mapping[str, Sequence[int]] | None = None,
    compressors: Any = None,
    message: str = MESSAGE,
    chunks_a_commit: int = CHUNKS_A_COMMIT,
    progress: Report | None = None,
) -> MaterializeReport:
    """Copy the virtual chunks of a branch into the repository, byte for byte.

    Arrays named in `chunks` (path: shape of chunks), and with `compressors` all chosen arrays, are
    decoded and rewritten instead, in one commit each. After an interruption, repeat the call:
    only what is left is done.

    Args:
        repository: a `Repository`, or a URL as for `storage_from_url`. The containers of the
            chunks have to be authorised.
        arrays: paths of arrays; all that have virtual chunks when not given.
        chunks_a_commit: the number of chunks that go into one commit.
        progress: called regularly with a `Progress`. Without it, a terminal shows a bar.
        branch: the branch to commit to.
        message: of the commit.

    Raises:
        RebaseFailedError: another writer changed the same chunks; repeat the call.

    >>> report = icefloe.materialize(repo, branch="main")
    """
    opened = as_repository(repository, is_shared=False)
    wishes = Wishes.of(arrays, chunks, compressors)
    with reporter(progress) as report:
        engine = LocalMaterialize(opened.handle, report)
        return run_materialize(engine, opened, branch, wishes, message, chunks_a_commit)


class MaterializeEngine(Engine[RepoHandle], Protocol):
    """Copies chunks in this process, or by the tasks of a cluster. Copies return the number of
    chunks, and their bytes."""

    def copy_array(self, session: Session, old: Session, path: str) -> tuple[int, int]:
        """Copy the values of an array from an older version to an empty array in its place."""

    def copy_chunks(self, session: Session, items: Sequence[VirtualChunks]) -> tuple[int, int]:
        """Store virtual chunks in the repository."""


def run_materialize(
    engine: MaterializeEngine,
    repository: Repository,
    branch: str,
    wishes: Wishes,
    message: str,
    chunks_a_commit: int,
) -> MaterializeReport:
    """Rewrite arrays, then copy virtual chunks until none is left."""
    done: list[str] = []
    total = size = 0
    tip = repository.readonly_session(branch).workspace.state.snapshot
    for path, shape in wishes.stored_anew(tip).items():
        session = repository.writable_session(branch)
        old = repository.readonly_session(snapshot_id=session.snapshot_id)
        if not _begin_anew(session, old, path, shape, wishes.compressors):
            continue
        count, num_bytes = engine.copy_array(session, old, path)
        total, size = total + count, size + num_bytes
        done.append(_commit(session, f"{message}: {path}"))
    while True:
        session = repository.writable_session(branch)
        snapshot = session.workspace.state.snapshot
        manifests = manifests_of(snapshot, wishes.chosen(snapshot))
        counting = engine.map("looking for virtual chunks", count_virtual, manifests)
        left = dict(each_blocking(counting))
        items = plan_items({one: left[one] for one in manifests}, chunks_a_commit)
        if not items:
            return MaterializeReport(total, size, tuple(done))
        count, num_bytes = engine.copy_chunks(session, items)
        total, size = total + count, size + num_bytes
        done.append(_commit(session, message))


class LocalMaterialize(LocalEngine[RepoHandle]):
    """Copies chunks in this process."""

    def copy_array(self, session: Session, old: Session, path: str) -> tuple[int, int]:
        """Copy the values of an array, some boxes after the other."""
        name = path.strip("/")
        source = zarr.open_array(old.store, path=name, mode="r")
        target = zarr.open_array(session.store, path=name, mode="r+")
        for box in _boxes_of(target):
            target[box] = source[box]
        count, size = _written(session, path)
        self.report.tell(f"rewriting {path}", count)
        return count, size

    def copy_chunks(self, session: Session, items: Sequence[VirtualChunks]) -> tuple[int, int]:
        """Store virtual chunks, item by item."""
        size = 0
        for item in self.report.each("copying virtual chunks", items, len(items)):
            size += run_blocking(copy_virtual(session.workspace, item))
        return sum(item.num_chunks for item in items), size


def _commit(session: Session, message: str) -> str:
    """Commit, rebasing over concurrent writers of other chunks."""
    return session.commit(message, rebase_with=ConflictDetector())


async def count_virtual(
    handle: RepoHandle, manifests: Iterable[ManifestOfArray]
) -> AsyncIterator[tuple[ManifestOfArray, int]]:
    """Manifests, with the number of virtual chunks of their array."""
    for one in manifests:
        yield one, len((await _virtual(handle, one))[1])


async def _virtual(
    handle: RepoHandle, one: ManifestOfArray
) -> tuple[ChunkRefs | None, NDArray[np.int64]]:
    """The references of an array in a manifest, and the rows of virtual chunks inside its grid."""
    refs = await one.refs(handle)
    if refs is None or refs.ndim != len(one.grid):
        return None, np.empty(0, np.int64)
    is_inside = (refs.index < np.array(one.grid, np.uint32)).all(axis=1)
    return refs, np.flatnonzero((refs.kind == ChunkKind.VIRTUAL) & is_inside)


def plan_items(left: Mapping[ManifestOfArray, int], most: int) -> list[VirtualChunks]:
    """Up to `most` virtual chunks, in items of work."""
    items: list[VirtualChunks] = []
    for one, number in left.items():
        count = min(number, most)
        most -= count
        items += [
            VirtualChunks(one, first, min(_CHUNKS_AN_ITEM, count - first))
            for first in range(0, count, _CHUNKS_AN_ITEM)
        ]
    return items


async def copy_virtual(workspace: Workspace, item: VirtualChunks) -> int:
    """Store virtual chunks in the repository and refer to them; returns how many bytes."""
    handle, _ = workspace
    refs, rows = await _virtual(handle, item.manifest)
    assert refs is not None
    some = refs.take(rows[item.first : item.first + item.num_chunks])
    total = 0
    async for group, found in fetch_batches(handle, some):
        data = []
        for row, outcome in zip(group, found, strict=True):
            if isinstance(outcome, IcechunkError):
                raise outcome
            if not len(outcome):
                index = tuple(some.index[row].tolist())
                raise InvalidInputError(
                    f"virtual chunk {index} of {item.manifest.path} has no bytes; drop such chunks "
                    "with plan_repair and run_repair first",
                    ErrorKind.ZERO_LENGTH_CHUNK,
                )
            data.append(bytes(outcome))
        await _store(workspace, item.manifest.path, some.index[group], data)
        total += sum(map(len, data))
    return total


async def _store(
    workspace: Workspace, path: str, index: NDArray[np.uint32], data: Sequence[bytes]
) -> None:
    """Set chunks of an array: inline, packed, or as objects of their own, stored at once."""
    handle, state = workspace
    node, array = state.array(path)
    size = np.array([len(one) for one in data], np.uint64)
    is_inline = size <= handle.settings.inline_chunk_threshold_bytes
    is_packed = np.array([commit.is_packed(handle, len(one)) for one in data], np.bool_)
    is_packed &= ~is_inline
    for row in np.flatnonzero(is_packed).tolist():
        await commit.add_chunk(workspace, node, tuple(index[row].tolist()), data[row])
    alone = np.flatnonzero(~is_inline & ~is_packed)
    ids = [handle.new_id(ChunkId) for _ in alone]
    await handle.driver.put_many(
        [
            (handle.assets.chunk_key(one), data[row])
            for one, row in zip(ids, alone.tolist(), strict=True)
        ],
        storage_class=handle.settings.storage.chunks_storage_class,
    )
    rows = np.flatnonzero(is_inline)
    inline = pa.array([data[row] for row in rows.tolist()], pa.binary())
    raw = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ChunkId.size)
    tables = [
        ChunkRefs.inline_chunks(index[rows], inline),
        ChunkRefs.native(index[alone], raw, np.zeros(len(alone), np.uint64), size[alone]),
    ]
    refs, _ = ChunkRefs.overlay([(one, None) for one in tables if len(one)], len(array.shape))
    with state.writing():
        if len(refs) and (edits := state.edits(node)) is not None:
            edits.set_table(refs)


def _written(session: Session, path: str) -> tuple[int, int]:
    """The chunks of an array that a session has set, and their bytes."""
    state = session.workspace.state
    node, _ = state.array(path)
    edits = state.changes.chunks.get(node.id)
    if edits is None:
        return 0, 0
    refs, _ = edits.columns()
    return len(refs), int(refs.length.sum())


def _begin_anew(
    session: Session,
    old_session: Session,
    path: str,
    shape: tuple[int, ...] | None,
    compressors: Any,
) -> bool:
    """Create an empty array in the place of an old one, with other chunks or compressors.

    Returns False if the array has them already, and no virtual chunks.
    """
    name = path.strip("/")
    old = zarr.open_array(old_session.store, path=name, mode="r")
    options: dict[str, Any] = {}
    if compressors is not None:
        options["compressors"] = compressors
    elif old.metadata.zarr_format == 3:
        options["compressors"] = old.compressors
    new = zarr.create_array(
        session.store,
        name=name,
        shape=old.shape,
        chunks=tuple(shape or old.chunks),
        dtype=old.dtype,
        fill_value=old.fill_value,
        attributes=dict(old.attrs),
        dimension_names=getattr(old.metadata, "dimension_names", None),
        filters=old.filters,
        serializer=old.serializer or "auto",
        shards=None if shape else old.shards,
        overwrite=True,
        **options,
    )
    return new.metadata != old.metadata or _has_virtual(old_session, path)


def _has_virtual(session: Session, path: str) -> bool:
    handle, state = session.workspace
    wishes = Wishes(frozenset([path]), {}, None)
    manifests = manifests_of(state.snapshot, wishes.chosen(state.snapshot))
    return any(number for _, number in each_blocking(count_virtual(handle, manifests)))


def _boxes_of(array: zarr.Array[Any]) -> Iterable[geometry.Slices]:
    """Boxes of about 64 MB that cover an array, cut at the borders of its stored chunks."""
    grid: Any = array.metadata.to_dict()["chunk_grid"]
    steps = [max(int(length), 1) for length in grid["configuration"]["chunk_shape"]]
    most = _BYTES_AT_ONCE // max(array.dtype.itemsize, 1)
    return geometry.cut(geometry.whole(array.shape), geometry.grow_chunks(array.shape, steps, most))
