"""A repository as operations see it: a handle and the version of its format.

Operations are the same for all versions. They call `handle.format` for everything that is stored
differently: refs, history, the write that publishes a commit, the configuration. The two
classes are in one file because each refers to the other.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from icefloe.assets.assets import Assets
from icefloe.changes import change_set
from icefloe.config import RepositoryConfig
from icefloe.config.repository import ResolvedConfig
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    branch_moved,
)
from icefloe.format.layout import Generation
from icefloe.format.nodes import ArrayData
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import ObjectId, SnapshotId
from icefloe.storage.driver import Driver, Version
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.changes.change_set import ChangeSet
    from icefloe.format.columns import Ints
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.repo.rebase import Contention

    Line = AsyncIterator[SnapshotInfo] | tuple[SnapshotTable, Ints]
    """A snapshot and its ancestors: values that are read one by one, or rows of a table."""

Id = TypeVar("Id", bound=ObjectId)

MAX_CLOCK_SKEW_S = 600
"""How far the clocks of a committer and of the storage may differ."""
MOST_CLOCK_SKEW_US = MAX_CLOCK_SKEW_S * 1_000_000
_MAX_STEP_US = 1_000_000


class Clock:
    """Time and randomness, in one place so that tests can supply their own."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)


def later_than(previous: int, now: int, what: str) -> int:
    """A time after `previous`, which is the time of `what`. This is `now` unless that clock is
    ahead.

    Times are in microseconds.

    Raises:
        FormatError: the other clock is ahead by a second or more.
    """
    if now > previous:
        return now
    if previous - now < _MAX_STEP_US:
        return previous + 1
    raise FormatError(
        f"{what} was written {(previous - now) / 1e6:.0f} s in the future of this machine's clock; "
        "set the clock right",
        ErrorKind.SNAPSHOT_TIMESTAMP,
    )


@dataclass
class Shared:
    """The mutable state that all driver flavours of a repository's handle share."""

    default_commit_metadata: dict[str, Any] = field(default_factory=dict)
    config_version: Version | None = None
    """The version of config.yaml, in a repository that has this file."""
    clock_checked_at: int | None = None
    """When this machine's clock was last compared with the storage's, in microseconds."""
    seen_branches: dict[str, tuple[SnapshotId, Version]] = field(default_factory=dict)
    """The last seen tips of branches with files of their own, and the versions of these."""

    @cached_property
    def contention(self) -> Contention:
        """What this process knows about concurrent committers."""
        from icefloe.repo import rebase as competitors

        return competitors.Contention()


@dataclass(frozen=True, slots=True)
class RepoHandle:
    """One repository through one driver."""

    storage: Storage
    assets: Assets
    format: FormatVersion
    config: RepositoryConfig
    shared: Shared
    clock: Clock

    @property
    def driver(self) -> Driver:
        return self.assets.driver

    @property
    def settings(self) -> ResolvedConfig:
        return self.assets.settings

    def new_id(self, kind: type[Id]) -> Id:
        return self.format.new_id(kind, self.clock.random_bytes(kind.size))

    def snapshot_id(self, text: str) -> SnapshotId:
        """The snapshot id that a text stands for."""
        return self.format.parse_snapshot_id(text)

    async def given_id(self, text: str, *, name: str | None = None) -> SnapshotId:
        """The snapshot id that a user gave; `name` is the argument before it, for advice.

        Raises:
            InvalidInputError: it is none. A branch or tag is named as such.
        """
        try:
            return self.format.parse_snapshot_id(text)
        except InvalidInputError as error:
            if name is not None and self._is_snapshot_id(name):
                advice = f"{error}; the name comes first, then the id: ({text!r}, {name!r})"
            elif text in await self.format.list_branches(self):
                advice = (
                    f"{text!r} is a branch, not a snapshot id; use repo.lookup_branch({text!r})"
                )
            elif text in await self.format.list_tags(self):
                advice = f"{text!r} is a tag, not a snapshot id; use repo.lookup_tag({text!r})"
            elif text.upper() == "HEAD":
                advice = f"{text!r} is not a snapshot id; use repo.lookup_branch('main')"
            else:
                advice = (
                    f"{error}; repo.lookup_branch and repo.lookup_tag return the id that a "
                    "branch or tag points at, repo.ancestry all ids"
                )
            raise InvalidInputError(advice, error.kind) from None

    def _is_snapshot_id(self, text: str) -> bool:
        try:
            self.format.parse_snapshot_id(text)
        except InvalidInputError:
            return False
        return True

    def require_writable(self) -> None:
        """Refuse to write if the driver or the version is read-only."""
        self.format.require_writable()
        if not self.driver.can_write:
            raise ReadOnlyError(
                f"{self.storage.describe()} can only be read", ErrorKind.READ_ONLY_STORAGE
            )


