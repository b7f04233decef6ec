"""Migrating a repository of any generation: plan, convert, publish, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from icefloe.assets.assets import RepoObject, object_metadata
from icefloe.config import RepositoryConfig
from icefloe.display.shown import ShownAsText, counted, size_text
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    SnapshotNotFoundError,
)
from icefloe.format import layout
from icefloe.format.columns.id_set import IdSet
from icefloe.format.config.file import encode_config_flexbuffer, encode_config_yaml
from icefloe.format.ref_files import encode_ref_file
from icefloe.format.repo_info.file import (
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    encode_repo_info,
)
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ManifestId, SnapshotId
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.findings import VerifyReport
from icefloe.maintenance.migration.compare import compare, require_healthy
from icefloe.maintenance.migration.convert import (
    Conversion,
    ConvertedArray,
    ManifestWork,
    chunks_there,
)
from icefloe.maintenance.migration.new_history import MovedSnapshot, NewHistory, plan_history
from icefloe.maintenance.migration.past_operations import past_operations
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.verify import verify_history
from icefloe.observe import MAINTENANCE, observed
from icefloe.records import record
from icefloe.repo.fence import mark_upgrade
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, Driver
from icefloe.storage.drivers.probe import check_conditions_are_honoured
from icefloe.storage.keys import PROBE_DIRECTORY
from icefloe.storage.spec import require_outside

ChunkMode = Literal["copy", "keep"]


@record(frozen=True)
class ConvertedAhead:
    """The result of an engine: all manifests and chunks, written before the snapshots."""

    arrays: list[ConvertedArray]
    chunks_copied: int
    bytes_copied: int
    chunks_compared: int


class MigrationEngine(Protocol):
    """Does in other processes, such as Spark executors, what grows with the number of chunks."""

    def convert(
        self, work: Sequence[ManifestWork], *, base_url: str | None, copies: bool, check: bool
    ) -> ConvertedAhead:
        """Convert all manifests and copy chunks."""
        ...

    def write_logs(self, moved: Sequence[MovedSnapshot]) -> list[SnapshotId]:
        """Write all transaction logs. Returns the snapshots whose changes are not known."""
        ...

    def verify(self, target: RepoHandle, history: History) -> VerifyReport:
        """Check the snapshots that were written, and all they refer to."""
        ...


_FOLDERS = (layout.SNAPSHOTS, layout.MANIFESTS, layout.TRANSACTIONS, layout.CHUNKS)
_JSON = "application/json"


@record(frozen=True)
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
    snapshots_without_log: list[str]
    """Snapshots whose changes are no longer known. Their transaction logs are empty."""
    manifests: int
    chunk_references: int
    chunks_copied: int
    bytes_copied: int
    chunks_compared: int
    warnings: list[str]
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
    source: RepoHandle,
    target: RepoHandle,
    *,
    chunks: ChunkMode,
    dry_run: bool,
    check: bool,
    reporter: Reporter,
    engine: MigrationEngine | None = None,
) -> MigrationReport:
    """Create the repository of the handle `target` from `source`.

    Files are only added, except that writers of a repository that is migrated in place are stopped.
    The last write publishes the repository, so an interrupted migration can be repeated. Existing
    chunk objects are not copied again.

    Raises:
        AlreadyExistsError: the target holds a repository.
        InvalidInputError: the target holds something else.
    """
    in_place = source.storage.is_same_place(target.storage)
    _require_possible(source, target, chunks, in_place=in_place)
    branches, tags = await source.family.branches(source), await source.family.tags(source)
    history, lost = await _plan(source, in_place=in_place, reporter=reporter)
    new = {name: history.new_ids[tip] for name, tip in branches.items() if tip in history.new_ids}
    new_tags = {name: history.new_ids[tip] for name, tip in tags.items() if tip in history.new_ids}
    if MAIN not in new:
        raise InvalidInputError(
            f"{source.storage.url} has no branch {MAIN!r}, and every repository of spec version "
            f"{target.family.spec_version} needs one; create it first"
        )
    report = _report(source, target, history, lost, new, new_tags, dry_run=dry_run)
    if dry_run:
        manifests, refs = await _count(source, history, reporter)
        return replace(report, manifests=manifests, chunk_references=refs)
    await _require_place(target, in_place=in_place)
    await check_conditions_are_honoured(target.driver)
    stay = _shares_chunks(source, in_place=in_place)
    copies = chunks == "copy" and not stay
    present = IdSet.of_ids(())
    if copies:
        present = await chunks_there(source, target)
    conversion = Conversion(
        source,
        target,
        chunk_base_url=None if copies or stay else base_url(source),
        copies_chunks=copies,
        present=present,
    )
    ahead = ConvertedAhead([], 0, 0, 0)
    if engine is not None:
        work = await _all_work(conversion, history, reporter)
        url = None if copies or stay else base_url(source)
        ahead = engine.convert(work, base_url=url, copies=copies, check=check)
        conversion.take(ahead.arrays)
        conversion.lacks_log += engine.write_logs(history.moved)
    await _write_first(target, history.first)
    for done, moved in enumerate(history.moved):
        reporter.tell("migrate snapshots", done, len(history.moved))
        await conversion.convert(moved, with_log=engine is None)
    await target.driver.delete_many(conversion.unused_files())
    compared, warnings = 0, []
    if check:
        # What an engine has converted, it has compared.
        joined = {ref.id for refs in conversion.joined.values() for ref in refs}
        only = None if engine is None else joined
        compared = await compare(source, target, history, reporter, has_copies=copies, only=only)
        written = _written(target, history)
        if engine is None:
            verified = await verify_history(target, written, reporter)
        else:
            verified = engine.verify(target, written)
        warnings = require_healthy(verified)
    await target.driver.sync()
    stops_writers = in_place and source.family.is_writable
    if stops_writers:
        await _stop_writers(source, branches, tags)
    await _publish(target, history, new, new_tags)
    if stops_writers:
        await mark_upgrade(source, is_upgrading=False)
    reporter.finish()
    return replace(
        report,
        snapshots_without_log=[each.text for each in conversion.lacks_log],
        manifests=conversion.num_manifests,
        chunk_references=conversion.num_refs,
        chunks_copied=conversion.num_chunks_copied + ahead.chunks_copied,
        bytes_copied=conversion.num_bytes_copied + ahead.bytes_copied,
        chunks_compared=compared + ahead.chunks_compared,
        warnings=warnings,
    )


# -- deciding


def _shares_chunks(source: RepoHandle, *, in_place: bool) -> bool:
    """Whether the new repository can use the chunk objects of the source in place."""
    name = source.family.name
    return in_place and name in ("alpha", "beta", "spec-1")


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
    version = target.family.spec_version
    if in_place and source.family.spec_version:
        raise InvalidInputError(
            f"{source.storage.url} holds {source.family.noun}; to upgrade it where it is, call "
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
    infos = await source.family.all_snapshots(source)
    is_empty: dict[SnapshotId, bool] = {}
    lost: list[str] = []
    for done, info in enumerate(infos):
        reporter.tell("read snapshots", done, len(infos))
        try:
            is_empty[info.id] = not len((await source.assets.snapshot(info.id)).nodes)
        except SnapshotNotFoundError:
            lost.append(info.id.text)
    renames = in_place and _shares_chunks(source, in_place=in_place)
    return plan_history(infos, is_empty, renames=renames), lost


async def _all_work(
    conversion: Conversion, history: NewHistory, reporter: Reporter
) -> list[ManifestWork]:
    """The distinct manifests that snapshots refer to, with all arrays that are used of each."""
    found: dict[ManifestId, ManifestWork] = {}
    for done, moved in enumerate(history.moved):
        reporter.tell("find manifests", done, len(history.moved))
        for work in conversion.missing(await conversion.source.assets.snapshot(moved.source_id)):
            known = found.get(work.id)
            nodes = work.nodes if known is None else {*known.nodes, *work.nodes}
            found[work.id] = work._replace(nodes=tuple(sorted(nodes)))
    return list(found.values())


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
    if await _has_repository(target.driver):
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


async def _has_repository(driver: Driver) -> bool:
    found = await driver.list(layout.REPO)
    if any(entry.key == layout.REPO for entry in found):
        return True
    main = layout.branch_key(MAIN)
    return any(entry.key == main for entry in await driver.list(main))


# -- writing


async def _stop_writers(
    source: RepoHandle, branches: Mapping[str, SnapshotId], tags: Mapping[str, SnapshotId]
) -> None:
    """Stop the writers of a repository that is migrated in place. `upgrade` says why this is safe.

    Raises:
        ConflictError: they have changed refs since these were read.
    """
    await mark_upgrade(source, is_upgrading=True)
    family = source.family
    are_same = [await family.touch_branch(source, name, tip) for name, tip in branches.items()]
    now = await family.branches(source), await family.tags(source)
    if not all(are_same) or now != (branches, tags):
        raise ConflictError(
            message="branches or tags were changed during the migration. Nothing was published; "
            "the repository takes no changes until the call is repeated and succeeds",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )


def _written(target: RepoHandle, history: NewHistory) -> History:
    """The snapshots of the target, as a verification takes them."""
    infos = history.infos()
    table = SnapshotTable.from_infos(infos) if target.family.has_repo_object else None
    times = {info.id: info.flushed_at for info in infos}
    return History([info.id for info in infos], table, times=times)


async def _write_first(target: RepoHandle, first: SnapshotInfo) -> None:
    """The first snapshot of a repository, with the time of the source."""
    assets = target.assets
    snapshot = Snapshot(
        first.id,
        NodeTable.from_nodes([]),
        first.flushed_at,
        first.message,
        first.metadata,
        ManifestFiles.from_infos([]),
    )
    files = [assets.encode_snapshot(snapshot)]
    if target.family.has_repo_object:
        files.append(assets.encode_log(TransactionLog(first.id)))
    await assets.put_metadata_files(files)


async def _publish(
    target: RepoHandle,
    history: NewHistory,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
) -> None:
    """Publish the repository with one write: the `repo` object, or `main` in version 1."""
    saved = target.config if target.config != RepositoryConfig() else None
    try:
        if target.family.has_repo_object:
            await _publish_repo(target, history, branches, tags, saved)
        else:
            await _publish_refs(target, branches, tags, saved)
    except ConditionFailed:
        raise AlreadyExistsError(
            f"{target.storage.url}: another process created a repository here at the same time",
            ErrorKind.REPO_INFO_UPDATED,
        ) from None


async def _publish_repo(
    target: RepoHandle,
    history: NewHistory,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    saved: RepositoryConfig | None,
) -> None:
    table = SnapshotTable.from_infos(history.infos())
    now = target.clock.now_us()
    info = RepoInfo(
        branches=dict(branches),
        tags=dict(tags),
        deleted_tags=frozenset(),
        snapshots=table,
        status=RepoStatus(RepoAvailability.ONLINE, history.first.flushed_at),
        metadata={},
        latest_updates=past_operations(table, branches, tags, migrated_at=now),
        config=None if saved is None else encode_config_flexbuffer(saved),
    )
    data = encode_repo_info(info, level=target.settings.compression.level)
    version = await target.driver.put_if(
        layout.REPO, data, previous=None, metadata=object_metadata(data)
    )
    target.assets.caches.repo = RepoObject(info, data, version)


async def _publish_refs(
    target: RepoHandle,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    saved: RepositoryConfig | None,
) -> None:
    """The ref files. `main` comes last, because it makes the repository visible."""
    driver = target.driver
    if saved is not None:
        await driver.put(
            layout.CONFIG_YAML, encode_config_yaml(saved), content_type="application/yaml"
        )
    for name, tip in tags.items():
        await driver.put(layout.tag_key(name), encode_ref_file(tip), content_type=_JSON)
    for name, tip in branches.items():
        if name != MAIN:
            await driver.put(layout.branch_key(name), encode_ref_file(tip), content_type=_JSON)
    data = encode_ref_file(branches[MAIN])
    await driver.put_if(layout.branch_key(MAIN), data, previous=None, content_type=_JSON)


# -- reporting


def _report(
    source: RepoHandle,
    target: RepoHandle,
    history: NewHistory,
    lost: list[str],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    *,
    dry_run: bool,
) -> MigrationReport:
    return MigrationReport(
        source=source.storage.url,
        generation=source.family.noun,
        target=target.storage.url,
        spec_version=target.family.spec_version,
        dry_run=dry_run,
        branches={name: tip.text for name, tip in sorted(branches.items())},
        tags={name: tip.text for name, tip in sorted(tags.items())},
        snapshots={old.text: new.text for old, new in history.new_ids.items()},
        snapshots_lost=lost,
        snapshots_without_log=[],
        manifests=0,
        chunk_references=0,
        chunks_copied=0,
        bytes_copied=0,
        chunks_compared=0,
        warnings=[],
    )
