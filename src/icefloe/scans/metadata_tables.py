"""The metadata tables by name, their views, and the tables of stored files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe import paths
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.assets.assets import Assets
from icefloe.errors import FormatError, InvalidInputError, SnapshotNotFoundError
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import ManifestId, SnapshotId
from icefloe.repo import refs as queries
from icefloe.repo.handle import RepoHandle
from icefloe.scans import metadata_rows
from icefloe.scans.cells import Dimensions, dimension_sets, plan_cells
from icefloe.scans.metadata_rows import (
    all_snapshots,
    plan_changes,
    plan_chunk_refs,
    plan_snapshot_rows,
)
from icefloe.scans.scan import (
    DEFAULT_MIN_PARTITIONS,
    INSTANT,
    ROWS_PER_BATCH,
    PinnedSnapshot,
    PlannedRows,
    Scan,
    columns,
    fixed_rows,
    read_options,
    required,
)
from icefloe.scans.variables import find_variables
from icefloe.storage.run import run_blocking

# -- The table `files`: every object of a repository, its size, and whether anything refers to it.
#
# What nothing refers to is what garbage collection would take, unless it is too young. Through
# `icefloe.spark.table` the work is spread over these tasks: listing by prefix, snapshots to
# manifests, manifests to chunks, and a join. Elsewhere one scan does it all.


LISTED = columns("path string, kind string, file_size_in_bytes bigint, created_at instant")
FILES = LISTED.append(required("is_referenced", pa.bool_()))
KEYS = columns("key string")
REFERRED = columns("key string, manifest_id binary?, snapshot_id string")
"""A file that a snapshot refers to. A file of the first generation may hold several manifests."""
_ID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_AT_ONCE = 32
Rows = Sequence[Mapping[str, Any]]


def plan_files(source: PinnedSnapshot) -> PlannedRows:
    """The scan without a join: one partition."""
    return PlannedRows(FILES, 1, partial(_read_files, source))


def _read_files(source: PinnedSnapshot, _partition: int) -> Iterator[pa.RecordBatch]:
    repository = source.open_repository()
    handle = repository.handle
    ids = [{"key": info.id} for info in all_snapshots(repository)]
    files = pa.Table.from_batches(referred_files(handle, ids), REFERRED)
    manifests = files.filter(pc.is_valid(files["manifest_id"])).to_pylist()
    once = list({row["manifest_id"]: row for row in manifests}.values())
    chunks = [batch["key"] for batch in chunk_keys(handle, once)]
    live = pa.chunked_array([*files["key"].chunks, *chunks, pa.array(known_keys(repository))])
    for batch in list_files(handle, [{"key": prefix} for prefix in handle.assets.kinds_of_files]):
        is_live = pc.is_in(batch["path"], live)
        yield pa.RecordBatch.from_arrays([*batch.columns, is_live], schema=FILES)


def file_task(
    work: Callable[[RepoHandle, Rows], Iterator[pa.RecordBatch]],
    source: PinnedSnapshot,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """What one of the functions below makes of rows, in a task."""
    handle = source.open_repository().handle
    for batch in batches:
        yield from work(handle, batch.to_pylist())


def list_files(handle: RepoHandle, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Prefixes to objects."""
    kinds = handle.assets.kinds_of_files
    for prefix in (row["key"] for row in rows):
        found = run_blocking(handle.driver.list(prefix))
        kind = next(name for folder, name in kinds.items() if prefix.startswith(folder))
        for first in range(0, len(found), ROWS_PER_BATCH):
            some = found[first : first + ROWS_PER_BATCH]
            arrays = [
                pa.array([info.key for info in some], pa.string()),
                pa.repeat(kind, len(some)),
                pa.array([info.size_bytes for info in some], pa.int64()),
                pa.array([info.created_at for info in some], INSTANT),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=LISTED)


def prefixes(handle: RepoHandle) -> list[str]:
    """What is listed at once; a directory is walked as a whole whatever the prefix."""
    folders = list(handle.assets.kinds_of_files)
    if handle.driver.is_local or layout.CHUNKS not in folders:
        return folders
    others = [folder for folder in folders if folder != layout.CHUNKS]
    return others + [layout.CHUNKS + letter for letter in _ID_LETTERS]


