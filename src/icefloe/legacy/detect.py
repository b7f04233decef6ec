"""Detects the generation of a repository from the names of its files and the start of one file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.envelope import MAGIC
from icefloe.format.layout import STATE_FILE, Generation
from icefloe.legacy.numbered.names import ALL_NAMES, DOCUMENT, PROTOTYPE, Names

MAIN = "main"


class Detected(NamedTuple):
    """What the file names show. `names` is None for a dataset with a state file."""

    names: Names | None
    key: str
    """The file that identifies the generation."""


def detect(keys: Iterable[str]) -> Detected | None:
    """What the names of files show, or None if there is no older repository.

    Raises:
        FormatError: there are two repositories.
    """
    found: dict[Names | None, str] = {}
    for key in sorted(keys):
        if key == STATE_FILE:
            found[None] = key
        for names in ALL_NAMES:
            if names.branch_of(key) == MAIN:
                found.setdefault(names, key)  # the newest file of its branch
    if len(found) > 1:
        (first, one), (second, other) = list(found.items())[:2]
        raise FormatError(
            f"{one} belongs to {_of_names(first).noun}, and {other} to {_of_names(second).noun}: "
            "a directory holds one or the other; move one of them elsewhere",
            ErrorKind.INVALID_FILE_FORMAT,
        )
    return next((Detected(names, key) for names, key in found.items()), None)


def generation_of(names: Names | None, snapshot_file: bytes | memoryview = b"") -> Generation:
    """The generation of a repository with these names and this snapshot file."""
    generation = _of_names(names)
    if generation is Generation.ALPHA and bytes(snapshot_file[: len(MAGIC)]) == MAGIC:
        return Generation.BETA
    return generation


def _of_names(names: Names | None) -> Generation:
    if names is None:
        return Generation.STATE_FILE
    return Generation.NUMBERED if names in (DOCUMENT, PROTOTYPE) else Generation.ALPHA
