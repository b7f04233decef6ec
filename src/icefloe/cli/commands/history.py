"""`log`, `show`, `diff`, `ops`, `tree`, `chunks`, `stats`, `inspect`."""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import click

from icefloe.api.addresses import snapshot_of
from icefloe.api.enums import ChunkType
from icefloe.api.maintenance_values import reporter
from icefloe.api.session import Session
from icefloe.api.values import SnapshotInfo
from icefloe.changes.diff import Diff, without_internal
from icefloe.cli.common import (
    WHOLE,
    Output,
    RepositoryCommand,
    Target,
    all_option,
    at_least_1,
    changes_text,
    entry_text,
    index_text,
    json_text,
    table_text,
    time_text,
)
from icefloe.cli.program import about_nodes
from icefloe.display import counted, size_text
from icefloe.errors import InvalidInputError
from icefloe.format.nodes import Node
from icefloe.maintenance.stats import ArrayUsage, snapshot_usage
from icefloe.paths import is_internal
from icefloe.repo.commit_notes import DERIVED
from icefloe.storage.run import run_blocking
from icefloe.store.operations import chunk_batches


@click.command(cls=RepositoryCommand)
@click.option("--graph", is_flag=True, help="Draw the history of all branches, or of @REF.")
@click.option("--limit", "-n", type=at_least_1, help="Show only the newest ones.")
def log(target: Target, graph: bool, limit: int | None, output: Output) -> None:
    """List snapshots, newest first."""
    if graph and not output.as_json:
        ref = {} if target.address.ref is None else target.ref
        drawn = str(target.repo.ancestry_graph(**ref, plain=not sys.stdout.isatty()))
        output.show(None, islice(drawn.splitlines(), limit))
        return
    found = list(islice(target.repo.ancestry(**target.ref), limit))
    output.show(found, map(_log_text, found))


def _log_text(entry: SnapshotInfo) -> str:
    """A snapshot as one line, and what it was computed from as others."""
    derived = entry.metadata.get(DERIVED)
    sources = derived.get("sources", ()) if isinstance(derived, dict) else ()
    return "\n".join(
        [
            entry_text(entry),
            *(
                f"    computed from {one.get('group')} of snapshot {one.get('snapshot_id')}"
                f" in {one.get('repository')}"
                for one in sources
                if isinstance(one, dict)
            ),
        ]
    )


@click.command(cls=RepositoryCommand)
@all_option
def show(target: Target, show_all: bool, output: Output) -> None:
    """Show one snapshot: message, time, metadata, and what it changed."""
    entry = target.repo.lookup_snapshot(target.snapshot_id)
    changed = shown = None
    if entry.parent_id is not None:
        changed = target.repo.diff(from_snapshot_id=entry.parent_id, to_snapshot_id=entry.id)
        shown = changed if show_all else without_internal(changed)
    manifests = target.repo.list_manifest_files(entry.id)
    metadata = "".join(f"    {key}: {each}\n" for key, each in entry.metadata.items())
    refs = sum(file.num_chunk_refs for file in manifests)
    text = (
        f"snapshot {entry.id}\n"
        f"parent   {entry.parent_id or 'none'}\n"
        f"written  {time_text(entry.written_at)}\n"
        f"stored   {counted(len(manifests), 'manifest')} with "
        f"{counted(refs, 'chunk reference')}\n"
        f"\n    {entry.message}\n"
        + (f"\nMetadata:\n{metadata}" if metadata else "")
        + ("" if changed is None else f"\n{changes_text(changed, shown)}")
    )
    output.show({"snapshot": entry, "changes": shown, "manifests": manifests}, text.rstrip())


@click.command(cls=RepositoryCommand)
@click.argument("start", metavar="[FROM]", required=False)
@click.argument("end", metavar="[TO]", required=False)
@all_option
def diff(
    target: Target, start: str | None, end: str | None, show_all: bool, output: Output
) -> None:
    """Show what changed from one version to a later one of the same line of history.

    FROM and TO are branches, tags or snapshots. Without TO, it is the REPOSITORY's @REF, or main.
    Without both, it is what the last commit changed.
    """
    last = target.snapshot_id if end is None else snapshot_of(target.repo, end)
    if start is None:
        first = target.repo.lookup_snapshot(last).parent_id
    else:
        first = snapshot_of(target.repo, start)
    is_same = first in (None, last)  # the first snapshot of all has no parent
    found = Diff() if is_same else target.repo.diff(from_snapshot_id=first, to_snapshot_id=last)
    shown = found if show_all else without_internal(found)
    output.show(shown, changes_text(found, shown))


@click.command(cls=RepositoryCommand)
@click.option("--limit", "-n", type=at_least_1, help="Show only the newest ones.")
def ops(target: Target, limit: int | None, output: Output) -> None:
    """List the operations on a repository, newest first; needs spec version 2."""
    target.require_no_ref(WHOLE)
    found = list(islice(target.repo.ops_log(), limit))
    lines = (
        f"{time_text(entry.updated_at)}  {type(entry.kind).__name__:<20}"
        + ", ".join(f"{name} {shown}" for name, shown in vars(entry.kind).items())
        for entry in found
    )
    output.show([{"operation": entry.kind, "at": entry.updated_at} for entry in found], lines)


_BATCH = 10_000


