"""`repo` and `ancestry` as the original has them, and shell completion."""

from __future__ import annotations

from itertools import islice

import click
from click.shell_completion import get_completion_class

from icefloe.api.addresses import resolve_ref
from icefloe.cli.commands.refs import init
from icefloe.cli.common import Output, RepositoryCommand, Target, at_least_1


@click.group()
def repo() -> None:
    """Create repositories, as the original spells it."""


repo.add_command(init, "create")


@click.command(cls=RepositoryCommand)
@click.argument("reference", default="main")
@click.option("-n", "limit", type=at_least_1, default=10, show_default=True)
def ancestry(target: Target, reference: str, limit: int, output: Output) -> None:
    """Show the ancestry of a branch, tag or snapshot, as the original spells it; see log."""
    target.require_no_ref("the reference is the second argument")
    line = list(islice(target.repo.ancestry(**resolve_ref(target.repo, reference)), limit))
    paragraphs = (
        f"Snapshot: {entry.id}\n"
        f"Date: {entry.written_at.astimezone():%B %d %Y  %H:%M:%S}\n"
        f"\n  {entry.message}\n"
        for entry in line
    )
    output.show(line, paragraphs)


_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    bash, in ~/.bashrc:   eval "$(icefloe completion bash)"
    zsh, in ~/.zshrc:     eval "$(icefloe completion zsh)"
    fish, in config.fish: icefloe completion fish | source
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "icefloe", "_ICEFLOE_COMPLETE").source())
