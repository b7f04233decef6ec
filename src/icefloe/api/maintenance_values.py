"""Converts the arguments of maintenance methods to those of the operations."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from icefloe.assets.assets import LISTINGS_AT_ONCE
from icefloe.display import package_name
from icefloe.errors import InvalidInputError
from icefloe.maintenance.expire import Expired, Keep, Rules
from icefloe.maintenance.gc import Options, Pace
from icefloe.maintenance.live import MANIFEST_BYTES_AT_ONCE, Limits
from icefloe.maintenance.progress import Report, Reporter
from icefloe.observe import MAINTENANCE
from icefloe.storage.driver import microseconds

_MAX_LINES, _MAX_NAMES = 20, 10


class ForkPointWarning(UserWarning):
    """An expiration removes the snapshot where branches or tags part."""


def instant(moment: datetime, name: str) -> int:
    """A time with a zone, in microseconds."""
    if moment.tzinfo is None:
        raise TypeError(
            f"{name} is {moment!r}, expected a time with a zone, such as datetime.now(UTC)"
        )
    return microseconds(moment)


def expiration_rules(
    older_than: datetime | None,
    *,
    delete_expired_branches: bool,
    delete_expired_tags: bool,
    keep_last: int,
    keep_tagged: bool,
    keep_fork_points: bool,
    branches: Mapping[str, Keep] | None,
    snapshot_ids: Iterable[str] | None,
) -> Rules:
    """What is to expire."""
    if keep_last < 0:
        raise InvalidInputError(f"keep_last is {keep_last}, expected 0 or more")
    if snapshot_ids is not None and (older_than or keep_last or branches):
        raise InvalidInputError("give snapshot_ids alone, or rules without them")
    if snapshot_ids is None and older_than is None and not keep_last and not branches:
        raise InvalidInputError(
            "nothing says what is to expire: give older_than, keep_last, branches or snapshot_ids"
        )
    return Rules(
        None if older_than is None else instant(older_than, "older_than"),
        delete_expired_branches,
        delete_expired_tags,
        keep_last,
        keep_tagged,
        keep_fork_points,
        dict(branches or {}),
        names=None if snapshot_ids is None else frozenset(snapshot_ids),
    )


def limits(
    *,
    max_snapshots_in_memory: int = 50,
    max_compressed_manifest_mem_bytes: int = MANIFEST_BYTES_AT_ONCE,
    max_decoded_manifest_mem_bytes: int = 1,
    max_concurrent_manifest_fetches: int = 500,
) -> Limits:
    """The memory limits of a walk. At least one manifest is decoded at a time."""
    _require_positive(
        max_snapshots_in_memory=max_snapshots_in_memory,
        max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
        max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
        max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
    )
    return Limits(
        max_snapshots_in_memory,
        min(max_compressed_manifest_mem_bytes, MANIFEST_BYTES_AT_ONCE),
        max_concurrent_manifest_fetches,
    )


def collection_options(
    older_than: datetime | None,
    *,
    max_concurrent_deletes: int = 10,
    max_consecutive_delete_failures: int = 50,
    max_concurrent_listings: int | None = None,
    full_every: int = 1,
    **of_the_walk: int,
) -> Options:
    """The options of a collection. There is no time for a plan, which has its own."""
    _require_positive(
        max_concurrent_deletes=max_concurrent_deletes,
        max_consecutive_delete_failures=max_consecutive_delete_failures,
        max_concurrent_listings=1 if max_concurrent_listings is None else max_concurrent_listings,
        full_every=full_every,
    )
    return Options(
        0 if older_than is None else instant(older_than, "delete_object_older_than"),
        limits(**of_the_walk),
        LISTINGS_AT_ONCE if max_concurrent_listings is None else max_concurrent_listings,
        Pace(max_concurrent_deletes, max_consecutive_delete_failures),
        full_every,
    )


def _require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} is {number}, expected 1 or more")


@contextmanager
def reporter(progress: Report | None) -> Iterator[Reporter]:
    """The receiver of progress reports during a call."""
    made = Reporter(progress)
    try:
        yield made
    finally:
        made.finish()


def warn_about_forks(expired: Expired) -> None:
    """Say which branches and tags lose the snapshot where they part.

    Programs that were written for the original get a line in the log instead.
    """
    if not expired.apart:
        return
    lines = [
        f"{_names(names)} part at snapshot {key}" for key, names in sorted(expired.apart.items())
    ]
    more = [f"and {len(lines) - _MAX_LINES:,} more"] if len(lines) > _MAX_LINES else []
    message = (
        "the expiration cuts branches or tags from each other's history: "
        + "; ".join([*lines[:_MAX_LINES], *more])
        + ". They cannot be merged once that snapshot has been collected; keep_fork_points=True "
        "keeps it"
    )
    if package_name() == "icefloe":
        warnings.warn(message, ForkPointWarning, stacklevel=4)
    else:
        MAINTENANCE.warning("%s", message)


def _names(names: Sequence[str]) -> str:
    more = [f"{len(names) - _MAX_NAMES:,} more"] if len(names) > _MAX_NAMES else []
    *first, last = [*names[:_MAX_NAMES], *more]
    return f"{', '.join(first)} and {last}"


def warn_about_total_chunks_storage() -> None:
    """The warning of a method that was replaced by another one."""
    warnings.warn(
        "The ``total_chunks_storage`` method has been deprecated, and with it "
        "``total_chunks_storage_async``: use chunk_storage_stats(...).native_bytes; these "
        "statistics also count inline and virtual chunks",
        DeprecationWarning,
        stacklevel=4,
    )
