"""`completion`: what a shell needs to complete words of this program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

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
