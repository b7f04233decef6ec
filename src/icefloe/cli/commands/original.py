"""Commands as the original's command line spells them: `repo create`, `ancestry`."""

from __future__ import annotations

from itertools import islice

import click

from icefloe.api.addresses import resolve_ref
from icefloe.cli.commands.lifecycle import init
from icefloe.cli.common import Output, Target, at_least_1, output_option, repository_argument


@click.group()
def repo() -> None:
    """Create repositories, as the original spells it."""


repo.add_command(init, "create")


@click.command()
@repository_argument
@click.argument("reference", default="main")
@click.option("-n", "limit", type=at_least_1, default=10, show_default=True)
@output_option
def ancestry(target: Target, reference: str, limit: int, output: Output) -> None:
    """Show the ancestry of a branch, tag or snapshot, as the original spells it; see log."""
    target.require_no_ref("the reference is the second argument")
    line = list(islice(target.repo.ancestry(**resolve_ref(target.repo, reference)), limit))

    def text() -> str:
        return "\n".join(
            f"Snapshot: {entry.id}\n"
            f"Date: {entry.written_at.astimezone():%B %d %Y  %H:%M:%S}\n"
            f"\n  {entry.message}\n"
            for entry in line
        )

    output.show(line, text)
