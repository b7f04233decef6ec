"""`init`, `info`, `branch`, `tag`, `reset`, `config`, `metadata`, `status`."""

from __future__ import annotations

from pathlib import Path

import click

from icefloe.api.addresses import snapshot_of
from icefloe.api.repository import Repository
from icefloe.api.values import RepoAvailability, RepoStatus
from icefloe.cli.aliases import add_alias, aliases_path, read_aliases
from icefloe.cli.common import (
    WHOLE,
    JsonCommand,
    Output,
    RepositoryCommand,
    Target,
    assignment,
    confirm,
    entry_text,
    find_address,
    json_text,
    pairs_text,
    yes_option,
)
from icefloe.display import counted
from icefloe.errors import ErrorKind, IcechunkError
from icefloe.paths import is_internal


class _ListingGroup(click.Group):
    """`branch REPOSITORY` is short for `branch list REPOSITORY`."""

    command_class = RepositoryCommand

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


def _ref_group(kind: str, plural: str, *, after_delete: str, question: str) -> click.Group:
    """The commands for branches, or those for tags."""

    def lookup(target: Target, name: str) -> str:
        snapshot: str = getattr(target.repo, f"lookup_{kind}")(name)
        return snapshot

    @click.group(
        kind,
        cls=_ListingGroup,
        help=f"List, create and delete {plural}. `{kind} REPOSITORY` lists them.",
    )
    def group() -> None:
        pass

    @group.command("list", help=f"List {plural} and the snapshots they point at.")
    def list_refs(target: Target, output: Output) -> None:
        names = sorted(getattr(target.repo, f"list_{plural}")())
        found = {name: lookup(target, name) for name in names}
        output.show(found, pairs_text(found) if found else f"no {plural}")

    @group.command(
        "create", help=f"Create a {kind} at FROM, else at the REPOSITORY's @REF, or at main."
    )
    @click.argument("name")
    @click.argument("start", metavar="[FROM]", required=False)
    def create(target: Target, name: str, start: str | None, output: Output) -> None:
        if start is not None:
            target.require_no_ref(f"the new name points at {start}")
        snapshot = snapshot_of(target.repo, target.address.ref if start is None else start)
        getattr(target.repo, f"create_{kind}")(name, snapshot)
        output.say(f"Created {kind} {name} at {snapshot}.", **{kind: name}, snapshot=snapshot)

    @group.command("delete", help=f"Delete a {kind}; {after_delete}.")
    @click.argument("name")
    @yes_option
    def delete(target: Target, name: str, yes: bool, output: Output) -> None:
        snapshot = lookup(target, name)
        confirm(f"Delete {kind} {name}, {question.format(snapshot)}?", yes)
        getattr(target.repo, f"delete_{kind}")(name)
        output.say(
            f"Deleted {kind} {name}, which pointed at {snapshot}.",
            **{kind: name},
            snapshot=snapshot,
        )

    return group


branch = _ref_group(
    "branch",
    "branches",
    after_delete="snapshots that nothing else refers to can then be collected",
    question="which points at {}",
)
tag = _ref_group(
    "tag",
    "tags",
    after_delete="its name can never be used again",
    question="whose name can never be used again",
)


@click.command(cls=RepositoryCommand)
@click.argument("name", metavar="BRANCH")
@click.argument("where", metavar="REF")
@yes_option
def reset(target: Target, name: str, where: str, yes: bool, output: Output) -> None:
    """Point a branch at another snapshot; refused if the branch moves meanwhile."""
    before, after = target.repo.lookup_branch(name), snapshot_of(target.repo, where)
    confirm(f"Reset branch {name} from {before} to {after}?", yes)
    target.repo.reset_branch(name, after, from_snapshot_id=before)
    output.say(
        f"Reset branch {name} from {before} to {after}.", branch=name, before=before, after=after
    )


