"""`expire`, `gc` and `rewrite-manifests`: old versions, unused objects, manifests."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from icefloe.api.addresses import snapshot_of
from icefloe.api.maintenance_values import ForkPointWarning
from icefloe.cli.common import (
    WHOLE,
    Output,
    Target,
    at_least_1,
    confirm,
    message_option,
    output_option,
    repository_argument,
    yes_option,
)
from icefloe.cli.moments import Moment
from icefloe.display.shown import counted, size_text
from icefloe.errors import InvalidInputError
from icefloe.maintenance.garbage import GarbagePlan

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@repository_argument
@click.option(
    "--older-than", type=Moment(), help="Snapshots older than this: 30d, 2026-01-31, now."
)
@click.option("--keep-last", type=at_least_1, help="Keep the newest of every branch.")
@click.option("--keep-tagged", is_flag=True, help="Keep tagged snapshots with their ancestors.")
@click.option(
    "--cut-fork-points",
    is_flag=True,
    help="Let snapshots expire where branches and tags part, as Icechunk does; merges need them.",
)
@click.option("--snapshot", "ids", multiple=True, metavar="ID", help="Expire exactly this one.")
@click.option("--delete-expired-branches", is_flag=True, help="Delete branches with old tips.")
@click.option("--delete-expired-tags", is_flag=True, help="Delete tags of old snapshots.")
@click.option("--dry-run", is_flag=True, help="Only show what would expire.")
@yes_option
@output_option
def expire(
    target: Target,
    older_than: datetime | None,
    keep_last: int | None,
    keep_tagged: bool,
    cut_fork_points: bool,
    ids: tuple[str, ...],
    delete_expired_branches: bool,
    delete_expired_tags: bool,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    """Remove old snapshots from the history. No data is deleted; see gc.

    Snapshots where branches and tags part stay, because merges need them.
    """
    target.require_no_ref(WHOLE)
    if older_than is None and keep_last is None and not ids:
        raise click.UsageError("Say what is to expire: --older-than, --keep-last or --snapshot.")
    rules: dict[str, Any] = {
        "older_than": older_than,
        "delete_expired_branches": delete_expired_branches,
        "delete_expired_tags": delete_expired_tags,
        "keep_last": keep_last or 0,
        "keep_tagged": keep_tagged,
        "keep_fork_points": not cut_fork_points and not ids,
        "snapshot_ids": [snapshot_of(target.repo, one) for one in ids] or None,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ForkPointWarning)
        expired = target.repo.expire_snapshots(**rules, dry_run=True)
    said = [str(warning.message) for warning in caught]
    for text in said:
        click.echo(f"Warning: {text}.", err=True)
    if expired and not dry_run:
        confirm(f"Expire {counted(len(expired), 'snapshot')} of {target.address.url}?", yes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForkPointWarning)
            expired = target.repo.expire_snapshots(**rules)
    verb = "Would expire" if dry_run else "Expired"
    shown = sorted(expired)
    output.show(
        {"expired": shown, "dry_run": dry_run, "warnings": said},
        lambda: "\n".join(
            [f"{verb} {counted(len(shown), 'snapshot')}.", *(f"  {one}" for one in shown)]
        ),
    )


@click.command()
@repository_argument
@click.option("--older-than", type=Moment(), help="Delete only what was stored before: 7d, a time.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and why.")
@click.option("--save-plan", type=_PATH, help="Save what would be deleted to a file, for --plan.")
@click.option("--plan", "plan_file", type=_PATH, help="Delete what was saved by --save-plan.")
@yes_option
@output_option
def gc(
    target: Target,
    older_than: datetime | None,
    dry_run: bool,
    save_plan: Path | None,
    plan_file: Path | None,
    yes: bool,
    output: Output,
) -> None:
    """Delete objects that no branch or tag leads to.

    Choose --older-than so that every session that is writing now was opened later.
    """
    target.require_no_ref(WHOLE)
    if (older_than is None) == (plan_file is None):
        raise click.UsageError("Give --older-than, such as --older-than 7d, or --plan FILE.")
    if save_plan is not None and not save_plan.parent.is_dir():
        raise click.UsageError(f"--save-plan {save_plan}: there is no folder {save_plan.parent}.")
    if plan_file is not None:
        plan = _load(plan_file)
    else:
        assert older_than is not None
        plan = target.repo.plan_garbage_collection(older_than)
    value: dict[str, Any] = {"plan": _described(plan), "deleted": None}
    if save_plan is not None:
        plan.save(save_plan)
        value["saved"] = str(save_plan)
    if not output.as_json:
        click.echo(str(plan))
    if dry_run or save_plan is not None or not plan.num_objects():
        output.show(value, lambda: f"saved to {save_plan}" if save_plan else "nothing was deleted")
        return
    confirm(f"Delete {counted(plan.num_objects(), 'object')} of {target.address.url}?", yes)
    summary = target.repo.run_garbage_collection(plan)
    value["deleted"] = asdict(summary)
    deleted = sum(getattr(summary, f"{kind}_deleted") for kind in plan.objects)
    output.show(
        value, lambda: f"Deleted {counted(deleted, 'object')}, {size_text(summary.bytes_deleted)}."
    )
    if summary.objects_failed_to_delete:
        raise click.ClickException(
            f"{counted(summary.objects_failed_to_delete, 'object')} could not be deleted: "
            f"{'; '.join(summary.delete_errors)}. Run the same command again."
        )


def _load(path: Path) -> GarbagePlan:
    if not path.exists():
        raise InvalidInputError(f"{path}: there is no such plan; save one with gc --save-plan")
    return GarbagePlan.load(path)


def _described(plan: GarbagePlan) -> dict[str, Any]:
    kinds = {
        kind: {"objects": plan.num_objects(kind), "bytes": plan.num_bytes(kind)}
        for kind in plan.objects
    }
    return {"objects": plan.num_objects(), "bytes": plan.num_bytes(), "kinds": kinds}


@click.command("rewrite-manifests")
@repository_argument
@message_option("rewrote manifests")
@click.option("--amend", is_flag=True, help="Replace the newest commit instead of adding one.")
@output_option
def rewrite_manifests(target: Target, message: str, amend: bool, output: Output) -> None:
    """Write all manifests of a branch anew, in the splits that the configuration asks for.

    The branch is the REPOSITORY's @REF, or main.
    """
    branch = target.branch
    made = target.repo.rewrite_manifests(
        message, branch=branch, commit_method="amend" if amend else "new_commit"
    )
    files = target.repo.list_manifest_files(made)
    output.say(
        f"Rewrote {branch} as {made}, with {counted(len(files), 'manifest')}.",
        branch=branch,
        snapshot=made,
        manifests=files,
    )
