"""Large variables that every file repeats: are they the same in all of them?

A scan reads small ones. Of large ones only the plan knows whether files are joined along one of
their dimensions; those that are not are read once more, where the files are, and hashed. Without
that the first file would speak for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual.formats.opening import NativeReader
from icefloe.virtual.ingest.open_files import DamagedSourceError, OpenFiles
from icefloe.virtual.model.description import SourceDescription, VariableDescription
from icefloe.virtual.model.shared_variables import only
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.planning.arrangement import Existing

_BLOCK_BYTES = 16 * 1024 * 1024

Digests = dict[tuple[str, str], bytes]
"""By location and path."""


def digest_variable(reader: NativeReader, variable: VariableDescription) -> bytes:
    """The digest that `description.digest_of` has for all values, of which few are in memory."""
    hashed = hashlib.blake2b(digest_size=16)
    dtype = np.dtype(variable.dtype)
    rows = max(1, _BLOCK_BYTES // max(1, prod(variable.shape[1:]) * dtype.itemsize))
    whole = tuple(slice(0, size) for size in variable.shape[1:])
    for start in range(0, variable.shape[0], rows):
        span = slice(start, min(start + rows, variable.shape[0]))
        values = np.asarray(reader.read(variable.path, (span, *whole)))
        hashed.update(np.ascontiguousarray(values, dtype.newbyteorder("<")).tobytes())
    return hashed.digest()


def digest_file(
    source: SourceDescription, paths: Sequence[str], access: SourceAccess
) -> tuple[Digests, str | None]:
    """The digests of some variables of a file; or why it cannot be read."""
    found: Digests = {}
    try:
        with OpenFiles(access) as files:
            reader = files.at(source.location)
            for path in paths:
                digest = digest_variable(reader, source.variables[path])
                found[source.location, path] = digest
    except DamagedSourceError as error:
        return {}, error.reason
    return found, None


def files_to_read(
    uncompared: Mapping[str, Sequence[str]], sources: Sequence[SourceDescription]
) -> list[tuple[SourceDescription, list[str]]]:
    """The files that have to be read, with the paths that are wanted of each."""
    wanted: dict[str, list[str]] = {}
    for path, locations in uncompared.items():
        for location in locations:
            wanted.setdefault(location, []).append(path)
    return [
        (only(source, *wanted[source.location]), wanted[source.location])
        for source in sources
        if source.location in wanted
    ]


def with_digests(sources: Sequence[SourceDescription], digests: Digests) -> list[SourceDescription]:
    """Descriptions that also say what was found out."""
    by_location: dict[str, dict[str, bytes]] = {}
    for (location, path), digest in digests.items():
        by_location.setdefault(location, {})[path] = digest
    return [
        source
        if source.location not in by_location
        else replace(
            source,
            variables={
                **source.variables,
                **{
                    path: replace(source.variables[path], digest=digest)
                    for path, digest in by_location[source.location].items()
                },
            },
        )
        for source in sources
    ]


def digest_existing(
    store: Store, group: str, existing: Existing | None, paths: Sequence[str]
) -> Existing | None:
    """What is appended to, with digests of these arrays as well."""
    if existing is None:
        return None
    variables = dict(existing.description.variables)
    for path in paths:
        variable = variables.get(path)
        if variable is not None and variable.digest is None:
            reader = _ArrayReader(store, "/".join(filter(None, (group.strip("/"), path))))
            try:
                digest = digest_variable(reader, variable)
            except InvalidInputError as error:
                if error.kind != ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
                    raise
                continue  # references that may not be read here
            variables[path] = replace(variable, digest=digest)
    return replace(existing, description=replace(existing.description, variables=variables))


class _ArrayReader:
    def __init__(self, store: Store, target: str) -> None:
        self._array: Any = zarr.open_array(store, path=target, mode="r", zarr_format=3)

    def read(self, path: str, region: tuple[slice, ...]) -> Any:
        return np.asarray(self._array[region])
