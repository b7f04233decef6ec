"""`config`, `metadata` and `status`: what a repository remembers about itself."""

from __future__ import annotations

import json
from typing import Any

import click

from icefloe.api.values import RepoAvailability, RepoStatus
from icefloe.cli.common import Output, Target, assignment, output_option, plain, repository_argument


@click.command()
@repository_argument
@output_option
def config(target: Target, output: Output) -> None:
    """Show the saved configuration."""
    saved = target.repo.fetch_config(target.repo.storage)
    output.show(saved, lambda: "nothing was saved" if saved is None else _indented(saved))


@click.command()
@repository_argument
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key; JSON, or text."
)
@output_option
def metadata(target: Target, changes: tuple[str, ...], output: Output) -> None:
    """Show or change the metadata of the repository itself."""
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