def referred_files(handle: RepoHandle, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Snapshot ids to the files that they refer to."""
    assets = handle.assets
    for text in (row["key"] for row in rows):
        snapshot_id = handle.snapshot_id(text)
        try:
            listed = run_blocking(assets.snapshot(snapshot_id)).manifest_files
        except SnapshotNotFoundError:
            if handle.format.lists_lost_snapshots:
                continue
            raise
        others = run_blocking(assets.other_files(snapshot_id))
        ids = [ManifestId(row.tobytes()) for row in listed.id]
        keys = [*(assets.manifest_file(each) for each in ids), *others]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.string()),
                pa.array([*ids, *(None for _ in others)], pa.binary()),
                pa.repeat(text, len(keys)),
            ],
            schema=REFERRED,
        )


def chunk_keys(handle: RepoHandle, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Manifests, as rows of `REFERRED`, to the objects of their native chunks."""
    assets = handle.assets
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        for text in {row["snapshot_id"] for row in some}:
            run_blocking(assets.prepare_manifests(handle.snapshot_id(text)))
        wanted = [(ManifestId(row["manifest_id"]), 0) for row in some]
        for manifest in run_blocking(assets.manifests(wanted)):
            for array in manifest.arrays:
                keys = pa.array(_objects(assets, array.refs), pa.string())
                yield pa.RecordBatch.from_arrays([keys], schema=KEYS)


def _objects(assets: Assets, refs: ChunkRefs) -> list[str]:
    is_native = refs.kind == ChunkKind.NATIVE
    named: list[str] = []
    if refs.location is not None:  # objects of the first generation may have any name
        location = refs.location
        codes = location.codes[is_native]
        named = [location.values.get(code) for code in np.unique(codes[codes >= 0]).tolist()]
        is_native = is_native & (location.codes < 0)
    if refs.chunk_id is None or not is_native.any():
        return named
    return named + assets.chunk_keys(IdSet.of(refs.chunk_id[is_native]).rows)


def known_keys(repository: Repository) -> list[str]:
    """What is referred to by name: refs, snapshots with their logs, backups of the log."""
    handle = repository.handle
    assets = handle.assets
    ids = [handle.snapshot_id(info.id) for info in all_snapshots(repository)]
    named = ("repo", "config", "state")
    keys = [key for key, kind in assets.kinds_of_files.items() if kind in named]
    if handle.format.has_repo_object:
        info = run_blocking(handle.assets.repo_object()).info
        ids += [SnapshotId(row.tobytes()) for row in info.snapshots.columns.pruned_id]
        names = [entry.backup_path for entry in run_blocking(queries.all_operations(handle))]
        keys += [layout.OVERWRITTEN + name for name in names if name is not None]
    else:
        for prefix, kind in assets.kinds_of_files.items():
            if kind == "ref":
                keys += [found.key for found in run_blocking(handle.driver.list(prefix))]
    keys += [assets.snapshot_key(key) for key in ids]
    keys += [assets.transaction_log_key(key) for key in ids]
    return keys


_OF_REPOSITORY = ("snapshots", "refs", "ops", "files")
TABLES = {
    "snapshots": metadata_rows.SNAPSHOTS,
    "refs": metadata_rows.REFS,
    "ops": metadata_rows.OPS,
    "files": FILES,
    "history": metadata_rows.HISTORY,
    "nodes": metadata_rows.NODES,
    "manifests": metadata_rows.MANIFESTS,
    "chunks": metadata_rows.CHUNKS,
    "changes": metadata_rows.CHANGES,
}
"""The columns of every table."""
_FIXED = {
    "snapshots": metadata_rows.snapshots,
    "refs": metadata_rows.refs,
    "ops": metadata_rows.ops,
}


def plan_table(
    source: PinnedSnapshot,
    name: str,
    branch: str | None,
    *,
    start: str | None = None,
    min_partitions: int = DEFAULT_MIN_PARTITIONS,
) -> Scan:
    """The scan of a table; `branch` if the snapshot was named by one."""
    repository = source.open_repository()
    if name in _FIXED:
        return fixed_rows(_FIXED[name](repository))
    if name == "history":
        return fixed_rows(metadata_rows.history_of(repository, source.snapshot_id, branch))
    if name == "files":
        return plan_files(source)
    if name == "chunks":
        return plan_chunk_refs(source)
    if name == "changes":
        return plan_changes(source, start, min_partitions)
    return plan_snapshot_rows(source, name)


def check_table(name: Any) -> None:
    """Refuse a table that does not exist."""
    if name not in TABLES:
        raise InvalidInputError(f"no table {name!r:.80}; tables are {', '.join(TABLES)}")


def check_ref(name: str, given: Mapping[str, Any]) -> None:
    """Refuse a ref for a table that is not about one."""
    named = [key for key, value in given.items() if value is not None]
    if name in _OF_REPOSITORY and named:
        raise InvalidInputError(
            f"table {name!r} is about the whole repository; {named[0]} cannot be given"
        )
    if name != "changes" and any(key.startswith("start") for key in named):
        raise InvalidInputError(f"a start is for table 'changes', not for {name!r}")


@dataclass(frozen=True, slots=True)
class PlannedViews:
    """Views by name: what they show, and the scans of all but `files`."""

    files: str
    titles: dict[str, str] = field(default_factory=dict)
    scans: dict[str, Scan] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, view: str, title: str, scan: Scan | None = None) -> None:
        for other, shown in self.titles.items():
            if other.lower() == view.lower():
                raise InvalidInputError(
                    f"{shown} and {title} would both be the view {view!r}; read one of them with "
                    "icefloe.spark.read"
                )
        self.titles[view] = title
        if scan is not None:
            self.scans[view] = scan


