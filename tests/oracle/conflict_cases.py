"""Two sessions of one repository, each with one operation: what a rebase makes of them.

The same script runs on official icechunk and on icefloe. `OPERATIONS` are tried in every ordered
pair; `EXPECTED` lists where icefloe differs on purpose, and why.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from zarr.core.buffer import default_buffer_prototype

Change = Callable[[Any], None]
Outcome = dict[str, Any]


def group(**attributes: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def array(length: int, **attributes: Any) -> bytes:
    """An array of that many chunks."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [length],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": attributes,
    }
    return json.dumps(document).encode()


WORLD = {
    "zarr.json": group(),
    "a/zarr.json": array(6),
    **{f"a/c/{at}": b"o" for at in range(4)},
    "g/zarr.json": group(),
    "g/x/zarr.json": array(4),
    "g/x/c/0": b"o",
    "h/zarr.json": group(),
}
"""Array `a`, group `g` with array `x`, and the empty group `h`."""


def apply(session: Any, *steps: Sequence[Any]) -> None:
    """Steps are (key, bytes) to set, (key, None) to delete, (folder,) to delete all of it."""
    store = session.store
    buffer = default_buffer_prototype().buffer

    async def run() -> None:
        for step in steps:
            if len(step) == 1:
                await store.delete_dir(step[0])
            elif step[1] is None:
                await store.delete(step[0])
            else:
                await store.set(step[0], buffer.from_bytes(step[1]))

    asyncio.run(run())


def edits(*steps: Sequence[Any]) -> Change:
    def change(session: Any) -> None:
        apply(session, *steps)

    return change


def moves(source: str, destination: str) -> Change:
    def change(session: Any) -> None:
        session.move(source, destination)

    return change


def operations(who: str) -> dict[str, Change]:
    """Every operation; what is written bears the name of who did it."""
    mark = who.encode()
    return {
        "create group n": edits(("n/zarr.json", group(by=who))),
        "create array n": edits(("n/zarr.json", array(2, by=who)), ("n/c/0", mark)),
        "create n/below": edits(("n/below/zarr.json", array(2, by=who))),
        "create g/n": edits(("g/n/zarr.json", array(2, by=who)), ("g/n/c/0", mark)),
        "create h/n": edits(("h/n/zarr.json", group(by=who))),
        "create h/n/deep": edits(
            ("h/n/zarr.json", group(by=who)), ("h/n/deep/zarr.json", array(1))
        ),
        "delete a": edits(("a",)),
        "delete g": edits(("g",)),
        "delete g/x": edits(("g/x",)),
        "delete h": edits(("h",)),
        "recreate a": edits(("a",), ("a/zarr.json", array(6, by=who))),
        "recreate a with a chunk": edits(
            ("a",), ("a/zarr.json", array(6, by=who)), ("a/c/0", mark)
        ),
        "recreate g": edits(("g",), ("g/zarr.json", group(by=who))),
        "recreate h as an array": edits(("h",), ("h/zarr.json", array(2, by=who))),
        "update root": edits(("zarr.json", group(by=who))),
        "update a": edits(("a/zarr.json", array(6, by=who))),
        "update g": edits(("g/zarr.json", group(by=who))),
        "update g/x": edits(("g/x/zarr.json", array(4, by=who))),
        "update h": edits(("h/zarr.json", group(by=who))),
        "set a 0": edits(("a/c/0", mark)),
        "set a 1 and 5": edits(("a/c/1", mark), ("a/c/5", mark)),
        "set a 0 and 1": edits(("a/c/0", mark), ("a/c/1", mark)),
        "set g/x 0": edits(("g/x/c/0", mark)),
        "delete a 0": edits(("a/c/0", None)),
        "delete a 1": edits(("a/c/1", None)),
        "shrink a": edits(("a/zarr.json", array(2))),
        "grow a": edits(("a/zarr.json", array(9))),
        "grow a and set 7": edits(("a/zarr.json", array(9)), ("a/c/7", mark)),
    }


