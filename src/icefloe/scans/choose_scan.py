"""From options to the scan that reads what they ask for."""

from __future__ import annotations

from icefloe.scans.cells import plan_cells
from icefloe.scans.chunk_rows import plan_chunk_rows
from icefloe.scans.options import ReadOptions
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import Scan


def plan_read(source: PinnedSnapshot, options: ReadOptions) -> Scan:
    """The scan that a read asks for."""
    if options.layout == "chunks":
        return plan_chunk_rows(source, options)
    return plan_cells(source, options)
