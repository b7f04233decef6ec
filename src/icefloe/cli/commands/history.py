"""`log`, `show`, `diff` and `ops`: what happened to a repository."""

from __future__ import annotations

import sys
from itertools import islice

import click

from icefloe.api.addresses import snapshot_of
from icefloe.changes.diff import Diff, without_internal
from icefloe.cli.common import (
    WHOLE,
    Output,
    Target,
    all_option,
    at_least_1,
    changes_text,
    output_option,
    plain,
    repository_argument,
    time_text,
)
from icefloe.display.shown import counted


@click.command()
@repository_argument
@click.option("--graph", is_flag=True, help="Draw the history of all branches, or of @REF.")
@click.option("--limit", "-n", type=at_least_1, help="Show only the newest ones.")
@output_option
def log(target: Target, graph: bool, limit: int | None, output: Output) -> None:
    """List snapshots, newest first."""
    if graph and not output.as_json:
        ref = {} if target.address.ref is None else target.ref
        drawn = str(target.repo.ancestry_graph(**ref, plain=not sys.stdout.isatty()))
        output.show(None, lambda: "\n".join(islice(drawn.splitlines(), limit)))
        return
    found = list(islice(target.repo.ancestry(**target.ref), limit))
    output.show(
        found,
        lambda: "\n".join(
            f"{entry.id}  {time_text(entry.written_at)}  {entry.message}" for entry in found
        ),
    )


@click.command()
@repository_argument
@all_option
@output_option
def show(target: Target, show_all: bool, output: Output) -> None:
    """Show one snapshot: message, time, metadata, and what it changed."""
    entry = target.repo.lookup_snapshot(target.snapshot_id)
    changed = shown = None
    if entry.parent_id is not None:
        changed = target.repo.diff(from_snapshot_id=entry.parent_id, to_snapshot_id=entry.id)
        shown = changed if show_all else without_internal(changed)
    manifests = target.repo.list_manifest_files(entry.id)
    value = {"snapshot": entry, "changes": shown, "manifests": manifests}

    def text() -> str:
        metadata = "".join(f"    {key}: {shown}\n" for key, shown in entry.metadata.items())
        refs = sum(file.num_chunk_refs for file in manifests)
        return (
            f"snapshot {entry.id}\n"
            f"parent   {entry.parent_id or 'none'}\n"
            f"written  {time_text(entry.written_at)}\n"
            f"stored   {counted(len(manifests), 'manifest')} with "
            f"{counted(refs, 'chunk reference')}\n"
            f"\n    {entry.message}\n"
            + (f"\nMetadata:\n{metadata}" if metadata else "")
            + ("" if changed is None else f"\n{changes_text(changed, shown)}")
        ).rstrip()

    output.show(value, text)


@click.command()
@repository_argument
@click.argument("start", metavar="[FROM]", required=False)
@click.argument("end", metavar="[TO]", required=False)
@all_option
@output_option
def diff(
    target: Target, start: str | None, end: str | None, show_all: bool, output: Output
) -> None:
    """Show what changed from one version to a later one of the same line of history.

    FROM and TO are branches, tags or snapshots. Without TO, it is the REPOSITORY's @REF, or main.
    Without both, it is what the last commit changed.
    """
    last = target.snapshot_id if end is None else snapshot_of(target.repo, end)
    if start is None:
        first = target.repo.lookup_snapshot(last).parent_id
    else:
        first = snapshot_of(target.repo, start)
    is_same = first in (None, last)  # the first snapshot of all has no parent
    found = Diff() if is_same else target.repo.diff(from_snapshot_id=first, to_snapshot_id=last)
    shown = found if show_all else without_internal(found)
    output.show(shown, lambda: changes_text(found, shown))


@click.command()
@repository_argument
@click.option("--limit", "-n", type=at_least_1, help="Show only the newest ones.")
@output_option
def ops(target: Target, limit: int | None, output: Output) -> None:
    """List the operations on a repository, newest first; needs spec version 2."""
    target.require_no_ref(WHOLE)
    found = list(islice(target.repo.ops_log(), limit))
    value = [{"operation": plain(entry.kind), "at": entry.updated_at} for entry in found]
    output.show(
        value,
        lambda: "\n".join(
            f"{time_text(entry.updated_at)}  {type(entry.kind).__name__:<20}"
            + ", ".join(f"{name} {shown}" for name, shown in vars(entry.kind).items())
            for entry in found
        ),
    )