@click.command(cls=RepositoryCommand)
@click.argument("path", default="/")
@all_option
def tree(target: Target, path: str, show_all: bool, output: Output) -> None:
    """List groups and arrays, with shape, type and chunks."""
    session = target.session()
    view = session.workspace.state.view
    with about_nodes(session):
        top = view.node("/" + path.strip("/"))
    show_all = show_all or is_internal(top.path)
    nodes = view.all_nodes(top.path)
    rows = [_described(node) for node in nodes if show_all or not is_internal(node.path)]
    depth = top.path.rstrip("/").count("/")
    output.show(rows, (_tree_line(row, depth) for row in rows))


def _tree_line(row: dict[str, Any], depth: int) -> str:
    indent = "    " * (row["path"].rstrip("/").count("/") - depth)
    name = row["path"].rpartition("/")[2] or "/"
    if row["node_type"] == "group":
        return f"{indent}{name}{'' if name == '/' else '/'}"
    return f"{indent}{name}  {row['data_type']} {_shape_text(row)}"


def _described(node: Node) -> dict[str, Any]:
    document = json.loads(node.user_data)
    row = {"path": node.path, "node_type": document.get("node_type"), "id": node.id.text}
    if node.array is not None:
        grid = document.get("chunk_grid", {}).get("configuration", {})
        row |= {
            "data_type": document.get("data_type"),
            "shape": document.get("shape"),
            "chunk_shape": grid.get("chunk_shape"),
            "dimension_names": document.get("dimension_names"),
            "manifests": len(node.array.manifests),
        }
    return row


def _shape_text(row: dict[str, Any]) -> str:
    names = row["dimension_names"] or [None] * len(row["shape"])
    sizes = ", ".join(
        f"{name}: {size}" if name else str(size)
        for name, size in zip(names, row["shape"], strict=True)
    )
    return f"({sizes}) chunks {row['chunk_shape']}"


@click.command(cls=RepositoryCommand)
@click.argument("path")
@click.option("--limit", "-n", type=at_least_1, help="Show only the first ones.")
def chunks(target: Target, path: str, limit: int | None, output: Output) -> None:
    """List the chunks of an array that were written, and where their bytes are."""
    session = target.session()
    with about_nodes(session):
        rows = run_blocking(_chunk_rows(session, path, limit))
    lines = (
        f"{index_text(row['index'])} {row['type']:<8} {row['length']:>12}  {row['location']}"
        for row in rows
    )
    output.show(rows, lines if rows else "no chunk was written")


async def _chunk_rows(session: Session, path: str, limit: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    workspace = session.workspace
    folder = session.handle.assets.folders["chunks"]
    async for index, kind, texts, offset, length, inlined in chunk_batches(workspace, path, _BATCH):
        for at, coordinates in enumerate(index.tolist()):
            if limit is not None and len(rows) >= limit:
                return rows
            name = ChunkType(int(kind[at])).name
            is_id = name == "native" and "/" not in texts[at]
            location = folder + texts[at] if is_id else texts[at]
            rows.append(
                {
                    "index": coordinates,
                    "type": name,
                    "location": location,
                    "offset": int(offset[at]),
                    "length": len(inlined[at]) if at in inlined else int(length[at]),
                }
            )
    return rows


_SIZES = ["chunks", "native", "inline", "virtual", "exclusive"]


@click.command(cls=RepositoryCommand)
@click.option("--history", is_flag=True, help="Show every snapshot of @REF, or of main.")
@click.option("--limit", "-n", type=at_least_1, help="Only the newest snapshots.")
@all_option
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

    if history:
        names, align = ["snapshot", "written", *_SIZES, "message"], "<<>>>>><"
        rows = [
            [
                one.snapshot_id.text,
                time_text(entries[one.snapshot_id].written_at),
                *_sizes(one.total()),
                entries[one.snapshot_id].message,
            ]
            for one in found
        ]
    else:
        names, align = ["array", *_SIZES], "<>>>>>"
        rows = [[one.path, *_sizes(one)] for one in found[0].arrays if is_shown(one)]
        own = tuple(one for one in found[0].arrays if not is_shown(one))
        if own:
            rows.append(["icefloe's own tables", *_sizes(found[0]._replace(arrays=own).total())])
        rows.append(["together", *_sizes(found[0].total())])
    whole = (
        f"All snapshots together: {size_text(total.native_bytes)} native, "
        f"{size_text(total.inlined_bytes)} inline, {size_text(total.virtual_bytes)} virtual."
    )
    output.show(value, f"{table_text(names, rows, align)}\n\n{whole}")


def _sizes(one: ArrayUsage) -> list[str]:
    return [f"{one.chunks:,}", *map(size_text, one[2:])]


_KINDS = ("snapshot", "log", "manifest", "repo")


@click.command(cls=RepositoryCommand)
@click.argument("kind", type=click.Choice(_KINDS), default="snapshot")
@click.argument("key", metavar="[ID]", required=False)
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
    output.show(found, json_text(found))


def _named(target: Target, key: str | None) -> str:
    """The snapshot with this id, listed or not, or the one that a name stands for."""
    if key is None:
        return target.snapshot_id
    try:
        return target.repo.handle.snapshot_id(key).text
    except InvalidInputError:
        return snapshot_of(target.repo, key)
