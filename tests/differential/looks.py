"""Everything that can be seen of a side, as plain values that can be compared."""

from __future__ import annotations

import json
import re
from typing import Any

from zarr.core.sync import sync

from tests.api.outcomes import changes
from tests.differential import documents
from tests.differential.side import PROTOTYPE, Side

Look = dict[str, Any]


def of_session(side: Side, number: int) -> Look:
    """A session with every key and its bytes."""
    session = side.sessions[number]
    return {
        "read only": session.read_only,
        "mode": str(session.mode).rpartition(".")[2],
        "branch": session.branch,
        "snapshot": side.label(session.snapshot_id),
        "has changes": session.has_uncommitted_changes,
        "status": _changes(session.status()),
        "contents": contents(session.store, is_official=side.is_official),
    }


def _changes(diff: Any) -> Look:
    """After a rebase in favour of theirs official lists arrays of which no chunk is left."""
    found = changes(diff)
    found["chunks"] = [(path, chunks) for path, chunks in found.get("chunks", []) if chunks]
    return found


def of_repository(side: Side) -> Look:
    """Branches, tags and their histories."""
    repository = side.repository
    branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    tags = {name: repository.lookup_tag(name) for name in repository.list_tags()}
    tips = {*branches.values(), *tags.values()}
    return {
        "branches": {name: side.label(tip) for name, tip in branches.items()},
        "tags": {name: side.label(tip) for name, tip in tags.items()},
        "histories": {side.label(tip): _history(side, tip) for tip in tips},
    }


def _history(side: Side, tip: str) -> list[Any]:
    return [
        [side.label(entry.id), side.label(entry.parent_id), entry.message, entry.metadata]
        for entry in side.repository.ancestry(snapshot_id=tip)
    ]


def of_snapshot(side: Side, snapshot_id: str) -> Look:
    """What a snapshot holds, and how it differs from the one before."""
    repository = side.repository
    session = repository.readonly_session(snapshot_id=snapshot_id)
    found: Look = {"contents": contents(session.store, is_official=side.is_official)}
    found["kinds"] = _kinds(session, found["contents"])
    parent = next(iter(repository.ancestry(snapshot_id=snapshot_id))).parent_id
    if parent is not None:
        diff = repository.diff(from_snapshot_id=parent, to_snapshot_id=snapshot_id)
        found["diff"] = _changes(diff)
    return found


def contents(store: Any, *, is_official: bool) -> dict[str, bytes | str]:
    """Every key and its bytes.

    Official lists chunks that an array has no place for, until the commit drops them: those of one
    that shrank in this session, and those in a dimension without chunks ("As Zarr has it" in
    docs/differences.md). They are left out on its side, so that ours must not list them.
    """
    found: dict[str, bytes | str] = sync(_read(store))
    if is_official:
        nodes = {key: value for key, value in found.items() if key.endswith("zarr.json")}
        cells = {
            key.removesuffix("zarr.json").rstrip("/"): documents.num_cells(document)
            for key, value in nodes.items()
            if (document := json.loads(value))["node_type"] == "array"
        }
        found = {key: value for key, value in found.items() if _has_place(key, cells)}
    return found


CHUNK_KEY = re.compile(r"(?:(?P<path>.*)/)?c(?P<index>(?:/[0-9]+)*)")


def chunk_key(key: str) -> tuple[str, list[int]] | None:
    """The path of the array and the index, if the key is a chunk's."""
    found = CHUNK_KEY.fullmatch(key)
    if found is None:
        return None
    return found["path"] or "", [int(number) for number in found["index"].split("/")[1:]]


def _has_place(key: str, cells: dict[str, list[int]]) -> bool:
    chunk = chunk_key(key)
    return chunk is None or all(n < cell for n, cell in zip(chunk[1], cells[chunk[0]], strict=True))


async def _read(store: Any) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    async for key in store.list():
        value = await store.get(key, PROTOTYPE)
        found[key] = "listed, but not there" if value is None else value.to_bytes()
    return found


def _kinds(session: Any, keys: dict[str, Any]) -> dict[str, str]:
    """Whether chunks are inline, virtual or objects of their own."""
    chunks = {key: chunk for key in keys if (chunk := chunk_key(key)) is not None}
    return {
        key: str(session.chunk_type(f"/{path}", index)).rpartition(".")[2].lower()
        for key, (path, index) in chunks.items()
    }


def everything(side: Side) -> Look:
    """The whole repository, every snapshot a branch or tag leads to, and both sessions."""
    repository = of_repository(side)
    ids = {label: snapshot_id for snapshot_id, label in side.labels.items()}
    labels = {entry[0] for history in repository["histories"].values() for entry in history}
    return {
        "repository": repository,
        "snapshots": {label: of_snapshot(side, ids[label]) for label in sorted(labels)},
        "sessions": [of_session(side, number) for number in range(2)],
    }
