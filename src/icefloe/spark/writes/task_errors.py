"""Errors of tasks, raised on the driver as the errors that they were.

Spark hands on the text of a task's traceback, inside an exception of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from icefloe import errors

_RAISED = re.compile(r"\bicefloe\.errors\.(\w+): (.*)")


@contextmanager
def as_raised() -> Iterator[None]:
    """Raise the error of icefloe that made a task fail, instead of Spark's report of it."""
    try:
        yield
    except PySparkException as report:
        error = _find_error(str(report))
        if error is None:
            raise
        raise error from report


def _find_error(text: str) -> errors.IcechunkError | None:
    """The last error in the text: what was raised before it is its cause."""
    for name, message in reversed(_RAISED.findall(text)):
        kind: type[errors.IcechunkError] | None = getattr(errors, name, None)
        # A conflict is made of more than its message, and no task commits.
        if kind is not None and not issubclass(kind, errors.ConflictError):
            return kind(message.strip())
    return None
