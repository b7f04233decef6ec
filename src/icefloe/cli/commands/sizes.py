"""`stats`: how much snapshots and arrays take, and what belongs to one snapshot alone."""

from __future__ import annotations

from itertools import islice

import click

from icefloe.api.maintenance_values import reporter
from icefloe.cli.common import (
    Output,
    Target,
    all_option,
    at_least_1,
    output_option,
    repository_argument,
    table_text,
    time_text,
)
from icefloe.display.shown import size_text
from icefloe.maintenance.usage import ArrayUsage, snapshot_usage
from icefloe.paths import is_internal
from icefloe.storage.run import run_blocking

_SIZES = ["chunks", "native", "inline", "virtual", "exclusive"]


@click.command()
@repository_argument
@click.option("--history", is_flag=True, help="Show every snapshot of @REF, or of main.")
@click.option("--limit", "-n", type=at_least_1, help="Only the newest snapshots.")
@all_option
@output_option
def stats(target: Target, history: bool, limit: int | None, show_all: bool, output: Output) -> None:
    """Show the bytes of every array of a snapshot, or of every snapshot of a history.

    Exclusive bytes are in no other snapshot that a branch or tag leads to: they can be collected
    when the snapshot has expired. Chunks that several snapshots share count in each of them. What
    icefloe's own tables take is one row, unless --all is given.
    """
    if limit is not None and not history:
        raise click.UsageError("--limit goes with --history.")
    line = islice(target.repo.ancestry(**target.ref), limit if history else 1)
    entries = {target.repo.handle.snapshot_id(one.id): one for one in line}
    with reporter(None) as report:
        found = run_blocking(snapshot_usage(target.repo.handle, list(entries), report=report))
    total = target.repo.chunk_storage_stats()

    def is_shown(one: ArrayUsage) -> bool:
        return show_all or not is_internal(one.path)

    value = {
        "repository": total,
        "snapshots": [
            {
                "snapshot": one.snapshot_id.text,
                "message": entries[one.snapshot_id].message,
                "written_at": entries[one.snapshot_id].written_at,
                "total": one.total()._asdict(),
                "arrays": [array._asdict() for array in one.arrays if is_shown(array)],
            }
            for one in found
        ],
    }

    def text() -> str:
        whole = (
            f"All snapshots together: {size_text(total.native_bytes)} native, "
            f"{size_text(total.inlined_bytes)} inline, {size_text(total.virtual_bytes)} virtual."
        )
        if not history:
            rows = [[one.path, *_sizes(one)] for one in found[0].arrays if is_shown(one)]
            own = tuple(one for one in found[0].arrays if not is_shown(one))
            if own:
                rows.append(
                    ["icefloe's own tables", *_sizes(found[0]._replace(arrays=own).total())]
                )
            rows.append(["together", *_sizes(found[0].total())])
            return table_text(["array", *_SIZES], rows, "<>>>>>") + f"\n\n{whole}"
        rows = [
            [
                one.snapshot_id.text,
                time_text(entries[one.snapshot_id].written_at),
                *_sizes(one.total()),
                entries[one.snapshot_id].message,
            ]
            for one in found
        ]
        names = ["snapshot", "written", *_SIZES, "message"]
        return table_text(names, rows, "<<>>>>><") + f"\n\n{whole}"

    output.show(value, text)


def _sizes(one: ArrayUsage) -> list[str]:
    return [f"{one.chunks:,}", *map(size_text, one[2:])]
