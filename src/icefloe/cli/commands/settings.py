"""`config`, `metadata` and `status`: what a repository remembers about itself."""

from __future__ import annotations

import json
from typing import Any

import click

from icefloe.api.values import RepoAvailability, RepoStatus
from icefloe.cli.aliases import add_alias, aliases_path, read_aliases
from icefloe.cli.common import (
    WHOLE,
    Output,
    Target,
    assignment,
    output_option,
    plain,
    repository_argument,
)

_NOT_SAVED = "no configuration is saved with the repository: the defaults hold"


class _ConfigGroup(click.Group):
    """`config REPOSITORY` is short for `config show REPOSITORY`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--json"]:  # before a REPOSITORY
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ConfigGroup)
def config() -> None:
    """Show the saved configuration: config REPOSITORY. Or list and add names of repositories."""


@config.command("list")
@output_option
def list_names(output: Output) -> None:
    """List the names that repositories have, in the file that the original reads, too."""
    found = read_aliases()
    width = max(map(len, found), default=0)
    output.show(
        found,
        lambda: (
            "\n".join(f"{name:<{width}}  {url}" for name, url in found.items())
            or f"no names in {aliases_path()}"
        ),
    )


@config.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--force", "-f", is_flag=True, help="Replace the name.")
@output_option
def add_name(name: str, url: str, force: bool, output: Output) -> None:
    """Give the repository at URL a name, by which all commands find it."""
    add_alias(name, url, force=force)
    output.say(f"{name} is {read_aliases()[name]}.", name=name, url=read_aliases()[name])


@config.command("show")
@repository_argument
@output_option
def show_config(target: Target, output: Output) -> None:
    """Show the saved configuration of a repository."""
    target.require_no_ref(WHOLE)
    saved = target.repo.fetch_config(target.repo.storage)
    output.show(saved, lambda: _NOT_SAVED if saved is None else _indented(saved))


@click.command()
@repository_argument
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key; JSON, or text."
)
@output_option
def metadata(target: Target, changes: tuple[str, ...], output: Output) -> None:
    """Show or change the metadata of the repository itself."""
    target.require_no_ref(WHOLE)
    found = target.repo.get_metadata()
    if changes:
        found = target.repo.update_metadata(dict(assignment(text, "--set") for text in changes))
    output.show(found, lambda: _indented(found))


@click.command()
@repository_argument
@click.option("--set", "wanted", type=click.Choice(["online", "read_only"]), help="Change it.")
@click.option("--reason", help="Why writes are not possible; others see it.")
@output_option
def status(target: Target, wanted: str | None, reason: str | None, output: Output) -> None:
    """Show or change whether a repository takes writes."""
    target.require_no_ref(WHOLE)
    if wanted is None and reason is not None:
        raise click.UsageError("--reason goes with --set.")
    if wanted is not None:
        availability = RepoAvailability[wanted]
        target.repo.set_status(
            RepoStatus(availability=availability, limited_availability_reason=reason)
        )
    found = target.repo.get_status()
    why = found.limited_availability_reason
    output.show(found, lambda: found.availability.name + (f": {why}" if why else ""))


def _indented(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, indent=2)
