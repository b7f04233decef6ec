"""Commit times: later than the commit before, and close to the storage's clock."""

from __future__ import annotations

from icefloe.errors import ErrorKind, FormatError, StorageError
from icefloe.repo.fence import objects_collected
from icefloe.repo.handle import RepoHandle

_MAX_STEP_US = 1_000_000
_MAX_SKEW_S = 600
MOST_CLOCK_SKEW_US = _MAX_SKEW_S * 1_000_000
_CHECK_LASTS_US = 60_000_000


def later_than(previous: int, now: int, what: str) -> int:
    """A time after `previous`, which is the time of `what`. This is `now` unless that clock is
    ahead.

    Times are in microseconds.

    Raises:
        FormatError: the other clock is ahead by a second or more.
    """
    if now > previous:
        return now
    if previous - now < _MAX_STEP_US:
        return previous + 1
    raise FormatError(
        f"{what} was written {(previous - now) / 1e6:.0f} s in the future of this machine's clock; "
        "set the clock right",
        ErrorKind.SNAPSHOT_TIMESTAMP,
    )


async def require_clock_of_storage(handle: RepoHandle, key: str, written_at: int) -> None:
    """Compare the clock with the time that the storage gave to a file just stored.

    The result of one comparison is valid for a minute.
    """
    checked_at = handle.shared.clock_checked_at
    if checked_at is not None and 0 <= written_at - checked_at < _CHECK_LASTS_US:
        return
    try:
        stored = await handle.driver.head(key)
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
        raise objects_collected(key) from error
    skew = written_at / 1e6 - stored.created_at.timestamp()
    if abs(skew) > _MAX_SKEW_S:
        raise FormatError(
            f"this machine's clock is {skew:+.0f} s off the storage's; at most {_MAX_SKEW_S} s are "
            "allowed, set the clock right",
            ErrorKind.SNAPSHOT_TIMESTAMP,
        )
    handle.shared.clock_checked_at = written_at
