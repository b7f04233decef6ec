"""Results of `cherry_pick`, `undo`, `merge` and `squash`."""

from __future__ import annotations

from typing import Self

from icefloe.changes.diff import Diff
from icefloe.display.shown import Picture, Shown
from icefloe.records import record
from icefloe.repo.replay import Replayed


@record(frozen=True)
class VersionChange(Shown):
    """The commit that `cherry_pick`, `undo`, `merge` or `squash` made, or would make."""

    shown_in = "snapshots"

    snapshot_id: str | None
    """The new commit; None after a dry run. The tip of the branch, unless `squash` left others."""
    parent_id: str
    """The snapshot below it."""
    changes: Diff
    """What the new snapshot changes in its parent."""

    @classmethod
    def of(cls, done: Replayed) -> Self:
        """The public form of a result.

        Args:
            done: what the operation returned.
        """
        snapshot_id = None if done.snapshot_id is None else done.snapshot_id.text
        return cls(snapshot_id, done.parent_id.text, done.diff)

    def _picture_(self) -> Picture:
        rows = [("snapshot_id", str(self.snapshot_id)), ("parent_id", self.parent_id)]
        return Picture(self._title_(), [*rows, ("changes", self.changes._picture_())])
