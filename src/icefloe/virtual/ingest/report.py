"""What an ingest did."""

from __future__ import annotations

from icefloe.display.shown import Picture, Shown, counted, size_text
from icefloe.records import record
from icefloe.virtual.planning.plan import Problem

_SHOWN = 10
"""Problems that are shown."""


@record(frozen=True)
class IngestReport(Shown):
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

    def _picture_(self) -> Picture:
        there, failed = self.files_skipped, self.files_failed
        written = f"{counted(self.chunks_written, 'chunk')} ({size_text(self.bytes_written)})"
        fields = [
            ("commit", self.snapshot_id or "none, nothing had to change"),
            ("files", f"{self.files_added:,} added, {there:,} there already, {failed:,} left out"),
            ("written", f"{written}, {counted(self.refs_written, 'reference')}"),
            ("seconds", f"{self.seconds:.1f}"),
            *(("note", note) for note in self.notes),
            *(("left out", str(problem)) for problem in self.problems[:_SHOWN]),
        ]
        if len(self.problems) > _SHOWN:
            fields.append(("left out", f"{len(self.problems) - _SHOWN:,} more, see `problems`"))
        return Picture(self._title_(), fields)
