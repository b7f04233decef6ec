"""The rows about fresh processes: what is set side by side, and the targets.

Tasks are functions of `fresh_program`; this file only names them.
"""

from __future__ import annotations

from benchmarks.cases import FRESH_GROUP, Case, Side
from benchmarks.fresh import STEP
from benchmarks.store_cases import NO_SLOWER

LARGEST_ANCESTRY_CPU = 5.0
"""How many times official's CPU a history may need."""


def _row(title: str, task: str, dataset: str, cpu: float | None, note: str = "") -> Case:
    return Case(
        f"fresh process: {title}",
        Side(("fresh", task, dataset, "official"), (STEP,)),
        Side(("fresh", task, dataset, "ours"), (STEP,)),
        note,
        cpu,
        group=FRESH_GROUP,
    )


_ZARR = "icefloe loads Zarr only when a store is asked for"

FRESH_CASES = [
    _row("import", "import_only", "files", None, _ZARR),
    _row("import, open, first chunk", "first_chunk", "eight megabytes", NO_SLOWER),
    _row("first lookup in 1,000,000 refs", "look_up", "files", NO_SLOWER, _ZARR),
    _row("read 32 x 8 MB", "read", "eight megabytes", NO_SLOWER),
    _row("ancestry of 10,000 snapshots", "ancestry", "history", 1 / LARGEST_ANCESTRY_CPU, _ZARR),
]
