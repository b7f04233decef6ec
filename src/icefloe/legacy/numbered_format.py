"""Repositories with numbered refs: refs, history, commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from icefloe.assets.assets import Assets
from icefloe.config import RepositoryConfig
from icefloe.config.repository import ResolvedConfig
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FormatError,
    RefNotFoundError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.format import layout
from icefloe.format.config import decode_config_yaml
from icefloe.format.layout import Generation
from icefloe.format.metadata import encode_metadata
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.legacy.base import OlderFormat, first_snapshot
from icefloe.legacy.detect import generation_of
from icefloe.legacy.numbered.files import Form, decode_ref, encode_ref, form_of
from icefloe.legacy.numbered.model import Ancestor, node_id
from icefloe.legacy.numbered.names import (
    DOCUMENT,
    PROTOTYPE,
    SHORT_ID_SIZE,
    IdMap,
    Names,
    new_id,
    next_number,
)
from icefloe.legacy.numbered.parquet_files import PARQUET_PROTOTYPE, ParquetNames
from icefloe.legacy.numbered.zarr_documents import stored_document
from icefloe.legacy.numbered_assets import (
    Kind,
    NumberedAssets,
    NumberedCaches,
    ParquetPrototypeAssets,
)
from icefloe.repo.gc_guard import require_open, require_own_objects, require_still_open
from icefloe.repo.handle import (
    MOST_CLOCK_SKEW_US,
    FoundRepository,
    Id,
    LineCommit,
    NewCommit,
    RepoHandle,
    SeenTip,
)
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, Driver, find_object

# A branch is a directory with one file per commit; the newest sorts first. A commit creates the
# file with the next number. Files are never replaced.

_JSON = "application/json"
_FILES_TRIED = 8


class Tip(NamedTuple):
    """The newest file of a branch."""

    number: int
    snapshot_id: SnapshotId


def assets_of(handle: RepoHandle) -> NumberedAssets:
    """The files of a repository of this format version."""
    assert isinstance(handle.assets, NumberedAssets)
    return handle.assets


async def find_tip(handle: RepoHandle, name: str) -> Tip:
    """The newest file of a branch; `RefNotFoundError` when there is none.

    A branch has one file per commit, and listing all of them before every commit would take time
    that grows with the square of their number. So the files after the newest known one are tried.
    """
    known: int | None = assets_of(handle).caches.tips.get(name)
    tip = None if known is None else await _tip_from(handle, name, known)
    if tip is None:
        tip = await _listed_tip(handle, name)
    if handle.format.is_writable:  # document 000: branches cannot be deleted, so numbers only grow
        assets_of(handle).caches.tips.put(name, tip.number, 1)
    return tip


async def _tip_from(handle: RepoHandle, name: str, number: int) -> Tip | None:
    """The newest file, tried from `number` on; None if that one is gone or far behind."""
    names = assets_of(handle).names
    tip: Tip | None = None
    for _ in range(_FILES_TRIED):
        found = await _read(handle, names.branch_key(name, number))
        if found is None:
            return tip
        tip = Tip(number, found)
        number = next_number(number, name, names.characters)
    return None


async def _listed_tip(handle: RepoHandle, name: str) -> Tip:
    names = assets_of(handle).names
    directory = names.branch_directory(name)
    listed = (names.number_of(entry.key, name) for entry in await handle.driver.list(directory))
    newest = next((number for number in listed if number is not None), None)  # it sorts first
    if newest is None:
        raise RefNotFoundError(
            f"branch {name!r} in this repository (there are no files {directory}*.json)"
        )
    found = await _read(handle, names.branch_key(name, newest))
    if found is None:
        raise FormatError(f"{names.branch_key(name, newest)} was listed and is gone; try again")
    return Tip(newest, found)


async def _read(handle: RepoHandle, key: str) -> SnapshotId | None:
    found = await find_object(handle.driver, key)
    if found is None:
        return None
    assets = assets_of(handle)
    raw = decode_ref(found[0], assets.label(key))
    if len(raw) != assets.ids.size:
        raise FormatError(
            f"{assets.label(key)}: the snapshot id has {len(raw)} bytes, those of this repository "
            f"have {assets.ids.size}"
        )
    return assets.ids.snapshot_id(raw)


async def require_stored(handle: RepoHandle, snapshot_id: SnapshotId) -> None:
    """Refuse a snapshot whose file is missing, even if it is still in memory."""
    await handle.assets.past_disk_cache().load_snapshot(snapshot_id)


async def create_file(handle: RepoHandle, key: str, snapshot_id: SnapshotId) -> bool:
    """Create a ref file; False when it exists already."""
    handle.require_writable()
    data = encode_ref(assets_of(handle).ids.wide(snapshot_id), handle.clock.now_us(), None)
    try:
        await handle.driver.put_if(key, data, previous=None, content_type=_JSON)
    except ConditionFailed:
        return False
    return True


async def move_branch(
    handle: RepoHandle,
    name: str,
    to: SnapshotId,
    expected: SnapshotId | None,
    kind: ErrorKind,
    check: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Create the next file of a branch, if its newest still points at `expected`.

    `check` gets the fence of collections and may refuse. It runs after the branch was read. A
    collection or a migration that starts after the check takes the next number itself.

    Raises:
        ConflictError: it does not, or another writer has used the number.
    """
    names = assets_of(handle).names
    tip = await find_tip(handle, name)
    actual: SnapshotId | None = tip.snapshot_id
    if expected is None or actual == expected:
        fence = await require_open(handle)
        if check is not None:
            await check(fence)
        key = names.branch_key(name, next_number(tip.number, name, names.characters))
        if await create_file(handle, key, to):
            return
        actual = await _read(handle, key)
        if actual == to:
            return  # an earlier attempt of this request succeeded
    was, now = (None if each is None else each.text for each in (expected, actual))
    raise branch_moved(name, was, now, kind)


