"""What a task raises reaches the caller as the error that it was."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from icefloe import InvalidInputError, StorageError
from icefloe.spark.tasks import as_raised

TRACE = "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n{}\n"


@pytest.mark.parametrize("kind", [InvalidInputError, StorageError])
def test_an_error_of_ours_is_raised_again(kind: type[Exception]) -> None:
    report = PySparkException(TRACE.format(f"icefloe.errors.{kind.__name__}: no such weather"))
    with pytest.raises(kind, match=r"^no such weather$") as found, as_raised():
        raise report
    assert found.value.__cause__ is report


def test_of_several_errors_the_last_one_counts() -> None:
    both = "icefloe.errors.StorageError: slow\nIt was the cause of:\nicefloe.errors.{}: late"
    with pytest.raises(InvalidInputError, match="late"), as_raised():
        raise PySparkException(TRACE.format(both.format("InvalidInputError")))


@pytest.mark.parametrize("text", ["ValueError: mine", "icefloe.errors.NoSuchError: odd"])
def test_errors_of_others_stay_as_spark_reports_them(text: str) -> None:
    with pytest.raises(PySparkException, match=text.partition(": ")[2]), as_raised():
        raise PySparkException(TRACE.format(text))
