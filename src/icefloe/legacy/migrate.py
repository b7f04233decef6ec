"""Migration of an older generation to spec version 2, and its check."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from icefloe.changes.commit_plan import manifest_ids
from icefloe.config import RepositoryConfig
from icefloe.display import ShownAsText, counted, size_text
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    SnapshotNotFoundError,
)
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.config import encode_config_flexbuffer, encode_config_yaml
from icefloe.format.nodes import Node
from icefloe.format.operations_log import RepoAvailability, RepoStatus
from icefloe.format.ref_files import encode_ref_file
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.legacy.convert import (
    Conversion,
    ConvertedArray,
    ManifestWork,
    native_objects,
)
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.engine import Engine, LocalEngine
from icefloe.maintenance.findings import Severity, VerifyReport
from icefloe.maintenance.live import GrowingIdSet
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.upgrade import (
    MovedSnapshot,
    NewHistory,
    manifest_id,
    past_operations,
    plan_history,
)
from icefloe.maintenance.verify import verify_history
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.creation import empty_snapshot
from icefloe.repo.gc_guard import mark_upgrade
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.repo.spec2_publish import put_repo
from icefloe.storage.driver import (
    PROBE_DIRECTORY,
    ConditionFailed,
    check_conditions_are_honoured,
)
from icefloe.storage.spec import require_outside


class CompareWork(NamedTuple):
    """Manifests of an array, here and there, with ids and sizes: they have the same references."""

    node_id: NodeId
    before: tuple[tuple[ManifestId, int], ...]
    after: tuple[tuple[ManifestId, int], ...]
    ndim: int
    snapshot_id: SnapshotId
    """A snapshot of the source. A process has to read it before it can map 16-byte ids."""
    where: str


class Comparison:
    """What this process has compared so far, so that nothing is read twice."""

    def __init__(self, source: RepoHandle, target: RepoHandle, *, has_copies: bool) -> None:
        self.source = source
        self.target = target
        self._has_copies = has_copies
        self._seen: set[tuple[NodeId, frozenset[ManifestId], frozenset[ManifestId]]] = set()
        self._compared = GrowingIdSet()

    async def snapshot(self, moved: MovedSnapshot) -> list[CompareWork]:
        """Compare the nodes of one snapshot. Returns the manifests that are left to compare.

        Raises:
            FormatError: something differs; nothing has been published yet.
        """
        before = await self.source.assets.snapshot(moved.source_id)
        after = await self.target.assets.snapshot(moved.info.id)
        ours, theirs = list(before.nodes), list(after.nodes)
        if [(n.path, n.id, n.user_data) for n in ours] != [
            (n.path, n.id, n.user_data) for n in theirs
        ]:
            raise _differs(f"snapshot {moved.info.id}: the nodes differ")
        left = []
        for old, new in zip(ours, theirs, strict=True):
            for some, others in _counterparts(old, new):
                key = (old.id, frozenset(some), frozenset(others))
                if key in self._seen:
                    continue
                self._seen.add(key)
                left.append(
                    CompareWork(
                        old.id,
                        tuple((one, before.manifest_files[one].size_bytes) for one in some),
                        tuple((one, after.manifest_files[one].size_bytes) for one in others),
                        0 if old.array is None else len(old.array.shape),
                        moved.source_id,
                        f"snapshot {moved.info.id}, array {old.path!r}",
                    )
                )
        return left

    async def references(self, work: CompareWork) -> int:
        """Compare the references of an array, and the chunk objects that were copied for it.

        Returns how many objects were compared.
        """
        await self.source.assets.prepare_manifests(work.snapshot_id)
        refs = await _refs(self.source, work.before, work)
        if not _same(refs, await _refs(self.target, work.after, work)):
            raise _differs(f"{work.where}: the chunk references differ")
        return await self._objects(refs, work.where) if self._has_copies else 0

    async def _objects(self, refs: ChunkRefs, where: str) -> int:
        objects = native_objects(refs)
        keys = objects.keys(self.source.assets)
        new = np.flatnonzero(~self._compared.contains(objects.chunk_id)).tolist()
        for batch in objects.batches(new):
            there = [keys[at] for at in batch]
            ids = [ChunkId(objects.chunk_id[at].tobytes()) for at in batch]
            here = [self.target.assets.chunk_key(one) for one in ids]
            if await _digests(self.source, there) != await _digests(self.target, here):
                raise _differs(f"{where}: chunk objects differ, one of {', '.join(here[:3])}")
        self._compared.add(objects.chunk_id[new])
        return len(new)


def _counterparts(
    old: Node, new: Node
) -> Iterator[tuple[Sequence[ManifestId], Sequence[ManifestId]]]:
    """Which manifests of an array have the references of which: each of one, or all of all."""
    if old.array is None or new.array is None:
        return
    before, after = manifest_ids(old.array), manifest_ids(new.array)
    expected = {one: manifest_id(one, old.id) for one in before}
    if not set(after) <= set(expected.values()):  # some were joined
        yield before, after
        return
    for one, other in expected.items():
        yield [one], [other] if other in after else []


async def _refs(
    handle: RepoHandle, wanted: Sequence[tuple[ManifestId, int]], work: CompareWork
) -> ChunkRefs:
    """References of an array, read without the caches."""
    found = [manifest.find(work.node_id) for manifest in await handle.assets.load_manifests(wanted)]
    return ChunkRefs.joined(found, work.ndim)


def _same(before: ChunkRefs, after: ChunkRefs) -> bool:
    """Check for the same chunks with the same extents. Native chunks may have become virtual."""
    is_inline = before.kind == ChunkKind.INLINE
    columns = (
        (before.index, after.index),
        (is_inline, after.kind == ChunkKind.INLINE),
        (before.offset, after.offset),
        (before.length, after.length),
    )
    if not all(np.array_equal(one, other) for one, other in columns):
        return False
    return not is_inline.any() or _inline(before) == _inline(after)


def _inline(refs: ChunkRefs) -> list[bytes]:
    assert refs.inline is not None
    found: list[bytes] = refs.inline.take(np.flatnonzero(refs.kind == ChunkKind.INLINE)).to_list()
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


# -- Migrating a repository of any generation: plan, convert, publish, compare.


ChunkMode = Literal["copy", "keep"]


class Migration:
    """What a process that takes part in a migration has converted and compared."""

    def __init__(self, source: RepoHandle, target: RepoHandle, chunks: ChunkMode) -> None:
        self.source = source
        self.target = target
        self.chunks = chunks
        self.in_place = source.storage.is_same_place(target.storage)
        stay = _shares_chunks(source, in_place=self.in_place)
        copies = chunks == "copy" and not stay
        url = None if copies or stay else base_url(source)
        self.conversion = Conversion(source, target, chunk_base_url=url, copies_chunks=copies)
        self.comparison = Comparison(source, target, has_copies=copies)


class MigrationEngine(Engine[Migration], Protocol):
    """Does what grows with the number of chunks."""

    async def verify(self, history: History) -> VerifyReport:
        """Check the snapshots that were written, and all they refer to."""


class LocalMigration(LocalEngine[Migration]):
    """Migrates in this process."""

    async def verify(self, history: History) -> VerifyReport:
        return await verify_history(self.here.target, history, self.report)


class Converted(NamedTuple):
    """What was made of some manifests."""

    arrays: list[ConvertedArray]
    chunks_copied: int
    bytes_copied: int


async def convert_manifests(
    here: Migration, items: Iterable[ManifestWork]
) -> AsyncIterator[Converted]:
    """Convert some manifests, and copy their chunks."""
    conversion = here.conversion
    for work in items:
        chunks, size = conversion.num_chunks_copied, conversion.num_bytes_copied
        arrays = await conversion.write_arrays(work)
        yield Converted(
            arrays, conversion.num_chunks_copied - chunks, conversion.num_bytes_copied - size
        )
    await here.target.driver.sync()


async def write_logs(here: Migration, items: Iterable[MovedSnapshot]) -> AsyncIterator[SnapshotId]:
    """Write the transaction logs of some snapshots; hand on whose changes are unknown."""
    for moved in items:
        if not await here.conversion.write_log(moved):
            yield moved.source_id
    await here.target.driver.sync()


async def compare_manifests(here: Migration, items: Iterable[CompareWork]) -> AsyncIterator[int]:
    """Compare some manifests with those of the source; hand on how many chunks were compared."""
    for work in items:
        yield await here.comparison.references(work)


_FOLDERS = (layout.SNAPSHOTS, layout.MANIFESTS, layout.TRANSACTIONS, layout.CHUNKS)
_JSON = "application/json"


@dataclass(frozen=True, repr=False)
class MigrationReport(ShownAsText):
    """The result of a migration, or with `dry_run` of its plan."""

    source: str
    generation: str
    target: str
    spec_version: int
    dry_run: bool
    branches: dict[str, str]
    """Name and new snapshot of every branch."""
    tags: dict[str, str]
    snapshots: dict[str, str]
    """New id of every snapshot by its old one."""
    snapshots_lost: list[str]
    """Snapshots of the history whose files are gone."""
    snapshots_without_log: list[str] = field(default_factory=list)
    """Snapshots whose changes are no longer known. Their transaction logs are empty."""
    manifests: int = 0
    chunk_references: int = 0
    chunks_copied: int = 0
    bytes_copied: int = 0
    chunks_compared: int = 0
    warnings: list[str] = field(default_factory=list)
    """What `verify` warns of in the new repository, such as chunks without bytes."""

    def __str__(self) -> str:
        verb = "would become" if self.dry_run else "became"
        references = counted(self.chunk_references, "chunk reference")
        lines = [
            f"{self.source}: {self.generation}",
            f"{verb} a repository of spec version {self.spec_version} in {self.target}",
            f"    {counted(len(self.snapshots), 'snapshot')}",
            f"    {counted(len(self.branches), 'branch')}, {counted(len(self.tags), 'tag')}",
            f"    {counted(self.manifests, 'manifest')} with {references}",
        ]
        if not self.dry_run:
            copied = f"{counted(self.chunks_copied, 'chunk object')} copied"
            size = size_text(self.bytes_copied)
            lines.append(f"    {copied} ({size}), {self.chunks_compared:,} compared")
        if self.snapshots_lost:
            lines.append(f"    lost before: {', '.join(self.snapshots_lost)}")
        if self.snapshots_without_log:
            lines.append(f"    changes not known: {', '.join(self.snapshots_without_log)}")
        lines += [f"    warning: {each}" for each in self.warnings]
        return "\n".join(lines)


@observed("migrate", MAINTENANCE)
async def migrate(
    engine: MigrationEngine, *, dry_run: bool, check: bool, reporter: Reporter
) -> MigrationReport:
    """Create the repository of the target from the source.

    Files are only added, except that writers of a repository that is migrated in place are stopped.
    The last write publishes the repository, so an interrupted migration can be repeated. Existing
    chunk objects are not copied again.

    Raises:
        AlreadyExistsError: the target holds a repository.
        InvalidInputError: the target holds something else.
    """
    source, target, in_place = engine.here.source, engine.here.target, engine.here.in_place
    _require_possible(source, target, engine.here.chunks, in_place=in_place)
    refs = await _refs_of(source)
    history, lost = await _plan(source, in_place=in_place, reporter=reporter)
    new = refs.moved(history.new_ids)
    if MAIN not in new.branches:
        raise InvalidInputError(
            f"{source.storage.url} has no branch {MAIN!r}, and every repository of spec version "
            f"{target.format.spec_version} needs one; create it first"
        )
    report = MigrationReport(
        source=source.storage.url,
        generation=source.format.noun,
        target=target.storage.url,
        spec_version=target.format.spec_version,
        dry_run=dry_run,
        branches={name: tip.text for name, tip in sorted(new.branches.items())},
        tags={name: tip.text for name, tip in sorted(new.tags.items())},
        snapshots={old.text: each.text for old, each in history.new_ids.items()},
        snapshots_lost=lost,
    )
    if dry_run:
        manifests, references = await _count(source, history, reporter)
        return replace(report, manifests=manifests, chunk_references=references)
    await _require_place(target, in_place=in_place)
    await check_conditions_are_honoured(target.driver)
    conversion, comparison = engine.here.conversion, engine.here.comparison
    chunks_copied = bytes_copied = compared = 0
    work = await _all_work(source, history, reporter)
    async for made in engine.map("convert manifests", convert_manifests, work):
        conversion.take(made.arrays)
        chunks_copied += made.chunks_copied
        bytes_copied += made.bytes_copied
    lacks_log = [each.text async for each in engine.map("write logs", write_logs, history.moved)]
    await _write_first(target, history.first)
    for moved in reporter.each("migrate snapshots", history.moved, len(history.moved)):
        await conversion.write_snapshot(moved)
    await target.driver.delete_many(conversion.unused_files())
    warnings = []
    if check:
        left: list[CompareWork] = []
        for moved in reporter.each("compare snapshots", history.moved, len(history.moved)):
            left += await comparison.snapshot(moved)
        async for count in engine.map("compare manifests", compare_manifests, left):
            compared += count
        warnings = require_healthy(await engine.verify(_written(target, history)))
    await target.driver.sync()
    stops_writers = in_place and source.format.is_writable
    if stops_writers:
        await _stop_writers(source, refs)
    await _publish(target, history, new)
    if stops_writers:
        await mark_upgrade(source, is_upgrading=False)
    reporter.finish()
    return replace(
        report,
        snapshots_without_log=lacks_log,
        manifests=conversion.num_manifests,
        chunk_references=conversion.num_refs,
        chunks_copied=chunks_copied,
        bytes_copied=bytes_copied,
        chunks_compared=compared,
        warnings=warnings,
    )


class _Refs(NamedTuple):
    """All branches and tags of a repository."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]

    def moved(self, new_ids: Mapping[SnapshotId, SnapshotId]) -> _Refs:
        """The refs of the target, without those to lost snapshots."""
        return _Refs(
            *({name: new_ids[tip] for name, tip in of.items() if tip in new_ids} for of in self)
        )


