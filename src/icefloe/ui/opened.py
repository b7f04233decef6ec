"""The repository behind the page, with what several requests share: history, sessions, trees."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from icefloe.api.ancestry_graph import LaneRow, children_first, lane_rows
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.api.values import Update
from icefloe.assets.cache import BoundedCache
from icefloe.changes.diff import Diff
from icefloe.errors import SnapshotNotFoundError
from icefloe.ids import SnapshotId
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionView
from icefloe.storage.run import run_blocking
from icefloe.ui.query import Query
from icefloe.ui.tree import Tree

if TYPE_CHECKING:
    from icefloe.ui.planes import Plane, PlaneRequest

_FRESH_SECONDS = 2.0
"""How long refs are believed before they are read again."""
_SESSIONS = 32
_PLANE_BYTES = 64 << 20

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The values used last, up to a number of them or a total size."""

    def __init__(self, most: int, size_of: Callable[[Value], int] = lambda value: 1) -> None:
        self._kept: BoundedCache[Value] = BoundedCache(most)
        self._size_of = size_of

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there. Two threads may make the same one."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            self._kept.put(key, found, self._size_of(found))
        return found


class HistoryGraph(NamedTuple):
    """All snapshots as rows of a graph, and the refs, at one moment."""

    version: str
    """Changes when a ref moves, so that a page knows when its rows are old."""
    rows: list[LaneRow]
    row_of: dict[SnapshotId, int]
    branches: dict[str, SnapshotId]
    tags: dict[str, SnapshotId]
    tip_of: list[int]
    """For each row, the row of the tip of its line: of `main` if it is in it, else of another
    branch, of a tag, or of a snapshot without children."""
    branches_of: dict[SnapshotId, list[str]]
    tags_of: dict[SnapshotId, list[str]]


class OpenedRepository:
    """A repository that is looked at. Safe for many threads."""

    def __init__(self, repo: Repository, name: str) -> None:
        self.repo = repo
        self.name = name
        self._sessions: Recent[str, Session] = Recent(_SESSIONS)
        self._trees: Recent[tuple[str, bool], Tree] = Recent(4)
        self._lines: Recent[tuple[str, str], list[int]] = Recent(8)
        self._operations: Recent[tuple[str, int], list[Update]] = Recent(1)
        self.planes: Recent[PlaneRequest, Plane] = Recent(_PLANE_BYTES, lambda plane: plane.nbytes)
        self.differences: Recent[tuple[str, str], Diff] = Recent(8)
        self._lock = Lock()
        self._history: HistoryGraph | None = None
        self._looked_at = 0.0

    @property
    def handle(self) -> RepoHandle:
        return self.repo.handle

    def session(self, snapshot_id: str) -> Session:
        """A session that reads a snapshot."""
        return self._sessions.get(
            snapshot_id, lambda: self.repo.readonly_session(snapshot_id=snapshot_id)
        )

    def view(self, snapshot_id: str) -> SessionView:
        return self.session(snapshot_id).workspace.state.view

    def tree(self, query: Query) -> Tree:
        """The nodes of the snapshot of a request by parent."""
        snapshot_id, has_internal = query.text("snapshot"), query.has_internal

        def make() -> Tree:
            return Tree(self.view(snapshot_id).snapshot.nodes, has_internal=has_internal)

        return self._trees.get((snapshot_id, has_internal), make)

    def history(self) -> HistoryGraph:
        """The history, read again if refs have moved."""
        with self._lock:
            now = time.monotonic()
            if self._history is None or now - self._looked_at > _FRESH_SECONDS:
                self._history = run_blocking(_read_history(self.handle, self._history))
                self._looked_at = time.monotonic()
            return self._history

    def row(self, history: HistoryGraph, snapshot_id: str) -> int:
        """The row of a snapshot in the graph."""
        key = self.handle.snapshot_id(snapshot_id)
        if key not in history.row_of:
            raise SnapshotNotFoundError(f"no snapshot {snapshot_id!r} in this repository")
        return history.row_of[key]

    def line(self, history: HistoryGraph, snapshot_id: str) -> list[int]:
        """Rows of a snapshot and its ancestors, newest first."""

        def follow() -> list[int]:
            line = [self.row(history, snapshot_id)]
            while (parent := history.rows[line[-1]].info.parent_id) in history.row_of:
                line.append(history.row_of[parent])
            return line

        return self._lines.get((history.version, snapshot_id), follow)

    def operations(self) -> list[Update]:
        """The operations log, newest first, as old as the minute at most."""
        moment = (self.history().version, int(time.monotonic() // 60))
        return self._operations.get(moment, lambda: list(self.repo.ops_log()))


async def _read_history(handle: RepoHandle, known: HistoryGraph | None) -> HistoryGraph:
    branches = await handle.format.branches(handle)
    tags = await handle.format.tags(handle)
    refs = repr((sorted(branches.items()), sorted(tags.items())))
    version = hashlib.sha256(refs.encode()).hexdigest()[:16]
    if known is not None and known.version == version:
        return known
    rows = lane_rows(children_first(await handle.format.all_snapshots(handle)))
    row_of = {row.info.id: at for at, row in enumerate(rows)}
    tips = [branches[name] for name in sorted(branches, key=lambda name: (name != "main", name))]
    tips += [tags[name] for name in sorted(tags)]
    tips += [row.info.id for row in rows if not row.has_child]
    tip_of = _tips_of_lines(rows, row_of, tips)
    by_tip = _by_tip(branches), _by_tip(tags)
    return HistoryGraph(version, rows, row_of, branches, tags, tip_of, *by_tip)


def _tips_of_lines(
    rows: list[LaneRow], row_of: dict[SnapshotId, int], tips: list[SnapshotId]
) -> list[int]:
    found = [-1] * len(rows)
    for tip in tips:
        start = at = row_of.get(tip, -1)
        while at >= 0 and found[at] < 0:
            found[at] = start
            parent = rows[at].info.parent_id
            at = -1 if parent is None else row_of.get(parent, -1)
    return found


def _by_tip(refs: dict[str, SnapshotId]) -> dict[SnapshotId, list[str]]:
    found: dict[SnapshotId, list[str]] = {}
    for name in sorted(refs):
        found.setdefault(refs[name], []).append(name)
    return found
