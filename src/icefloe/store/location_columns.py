"""Columns of virtual chunk locations: converted to stored form and matched with containers.

Almost all locations of real data are plain: nothing to encode, no odd segments. A few passes of
Arrow over the distinct values handle these. The others are handled one by one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.config import stores
from icefloe.config.container_set import ContainerSet
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.virtual_urls import VCC, has_odd_segments, parse, stored_location
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns.arrow_columns import mask_from_arrow, numbers_from_arrow
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.manifest.dictionary import seems_distinct
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = on_demand("pyarrow"), on_demand("pyarrow.compute")

# Encoded or odd characters, a second "//", segments of dots.
_NOT_PLAIN = r"[%?#\\\x00-\x20\x7f]|://.*//|/\.{1,2}/|/\.{1,2}$"
_WELL_FORMED = r"^[a-z][a-z0-9+.-]*://[^/]"
_KEPT_IN_FILE_URL = r"^file:///[-!$&'()*+,./:;=@\[\]_|~A-Za-z0-9]*$"
_S3 = (stores.S3, stores.S3Compatible, stores.Tigris)


class Matched(NamedTuple):
    """Locations in stored form, with the number of the container of each, or -1."""

    values: pa.Array
    number: NDArray[np.int32]


def distinct(column: pa.Array) -> tuple[pa.Array, NDArray[np.int32] | None]:
    """Distinct values, and the value of each row; None if every row is a value."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary, numbers_from_arrow(column.indices.cast(pa.int32()))
    if seems_distinct(BlobColumn.from_arrow(column)):
        return column, None
    encoded = column.dictionary_encode()
    return encoded.dictionary, numbers_from_arrow(encoded.indices)


def match_containers(values: pa.Array, containers: ContainerSet) -> Matched:
    """Match every location. A location without a container is not an error.

    Raises:
        InvalidInputError: a location is not an absolute URL, kind `invalid-virtual-ref`.
    """
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.string())
    number = np.full(len(values), -1, np.int32)
    if not len(values):
        return Matched(values, number)
    plain = ~mask_from_arrow(pc.match_substring_regex(values, _NOT_PLAIN))
    settled = np.zeros(len(values), np.bool_)
    has_odd_prefix = False
    for at, container in enumerate(containers):
        prefix = container.url_prefix
        if re.search(_NOT_PLAIN, prefix) or not re.match(_WELL_FORMED[:-4], prefix):
            has_odd_prefix = True
            continue
        hit = mask_from_arrow(pc.starts_with(values, prefix))
        if isinstance(container.store, stores.LocalFileSystem) and hit.any():
            hit &= mask_from_arrow(pc.match_substring_regex(values, _KEPT_IN_FILE_URL))
        if container.name is not None:
            hit |= mask_from_arrow(pc.starts_with(values, f"{VCC}://{container.name}/"))
        hit &= plain & ~settled
        number[hit] = at
        settled |= hit
        if settled.all():
            return Matched(values, number)
    if not has_odd_prefix:  # a plain location would have been found
        is_known = plain & mask_from_arrow(pc.match_substring_regex(values, _WELL_FORMED))
        settled |= is_known & ~mask_from_arrow(pc.match_substring_regex(values, f"^(file|{VCC}):"))
    rest = np.flatnonzero(~settled)
    if len(rest):
        values = _settle_singly(values, rest, containers, number)
    return Matched(values, number)


def _settle_singly(
    values: pa.Array, rest: NDArray[np.int64], containers: ContainerSet, number: NDArray[np.int32]
) -> pa.Array:
    places = {container.url_prefix: at for at, container in enumerate(containers)}
    stored = []
    given = BlobColumn.from_arrow(values)
    for row, location in zip(rest.tolist(), given.take(rest), strict=True):
        stored.append(stored_location(location))
        try:
            number[row] = places[containers.resolve(location).container.url_prefix]
        except InvalidInputError as error:
            if error.kind != ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
                raise
    both = BlobColumn.concat([given, BlobColumn.from_values(stored, is_text=True)])
    place = np.arange(len(given))
    place[rest] = len(given) + np.arange(len(rest))
    return both.take(place).to_arrow()


def check_keys(matched: Matched, containers: ContainerSet) -> None:
    """Refuse keys that a container's store cannot address.

    S3 takes any key, and official readers address it without normalising keys.
    """
    odd = mask_from_arrow(pc.match_substring_regex(matched.values, _NOT_PLAIN))
    odd &= matched.number >= 0
    for row in np.flatnonzero(odd).tolist():
        container: VirtualChunkContainer = list(containers)[int(matched.number[row])]
        location = matched.values[row].as_py()
        if location.startswith(f"{VCC}://"):
            location = container.url_prefix + location.partition("://")[2].partition("/")[2]
        url = parse(location)
        if not isinstance(container.store, _S3) and has_odd_segments(url.path):
            raise InvalidInputError(
                f"virtual chunk location {location!r}: its key has empty, '.' or '..' segments, "
                f"which a {type(container.store).__name__} store cannot address",
                ErrorKind.INVALID_VIRTUAL_REF,
            )
