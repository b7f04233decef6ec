"""Limits on what a decoder may take: processor time of one call, and memory.

Both belong to the process that runs the test. Processor time is used because wall time on a
shared machine measures the neighbours.
"""

from __future__ import annotations

import faulthandler
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_MEMORY = 512 * 1024 * 1024
"""No damaged file of a few kilobytes makes a decoder ask for more than this."""

MAX_SECONDS = 5.0
"""Far above the slowest honest call, which takes some hundredths."""


_MOST_SECONDS_ON_AVERAGE = 0.1


class TooSlowError(BaseException):
    """Not an Exception, so that no decoder can take it for a problem of its own."""


@contextmanager
def limited_memory(most: int = MOST_MEMORY) -> Iterator[None]:
    """Let the process grow by at most `most` bytes; beyond that, Python raises MemoryError."""
    statm = Path("/proc/self/statm")
    if not statm.exists():  # only Linux says how large the process is
        yield
        return
    size = int(statm.read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


@contextmanager
def limited_time(pieces: int = 1) -> Iterator[Callable[[], Any]]:
    """A function to call before each of so many pieces of work: it then has `MAX_SECONDS`.

    Python can stop only Python. Code in C that does not come back ends the process, with a
    traceback, when all pieces together have taken far too long.
    """

    def stop(*_: Any) -> None:
        raise TooSlowError(f"took more than {MAX_SECONDS} seconds of processor time")

    # Not the timer and the signal that pytest-timeout uses.
    before = signal.signal(signal.SIGVTALRM, stop)
    faulthandler.dump_traceback_later(60 + pieces * _MOST_SECONDS_ON_AVERAGE, exit=True)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def limited(work: Callable[[], Any]) -> None:
    """Do `work` within both limits."""
    with limited_time() as start, limited_memory():
        start()
        work()
