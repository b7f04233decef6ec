"""What tests of writing with Spark share."""

from __future__ import annotations

from icefloe import Repository
from icefloe.storage.run import run_blocking


def number_of_objects(repository: Repository) -> int:
    """How many objects the repository's storage holds."""
    return len(run_blocking(repository._handles.blocking.driver.list("")))
