"""What an ingest did."""

from __future__ import annotations

from icefloe.records import record
from icefloe.virtual.planning.plan import Problem


@record(frozen=True)
class IngestReport:
    """What an ingest did."""

    snapshot_id: str | None
    """The commit; None when nothing had to change."""
    files_added: int
    """Files brought over, those that replaced an earlier version of themselves included."""
    files_skipped: int
    """Files that are in the group already, from an earlier ingest."""
    files_failed: int
    """Files left out, unless `on_error` is "fail"; `problems` has the reasons."""
    chunks_written: int
    bytes_written: int
    refs_written: int
    seconds: float
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader has to know: arrays that were copied in virtual mode, and why; types."""