async def _refs_of(handle: RepoHandle) -> _Refs:
    return _Refs(await handle.format.branches(handle), await handle.format.tags(handle))


def _shares_chunks(source: RepoHandle, *, in_place: bool) -> bool:
    """Whether the new repository can use the chunk objects of the source in place."""
    return in_place and source.format.name in ("alpha", "beta", "spec-1")


def base_url(handle: RepoHandle) -> str:
    """The URL prefix of objects, for virtual references to them."""
    url = handle.storage.url
    if handle.storage.kind == "in-memory":
        raise InvalidInputError(
            "chunks in memory cannot be referred to; migrate with chunks='copy'"
        )
    if "://" not in url:
        url = f"file://{url}"
    return url.rstrip("/") + "/"


def _require_possible(
    source: RepoHandle, target: RepoHandle, chunks: ChunkMode, *, in_place: bool
) -> None:
    version = target.format.spec_version
    if in_place and source.format.spec_version:
        raise InvalidInputError(
            f"{source.storage.url} holds {source.format.noun}; to upgrade it where it is, call "
            "icefloe.upgrade_icechunk_repository"
        )
    if in_place and version != 2:
        raise InvalidInputError(
            "a migration in place makes a repository of spec version 2: the refs of version 1 "
            "would have the names of those that are there; give another storage"
        )
    if not in_place:
        require_outside(target.storage, source.storage)
    if chunks == "keep" and not in_place:
        base_url(source)


