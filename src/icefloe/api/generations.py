"""Older generations of the format in which repositories can be created."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from icefloe.errors import InvalidInputError
from icefloe.legacy.numbered.files import Form
from icefloe.legacy.state_file.schema import Profile
from icefloe.repo.families.numbered.family import Numbered
from icefloe.repo.families.state_file.family import StateFile
from icefloe.repo.handle import Family

Widths = Literal["strict", "wide"]
Encoding = Literal["json", "msgpack", "binary", "binary-uncompressed"]


class NewGeneration(ABC):
    """An older generation that has a writer."""

    @abstractmethod
    def family(self) -> Family:
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
    """

    encoding: Encoding = "json"
    inline_attributes_bytes: int | None = None

    def __post_init__(self) -> None:
        known = [str(form) for form in Form]
        if self.encoding not in known:
            raise InvalidInputError(f"encoding is {self.encoding!r}, expected one of {known}")

    def family(self) -> Numbered:
        """What makes and keeps its files."""
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
    """

    widths: Widths = "strict"
    store_root: str | None = None

    def __post_init__(self) -> None:
        known = [profile.value for profile in Profile]
        if self.widths not in known:
            raise InvalidInputError(f"widths are {self.widths!r}, expected one of {known}")

    def family(self) -> StateFile:
        """What makes and keeps its files."""
        return StateFile(Profile(self.widths), self.store_root)
