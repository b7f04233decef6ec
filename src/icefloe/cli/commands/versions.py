"""`cherry-pick`, `undo`, `merge` and `squash`: commits brought from one place to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from icefloe.api.addresses import snapshot_of
from icefloe.api.values import VersionChange
from icefloe.changes.conflicts import BasicConflictSolver, ConflictSolver, VersionSelection
from icefloe.cli.common import Output, RepositoryCommand, Target, changes_text

_SOLVERS: dict[str, ConflictSolver | None] = {
    "none": None,
    "ours": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "theirs": BasicConflictSolver(
        on_chunk_conflict=VersionSelection.UseTheirs,
        fail_on_delete_of_updated_array=True,
        fail_on_delete_of_updated_group=True,
    ),
}


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that all of these share."""
    command = click.option(
        "--dry-run", is_flag=True, help="Find conflicts and show what would change; write nothing."
    )(command)
    return click.option("--message", "-m", help="Message of the new commit.")(command)


_solve_option = click.option(
    "--on-conflict",
    "rebase_with",
    type=click.Choice(list(_SOLVERS)),
    callback=lambda ctx, param, value: _SOLVERS[value],
    default="none",
    show_default=True,
    help="Whose chunks to take where both sides wrote: ours is what is brought, theirs the branch. "
    "With ours, what is deleted goes although the branch changed it.",
)


def _tell(output: Output, branch: str, done: VersionChange, tip: str | None = None) -> None:
    changes = changes_text(done.changes)
    if done.snapshot_id is None:
        first = f"Nothing was written. A commit to {branch} would change:"
    elif tip not in (None, done.snapshot_id):
        first = f"{branch} is now at {tip}. Squashed: {done.snapshot_id}, with these changes:"
    else:
        first = f"{branch} is now at {done.snapshot_id}. Changed since {done.parent_id}:"
    output.show({"branch": branch, "commit": done}, f"{first}\n\n{changes}")


@click.command("cherry-pick", cls=RepositoryCommand)
@click.argument("snapshot")
@_solve_option
@_options
def cherry_pick(target: Target, snapshot: str, output: Output, **options: Any) -> None:
    """Apply the changes of one commit to a branch, REPOSITORY@BRANCH or main.

    SNAPSHOT is an id, or a branch or tag that points at the commit.
    """
    branch = target.branch
    done = target.repo.cherry_pick(snapshot_of(target.repo, snapshot), branch, **options)
    _tell(output, branch, done)


@click.command(cls=RepositoryCommand)
@click.argument("snapshot", required=False)
@_solve_option
@_options
def undo(target: Target, snapshot: str | None, output: Output, **options: Any) -> None:
    """Undo one commit of a branch by a new commit; the newest one if no SNAPSHOT is given."""
    branch = target.branch
    undone = target.snapshot_id if snapshot is None else snapshot_of(target.repo, snapshot)
    _tell(output, branch, target.repo.undo(undone, branch, **options))


@click.command(cls=RepositoryCommand)
@click.argument("source")
@_solve_option
@_options
def merge(target: Target, source: str, output: Output, **options: Any) -> None:
    """Apply to a branch everything that SOURCE has since the two parted, as one commit.

    The branch is REPOSITORY@BRANCH, or main. SOURCE is a branch, a tag or a snapshot.
    """
    branch = target.branch
    _tell(output, branch, target.repo.merge(source, branch, **options))


@click.command(cls=RepositoryCommand)
@click.argument("since")
@click.argument("until", required=False)
@_options
def squash(target: Target, since: str, output: Output, **options: Any) -> None:
    """Replace the commits of a branch after SINCE, up to UNTIL or the newest, with one.

    The branch is REPOSITORY@BRANCH, or main. Commits after UNTIL follow with other ids. The old
    snapshots stay until they expire.
    """
    branch = target.branch
    done = target.repo.squash(branch, since, **options)
    _tell(output, branch, done, target.repo.lookup_branch(branch))
