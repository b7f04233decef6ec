"""`verify` and `repair`: whether a repository is whole, and what can be done if it is not."""

from __future__ import annotations

from typing import Any

import click

from icefloe.api.repository import Repository
from icefloe.cli.common import (
    Output,
    Place,
    allow_virtual_option,
    at_least_1,
    confirm,
    output_option,
    place_argument,
    yes_option,
)
from icefloe.storage.spec import Storage

UNHEALTHY = 6


@click.command()
@place_argument
@click.option("--read-chunks", is_flag=True, help="Read every chunk and decode it.")
@click.option("--virtual-sources", is_flag=True, help="Check the files of virtual chunks, too.")
@click.option("--orphans/--no-orphans", default=True, help="Report unused objects; on.")
@click.option("--max-findings", type=at_least_1, default=1000, help="Of a kind; 1000.")
@allow_virtual_option
@output_option
def verify(
    place: Place,
    read_chunks: bool,
    virtual_sources: bool,
    orphans: bool,
    max_findings: int,
    allowed: dict[str, Any],
    output: Output,
) -> int:
    """Check that all files of a repository exist, are complete and fit together.

    Also works where a repository is too damaged to be opened. The exit code is 6 if it is not
    healthy.
    """
    report = Repository.verify_storage(
        place.storage(),
        authorize_virtual_chunk_access=allowed,
        read_chunks=read_chunks,
        virtual_sources=virtual_sources,
        orphans=orphans,
        max_findings=max_findings,
    )
    value = {
        "healthy": report.is_healthy,
        "errors": report.num_errors,
        "checked": report.checked,
        "counts": {str(kind): number for kind, number in report.counts.items()},
        "findings": [finding._asdict() for finding in report.findings],
    }
    output.show(value, lambda: str(report))
    return 0 if report.is_healthy else UNHEALTHY


@click.command()
@place_argument
@click.option("--branch", default="main", show_default=True, help="The branch to repair.")
@click.option("--virtual-sources", is_flag=True, help="Also drop references to dead files.")
@click.option(
    "--repoint", nargs=2, metavar="OLD NEW", help="Files of virtual chunks moved: URL prefixes."
)
@click.option("--rescue", is_flag=True, help="Rebuild a lost repo object, or a branch without tip.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@allow_virtual_option
@yes_option
@output_option
def repair(
    place: Place,
    branch: str,
    virtual_sources: bool,
    repoint: tuple[str, str] | None,
    rescue: bool,
    dry_run: bool,
    allowed: dict[str, Any],
    yes: bool,
    output: Output,
) -> None:
    """Drop references that lead nowhere, in one commit; or repoint them; or rescue lost refs.

    What is missing is not brought back: chunks whose references are dropped read as the fill
    value. Older snapshots do not change.
    """
    if rescue and (repoint or virtual_sources):
        raise click.UsageError("--rescue goes alone: run it first, then repair the rest.")
    if rescue:
        _rescue(place.storage(), dry_run, yes, output)
        return
    repo = Repository.open(place.storage(), authorize_virtual_chunk_access=allowed)
    plan = (
        repo.plan_repoint(*repoint, branch=branch)
        if repoint
        else repo.plan_repair(branch=branch, virtual_sources=virtual_sources)
    )
    made = None
    if not plan.is_empty and not dry_run:
        click.echo(str(plan), err=output.as_json)
        confirm(f"Commit this repair to {branch}?", yes)
        made = repo.run_repair(plan)
    value = {"actions": [action._asdict() for action in plan.actions], "snapshot": made}
    output.show(value, lambda: str(plan) if made is None else f"Repaired {branch}: {made}.")


def _rescue(storage: Storage, dry_run: bool, yes: bool, output: Output) -> None:
    plan = Repository.plan_rescue(storage)
    is_done = not plan.is_empty and not dry_run
    if is_done:
        click.echo(str(plan), err=output.as_json)
        confirm("Write this?", yes)
        Repository.run_rescue(storage, plan)
    value = {"actions": [action._asdict() for action in plan.actions], "done": is_done}
    output.show(value, lambda: "Rescued." if is_done else str(plan))