async def reachable(handle: RepoHandle, tips: Iterable[SnapshotId]) -> AsyncIterator[SnapshotInfo]:
    """These snapshots and all their ancestors, each line newest first. Each is read once.

    A snapshot whose file is gone is described by a newer snapshot, without properties. A line ends
    where no file describes the next snapshot.
    """
    seen: set[SnapshotId] = set()
    for tip in tips:
        remembered: list[Ancestor] = []
        current: SnapshotId | None = tip
        while current is not None and current not in seen:
            info = await _info(handle, current, remembered, must_exist=current == tip)
            if info is None:
                break
            yield info
            seen.add(current)
            current = info.parent_id


async def _info(
    handle: RepoHandle, current: SnapshotId, remembered: list[Ancestor], *, must_exist: bool
) -> SnapshotInfo | None:
    """The description of one snapshot.

    `remembered` is updated: the ancestors that its file lists, or the rest of those that a newer
    file lists.
    """
    assets = assets_of(handle)
    try:
        snapshot = await assets.snapshot(current)
    except SnapshotNotFoundError:
        if must_exist or not remembered or not remembered[0].message:
            if must_exist:
                raise
            return None
        itself = remembered.pop(0)
        parent = assets.ids.snapshot_id(remembered[0].id) if remembered else None
        return SnapshotInfo(current, parent, itself.written_at, itself.message)
    remembered[:] = (await assets.history_after(current)).history[1:]
    return SnapshotInfo.of(snapshot)


async def _stored(handle: RepoHandle) -> set[bytes]:
    return {row.tobytes() for row in (await handle.assets.list_objects("snapshots")).id}


async def _history_among(
    handle: RepoHandle, tips: Sequence[SnapshotId], stored: set[bytes]
) -> list[SnapshotInfo]:
    assets, waiting = assets_of(handle), list(tips)
    for tip in waiting:
        if tip not in stored:
            raise SnapshotNotFoundError(f"a snapshot that is in use is missing: {tip}")
    found: dict[SnapshotId, SnapshotInfo] = {}
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        info = SnapshotInfo.of(await assets.snapshot(current))
        named = (await assets.history_after(current)).history[1:]
        ancestors: list[SnapshotId | None] = [assets.ids.snapshot_id(one.id) for one in named]
        ancestors = ancestors or [info.parent_id]
        parent = next((one for one in ancestors if one in stored), None)
        found[current] = replace(info, parent_id=parent)
        if parent is not None:
            waiting.append(parent)
    return list(found.values())


