"""Where work is done: in this process, or by the tasks of a cluster.

An operation cuts its work into items and says what is done with them. The engine brings the two
together. What differs more (a listing minus what is in use, say) is a method of its own, which each
engine has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from icefloe.maintenance.progress import Reporter

Here = TypeVar("Here")
Here_co = TypeVar("Here_co", covariant=True)
Item = TypeVar("Item")
Result = TypeVar("Result")

Work = Callable[[Here, Iterable[Item]], AsyncIterator[Result]]
"""What is done with some of the items. It gets the context of its process, such as the handle of
a repository."""


class Engine(Protocol[Here_co]):
    """Does the work of an operation."""

    @property
    def here(self) -> Here_co:
        """The context of this process."""

    def map(
        self, stage: str, work: Work[Here_co, Item, Result], items: Sequence[Item]
    ) -> AsyncIterator[Result]:
        """What `work` makes of the items. Items and results are few, and can be pickled."""


class LocalEngine(Generic[Here]):
    """Works in this process, and reports its progress."""

    def __init__(self, here: Here, report: Reporter) -> None:
        self.here = here
        self.report = report

    def map(
        self, stage: str, work: Work[Here, Item, Result], items: Sequence[Item]
    ) -> AsyncIterator[Result]:
        """What `work` makes of the items, in their order."""
        return work(self.here, self.report.each(stage, items, len(items)))
