"""Progress of a long call: reported to a callback, or shown as a bar in a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TextIO, TypeVar

_WIDTH = 30
_SECONDS_BETWEEN = 0.1

Item = TypeVar("Item")


class Progress(NamedTuple):
    """A stage of the work and how much of it is done. `total` is None if it is unknown."""

    stage: str
    done: int
    total: int | None


Report = Callable[[Progress], None]


class Reporter:
    """Reports progress. Without a callback, a terminal shows a bar on stderr; otherwise nothing is
    shown."""

    def __init__(self, report: Report | None = None, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._report = report or (Bar(stream) if stream.isatty() else None)

    def tell(self, stage: str, done: int, total: int | None = None) -> None:
        if self._report is not None:
            self._report(Progress(stage, done, total))

    def each(self, stage: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """The items. Each one that is taken tells that those before it are done."""
        for done, item in enumerate(items):
            self.tell(stage, done, total)
            yield item
        self.tell(stage, total, total)

    def finish(self) -> None:
        """The bar goes away."""
        if isinstance(self._report, Bar):
            self._report.clear()


class Bar:
    """One line of a terminal, redrawn a few times per second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_at = 0.0
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        stage, done, total = progress
        is_new = stage != self._stage or done == total
        if not is_new and now - self._shown_at < _SECONDS_BETWEEN:
            return
        self._shown_at, self._stage = now, stage
        if total:
            filled = _WIDTH * min(done, total) // total
            bar = "#" * filled + "." * (_WIDTH - filled)
            text = f"{stage:<22} [{bar}] {done:,} / {total:,}"
        else:
            text = f"{stage:<22} {done:,}"
        # A line that is wrapped could not be drawn over.
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        self._stream.write("\r\x1b[K")
        self._stream.flush()