async def _plan(
    source: RepoHandle, *, in_place: bool, reporter: Reporter
) -> tuple[NewHistory, list[str]]:
    """The history of the target, and the lost snapshots."""
    infos = await source.format.all_snapshots(source)
    is_empty: dict[SnapshotId, bool] = {}
    lost: list[str] = []
    for done, info in enumerate(infos):
        reporter.tell("read snapshots", done, len(infos))
        try:
            is_empty[info.id] = not len((await source.assets.snapshot(info.id)).nodes)
        except SnapshotNotFoundError:
            lost.append(info.id.text)
    renames = _shares_chunks(source, in_place=in_place)
    return plan_history(infos, is_empty, renames=renames), lost


async def _all_work(
    source: RepoHandle, history: NewHistory, reporter: Reporter
) -> list[ManifestWork]:
    """The distinct manifests that snapshots refer to, with all arrays that are used of each."""
    found: dict[ManifestId, ManifestWork] = {}
    nodes: dict[ManifestId, set[NodeId]] = {}
    for moved in reporter.each("find manifests", history.moved, len(history.moved)):
        snapshot = await source.assets.snapshot(moved.source_id)
        for node in snapshot.nodes:
            for one in () if node.array is None else manifest_ids(node.array):
                nodes.setdefault(one, set()).add(node.id)
                if one not in found:
                    size = snapshot.manifest_files[one].size_bytes
                    found[one] = ManifestWork(one, size, (), snapshot.id)
    return [work._replace(nodes=tuple(sorted(nodes[one]))) for one, work in found.items()]


