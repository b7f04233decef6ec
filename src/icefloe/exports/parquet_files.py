"""`export_parquet`: the cells of a group as Parquet files, one for each piece of the scan."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow.parquet as pq

from icefloe.api.maintenance_values import reporter
from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.exports.objects import (
    ExportReport,
    Places,
    remove_working_folders,
    total,
)
from icefloe.maintenance.engine import Engine, LocalEngine
from icefloe.maintenance.progress import Report
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.scan import (
    PinnedSnapshot,
    ReadOptions,
    Scan,
    as_repository,
    pin,
    read_options,
)
from icefloe.storage.driver import Driver, Span, find_object
from icefloe.storage.run import run_blocking
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

    >>> report = icefloe.export_parquet(repo, "parquet", branch="main")
    """
    opened = as_repository(repository, is_shared=False)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    with reporter(progress) as report:
        engine = LocalEngine(Places.of(opened, target), report)
        return run_blocking(write_parquet(engine, source, read_options(**options)))


async def write_parquet(
    engine: Engine[Places], source: PinnedSnapshot, wanted: ReadOptions
) -> ExportReport:
    """Write the files that are not there yet."""
    scan = plan_read(source, wanted)
    driver = engine.here.target
    await _begin(driver, source, wanted)
    work = partial(_write_files, scan)
    # A scan without rows makes one file, which has the columns.
    numbers = range(max(scan.num_partitions, 1))
    written = await total(engine.map("writing files", work, numbers))
    await driver.sync()
    await driver.put(_DONE, b"")
    remove_working_folders(driver)
    return written


async def _begin(driver: Driver, source: PinnedSnapshot, wanted: ReadOptions) -> None:
    """Refuse a target that has anything but the files of an interrupted call."""
    note = f"{source.snapshot_id} {hashlib.sha256(repr(wanted).encode()).hexdigest()}".encode()
    there = {found.key for found in await driver.list("")}
    found = await find_object(driver, _NOTE, needs_bucket=False)
    if there and (found is None or found[0] != note):
        raise InvalidInputError(
            f"the target is not empty (it has {min(there)!r}), and no export of this snapshot with "
            "these arguments was begun there; choose an empty place"
        )
    if found is None:
        await driver.put(_NOTE, note)


async def _write_files(
    scan: Scan, places: Places, numbers: Iterable[int]
) -> AsyncIterator[ExportReport]:
    """Write the files of some pieces, unless they are there."""
    driver = places.target
    for number in numbers:
        name = f"part-{number:05d}.parquet"
        if await _is_whole(driver, name):
            continue
        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, scan.schema, compression="zstd") as writer:
            for batch in scan.read(number) if scan.num_partitions else ():
                writer.write_batch(batch)
        data = buffer.getvalue()
        await driver.put(name, data)
        yield ExportReport(1, len(data))
    await driver.sync()


async def _is_whole(driver: Driver, name: str) -> bool:
    """Whether a file is there, to its end."""
    found = await driver.head_many([name])
    size = int(found.size_bytes[0])
    if size < len(_LAST_BYTES):
        return False
    last = await driver.get(name, Span(size - len(_LAST_BYTES), len(_LAST_BYTES)))
    return bytes(last) == _LAST_BYTES
