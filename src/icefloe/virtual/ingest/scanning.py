"""What an ingest has to know of each source: everything, or only that it has not changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from icefloe.virtual.formats.opening import look_at, scan
from icefloe.virtual.ingest.open_files import reason_of
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.places.access import SourceAccess, local_path
from icefloe.virtual.planning.ledger import is_same_version
from icefloe.virtual.planning.plan import IngestOptions

SCANS_AT_ONCE = 8


def scan_for(
    location: str, options: IngestOptions, access: SourceAccess, known: SourceVersion | None
) -> SourceDescription:
    """Describe a source; `known` is the version of it that an earlier ingest has brought over.

    A file that has not changed is not opened, nor is one whose change does not matter.
    """
    seen = None if known is None else look_at(location, access)
    if known is not None and seen is not None:
        is_enough = options.changed != "replace" or is_same_version(known, seen.version)
        if is_enough:
            return seen
    return scan(
        location,
        references=options.mode == "virtual",
        concat_dims=options.concat_dims,
        access=access,
    )


def scan_each(
    items: Sequence[tuple[str, SourceVersion | None]], options: IngestOptions, access: SourceAccess
) -> Iterator[tuple[str, SourceDescription | str]]:
    """Each source with its description, or with the reason why there is none.

    Remote files are mostly waited for, so that several are opened at once.
    """
    work = partial(_scan_one, options, access)
    if all(local_path(location) is not None for location, _ in items):
        yield from map(work, items)
        return
    with ThreadPoolExecutor(SCANS_AT_ONCE) as pool:
        waiting: deque[Future[tuple[str, SourceDescription | str]]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * SCANS_AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _scan_one(
    options: IngestOptions, access: SourceAccess, item: tuple[str, SourceVersion | None]
) -> tuple[str, SourceDescription | str]:
    location, known = item
    try:
        return location, scan_for(location, options, access, known)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is about the file
        return location, reason_of(error, location)
