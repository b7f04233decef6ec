"""`tree` and `chunks`: what is in a snapshot."""

from __future__ import annotations

import json
from typing import Any

import click

from icefloe.api.named_numbers import ChunkType
from icefloe.api.session import Session
from icefloe.cli.common import (
    Output,
    Target,
    all_option,
    at_least_1,
    output_option,
    repository_argument,
)
from icefloe.cli.hints import about_nodes
from icefloe.format.snapshot.nodes import Node
from icefloe.paths import is_internal
from icefloe.storage.run import run_blocking
from icefloe.store.session_queries import chunk_batches

_BATCH = 10_000


@click.command()
@repository_argument
@click.argument("path", default="/")
@all_option
@output_option
def tree(target: Target, path: str, show_all: bool, output: Output) -> None:
    """List groups and arrays, with shape, type and chunks."""
    session = target.session()
    view = session.workspace.state.view
    with about_nodes(session):
        top = view.node("/" + path.strip("/"))
    show_all = show_all or is_internal(top.path)
    nodes = view.all_nodes(top.path)
    rows = [_described(node) for node in nodes if show_all or not is_internal(node.path)]

    def text() -> str:
        depth = top.path.rstrip("/").count("/")
        lines = []
        for row in rows:
            indent = "    " * (row["path"].rstrip("/").count("/") - depth)
            name = row["path"].rpartition("/")[2] or "/"
            if row["node_type"] == "group":
                lines.append(f"{indent}{name}{'' if name == '/' else '/'}")
            else:
                lines.append(f"{indent}{name}  {row['data_type']} {_shape_text(row)}")
        return "\n".join(lines)

    output.show(rows, text)


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


@click.command()
@repository_argument
@click.argument("path")
@click.option("--limit", "-n", type=at_least_1, help="Show only the first ones.")
@output_option
def chunks(target: Target, path: str, limit: int | None, output: Output) -> None:
    """List the chunks of an array that were written, and where their bytes are."""
    session = target.session()
    with about_nodes(session):
        rows = run_blocking(_chunk_rows(session, path, limit))
    output.show(
        rows,
        lambda: (
            "\n".join(
                f"{'/'.join(map(str, row['index'])) or '-':<16} {row['type']:<8} "
                f"{row['length']:>12}  {row['location']}"
                for row in rows
            )
            or "no chunk was written"
        ),
    )


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
