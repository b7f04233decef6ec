"""`init` and `info`: making a repository, and what one is."""

from __future__ import annotations

import click

from icefloe.api.repository import Repository
from icefloe.cli.common import (
    Output,
    Target,
    find_address,
    output_option,
    repository_argument,
    time_text,
)
from icefloe.errors import ErrorKind, IcechunkError
from icefloe.paths import is_internal


@click.command()
@click.argument("where", metavar="REPOSITORY")
@click.option(
    "--spec-version", type=click.IntRange(1, 2), default=2, help="Version of the format; 2."
)
@output_option
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


@click.command()
@repository_argument
@output_option
def info(target: Target, output: Output) -> None:
    """Show what a repository is: version, branches, tags, newest snapshot, nodes."""
    repo = target.repo
    newest = repo.lookup_snapshot(target.snapshot_id)
    with_log = repo.handle.family.has_repo_object
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

    def text() -> str:
        rows = {
            "repository": target.address.url,
            "spec version": str(int(repo.spec_version)),
            "branches": ", ".join(branches),
            "tags": ", ".join(tags) or "none",
            "snapshot": f"{newest.id}  {time_text(newest.written_at)}  {newest.message}",
            "nodes": f"{_counted(len(nodes) - arrays, 'group')}, {_counted(arrays, 'array')}",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {shown}" for name, shown in rows.items())

    output.show(value, text)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
