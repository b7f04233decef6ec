"""Versions of the format in which repositories can be created, and kinds of chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from icefloe.display import NamedNumber
from icefloe.errors import InvalidInputError
from icefloe.repo.handle import FormatVersion

Widths = Literal["strict", "wide"]
Encoding = Literal["json", "msgpack", "binary", "binary-uncompressed"]


class ChunkType(NamedNumber):
    """Where the bytes of a chunk are."""

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3


CHUNK_TYPES = tuple(ChunkType)


class SpecVersion(NamedNumber):
    """Versions of the format. Generations before version 1 count as 0."""

    v0 = 0
    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """The version of new repositories.

        >>> icefloe.SpecVersion.current()
        SpecVersion.v2 (current)
        """
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


class NewGeneration(ABC):
    """An older generation that has a writer."""

    @abstractmethod
    def format_version(self) -> FormatVersion:
        """What makes and keeps its files."""


@dataclass(frozen=True)
class NumberedRefs(NewGeneration):
    """A repository whose branches are numbered files below `r/`, as documented in October 2024.

    That document does not define the encoding of metadata files. They can be JSON that is valid
    against its schemas, MessagePack, or MessagePack after the binary header of a later document,
    with or without compression. A repository keeps the encoding it was created with. It cannot save
    a configuration.

    Attributes of a node with more than `inline_attributes_bytes` of JSON go into an attributes
    file. None means that no attributes do. The setting applies to this object only.

    >>> old = icefloe.NumberedRefs(encoding="json")
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), generation=old)
    """

    encoding: Encoding = "json"
    inline_attributes_bytes: int | None = None

    def __post_init__(self) -> None:
        from icefloe.legacy.numbered.files import Form

        known = [str(form) for form in Form]
        if self.encoding not in known:
            raise InvalidInputError(f"encoding is {self.encoding!r}, expected one of {known}")

    def format_version(self) -> FormatVersion:
        """What makes and keeps its files."""
        from icefloe.legacy.numbered.files import Form
        from icefloe.legacy.numbered_format import Numbered

        return Numbered(
            form=Form(self.encoding), inline_attributes_bytes=self.inline_attributes_bytes
        )


@dataclass(frozen=True)
class StateFileDataset(NewGeneration):
    """A dataset with a state file and Parquet files, as documented in August 2024.

    That document has 16-bit columns for the shapes of arrays, which limits a dimension to 65,535.
    `widths="wide"` has the same columns with 64 bits. A dataset keeps the widths it was created
    with. It cannot save a configuration.

    `store_root` is a URL or path of the same kind of storage, for all files except the state file.
    A repository is opened at the location of its state file.

    >>> old = icefloe.StateFileDataset()
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), generation=old)
    """

    widths: Widths = "strict"
    store_root: str | None = None

    def __post_init__(self) -> None:
        from icefloe.legacy.state_file.tables import Profile

        known = [profile.value for profile in Profile]
        if self.widths not in known:
            raise InvalidInputError(f"widths are {self.widths!r}, expected one of {known}")

    def format_version(self) -> FormatVersion:
        """What makes and keeps its files."""
        from icefloe.legacy.state_file.tables import Profile
        from icefloe.legacy.state_format import StateFile

        return StateFile(Profile(self.widths), self.store_root)
