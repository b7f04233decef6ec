"""Where the snapshots of a history are drawn: one row each, and one lane for each line of commits.

A snapshot has one parent, so lanes part only upwards: several children meet in the row of their
parent. A lane keeps its place from its first row to its last, and is then used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import SnapshotId


class LaneRow(NamedTuple):
    """One snapshot of the picture."""

    info: SnapshotInfo
    lane: int
    passing: tuple[int, ...]
    """Lanes that pass this row."""
    joining: tuple[int, ...]
    """Lanes of further children, which end in this row."""
    has_child: bool
    """Whether the lane continues upwards, to a child."""
    has_parent: bool
    """Whether the lane continues downwards, to a parent that is in the picture."""

    @property
    def width(self) -> int:
        """The number of lanes that are needed to draw this row."""
        return max(self.lane, *self.passing, *self.joining, 0) + 1


def children_first(snapshots: Iterable[SnapshotInfo]) -> list[SnapshotInfo]:
    """Newest first, and every snapshot before its parent, whatever their clocks said."""
    found = {info.id: info for info in snapshots}
    waiting = dict.fromkeys(found, 0)  # children that are not placed yet
    for info in found.values():
        if info.parent_id in waiting:
            waiting[info.parent_id] += 1
    ready = [(-info.flushed_at, info.id) for info in found.values() if not waiting[info.id]]
    heapify(ready)
    placed = []
    while ready:
        info = found[heappop(ready)[1]]
        placed.append(info)
        parent = info.parent_id
        if parent in waiting:
            waiting[parent] -= 1
            if not waiting[parent]:
                heappush(ready, (-found[parent].flushed_at, parent))
    return placed


def lane_rows(snapshots: Sequence[SnapshotInfo]) -> list[LaneRow]:
    """The rows of a picture, for snapshots in the order of `children_first`."""
    known = {info.id for info in snapshots}
    lanes: dict[int, SnapshotId] = {}  # the parent that each lane leads to
    free: list[int] = []
    rows = []
    for info in snapshots:
        ending = sorted(lane for lane, wanted in lanes.items() if wanted == info.id)
        passing = tuple(sorted(lane for lane, wanted in lanes.items() if wanted != info.id))
        lane = ending[0] if ending else heappop(free) if free else len(lanes)
        for each in ending:
            del lanes[each]
            heappush(free, each)
        has_parent = info.parent_id is not None and info.parent_id in known
        if has_parent:
            assert info.parent_id is not None
            lanes[lane] = info.parent_id
            if lane in free:
                free.remove(lane)
                heapify(free)
        elif not ending:
            heappush(free, lane)
        rows.append(LaneRow(info, lane, passing, tuple(ending[1:]), bool(ending), has_parent))
    return rows
