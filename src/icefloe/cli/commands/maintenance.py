"""`expire`, `gc`, `rewrite-manifests`, `verify`, `repair`."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from icefloe.api.addresses import snapshot_of
from icefloe.api.maintenance_values import ForkPointWarning
from icefloe.api.repository import Repository
from icefloe.cli.common import (
    WHOLE,
    JsonCommand,
    Moment,
    Output,
    Place,
    RepositoryCommand,
    Target,
    allow_virtual_option,
    at_least_1,
    confirm,
    message_option,
    place_argument,
    yes_option,
)
from icefloe.display import counted, size_text
from icefloe.errors import InvalidInputError
from icefloe.maintenance.gc import REASONS, GarbagePlan
from icefloe.maintenance.summary import GCSummary
from icefloe.storage.spec import Storage

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=RepositoryCommand)
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
def expire(
    target: Target,
    keep_last: int | None,
    cut_fork_points: bool,
    ids: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    output: Output,
    **rules: Any,
) -> None:
    """Remove old snapshots from the history. No data is deleted; see gc.

    Snapshots where branches and tags part stay, because merges need them.
    """
    target.require_no_ref(WHOLE)
    if rules["older_than"] is None and keep_last is None and not ids:
        raise click.UsageError("Say what is to expire: --older-than, --keep-last or --snapshot.")
    rules |= {
        "keep_last": keep_last or 0,
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
        [f"{verb} {counted(len(shown), 'snapshot')}.", *(f"  {one}" for one in shown)],
    )


@click.command(cls=RepositoryCommand)
@click.option("--older-than", type=Moment(), help="Delete only what was stored before: 7d, a time.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and why.")
@click.option("--save-plan", type=_PATH, help="Save what would be deleted to a file, for --plan.")
@click.option("--plan", "plan_file", type=_PATH, help="Delete what was saved by --save-plan.")
@click.option(
    "--incremental", is_flag=True, help="Only what was dropped since the last --incremental one."
)
@click.option(
    "--full-every", type=at_least_1, default=10, help="Of the incremental ones, this is full; 10."
)
@yes_option
def gc(
    target: Target,
    older_than: datetime | None,
    dry_run: bool,
    save_plan: Path | None,
    plan_file: Path | None,
    incremental: bool,
    full_every: int,
    yes: bool,
    output: Output,
) -> None:
    """Delete objects that no branch or tag leads to.

    Choose --older-than so that every session that is writing now was opened later. With
    --incremental nothing is listed; what no snapshot ever named waits for a full collection.
    """
    target.require_no_ref(WHOLE)
    if incremental:
        if older_than is None or save_plan is not None or plan_file is not None:
            raise click.UsageError("--incremental needs --older-than, and goes without plans.")
        _gc_incrementally(target, older_than, full_every, dry_run, yes, output)
        return
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
        output.show(value, f"saved to {save_plan}" if save_plan else "nothing was deleted")
        return
    confirm(f"Delete {counted(plan.num_objects(), 'object')} of {target.address.url}?", yes)
    summary = target.repo.run_garbage_collection(plan)
    value["deleted"] = asdict(summary)
    output.show(value, f"Deleted {_numbers(summary)}.")
    _require_all_deleted(summary)


def _gc_incrementally(
    target: Target, older_than: datetime, full_every: int, dry_run: bool, yes: bool, output: Output
) -> None:
    collect = partial(
        target.repo.garbage_collect, older_than, incremental=True, full_every=full_every
    )
    found = collect(dry_run=True)
    how = f"a full collection, because {found.full_because}"
    if not found.looked_for_orphans:
        how = "an incremental collection, which does not look for orphans"
    if dry_run:
        output.show({"found": asdict(found), "deleted": None}, f"{_numbers(found)}, by {how}")
        return
    confirm(f"Delete {_numbers(found)} of {target.address.url}, by {how}?", yes)
    summary = collect()
    said = f"Deleted {_numbers(summary)}, by {how}."
    output.show({"found": asdict(found), "deleted": asdict(summary)}, said)
    _require_all_deleted(summary)


def _numbers(summary: GCSummary) -> str:
    number = sum(getattr(summary, f"{kind}_deleted") for kind in REASONS)
    return f"{counted(number, 'object')}, {size_text(summary.bytes_deleted)}"


def _require_all_deleted(summary: GCSummary) -> None:
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


@click.command("rewrite-manifests", cls=RepositoryCommand)
@message_option("rewrote manifests")
@click.option("--amend", is_flag=True, help="Replace the newest commit instead of adding one.")
def rewrite_manifests(target: Target, message: str, amend: bool, output: Output) -> None:
    """Rewrite all manifests of a branch, in the splits that the configuration asks for.

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