MOVES = {
    "move a to m": moves("/a", "/m"),
    "move a to n": moves("/a", "/n"),
    "move a to g/n": moves("/a", "/g/n"),
    "move g to m": moves("/g", "/m"),
    "move g to h/n": moves("/g", "/h/n"),
    "move g/x to h/n": moves("/g/x", "/h/n"),
    "move h to n": moves("/h", "/n"),
}
NAMES = list(operations(""))


def solvers(library: Any) -> dict[str, Any]:
    """Tried in this order on one session, until one of them settles the conflicts."""
    chunks, basic = library.VersionSelection, library.BasicConflictSolver
    return {
        "detector": library.ConflictDetector(),
        "chunks fail": basic(on_chunk_conflict=chunks.Fail),
        "deletes fail": basic(
            fail_on_delete_of_updated_array=True, fail_on_delete_of_updated_group=True
        ),
        "ours": basic(),
        "theirs": basic(on_chunk_conflict=chunks.UseTheirs),
    }


class Pair:
    """Pairs of operations on branches of one repository."""

    def __init__(self, library: Any, spec: int) -> None:
        self.library = library
        config = library.RepositoryConfig(inline_chunk_threshold_bytes=512)
        storage = library.in_memory_storage()
        self.repository = library.Repository.create(storage, config, spec_version=spec)
        session = self.repository.writable_session("main")
        apply(session, *WORLD.items())
        self.start = session.commit("world")
        self.number = 0

    def _session(self, branch: str, name: str, who: str) -> Any:
        if name in MOVES:
            session = self.repository.rearrange_session(branch)
            MOVES[name](session)
        else:
            session = self.repository.writable_session(branch)
            operations(who)[name](session)
        return session

    def run(self, theirs: str, ours: str, only: str | None = None) -> Outcome:
        """What each solver says, and what is stored in the end.

        With `only`, the last solver to be tried is that one.
        """
        self.number += 1
        branch = f"b{self.number}"
        self.repository.create_branch(branch, self.start)
        mine = self._session(branch, ours, "ours")
        self._session(branch, theirs, "them").commit("theirs")
        said: dict[str, Any] = {}
        for name, solver in solvers(self.library).items():
            if only is not None and name != only:
                continue
            try:
                mine.rebase(solver)
            except self.library.RebaseFailedError as error:
                said[name] = [described(conflict) for conflict in error.conflicts]
                assert mine.snapshot_id == self.start, "it stayed where it was"
                continue
            except self.library.IcechunkError as error:
                said[name] = f"{type(error).__name__} {error.kind}"
                continue
            try:
                mine.commit("ours")
                said[name] = "committed"
            except self.library.IcechunkError as error:
                said[name] = f"{type(error).__name__} {error.kind}"
            break
        return {"said": said, "state": stored(self.repository.readonly_session(branch).store)}


def described(conflict: Any) -> str:
    """Kind, path and chunks in a form that both libraries share."""
    kind = repr(conflict.conflict_type).rpartition(".")[2]
    path = "" if kind == "MoveOperationCannotBeRebased" else conflict.path
    chunks = conflict.conflicted_chunks
    return f"{kind} {path}" + ("" if chunks is None else f" {sorted(map(list, chunks))}")


def stored(store: Any) -> dict[str, str]:
    """Every key, with the bytes or what matters of a document."""
    prototype = default_buffer_prototype()

    async def collect() -> dict[str, bytes]:
        keys = sorted([key async for key in store.list()])
        found = {key: await store.get(key, prototype) for key in keys}
        # Official lists two nodes at one path after some rebases, and finds no chunk of either.
        return {key: b"" if data is None else data.to_bytes() for key, data in found.items()}

    found = {}
    for key, data in asyncio.run(collect()).items():
        if key.endswith("zarr.json"):
            document = json.loads(data)
            found[key] = f"{document['node_type']} {document.get('shape')} {document['attributes']}"
        else:
            found[key] = data.decode()
    return found