@click.command(cls=JsonCommand)
@click.argument("where", metavar="REPOSITORY")
@click.option(
    "--spec-version", type=click.IntRange(1, 2), default=2, help="Version of the format; 2."
)
def init(where: str, spec_version: int, output: Output) -> None:
    """Create an empty repository in an empty place."""
    address = find_address(where)
    if address.ref is not None:
        raise click.UsageError(f"{where}: a repository that is created has no {address.ref!r} yet.")
    storage = address.storage()
    try:
        repo = Repository.create(storage, spec_version=spec_version)
    except IcechunkError as error:
        is_taken = error.kind == ErrorKind.PARENT_DIRECTORY_NOT_CLEAN
        if is_taken and Repository.exists(storage):
            error.add_note(f"there is a repository already: icefloe info {where}")
        raise
    output.say(
        f"Created a repository at {address.url}.",
        url=address.url,
        spec_version=int(repo.spec_version),
        snapshot=repo.lookup_branch("main"),
    )


@click.command(cls=RepositoryCommand)
def info(target: Target, output: Output) -> None:
    """Show what a repository is: version, branches, tags, newest snapshot, nodes."""
    repo = target.repo
    newest = repo.lookup_snapshot(target.snapshot_id)
    with_log = repo.handle.format.has_repo_object
    state = target.session().workspace.state
    nodes = [node for node in state.view.all_nodes() if not is_internal(node.path)]
    arrays = sum(node.array is not None for node in nodes)
    branches, tags = sorted(repo.list_branches()), sorted(repo.list_tags())
    value = {
        "storage": target.address.url,
        "spec_version": int(repo.spec_version),
        "status": repo.status.availability if with_log else "online",
        "branches": branches,
        "tags": tags,
        "snapshot": newest,
        "groups": len(nodes) - arrays,
        "arrays": arrays,
    }
    rows = {
        "repository": target.address.url,
        "spec version": str(int(repo.spec_version)),
        "branches": ", ".join(branches),
        "tags": ", ".join(tags) or "none",
        "snapshot": entry_text(newest),
        "nodes": f"{counted(len(nodes) - arrays, 'group')}, {counted(arrays, 'array')}",
    }
    output.show(value, pairs_text(rows))


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


@config.command("list", cls=JsonCommand)
def list_names(output: Output) -> None:
    """List the names that repositories have, in the file that the original reads, too."""
    found = read_aliases()
    output.show(found, pairs_text(found) if found else f"no names in {aliases_path()}")


@config.command("add", cls=JsonCommand)
@click.argument("name")
@click.argument("url")
@click.option("--force", "-f", is_flag=True, help="Replace the name.")
def add_name(name: str, url: str, force: bool, output: Output) -> None:
    """Give the repository at URL a name, by which all commands find it."""
    add_alias(name, url, force=force)
    output.say(f"{name} is {read_aliases()[name]}.", name=name, url=read_aliases()[name])


@config.command("show", cls=RepositoryCommand)
def show_config(target: Target, output: Output) -> None:
    """Show the saved configuration of a repository."""
    target.require_no_ref(WHOLE)
    saved = target.repo.fetch_config(target.repo.storage)
    output.show(saved, _NOT_SAVED if saved is None else json_text(saved))


@click.command(cls=RepositoryCommand)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key; JSON, or text."
)
def metadata(target: Target, changes: tuple[str, ...], output: Output) -> None:
    """Show or change the metadata of the repository itself."""
    target.require_no_ref(WHOLE)
    found = target.repo.get_metadata()
    if changes:
        found = target.repo.update_metadata(dict(assignment(text, "--set") for text in changes))
    output.show(found, json_text(found))


@click.command(cls=RepositoryCommand)
@click.option("--set", "wanted", type=click.Choice(["online", "read_only"]), help="Change it.")
@click.option("--reason", help="Why writes are not possible; others see it.")
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
    output.show(found, found.availability.name + (f": {why}" if why else ""))