class Numbered(OlderFormat):
    """Repositories with one file per commit of a branch. Only those of document 000 are writable.

    Branches cannot be deleted: an open session may rely on a sequence number, so none must be used
    again. 000, Tags: "Tags cannot be deleted once created".
    """

    def __init__(
        self,
        names: Names = DOCUMENT,
        generation: Generation = Generation.NUMBERED,
        form: Form = Form.JSON,
        id_size: int = 16,
        inline_attributes_bytes: int | None = None,
    ) -> None:
        self.kind = Kind(names, generation, form, id_size, inline_attributes_bytes)
        self.names = names
        self.first_folders = (names.snapshots, names.transactions)
        self.name = generation.value
        # That early program named refs differently, and its files had no schema.
        self.is_writable = generation is Generation.NUMBERED and names == DOCUMENT
        self.numbers_nodes = generation is Generation.NUMBERED

    def missing(self) -> str:
        return self.names.branch_key(MAIN, 0)

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        caches = NumberedCaches(settings, self.kind)
        kind = ParquetPrototypeAssets if isinstance(self.names, ParquetNames) else NumberedAssets
        return kind(driver, settings, caches, spec_version=1)

    def new_id(self, kind: type[Id], random: bytes) -> Id:
        if issubclass(kind, NodeId):
            return cast(Id, node_id(int.from_bytes(random[:4], "big")))
        if self.kind.id_size == SHORT_ID_SIZE:
            return kind(random)
        return cast(Id, new_id(kind, random, IdMap(self.kind.id_size)))

    def parse_snapshot_id(self, text: str) -> SnapshotId:
        return IdMap(self.kind.id_size).parse_snapshot_id(text)

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """000, Initialize New Repository: an empty snapshot, then the first file of `main`.

        When several clients do this at once, only one creates that file. The snapshots of the
        others remain as unreferenced files.
        """
        first = first_snapshot(handle)
        _, files = await handle.assets.encode_commit(first, TransactionLog(first.id))
        await handle.assets.put_metadata_files(files)
        await handle.driver.sync()
        if not await create_file(handle, self.missing(), first.id):
            raise ConditionFailed

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        listed = await handle.driver.list(self.names.refs)
        return {name for entry in listed if (name := self.names.branch_of(entry.key)) is not None}

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        keys = {entry.key for entry in await handle.driver.list(self.names.refs)}
        tags = {name for key in keys if (name := self.names.tag_of(key)) is not None}
        return {name for name in tags if self.names.tag_tombstone_key(name) not in keys}

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return (await find_tip(handle, name)).snapshot_id

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        key = self.names.tag_key(name)
        found = await _read(handle, key)
        if found is None or await find_object(handle.driver, self.names.tag_tombstone_key(name)):
            state = "does not exist" if found is None else "was deleted"
            raise RefNotFoundError(f"tag {name!r} in this repository ({key} {state})")
        return found

    def require_ref_name(self, name: str) -> None:
        layout.ref_name(name)

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        handle.require_writable()
        await require_open(handle)
        await require_stored(handle, at)
        # The first file of a branch is never deleted, so this cannot succeed twice.
        if not await create_file(handle, self.names.branch_key(name, 0), at):
            tip = await self.lookup_branch(handle, name)
            raise AlreadyExistsError(
                f"{name!r} points at {tip}; choose another name, or move it with reset_branch",
                ErrorKind.BRANCH_ALREADY_EXISTS,
            )
        await require_still_open(handle)

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        handle.require_writable()
        await require_stored(handle, to)
        await move_branch(handle, name, to, expected, ErrorKind.BRANCH_UPDATE_CONFLICT)

    async def touch_branch(self, handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
        """Create another file of a branch with the same tip, so that a commit that is under way
        finds its number taken."""
        tip = await find_tip(handle, name)
        if tip.snapshot_id != expected:
            return False
        number = next_number(tip.number, name, self.names.characters)
        return await create_file(handle, self.names.branch_key(name, number), expected)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        handle.require_writable()
        await require_open(handle)
        await require_stored(handle, at)
        if not await create_file(handle, self.names.tag_key(name), at):
            raise AlreadyExistsError(
                f"{name!r}; choose another name, because tags of this repository cannot be deleted",
                ErrorKind.TAG_ALREADY_EXISTS,
            )
        await require_still_open(handle)

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        return SnapshotInfo.of(await handle.assets.snapshot(snapshot_id))

    def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        return reachable(handle, [tip])

    async def all_snapshots(self, handle: RepoHandle) -> list[SnapshotInfo]:
        refs = [*(await self.branches(handle)).values(), *(await self.tags(handle)).values()]
        return [info async for info in reachable(handle, refs)]

    async def stored_history(
        self, handle: RepoHandle, tips: Iterable[SnapshotId]
    ) -> list[SnapshotInfo]:
        """These snapshots and their ancestors whose files exist.

        The parent of each is its nearest ancestor among them.

        Raises:
            SnapshotNotFoundError: the file of a tip is missing.
        """
        wanted = list(tips)
        # Listed after the refs were read, so it has the files of all tips.
        stored = await _stored(handle)
        while True:
            try:
                return await _history_among(handle, wanted, stored)
            except SnapshotNotFoundError:
                before, stored = stored, await _stored(handle)
                if before == stored:
                    raise  # else an expiration has deleted files meanwhile

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        encode_metadata(values, 1)

    def stored_document(self, document: bytes, path: str) -> bytes:
        return stored_document(document, path)

    def require_moves(self) -> None:
        """000, Goals: nodes can be renamed; their numbers stay."""
        self.require_writable()

    def require_ingest(self, mode: str) -> None:
        """Refuse: an ingest keeps a list of its files, and document 000 has no type for text."""
        self.require_writable()
        self._refuse("an ingest, which stores the names of its files as text,")

    async def commits_since(
        self, handle: RepoHandle, tip: SnapshotId, base: SnapshotId
    ) -> list[LineCommit] | None:
        assets = assets_of(handle)
        line: dict[SnapshotId, LineCommit] = {}
        current: SnapshotId | None = tip
        while current is not None and current not in line:
            try:
                history = (await assets.history_after(current)).history
            except SnapshotNotFoundError:
                return None
            for ancestor in history:
                found = assets.ids.snapshot_id(ancestor.id)
                if found == base:
                    return list(line.values())[::-1]
                current = found if found not in line else None
                line.setdefault(found, LineCommit(found))
            # The file of the last ancestor may list more ancestors.
            if current is not None and len(history) > 1:
                del line[current]
            else:
                current = None
        return None

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        async def check(fence: int) -> None:
            await _require_objects(handle, commit, fence)

        kind = ErrorKind.COMMIT_CONFLICT
        await move_branch(handle, branch, commit.snapshot.id, commit.base, kind, check)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        await require_stored(handle, commit.base)
        await _require_objects(handle, commit, await require_open(handle))


async def _require_objects(handle: RepoHandle, commit: NewCommit, fence: int) -> None:
    # A collection never deletes an object that was stored after its listing.
    if fence > commit.opened_at - MOST_CLOCK_SKEW_US:
        await require_own_objects(handle, commit, fence)


class FoundNumbered(FoundRepository):
    """A repository with numbered branches. Icechunk from alpha.8 on saved a configuration."""

    def __init__(self, format_version: Numbered, driver: Driver) -> None:
        self.format = format_version
        self._driver = driver

    async def saved_config(self) -> RepositoryConfig | None:
        assert isinstance(self.format, Numbered)
        if self.format.generation is Generation.NUMBERED:
            return None
        found = await find_object(self._driver, layout.CONFIG_YAML)
        return None if found is None else decode_config_yaml(found[0])


async def found_numbered(driver: Driver, names: Names, newest: str) -> FoundNumbered:
    """The repository with these names. `newest` is the newest file of `main`. The snapshot that it
    points at shows the generation and the encoding."""
    label = f"{newest} of {generation_of(names).noun}"
    ref = await find_object(driver, newest)
    if ref is None:
        raise FormatError(f"{label} was listed and is gone; try again")
    snapshot_id = decode_ref(ref[0], label)
    key = names.key(names.snapshots, snapshot_id)
    snapshot = await find_object(driver, key)
    if snapshot is None and names == PROTOTYPE:
        as_parquet = await find_object(driver, PARQUET_PROTOTYPE.key(names.snapshots, snapshot_id))
        if as_parquet is not None:
            format_version = Numbered(PARQUET_PROTOTYPE, id_size=len(snapshot_id))
            return FoundNumbered(format_version, driver)
    if snapshot is None:
        raise FormatError(f"{label} points at {key}, which does not exist")
    generation = generation_of(names, snapshot[0])
    format_version = Numbered(names, generation, form_of(snapshot[0]), len(snapshot_id))
    return FoundNumbered(format_version, driver)