async def _count(source: RepoHandle, history: NewHistory, reporter: Reporter) -> tuple[int, int]:
    """The number of manifests and references that the snapshots list."""
    files: dict[bytes, int] = {}
    for done, moved in enumerate(history.moved):
        reporter.tell("count references", done, len(history.moved))
        listed = (await source.assets.snapshot(moved.source_id)).manifest_files
        for info in listed.values():
            files[bytes(info.id)] = info.num_chunk_refs
    return len(files), sum(files.values())


async def _require_place(target: RepoHandle, *, in_place: bool) -> None:
    """Refuse a target with files other than those of an interrupted migration."""
    target.require_writable()
    for key in (layout.REPO, layout.branch_key(MAIN)):
        if any(entry.key == key for entry in await target.driver.list(key)):
            raise AlreadyExistsError(
                f"{target.storage.url} holds a repository already; choose another place",
                ErrorKind.REPO_INFO_UPDATED,
            )
    if in_place or await target.driver.is_empty():
        return
    known = (*_FOLDERS, PROBE_DIRECTORY, layout.CONFIG_YAML)
    for entry in await target.driver.list(""):
        if not entry.key.startswith(known):
            raise InvalidInputError(
                f"{target.storage.url} is not empty: it has {entry.key!r}; choose another place",
                ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            )


