"""`export_parquet`: the cells of a group as Parquet files, one for each piece of the scan."""

from __future__ import annotations

import hashlib
import io
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from icefloe.api.maintenance_values import reporter
from icefloe.errors import InvalidInputError
from icefloe.exports.objects import (
    ExportReport,
    as_repository,
    remove_working_folders,
    target_driver,
)
from icefloe.scans.choose_scan import plan_read
from icefloe.scans.options import ReadOptions, read_options
from icefloe.scans.pinned import PinnedSnapshot, pin
from icefloe.scans.scan import Scan
from icefloe.storage.driver import Driver, Span, find_object
from icefloe.storage.run import run_blocking

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.maintenance.progress import Report
    from icefloe.storage.spec import Storage

_NOTE = "_icefloe_export"
_DONE = "_SUCCESS"
_LAST_BYTES = b"PAR1"
"""Of every Parquet file. One that broke off does not have them."""


def export_parquet(
    repository: Repository | str,
    target: Storage | str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    progress: Report | None = None,
    **options: Any,
) -> ExportReport:
    """Write the cells of a group as Parquet files: one row per cell, as `icefloe.spark.read` has.

    After an interruption, repeat the call with the same arguments: whole files are not written
    again. `_SUCCESS` comes last. Files whose names start with `_` are no data to readers of
    Parquet.

    Args:
        repository: a `Repository`, or a URL as for `storage_from_url`.
        target: a storage or its URL; empty, or with the files of an interrupted call.
        branch: `main` unless another ref is given.
        as_of: with a branch, its newest snapshot at that time.
        progress: called regularly with a `Progress`. Without it, a terminal shows a bar.
        options: `group`, `variables`, `dims`, `layout`, `where`, `columns`, `missing`, `decode` and
            `split_size` of `icefloe.spark.read`.
        tag: the version to export, if not a branch.
        snapshot_id: the version to export, if not a branch.

    Raises:
        InvalidInputError: something cannot be read as asked for, or the target has something else.
    """
    opened = as_repository(repository)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    wanted = read_options(**options)
    scan = plan_read(source, wanted)
    driver = target_driver(target, outside=opened.storage)
    begin_parquet(driver, source, wanted)
    objects = size = 0
    with reporter(progress) as report:
        for number in range(num_files(scan)):
            report.tell("writing files", number, scan.num_partitions)
            if not run_blocking(is_whole(driver, number)):
                objects += 1
                size += write_file(driver, scan, number)
    finish_parquet(driver)
    return ExportReport(objects, size)


def begin_parquet(driver: Driver, source: PinnedSnapshot, wanted: ReadOptions) -> None:
    """Refuse a target that has anything but the files of an interrupted call."""
    note = f"{source.snapshot_id} {hashlib.sha256(repr(wanted).encode()).hexdigest()}".encode()
    there = {found.key for found in run_blocking(driver.list(""))}
    found = run_blocking(find_object(driver, _NOTE, needs_bucket=False))
    if there and (found is None or found[0] != note):
        raise InvalidInputError(
            f"the target is not empty (it has {min(there)!r}), and no export of this snapshot with "
            "these arguments was begun there; choose an empty place"
        )
    if found is None:
        run_blocking(driver.put(_NOTE, note))


def num_files(scan: Scan) -> int:
    """One for each piece. A scan without rows makes one file, which has the columns."""
    return max(scan.num_partitions, 1)


def file_name(number: int) -> str:
    """The file of one piece."""
    return f"part-{number:05d}.parquet"


async def is_whole(driver: Driver, number: int) -> bool:
    """Whether the file of a piece is there, to its end."""
    found = await driver.head_many([file_name(number)])
    size = int(found.size_bytes[0])
    if size < len(_LAST_BYTES):
        return False
    last = await driver.get(file_name(number), Span(size - len(_LAST_BYTES), len(_LAST_BYTES)))
    return bytes(last) == _LAST_BYTES


def write_file(driver: Driver, scan: Scan, number: int) -> int:
    """Write the file of one piece; returns its size."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, scan.schema, compression="zstd") as writer:
        for batch in scan.read(number) if scan.num_partitions else ():
            writer.write_batch(batch)
    data = buffer.getvalue()
    run_blocking(driver.put(file_name(number), data))
    return len(data)


def finish_parquet(driver: Driver) -> None:
    """Say that all files are there."""
    run_blocking(driver.sync())
    run_blocking(driver.put(_DONE, b""))
    remove_working_folders(driver)
