"""Jobs that write: errors of tasks come back as they were, lost executors repeat the job.

Spark hands on the text of a task's traceback, inside an exception of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from icefloe import errors

_RAISED = re.compile(r"\bicefloe\.errors\.(\w+): (.*)")
_ABANDONED = "indeterminate output"
_MAX_RUNS = 3


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


def collect_repeatable(rows: DataFrame) -> pa.Table:
    """The rows of a job whose tasks may run any number of times.

    New chunks have random ids, so a repeated task never returns what it returned before. Spark
    gives a job up if an executor is lost whose rows some tasks of the next stage have read and
    others have not. The whole job then runs again, a few times at most; only its last run counts.
    """
    for _ in range(_MAX_RUNS - 1):
        try:
            with as_raised():
                return rows.toArrow()
        except (PySparkException, Py4JJavaError) as report:
            if _ABANDONED not in str(report):
                raise
    with as_raised():
        return rows.toArrow()


def _find_error(text: str) -> errors.IcechunkError | None:
    """The last error in the text: what was raised before it is its cause."""
    for name, message in reversed(_RAISED.findall(text)):
        kind: type[errors.IcechunkError] | None = getattr(errors, name, None)
        # A conflict is made of more than its message, and no task commits.
        if kind is not None and not issubclass(kind, errors.ConflictError):
            return kind(message.strip())
    return None