async def _stop_writers(source: RepoHandle, refs: _Refs) -> None:
    """Stop the writers of a repository that is migrated in place. `upgrade` says why this is safe.

    Raises:
        ConflictError: they have changed refs since these were read.
    """
    await mark_upgrade(source, is_upgrading=True)
    touch = source.format.touch_branch
    are_same = [await touch(source, name, tip) for name, tip in refs.branches.items()]
    if not all(are_same) or await _refs_of(source) != refs:
        raise ConflictError(
            message="branches or tags were changed during the migration. Nothing was published; "
            "the repository takes no changes until the call is repeated and succeeds",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )


def _written(target: RepoHandle, history: NewHistory) -> History:
    """The snapshots of the target, as a verification takes them."""
    infos = history.infos()
    table = SnapshotTable.from_infos(infos) if target.format.has_repo_object else None
    times = {info.id: info.flushed_at for info in infos}
    return History([info.id for info in infos], table, times=times)


async def _write_first(target: RepoHandle, first: SnapshotInfo) -> None:
    """The first snapshot of a repository, with the time of the source."""
    assets = target.assets
    snapshot = empty_snapshot(first.id, first.flushed_at, first.message, first.metadata)
    files = [assets.encode_snapshot(snapshot)]
    if target.format.has_repo_object:
        files.append(assets.encode_log(TransactionLog(first.id)))
    await assets.put_metadata_files(files)


async def _publish(target: RepoHandle, history: NewHistory, refs: _Refs) -> None:
    """Publish the repository with one write: the `repo` object, or `main` in version 1."""
    saved = target.config if target.config != RepositoryConfig() else None
    publish = _publish_repo if target.format.has_repo_object else _publish_refs
    try:
        await publish(target, history, refs, saved)
    except ConditionFailed:
        raise AlreadyExistsError(
            f"{target.storage.url}: another process created a repository here at the same time",
            ErrorKind.REPO_INFO_UPDATED,
        ) from None


async def _publish_repo(
    target: RepoHandle, history: NewHistory, refs: _Refs, saved: RepositoryConfig | None
) -> None:
    table = SnapshotTable.from_infos(history.infos())
    now = target.clock.now_us()
    info = RepoInfo(
        branches=dict(refs.branches),
        tags=dict(refs.tags),
        snapshots=table,
        status=RepoStatus(RepoAvailability.ONLINE, history.first.flushed_at),
        latest_updates=past_operations(table, *refs, migrated_at=now),
        config=None if saved is None else encode_config_flexbuffer(saved),
    )
    await put_repo(target, info, previous=None)


async def _publish_refs(
    target: RepoHandle, _history: NewHistory, refs: _Refs, saved: RepositoryConfig | None
) -> None:
    """The ref files. `main` comes last, because it makes the repository visible."""
    driver = target.driver
    if saved is not None:
        await driver.put(
            layout.CONFIG_YAML, encode_config_yaml(saved), content_type="application/yaml"
        )
    files = {layout.tag_key(name): tip for name, tip in refs.tags.items()}
    files |= {layout.branch_key(name): tip for name, tip in refs.branches.items() if name != MAIN}
    for key, tip in files.items():
        await driver.put(key, encode_ref_file(tip), content_type=_JSON)
    data = encode_ref_file(refs.branches[MAIN])
    await driver.put_if(layout.branch_key(MAIN), data, previous=None, content_type=_JSON)
