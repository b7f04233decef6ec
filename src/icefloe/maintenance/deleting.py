"""Deleting many objects: in concurrent batches, with back-off when the storage throttles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icefloe.errors import ErrorKind, StorageError
from icefloe.maintenance.listing import StoredObjects
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import GCSummary
from icefloe.records import NamedTuple
from icefloe.storage.driver import Driver

KEYS_AT_ONCE = 1000
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 30.0
_MAX_MESSAGES = 10


class Pace(NamedTuple):
    """How hard to try."""

    batches_at_once: int = 10
    failures_in_a_row: int = 50
    """The number of consecutive failed requests after which deleting ends with an error."""


class _Deleting:
    """The state of one run."""

    def __init__(self, driver: Driver, pace: Pace, summary: GCSummary, report: Reporter) -> None:
        self.driver = driver
        self.pace = pace
        self.summary = summary
        self.report = report
        self.at_once = 1
        self.pause = 0.0
        self.in_a_row = 0

    async def delete(self, kind: str, objects: StoredObjects) -> bool:
        """Delete all objects of a kind. Returns whether all requests succeeded."""
        todo = [
            objects.take(slice(at, at + KEYS_AT_ONCE))
            for at in range(0, len(objects), KEYS_AT_ONCE)
        ]
        failed_before, done = self.summary.objects_failed_to_delete, 0
        while todo:
            batches, todo = todo[: self.at_once], todo[self.at_once :]
            outcomes = await self.driver.delete_batches([each.all_keys() for each in batches])
            throttled = [
                batch
                for batch, outcome in zip(batches, outcomes, strict=True)
                if not self._note(kind, batch, outcome)
            ]
            done += sum(map(len, batches)) - sum(map(len, throttled))
            self.report.tell(f"deleting {kind.replace('_', ' ')}", done, len(objects))
            todo = [*throttled, *todo]
            await self._adapt(has_throttled=bool(throttled))
        return self.summary.objects_failed_to_delete == failed_before

    async def _adapt(self, *, has_throttled: bool) -> None:
        if not has_throttled:
            self.at_once, self.pause = min(2 * self.at_once, self.pace.batches_at_once), 0.0
            return
        self.at_once = max(1, self.at_once // 2)
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE_S), _MAX_PAUSE_S)
        await self.driver.sleep(self.pause)

    def _note(self, kind: str, batch: StoredObjects, outcome: StorageError | None) -> bool:
        """Count a batch. Returns False if it has to be retried."""
        summary = self.summary
        if outcome is None:
            self.in_a_row = 0
            name = f"{kind}_deleted"
            setattr(summary, name, getattr(summary, name) + len(batch))
            summary.bytes_deleted += int(batch.size_bytes.sum())
            return True
        if outcome.kind == ErrorKind.THROTTLED and self.pause < _MAX_PAUSE_S:
            summary.throttled_batches += 1
            return False
        summary.objects_failed_to_delete += len(batch)
        messages = summary.delete_errors
        if outcome.message not in messages and len(messages) < _MAX_MESSAGES:
            messages.append(outcome.message)
        self.in_a_row += 1
        if self.in_a_row >= self.pace.failures_in_a_row:
            raise StorageError(
                f"{self.in_a_row} requests to delete objects failed in a row, the last one: "
                f"{outcome.message}; so far {summary}",
                ErrorKind.GC_DELETES_FAILING,
            )
        return True


async def delete_objects(
    driver: Driver, objects: Mapping[str, StoredObjects], pace: Pace, report: Reporter
) -> GCSummary:
    """Delete referring objects before the objects they refer to.

    If objects of one kind could not be deleted, the later kinds are left for the next run.
    """
    summary = GCSummary()
    run = _Deleting(driver, pace, summary, report)
    is_well = True
    for kind, each in objects.items():
        if is_well:
            is_well = await run.delete(kind, each)
        else:
            summary.skipped_phases.append(kind)
    return summary


def would_delete(objects: Mapping[str, StoredObjects]) -> GCSummary:
    """The summary of deleting all of them."""
    summary = GCSummary(bytes_deleted=sum(int(each.size_bytes.sum()) for each in objects.values()))
    for kind, each in objects.items():
        setattr(summary, f"{kind}_deleted", len(each))
    return summary


def count_of(objects: Sequence[StoredObjects]) -> int:
    """How many objects there are."""
    return sum(map(len, objects))
