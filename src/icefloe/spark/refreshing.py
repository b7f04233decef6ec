"""`refresh`: bring a derived group up to date by computing the blocks whose sources changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from icefloe.api.repository import Repository
from icefloe.blocks import plan
from icefloe.blocks.changes import (
    affected_blocks,
    blocks_with,
    changed_cells,
    changed_coords,
    difference,
    new_cells,
)
from icefloe.blocks.expressions import Expression, sources_of
from icefloe.blocks.fingerprints import fingerprint
from icefloe.changes.conflicts import ConflictSolver
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.repo.commit_notes import DERIVED
from icefloe.scans.scan import as_repository
from icefloe.spark.dataset_writer import ShownWrite
from icefloe.spark.datasets import SparkDataset, Target, lineage, types_of, write_blocks
from icefloe.spark.shared_write import BatchId


@dataclass(frozen=True, slots=True, repr=False)
class RefreshReport(ShownWrite):
    """What a refresh did. Without blocks nothing had changed, and nothing was committed."""

    snapshot_id: str
    blocks: int
    total_blocks: int
    """The blocks of the whole result."""
    bytes_read: int
    """Bytes of the cells that were read from sources."""
    chunks_written: int
    bytes_written: int
    seconds: float
    full: str
    """Why everything was computed; empty where only some blocks were."""


class _Derived(NamedTuple):
    """The commit that computed a group last, and what it says about it."""

    snapshot_id: str
    record: Mapping[str, Any]


def refresh(
    result: SparkDataset,
    repository: Repository | str,
    *,
    group: str = "",
    branch: str = "main",
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    transaction: tuple[str, int] | None = None,
) -> RefreshReport:
    """Bring a group that `write` made up to date with its sources, in one commit.

    The commit names the snapshots it was computed from. Blocks whose source chunks changed since
    then are computed from all of their inputs. Everything is computed, and the report says why, if
    the computation is another one, if a source changed in other ways than by an append or by new
    values, or if its recorded snapshot is gone.

    Args:
        result: the computation that made the group, on the new version of its sources. Functions
            are not stored, so it is written again.
        repository: the `Repository` with the group, or its URL.
        group: the path of the group; the root unless given.
        branch: the branch to commit to.
        message: of the commit.
        metadata: of the commit, besides the lineage.
        rebase_with: decides conflicts with commits of others.
        transaction: as in `SparkDataset.write`.

    Raises:
        InvalidInputError: `write` has not made the group.
        ConflictError: the group was edited since it was computed.

    >>> def mean():
    ...     return icefloe.spark.open_dataset(spark, repo, branch="main").mean("time")
    >>> first = mean().write(repo, group="mean")
    >>> with repo.transaction("main", message="Correct the third day") as store:
    ...     zarr.open_array(store, path="t2m")[2] = 282
    >>> icefloe.spark.refresh(mean(), repo, group="mean").blocks
    1
    """
    target = as_repository(repository)
    batch, started = BatchId.of(transaction), time.monotonic()
    session = target.writable_session(branch)
    if batch is not None and (known := batch.find(target, session.snapshot_id)) is not None:
        return RefreshReport(known, 0, 0, 0, 0, 0, 0.0, "")
    path = "/" + group.strip("/")
    last = _last(target, session.snapshot_id, path)
    _require_unedited(target, last, session.snapshot_id, path)
    made = Target(session, group.strip("/"), "replace", None, None)
    found = _plan(result, made, last)
    if isinstance(found, str):
        encoding = made.stored_encoding(result.expression.layout, last.record.get("types"))
        work = _Work(made.prepare(result.expression, encoding, result.memory), None)
    else:
        work = found
    full = found if isinstance(found, str) else ""
    total = work.expression.layout.num_blocks
    blocks = total if work.wanted is None else len(work.wanted)
    if not blocks:
        return RefreshReport(last.snapshot_id, 0, total, 0, 0, 0, time.monotonic() - started, "")
    engine = result.engine.at(target.storage)
    counts = write_blocks(engine, work.expression, made, work.wanted)
    about = {**(metadata or {}), **lineage(result.expression, group, batch)}
    snapshot_id = session.commit(message or f"refresh {path}", about, rebase_with=rebase_with)
    read = plan.bytes_read(work.expression, work.wanted)
    seconds = time.monotonic() - started
    return RefreshReport(
        snapshot_id, blocks, total, read, counts.chunks, counts.bytes, seconds, full
    )


def _last(repository: Repository, snapshot_id: str, path: str) -> _Derived:
    for info in repository.ancestry(snapshot_id=snapshot_id):
        record: Any = info.metadata.get(DERIVED)
        if isinstance(record, dict) and record.get("group") == path:
            return _Derived(info.id, record)
    raise InvalidInputError(
        f"no commit of the branch says how {path} was computed; write the group once with "
        "result.write(repository, group=...)"
    )


def _require_unedited(repository: Repository, last: _Derived, snapshot_id: str, path: str) -> None:
    if last.snapshot_id == snapshot_id:
        return
    diff = difference(repository, last.snapshot_id, snapshot_id)
    if diff is None:
        touched = {path}
    else:
        nodes = diff.new_arrays | diff.deleted_arrays | diff.updated_arrays | diff.updated_groups
        nodes |= set(diff.updated_chunks) | {name for move in diff.moved_nodes for name in move}
        touched = {
            name
            for name in nodes | diff.deleted_groups
            if name == path or name.rpartition("/")[0] == path.rstrip("/")
        }
    if touched:
        raise ConflictError(
            f"{', '.join(sorted(touched))} changed since snapshot {last.snapshot_id} computed "
            f"{path}, and a refresh would mix both: undo that change, or write the result to "
            "another group"
        )


class _Work(NamedTuple):
    """Blocks to compute; all of them with None."""

    expression: Expression
    wanted: set[int] | None


def _plan(result: SparkDataset, made: Target, last: _Derived) -> _Work | str:
    """The blocks to compute, with the arrays grown for them; or why it must be everything."""
    expression = result.expression
    sources, recorded = sources_of(expression), list(last.record["sources"])
    places = [*dict.fromkeys(source.place for source in sources)]
    if fingerprint(expression.describe()) != last.record["computation"]:
        return "the computation is another one than before"
    if ["/" + group for _, _, group in places] != [one["group"] for one in recorded]:
        return "the sources are other groups than before"
    since = {place: one["snapshot_id"] for place, one in zip(places, recorded, strict=True)}
    new = new_cells(expression, last.record.get("places", ()))
    changed = {}
    for source in sources:
        cells = changed_cells(source, since[source.place])
        if isinstance(cells, str):
            return cells
        changed[source.key] = cells
    template = expression.layout.template
    before = made.stored()
    grown = _grown(before, template)
    if isinstance(grown, str):
        return grown
    why = changed_coords(before, expression.layout)
    if why is not None:
        return f"of the result, {why}"
    if last.record.get("types") != types_of(expression):
        return "variables of the result have other types"
    if new is None:
        return "an append moved cells, or blocks are cut otherwise than before"
    for dim, old in grown.items():
        made.grow(expression.layout, dim, old)
    aligned = made.aligned(expression, result.memory)
    wanted = affected_blocks(aligned, changed, new)
    for dim, old in grown.items():
        wanted.update(blocks_with(aligned, {dim: np.arange(old, template.sizes[dim])}))
    return _Work(aligned, wanted)


def _grown(before: xr.Dataset, template: xr.Dataset) -> dict[str, int] | str:
    """The dimension of the result that became longer, with its old length."""
    for name, variable in template.variables.items():
        if name not in before.variables or before.variables[name].dims != variable.dims:
            return f"the result has other variables or dimensions: {name}"
    grown = {}
    for dim, size in template.sizes.items():
        if before.sizes[dim] > size:
            return f"the result became shorter along {dim!r}"
        if before.sizes[dim] < size:
            grown[str(dim)] = int(before.sizes[dim])
    if len(grown) > 1:
        return f"the result grew along several dimensions: {', '.join(sorted(grown))}"
    return grown
