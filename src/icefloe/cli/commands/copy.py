"""`export`, `clone`, `materialize` and `migrate`: copies of a repository, in other forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icefloe.api.migration import migrate_repository, upgrade_icechunk_repository
from icefloe.cli.common import (
    Output,
    Place,
    RepositoryCommand,
    Target,
    allow_virtual_option,
    confirm,
    message_option,
    place_type,
    yes_option,
)
from icefloe.display import counted, size_text
from icefloe.exports import parquet_files, plain_zarr, repository_copy, virtual_to_native
from icefloe.format.layout import Generation

if TYPE_CHECKING:
    from icefloe.exports.objects import ExportReport


_target_argument = click.argument("where", metavar="TARGET", type=place_type)


@click.command(cls=RepositoryCommand)
@_target_argument
@click.option(
    "--format",
    "kind",
    type=click.Choice(["zarr", "parquet"]),
    default="zarr",
    show_default=True,
    help="A plain Zarr store, or Parquet files with a row for each cell.",
)
@click.option("--group", metavar="PATH", help="Of Parquet: the group; the root unless given.")
@click.option("--variable", "variables", multiple=True, metavar="NAME", help="Of Parquet: only it.")
@click.option("--where", "condition", help="Of Parquet: coordinates, such as 'lat > 40'.")
@allow_virtual_option
def export(
    target: Target,
    where: Place,
    kind: str,
    group: str | None,
    variables: tuple[str, ...],
    condition: str | None,
    allowed: dict[str, Any],
    output: Output,
) -> None:
    """Write one version as a plain Zarr store, or as Parquet files.

    The TARGET is empty, or has the files of an interrupted export of the same version. Virtual
    chunks are copied; see --allow-virtual.
    """
    options = {"group": group, "variables": list(variables) or None, "where": condition}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if kind == "zarr" and given:
        raise click.UsageError("--group, --variable and --where go with --format parquet.")
    repo = target.repo_with(allowed)
    at: dict[str, Any] = {"snapshot_id": target.snapshot_id}
    if kind == "zarr":
        report = plain_zarr.export_zarr(repo, where.storage(), **at)
    else:
        report = parquet_files.export_parquet(repo, where.storage(), **at, **given)
    _show(report, f"Exported {at['snapshot_id']} to {where.url}", output, **at, url=where.url)


@click.command(cls=RepositoryCommand)
@_target_argument
def clone(target: Target, where: Place, output: Output) -> None:
    """Copy a repository with its whole history; run again, it brings the copy up to date.

    Files of virtual chunks stay where they are.
    """
    target.require_no_ref("a clone has the whole history")
    report = repository_copy.export_repository(target.repo, where.storage())
    _show(report, f"Cloned {target.address.url} to {where.url}", output, url=where.url)


def _show(report: ExportReport, done: str, output: Output, **value: Any) -> None:
    objects, size = report.objects, report.num_bytes
    output.say(
        f"{done}: {counted(objects, 'object')}, {size_text(size)} copied.",
        objects=objects,
        bytes=size,
        **value,
    )


@click.command(cls=RepositoryCommand)
@click.argument("arrays", metavar="[ARRAY]...", nargs=-1)
@allow_virtual_option
@message_option(None)
def materialize(
    target: Target,
    arrays: tuple[str, ...],
    allowed: dict[str, Any],
    message: str | None,
    output: Output,
) -> None:
    """Copy virtual chunks into the repository, in commits to a branch.

    All arrays unless some are named, on the REPOSITORY's @REF, or on main. See --allow-virtual.
    """
    said: dict[str, Any] = {} if message is None else {"message": message}
    report = virtual_to_native.materialize(
        target.repo_with(allowed), branch=target.branch, arrays=arrays or None, **said
    )
    output.say(
        f"{counted(report.chunks, 'chunk')}, {size_text(report.num_bytes)}, native now.",
        chunks=report.chunks,
        bytes=report.num_bytes,
        snapshots=report.snapshot_ids,
    )


@click.command(cls=RepositoryCommand)
@click.argument("where", metavar="[TARGET]", type=place_type, required=False)
@click.option("--to", type=click.IntRange(1, 2), default=2, show_default=True, help="Spec version.")
@click.option("--keep-chunks", is_flag=True, help="Refer to chunk objects instead of copying them.")
@click.option("--check/--no-check", default=True, help="Read everything back and compare; on.")
@click.option("--dry-run", is_flag=True, help="Write nothing, and tell what would be done.")
@yes_option
def migrate(
    target: Target,
    where: Place | None,
    to: int,
    keep_chunks: bool,
    check: bool,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    """Make a repository of spec version 2, or 1, of one of an older version, with its history.

    Without TARGET it is done in place: no one may write meanwhile, and everybody sees the new
    version afterwards.
    """
    target.require_no_ref("a migration takes the whole history")
    if where is None and not dry_run:
        confirm(f"Migrate {target.address.url} in place to spec version {to}?", yes)
    if where is None and target.repo.generation is Generation.SPEC_1 and to == 2:
        upgrade_icechunk_repository(target.repo, dry_run=dry_run)
        done = "can be upgraded" if dry_run else "was upgraded"
        output.say(
            f"{target.address.url} {done} to spec version 2.",
            url=target.address.url,
            spec_version=2,
            dry_run=dry_run,
        )
        return
    report = migrate_repository(
        target.repo,
        None if where is None else where.storage(),
        spec_version=to,
        chunks="keep" if keep_chunks else "copy",
        dry_run=dry_run,
        check=check,
    )
    output.show(report, str(report))