UNHEALTHY = 6


@click.command(cls=JsonCommand)
@place_argument
@click.option("--read-chunks", is_flag=True, help="Read every chunk and decode it.")
@click.option("--virtual-sources", is_flag=True, help="Check the files of virtual chunks, too.")
@click.option("--orphans/--no-orphans", default=True, help="Report unused objects; on.")
@click.option("--max-findings", type=at_least_1, default=1000, help="Of a kind; 1000.")
@allow_virtual_option
def verify(place: Place, allowed: dict[str, Any], output: Output, **checks: Any) -> int:
    """Check that all files of a repository exist, are complete and fit together.

    Also works where a repository is too damaged to be opened. The exit code is 6 if it is not
    healthy.
    """
    report = Repository.verify_storage(
        place.storage(), authorize_virtual_chunk_access=allowed, **checks
    )
    value = {
        "healthy": report.is_healthy,
        "errors": report.num_errors,
        "checked": report.checked,
        "counts": {str(kind): number for kind, number in report.counts.items()},
        "findings": [finding._asdict() for finding in report.findings],
    }
    output.show(value, str(report))
    return 0 if report.is_healthy else UNHEALTHY


@click.command(cls=JsonCommand)
@place_argument
@click.option("--branch", default="main", show_default=True, help="The branch to repair.")
@click.option("--virtual-sources", is_flag=True, help="Also drop references to dead files.")
@click.option(
    "--repoint", nargs=2, metavar="OLD NEW", help="Files of virtual chunks moved: URL prefixes."
)
@click.option("--rescue", is_flag=True, help="Rebuild a lost repo object, or a branch without tip.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@allow_virtual_option
@yes_option
def repair(
    place: Place,
    branch: str,
    virtual_sources: bool,
    repoint: tuple[str, str] | None,
    rescue: bool,
    dry_run: bool,
    allowed: dict[str, Any],
    yes: bool,
    output: Output,
) -> None:
    """Drop references that lead nowhere, in one commit; or repoint them; or rescue lost refs.

    What is missing is not brought back: chunks whose references are dropped read as the fill
    value. Older snapshots do not change.
    """
    if rescue and (repoint or virtual_sources):
        raise click.UsageError("--rescue goes alone: run it first, then repair the rest.")
    if rescue:
        _rescue(place.storage(), dry_run, yes, output)
        return
    repo = Repository.open(place.storage(), authorize_virtual_chunk_access=allowed)
    plan = (
        repo.plan_repoint(*repoint, branch=branch)
        if repoint
        else repo.plan_repair(branch=branch, virtual_sources=virtual_sources)
    )
    made = None
    if not plan.is_empty and not dry_run:
        click.echo(str(plan), err=output.as_json)
        confirm(f"Commit this repair to {branch}?", yes)
        made = repo.run_repair(plan)
    value = {"actions": [action._asdict() for action in plan.actions], "snapshot": made}
    output.show(value, str(plan) if made is None else f"Repaired {branch}: {made}.")


def _rescue(storage: Storage, dry_run: bool, yes: bool, output: Output) -> None:
    plan = Repository.plan_rescue(storage)
    is_done = not plan.is_empty and not dry_run
    if is_done:
        click.echo(str(plan), err=output.as_json)
        confirm("Write this?", yes)
        Repository.run_rescue(storage, plan)
    value = {"actions": [action._asdict() for action in plan.actions], "done": is_done}
    output.show(value, "Rescued." if is_done else str(plan))
