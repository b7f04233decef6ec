"""Values that are numbers with names. They come without the other values, which take longer."""

from __future__ import annotations

from icefloe.display.shown import NamedNumber
from icefloe.errors import InvalidInputError


class SpecVersion(NamedNumber):
    """Versions of the format. Generations before version 1 count as 0."""

    v0 = 0
    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """The version of new repositories."""
        return SpecVersion.v2

    def __repr__(self) -> str:
        return f"SpecVersion.{self.name}{' (current)' if self is SpecVersion.v2 else ''}"


def version_number(version: SpecVersion | int | str | None) -> int:
    """The version to create, the current one unless it is given."""
    if isinstance(version, str):
        raise InvalidInputError(
            f"Couldn't parse a valid version: spec_version is {version!r}, expected 1 or 2"
        )
    return int(SpecVersion.current() if version is None else version)


class ChunkType(NamedNumber):
    """Where the bytes of a chunk are."""

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3


CHUNK_TYPES = {int(kind): kind for kind in ChunkType}
"""By number: a dictionary is faster than the call of an enumeration."""