class NewCommit(NamedTuple):
    """A snapshot whose files are stored, to be published."""

    snapshot: Snapshot
    base: SnapshotId
    """The snapshot that the session started from."""
    moves_nodes: bool
    opened_at: int = 0
    """The result of `FormatVersion.opened_at` when the session was opened."""
    source: SnapshotId | None = None
    """Another snapshot whose chunks the commit refers to. The repository has to keep it."""


class LineCommit(NamedTuple):
    """A commit between the base of a session and the tip of its branch."""

    id: SnapshotId
    pruned: Sequence[SnapshotId] = ()
    """Expired ancestors right before this commit, oldest first. Only their logs may still exist."""
    log: TransactionLog | None = None
    """Its log, if it was fetched already."""


class SeenTip:
    """A branch that was just seen at the base of a session."""

    @property
    def files(self) -> Sequence[tuple[str, bytes]]:
        """Keys and bytes to be stored together with the files of the commit."""
        return ()


class FoundRepository(ABC):
    """A repository that was recognised, with everything that was read to do so."""

    format: FormatVersion

    @abstractmethod
    async def saved_config(self) -> RepositoryConfig | None:
        """The configuration that is saved with the repository."""

    def remember(self, handle: RepoHandle) -> None:
        """Put what was already read into the caches of the new handle."""
        return


