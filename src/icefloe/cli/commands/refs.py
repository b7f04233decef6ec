"""`branch`, `tag` and `reset`: names for snapshots."""

from __future__ import annotations

from pathlib import Path

import click

from icefloe.api.addresses import snapshot_of
from icefloe.cli.common import (
    Output,
    Target,
    confirm,
    output_option,
    repository_argument,
    yes_option,
)


class _ListingGroup(click.Group):
    """`branch REPOSITORY` is short for `branch list REPOSITORY`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = [word for word in args if not word.startswith("-")]
        if len(words) == 1 and words[0] not in self.commands:
            args = ["list", *args]
        elif words and words[0] not in self.commands and Path(words[0]).exists():
            named = f"icefloe {self.name} create {' '.join(words)}"
            ctx.fail(f"Say what to do with {' '.join(words[1:])}: {named}")
        return super().resolve_command(ctx, args)


@click.group(cls=_ListingGroup)
def branch() -> None:
    """List, create and delete branches. `branch REPOSITORY` lists them."""


@branch.command("list")
@repository_argument
@output_option
def list_branches(target: Target, output: Output) -> None:
    """List branches and the snapshots they point at."""
    found = {name: target.repo.lookup_branch(name) for name in sorted(target.repo.list_branches())}
    output.show(found, lambda: _lines(found))


@branch.command("create")
@repository_argument
@click.argument("name")
@click.argument("start", metavar="[FROM]", required=False)
@output_option
def create_branch(target: Target, name: str, start: str | None, output: Output) -> None:
    """Create a branch at FROM, else at the REPOSITORY's @REF, or at main."""
    tip = _chosen(target, start)
    target.repo.create_branch(name, tip)
    output.say(f"Created branch {name} at {tip}.", branch=name, snapshot=tip)


@branch.command("delete")
@repository_argument
@click.argument("name")
@yes_option
@output_option
def delete_branch(target: Target, name: str, yes: bool, output: Output) -> None:
    """Delete a branch; snapshots that nothing else refers to can then be collected."""
    tip = target.repo.lookup_branch(name)
    confirm(f"Delete branch {name}, which points at {tip}?", yes)
    target.repo.delete_branch(name)
    output.say(f"Deleted branch {name}, which pointed at {tip}.", branch=name, snapshot=tip)


@click.group(cls=_ListingGroup)
def tag() -> None:
    """List, create and delete tags. `tag REPOSITORY` lists them."""


@tag.command("list")
@repository_argument
@output_option
def list_tags(target: Target, output: Output) -> None:
    """List tags and the snapshots they point at."""
    found = {name: target.repo.lookup_tag(name) for name in sorted(target.repo.list_tags())}
    output.show(found, lambda: _lines(found) or "no tags")


@tag.command("create")
@repository_argument
@click.argument("name")
@click.argument("start", metavar="[FROM]", required=False)
@output_option
def create_tag(target: Target, name: str, start: str | None, output: Output) -> None:
    """Create a tag at FROM, else at the REPOSITORY's @REF, or at main."""
    at = _chosen(target, start)
    target.repo.create_tag(name, at)
    output.say(f"Created tag {name} at {at}.", tag=name, snapshot=at)


@tag.command("delete")
@repository_argument
@click.argument("name")
@yes_option
@output_option
def delete_tag(target: Target, name: str, yes: bool, output: Output) -> None:
    """Delete a tag; its name can never be used again."""
    at = target.repo.lookup_tag(name)
    confirm(f"Delete tag {name}, whose name can never be used again?", yes)
    target.repo.delete_tag(name)
    output.say(f"Deleted tag {name}, which pointed at {at}.", tag=name, snapshot=at)


@click.command()
@repository_argument
@click.argument("name", metavar="BRANCH")
@click.argument("where", metavar="REF")
@yes_option
@output_option
def reset(target: Target, name: str, where: str, yes: bool, output: Output) -> None:
    """Point a branch at another snapshot; refused if the branch moves meanwhile."""
    before, after = target.repo.lookup_branch(name), snapshot_of(target.repo, where)
    confirm(f"Reset branch {name} from {before} to {after}?", yes)
    target.repo.reset_branch(name, after, from_snapshot_id=before)
    output.say(
        f"Reset branch {name} from {before} to {after}.", branch=name, before=before, after=after
    )


def _chosen(target: Target, start: str | None) -> str:
    if start is None:
        return target.snapshot_id
    target.require_no_ref(f"the new name points at {start}")
    return snapshot_of(target.repo, start)


def _lines(found: dict[str, str]) -> str:
    width = max(map(len, found), default=0)
    return "\n".join(f"{name:<{width}}  {snapshot}" for name, snapshot in found.items())
