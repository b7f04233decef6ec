"""Java's standard error, without the warning that every start of Spark prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

_EXPECTED = b"WARNING: Using incubator modules"
"""Spark adds a module that Java warns about, and Java has no switch for the warning."""
_BYTES_AT_ONCE = 1 << 16


@contextmanager
def quiet_java() -> Iterator[None]:
    """A Java that is started here writes to the standard error of this process through a pipe.

    A thread passes everything on but the warning. It keeps on doing so for as long as Java runs,
    because that writes its errors to the same pipe.
    """
    terminal = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    is_started = Event()
    pipe = reader, os.dup(terminal), is_started
    Thread(target=_pass_on, args=pipe, name="icefloe-java", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        is_started.set()


def _pass_on(reader: int, terminal: int, is_started: Event) -> None:
    with open(reader, "rb", buffering=0) as source, open(terminal, "wb", buffering=0) as target:
        begun = b""  # a line whose end is still to come
        while found := source.read(_BYTES_AT_ONCE):
            *lines, begun = (begun + found).splitlines(keepends=True)
            if begun.endswith(b"\n") or is_started.is_set():  # later on, progress bars have no end
                lines, begun = [*lines, begun], b""
            target.write(b"".join(line for line in lines if not line.startswith(_EXPECTED)))
        target.write(begun)