class FormatVersion(ABC):
    """How one kind of repository stores refs, history, commits and configuration.

    It is immutable and can be pickled. A read-only version implements the abstract methods.
    The default of every other method refuses with a message that names it.
    """

    name: str
    """The name of the generation of the format, such as "spec-2"."""
    spec_version: int
    """The value of `Repository.spec_version`; 0 before spec version 1."""
    is_writable = True
    stores_parents = True
    """Whether a snapshot file has the id of its parent."""
    has_repo_object = False
    """Whether there is a `repo` object, with an operations log, a status and metadata."""
    can_amend = False
    has_rectilinear_grids = True
    """Whether a snapshot can hold arrays whose chunks differ in shape."""
    lists_lost_snapshots = False
    """Whether `all_snapshots` has snapshots whose files are gone."""
    numbers_nodes = False
    """Whether node ids are 32-bit numbers, which can collide."""
    shares_manifests = False
    """Whether a manifest may have the references of several arrays."""
    looks_before_upload = False
    """Whether a commit calls `require_tip` before it uploads. A commit that rebases always does."""

    @property
    def generation(self) -> Generation:
        """The generation of the format."""
        return Generation(self.name)

    @property
    def noun(self) -> str:
        """What messages call a repository of this version."""
        return self.generation.noun

    @property
    def has_spec_folders(self) -> bool:
        """Whether objects have the names of spec versions 1 and 2."""
        return bool(self.spec_version)

    @property
    def maintenance(self) -> Any:
        """The module with `collection_of`, `expire_older` and `verify_older` of this version.

        Only generations before spec version 1 have one; it is in a layer above.
        """
        self._refuse("this operation")

    # -- recognising and creating

    async def find(self, driver: Driver) -> FoundRepository | None:
        """Recognise a repository of this version; None if there is none.

        Generations before spec version 1 are recognised together.
        """
        self._refuse("recognising it by itself")

    @abstractmethod
    def missing(self) -> str:
        """The key that every repository of this version has."""

    def new_id(self, kind: type[Id], random: bytes) -> Id:
        """A new id from random bytes."""
        return kind(random)

    def parse_snapshot_id(self, text: str) -> SnapshotId:
        """The id that a text stands for in this version."""
        return SnapshotId.parse(text)

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        """Typed access to the files of this version, with empty caches."""
        self._refuse("this operation")

    def data_driver(self, storage: Storage, driver: Driver) -> Driver:
        """The driver for the files of a repository at `storage`. Some files may be elsewhere."""
        return driver

    async def is_unfinished(self, driver: Driver) -> bool:
        """Whether the only files are those of a creation that was never published."""
        return False

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """Write the first snapshot and publish it as `main`.

        Raises:
            ConditionFailed: another process created a repository at the same time.
        """
        self._refuse("creating a repository")

    # -- refs

    @abstractmethod
    async def list_branches(self, handle: RepoHandle) -> set[str]:
        """Names of all branches."""

    @abstractmethod
    async def list_tags(self, handle: RepoHandle) -> set[str]:
        """Names of all tags that were not deleted."""

    @abstractmethod
    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        """The tip of a branch; `RefNotFoundError` when there is no such branch."""

    @abstractmethod
    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        """The snapshot of a tag; `RefNotFoundError` when there is no such tag."""

    async def branches(self, handle: RepoHandle) -> dict[str, SnapshotId]:
        """All branches with their tips. One that is deleted after it was listed is left out."""
        return await _tips(handle, await self.list_branches(handle), self.lookup_branch)

    async def tags(self, handle: RepoHandle) -> dict[str, SnapshotId]:
        """All tags with their snapshots, without those that are deleted meanwhile."""
        return await _tips(handle, await self.list_tags(handle), self.lookup_tag)

    def require_ref_name(self, name: str) -> None:
        """Refuse a name that no ref of this version can have."""
        if not name:
            raise InvalidInputError(
                f"ref name {name!r}: it must not be empty", ErrorKind.INVALID_REF_NAME
            )

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        self._refuse("creating a branch")

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        """Point a branch at a snapshot that exists, if it is still at `expected` (None: always)."""
        self._refuse("resetting a branch")

    async def touch_branch(self, handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
        """Write a branch again, so that commits under way find another version of it.

        Returns False if it is no longer at `expected`.
        """
        self._refuse("writing to a branch")

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        self._refuse("deleting a branch")

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        self._refuse("creating a tag")

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        self._refuse("deleting a tag")

    # -- history

    @abstractmethod
    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        """The description of a snapshot that may be opened; `SnapshotNotFoundError` otherwise."""

    async def require_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> None:
        """Refuse to open a snapshot that is not listed, even if its file exists."""
        await self.lookup_snapshot(handle, snapshot_id)

    @abstractmethod
    def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        """A snapshot and all its ancestors, newest first. What is not taken is not read."""

    async def ancestry(self, handle: RepoHandle, tip: SnapshotId) -> list[SnapshotInfo]:
        """The same, all of them."""
        return [info async for info in self.ancestors(handle, tip)]

    async def line(self, handle: RepoHandle, tip: SnapshotId) -> Line:
        """The same, as rows of a table if the version has one. That is cheaper than one object
        each."""
        await self.lookup_snapshot(handle, tip)
        return self.ancestors(handle, tip)

    async def branch_line(self, handle: RepoHandle, branch: str) -> Line:
        """The tip of a branch and all its ancestors, newest first."""
        return await self.line(handle, await self.lookup_branch(handle, branch))

    async def all_snapshots(self, handle: RepoHandle) -> list[SnapshotInfo]:
        """Every listed snapshot, or every snapshot reachable from a ref if there is no list."""
        refs = [*(await self.branches(handle)).values(), *(await self.tags(handle)).values()]
        return await self.stored_history(handle, refs)

    async def stored_history(
        self, handle: RepoHandle, tips: Iterable[SnapshotId]
    ) -> list[SnapshotInfo]:
        """These snapshots and all their ancestors that can still be opened, each once.

        A parent is the nearest ancestor among them.
        """
        found: dict[SnapshotId, SnapshotInfo] = {}
        for tip in tips:
            if tip not in found:
                found |= {info.id: info for info in await self.ancestry(handle, tip)}
        return list(found.values())

    # -- sessions and commits

    def require_writable(self) -> None:
        """Refuse to write to a version that is only read."""
        if not self.is_writable:
            raise ReadOnlyError(
                f"{self.noun} can only be read; migrate it first",
                ErrorKind.READ_ONLY_REPOSITORY,
            )

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        """Refuse metadata that the files of this version cannot hold."""
        self._refuse("writing metadata")

    def stored_document(self, document: bytes, path: str) -> bytes:
        """The zarr.json as readers will find it. Some versions do not keep every byte.

        Raises:
            InvalidInputError: the files of this format_version cannot hold a part of it.
        """
        return document

    def parse_array(self, document: bytes, path: str) -> ArrayData | None:
        """The array description that a snapshot keeps for this zarr.json; None for a group.

        Raises:
            InvalidInputError: it is not valid, or the files of this format_version cannot hold it.
        """
        return change_set.parse_zarr_json(
            document, path, has_rectilinear_grids=self.has_rectilinear_grids
        )

    def with_node_ids(self, handle: RepoHandle, base: Snapshot, changes: ChangeSet) -> ChangeSet:
        """The changes of a session, with the ids that its new nodes get in the commit.

        Sessions assign random ids. Versions with numbered nodes replace them once the base snapshot
        of the commit is known.
        """
        return changes

    async def writable_tip(self, handle: RepoHandle, branch: str) -> SnapshotId:
        """The tip of a branch, checked to accept commits."""
        return await self.lookup_branch(handle, branch)

    def require_moves(self) -> None:
        """Refuse to move nodes if commits of this version cannot record moves."""
        self.require_repo_object("moving nodes")

    def require_ingest(self, mode: str) -> None:
        """Refuse an ingest whose arrays or references this version cannot hold.

        `mode` is "native" if values are copied; anything else may write references to files.
        """
        self.require_writable()

    async def movable_tip(self, handle: RepoHandle, branch: str) -> SnapshotId:
        """The tip of a branch, checked to accept moves."""
        return await self.writable_tip(handle, branch)

    def opened_at(self, handle: RepoHandle) -> int:
        """The current time, in the clock by which `publish` detects later garbage collections.

        Normally this machine's, which is compared with the storage's.
        """
        return handle.clock.now_us()

    async def line_since(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> tuple[SnapshotId | None, list[LineCommit] | None]:
        """The tip of a branch, None when it is gone, and the commits after `base` up to it.

        Oldest first; None when `base` is not in its history.
        """
        try:
            tip = await self.lookup_branch(handle, branch)
        except RefNotFoundError:
            return None, None
        return tip, await self.commits_since(handle, tip, base)

    async def commits_since(
        self, handle: RepoHandle, tip: SnapshotId, base: SnapshotId
    ) -> list[LineCommit] | None:
        """The same for a tip that was just looked up."""
        self._refuse("rebasing a session")

    def seen_tip(self, handle: RepoHandle, branch: str, base: SnapshotId) -> SeenTip | None:
        """The result of `require_tip` without a request, right after `line_since` found the tip."""
        return None

    async def require_tip(
        self, handle: RepoHandle, branch: str, base: SnapshotId
    ) -> SeenTip | None:
        """Refuse to commit to a branch that is not at `base`. The result is passed to `publish`.

        Raises:
            ConflictError: the branch has moved.
        """
        tip = await self.lookup_branch(handle, branch)
        if tip != base:
            raise branch_moved(branch, base.text, tip.text)
        return self.seen_tip(handle, branch, base)

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        """Make a commit the tip of its branch by one conditional write.

        Raises:
            ConflictError: the branch is not at the base of the commit, kind `commit-conflict`.
        """
        self._refuse("committing")

    async def require_listed(self, handle: RepoHandle, base: SnapshotId) -> None:
        """Refuse a base that has expired, if the version can tell."""
        return

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        """List a snapshot that no branch points at, if the version lists snapshots."""
        return

    def require_amending(self) -> None:
        """Refuse to amend if the version cannot replace commits."""
        if not self.can_amend:
            self.require_repo_object("amending a commit")

    async def require_amendable(self, handle: RepoHandle, base: SnapshotId) -> SnapshotId:
        """The parent of a snapshot that is to be amended. Refuses one that cannot be amended."""
        self._refuse("amending a commit")

    async def publish_amended(self, handle: RepoHandle, commit: NewCommit, branch: str) -> None:
        """Replace the tip of a branch, which is the base of the commit."""
        self._refuse("amending a commit")

    async def publish_squashed(
        self,
        handle: RepoHandle,
        commits: Sequence[NewCommit],
        branch: str,
        since: SnapshotId,
        pruned: Sequence[tuple[SnapshotId, ...]],
    ) -> None:
        """Replace the commits of a branch after `since`, by one conditional write.

        The base of each of `commits` is the old snapshot with the same content, that of the last
        one the old tip. `pruned` has the expired ancestors right before each.

        Raises:
            ConflictError: the branch is not at the old tip, kind `commit-conflict`.
        """
        self._refuse("squashing commits")

    # -- settings

    async def save_config(self, handle: RepoHandle) -> None:
        """Save the current configuration with the repository."""
        self._refuse("saving the configuration")

    def require_repo_object(self, what: str) -> None:
        """Refuse an operation that needs a `repo` object."""
        raise FormatError(
            "repository version error, please upgrade your on-disk format: "
            f"{what} needs a repository of spec version 2, this is {self.noun}; migrate it first",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )

    def require_spec_folders(self, what: str) -> None:
        """Refuse an operation that needs the key layout of spec versions 1 and 2."""
        if not self.has_spec_folders:
            raise FormatError(
                f"{what} knows the folders of spec versions 1 and 2, and not those of {self.noun}; "
                "migrate it first",
                ErrorKind.UNSUPPORTED_SPEC_VERSION,
            )

    def _refuse(self, what: str) -> NoReturn:
        raise FormatError(
            f"{what} is not possible in {self.noun}; migrate it first",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )


async def _tips(
    handle: RepoHandle,
    names: Iterable[str],
    lookup: Callable[[RepoHandle, str], Awaitable[SnapshotId]],
) -> dict[str, SnapshotId]:
    found = {}
    for name in sorted(names):
        with suppress(RefNotFoundError):
            found[name] = await lookup(handle, name)
    return found
