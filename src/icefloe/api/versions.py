"""The methods of `Repository` that show versions, and bring commits from one place to another.

The `x_async` twin of every method that touches storage is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.api.arguments import check_arguments
from icefloe.api.generated.versions_async import RepositoryVersionsAsync
from icefloe.repo import refs
from icefloe.storage.run import run_blocking

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

    from icefloe.api.values import VersionChange
    from icefloe.changes.conflicts import ConflictSolver


@check_arguments
class RepositoryVersions(RepositoryVersionsAsync):
    """What `Repository` inherits: versions as datasets; cherry-pick, undo, merge and squash.

    Each of the latter makes one commit. It refers to chunks that are stored already, and copies
    none.
    """

    def to_xarray(
        self, ref: str | None = None, *, group: str | None = None, **options: Any
    ) -> Dataset:
        """One group of a version as a dataset, read when it is used. Needs the extra `xarray`.

        Args:
            ref: a branch, a tag or a snapshot; `main` if not given.
            group: where in the hierarchy; the root if not given.
            options: further arguments of `xarray.open_dataset`. `chunks={}` makes dask arrays.

        >>> repo.to_xarray("v1")["t2m"].mean().item()
        280.0
        """
        found: Dataset = _xarray_engine().open_version(self, ref, group=group, **options)
        return found

    def to_xarray_tree(
        self, ref: str | None = None, *, group: str | None = None, **options: Any
    ) -> DataTree:
        """A group of a version and all groups below it as a tree. Needs the extra `xarray`.

        Args:
            ref: a branch, a tag or a snapshot; `main` if not given.
            group: where the tree begins; the root if not given.
            options: further arguments of `xarray.open_datatree`.

        >>> list(repo.to_xarray_tree("v1")["/"].data_vars)
        ['t2m']
        """
        found: DataTree = _xarray_engine().open_version_tree(self, ref, group=group, **options)
        return found

    def cherry_pick(
        self,
        snapshot_id: str,
        branch: str,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        dry_run: bool = False,
    ) -> VersionChange:
        """Apply the changes of one commit to a branch, as a new commit.

        The message and metadata are those of the commit, unless others are given. The metadata
        entry `__icefloe` names the commit. What the branch has already is left out.

        Args:
            snapshot_id: the commit. Its changes are those against its parent.
            branch: the branch that takes them.
            message: the message of the new commit.
            metadata: entries to add to the metadata of the commit.
            rebase_with: settles conflicts as in `Session.commit`. "Ours" is the commit, "theirs"
                the branch. The default settles none.
            rebase_tries: how often to start again from the new tip if other commits are first.
            dry_run: find conflicts and say what would change, but write nothing.

        Raises:
            RebaseFailedError: there are conflicts; nothing has changed.
            SessionStateError: the branch already has the changes, kind `no-changes-to-commit`.

        >>> change = repo.cherry_pick(repo.lookup_branch("main"), "dev")
        """
        key = run_blocking(self.handle.given_id(snapshot_id))
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(
            branch, message, metadata, rebase_with, rebase_tries, dry_run
        )
        return values.VersionChange.of(run_blocking(replay.cherry_pick(self.handle, key, request)))

    def undo(
        self,
        snapshot_id: str | None = None,
        branch: str = "main",
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        dry_run: bool = False,
    ) -> VersionChange:
        """Undo one commit of a branch by a new commit; later commits stay.

        Args:
            snapshot_id: the commit, anywhere in the history of the branch; the last one if not
                given.
            branch: the branch.
            message: the message of the new commit; "Undo: " and the old one if not given.
            metadata: metadata of the new commit.
            rebase_with: settles conflicts with later commits, as in `Session.commit`. "Ours" is the
                state before the commit, "theirs" the branch. The default settles none.
            rebase_tries: how often to start again from the new tip if other commits are first.
            dry_run: find conflicts and say what would change, but write nothing.

        Raises:
            RebaseFailedError: later commits changed the same things; nothing has changed.
            SessionStateError: it was undone already, kind `no-changes-to-commit`.

        >>> change = repo.undo(branch="main", message="The first value was right")
        """
        if snapshot_id is None:
            key = run_blocking(self.handle.format.lookup_branch(self.handle, branch))
        else:
            key = run_blocking(self.handle.given_id(snapshot_id))
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(
            branch, message, metadata, rebase_with, rebase_tries, dry_run
        )
        return values.VersionChange.of(run_blocking(replay.undo(self.handle, key, request)))

    def merge(
        self,
        source: str,
        branch: str,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        dry_run: bool = False,
    ) -> VersionChange:
        """Apply to a branch, as one commit, everything that another one has since they parted.

        The metadata entry `__icefloe` names the merged snapshot. So the next merge of the same
        branch, in either direction, starts there.

        Args:
            source: a branch, a tag or a snapshot id, looked for in this order.
            branch: the branch that takes the changes. The source does not change.
            message: the message of the new commit; "Merge SOURCE into BRANCH" if not given.
            metadata: metadata of the new commit.
            rebase_with: settles conflicts as in `Session.commit`. "Ours" is the source, "theirs"
                the branch. The default settles none.
            rebase_tries: how often to start again from the new tip if other commits are first.
            dry_run: find conflicts and say what would change, but write nothing.

        Raises:
            RebaseFailedError: there are conflicts; nothing has changed.
            SessionStateError: the branch contains the source, kind `no-changes-to-commit`.

        >>> change = repo.merge("main", "dev")
        """
        key = run_blocking(refs.find_snapshot(self.handle, source))
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(
            branch, message, metadata, rebase_with, rebase_tries, dry_run
        )
        return values.VersionChange.of(
            run_blocking(replay.merge(self.handle, key, source, request))
        )

    def squash(
        self,
        branch: str,
        since: str,
        *,
        until: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> VersionChange:
        """Replace some commits of a branch with one.

        Later commits follow it with the content, message and time that they had, under other ids.
        The old snapshots stay in storage until they expire and are collected. Other branches and
        tags keep them. The metadata entry `__icefloe` of each new snapshot names the old one with
        the same content.

        Args:
            branch: the branch, whose tip is replaced.
            since: a branch, a tag or a snapshot id: the last snapshot that stays.
            until: a branch, a tag or a snapshot id: the newest commit to squash; the tip if not
                given.
            message: the message of the new commit; the messages of the old ones if not given.
            metadata: metadata of the new commit.
            dry_run: say what the commit would contain, but write nothing.

        Raises:
            ConflictError: the branch has moved in the meantime; nothing has changed.

        >>> first = icefloe.FIRST_SNAPSHOT_ID.text
        >>> change = repo.squash("main", since=first, message="All at once")
        """
        first = run_blocking(refs.find_snapshot(self.handle, since))
        last = None if until is None else run_blocking(refs.find_snapshot(self.handle, until))
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(branch, message, metadata, dry_run=dry_run)
        return values.VersionChange.of(
            run_blocking(replay.squash(self.handle, first, request, last))
        )


def _xarray_engine() -> Any:
    """The module of the xarray engine, which is in a layer above: it is imported by its name."""
    try:
        return import_module("icefloe.interop.xarray_engine")
    except ModuleNotFoundError as error:
        if error.name != "xarray":
            raise
        raise ImportError(
            "to_xarray needs xarray: pip install 'icefloe[xarray]'", name="xarray"
        ) from None
