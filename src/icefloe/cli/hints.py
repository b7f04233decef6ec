"""What to do about the mistakes that are made first: a typo, a wrong place, a wrong order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from icefloe.api.addresses import parse_address
from icefloe.api.repository import Repository
from icefloe.errors import ErrorKind, IcechunkError, RepositoryNotFoundError

_FILES = (".nc", ".nc4", ".h5", ".hdf5", ".grib", ".grib2", ".grb", ".grb2")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence with the nearest names, to follow another one; empty if none is near."""
    close = get_close_matches(given, known, n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def misplaced_command(words: Sequence[str], commands: Iterable[str]) -> str:
    """For `icefloe REPOSITORY log`: a sentence that says what comes first."""
    if len(words) > 1 and words[1] in commands:
        rest = " ".join([words[1], words[0], *words[2:]])
        return f" The command comes first: icefloe {rest}"
    return ""


def after(error: IcechunkError, words: Sequence[str]) -> str:
    """What to add to the message of an error; each hint is a line of its own."""
    hints: list[str] = []
    if isinstance(error, RepositoryNotFoundError):
        hints = _about_places(words)
    elif error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
        hints = ["add --allow-virtual PREFIX to read the files that virtual chunks are in"]
    return "".join(f"\n  {hint}" for hint in hints)


def _about_places(words: Sequence[str]) -> list[str]:
    """Hints for a repository that is not there: the wrong name, kind or order of arguments."""
    arguments = [word for word in words[1:] if not word.startswith("-")]
    for word in arguments[1:]:
        if _is_local_repository(word):
            return [f"{word} is a repository: REPOSITORY comes before the other arguments"]
    hints = []
    for word in arguments[:1]:
        path = Path(parse_address(word).url)
        if "://" in word:
            hints.append("check the bucket and the prefix")
        elif path.is_file() or path.suffix in _FILES:
            hints.append(
                f"a file becomes part of a repository by: icefloe ingest {word} REPOSITORY"
            )
        elif any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
            hints.append(f"it is a Zarr store; make a repository of it: icefloe import {word} NEW")
        elif not path.exists() and path.parent.is_dir():
            near = did_you_mean(path.name, (each.name for each in path.parent.iterdir()))
            hints.append(f"there is no such directory.{near}")
        hints.append(f"create one: icefloe init {word}")
    return hints


def _is_local_repository(word: str) -> bool:
    if "://" in word:
        return False
    address = parse_address(word)
    return Path(address.url).is_dir() and Repository.exists(address.storage())