def plan_views(
    source: PinnedSnapshot, name: str, branch: str | None, num_tasks: int
) -> PlannedViews:
    """What `attach` makes of a snapshot; `branch` if it was named by one."""
    planned = PlannedViews(f"{name}__files")
    for table in TABLES:
        view, title = f"{name}__{table}", f"table {table}"
        if view == planned.files:
            planned.add(view, title)
            continue
        try:
            scan = plan_table(source, table, branch, min_partitions=num_tasks)
        except FormatError as error:  # no log of operations in repositories of version 1
            planned.left_out[title] = str(error)
        else:
            planned.add(view, title, scan)
    add_groups(planned, source, name, num_tasks)
    return planned


def add_groups(
    planned: PlannedViews,
    source: PinnedSnapshot,
    name: str,
    num_tasks: int,
    *,
    with_internal: bool = True,
) -> None:
    """Plan the views of all groups, icefloe's own tables among them unless they are hidden."""
    session = source.open()
    for group in _groups(session):
        if not with_internal and paths.is_internal(group):
            continue
        title = f"group {group}"
        try:
            sets = _sets(session, group)
        except (InvalidInputError, FormatError) as error:
            planned.left_out[title] = str(error)
            continue
        for dims in sets:
            own = title if len(sets) == 1 else f"{title} ({', '.join(dims)})"
            options = read_options(group=group, dims=dims or None, min_partitions=num_tasks)
            try:
                scan = plan_cells(source, options)
            except (InvalidInputError, FormatError) as error:
                planned.left_out[own] = str(error)
                continue
            parts = (name, *paths.segments(group), *(dims if len(sets) > 1 else ()))
            planned.add(
                "_".join(re.sub(r"\W", "_", part, flags=re.ASCII) for part in parts), own, scan
            )


def _groups(session: Session) -> Iterator[str]:
    """The paths of all groups, also of those that only have arrays below them."""
    found = {"/"}
    for path in session.workspace.state.all_paths():
        is_array = session.workspace.state.node(path).array is not None
        found.add((paths.parent(path) or "/") if is_array else path)
    yield from sorted(found)


def _sets(session: Session, group: str) -> list[Dimensions]:
    if session.workspace.state.find_node(group) is None:
        return []
    known = find_variables(session, group, None, decode=True, is_coded=False)
    return dimension_sets(known) if known else []
