"""`inspect`: what is in the metadata files of a repository."""

from __future__ import annotations

import json

import click

from icefloe.api.addresses import snapshot_of
from icefloe.cli.common import Output, Target, output_option, plain, repository_argument
from icefloe.errors import InvalidInputError

_KINDS = ("snapshot", "log", "manifest", "repo")


@click.command()
@repository_argument
@click.argument("kind", type=click.Choice(_KINDS), default="snapshot")
@click.argument("key", metavar="[ID]", required=False)
@output_option
def inspect(target: Target, kind: str, key: str | None, output: Output) -> None:
    """Show a metadata file: a snapshot, the log of a commit, a manifest, or the repo object.

    ID is that of a snapshot or manifest, or a branch or tag. Snapshots and logs are those of the
    REPOSITORY's @REF, or of main, unless an ID is given.
    """
    if kind == "manifest" and key is None:
        raise click.UsageError("manifest needs the ID of one; `icefloe show` lists them as JSON.")
    if kind == "repo" and key is not None:
        raise click.UsageError("There is one repo object; it has no ID.")
    match kind:
        case "snapshot":
            found = target.repo.inspect_snapshot(_named(target, key))
        case "log":
            found = target.repo.inspect_transaction_log(_named(target, key))
        case "manifest":
            found = target.repo.inspect_manifest(key or "")
        case _:
            found = target.repo.inspect_repo_info()
    output.show(found, lambda: json.dumps(plain(found), ensure_ascii=False, indent=2))


def _named(target: Target, key: str | None) -> str:
    """The snapshot with this id, listed or not, or the one that a name stands for."""
    if key is None:
        return target.snapshot_id
    try:
        return target.repo.handle.snapshot_id(key).text
    except InvalidInputError:
        return snapshot_of(target.repo, key)
