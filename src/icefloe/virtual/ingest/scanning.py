"""What an ingest has to know of one source: everything, or only that it has not changed."""

from __future__ import annotations

from icefloe.virtual.formats.opening import look_at, scan
from icefloe.virtual.model.description import SourceDescription, SourceVersion
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.planning.ledger import is_same_version
from icefloe.virtual.planning.plan import IngestOptions


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
