"""Which files a group was made of, so that an ingest that is run again only adds new ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import field
from typing import Literal

import numpy as np

from icefloe.paths import INTERNAL_GROUP
from icefloe.records import record
from icefloe.virtual.model.description import Json, SourceDescription, SourceVersion, digest_of
from icefloe.virtual.planning.axes import time_units

LEDGER_GROUP = INTERNAL_GROUP
"""The group, inside of the one it is about, in which an ingest keeps its own tables."""


@record(frozen=True)
class Ledger:
    """The files brought over so far, in the order they came, and the state each had then."""

    versions: dict[str, SourceVersion] = field(default_factory=dict)
    extents: dict[str, str] = field(default_factory=dict)
    """What `extent_of` said of them, where it is known."""
    made_with: dict[str, Json] = field(default_factory=dict)
    """What the first ingest was told of what holds for the group; see `IngestOptions`."""

    def compare(self, source: SourceDescription) -> Literal["new", "same", "changed"]:
        """Whether a file is known, and still what it was."""
        known = self.versions.get(source.location)
        if known is None:
            return "new"
        return "same" if is_same_version(known, source.version) else "changed"


def is_same_version(known: SourceVersion, found: SourceVersion) -> bool:
    """Whether a file is still what it was.

    By its ETag or its fingerprint where both sides have one; else by its size and the time of its
    last change.
    """
    if known.etag is not None and found.etag is not None:
        return known.etag == found.etag
    if known.fingerprint is not None and found.fingerprint is not None:
        return (known.fingerprint, known.size_bytes) == (found.fingerprint, found.size_bytes)
    return (known.size_bytes, known.last_modified) == (found.size_bytes, found.last_modified)


def extent_of(source: SourceDescription, concat_dims: Sequence[str]) -> str:
    """A hash of what a file fills: its variables, and its places along the joined dimensions."""
    hashed = hashlib.blake2b(digest_size=16)
    for path in sorted(source.variables):
        variable = source.variables[path]
        if not set(concat_dims) & {*variable.dimensions, path}:
            continue
        hashed.update(f"{path} {variable.shape}\n".encode())
        if variable.name in concat_dims and variable.values is not None:
            units = time_units(variable)
            values = np.atleast_1d(variable.values)
            hashed.update(digest_of(values if units is None else units.decode(values)))
    return hashed.hexdigest()
