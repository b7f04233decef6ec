"""What to do about the mistakes that are made first: a typo, a wrong place, a wrong order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from icefloe.api.addresses import parse_address
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ErrorKind, IcechunkError, NodeNotFoundError, RepositoryNotFoundError
from icefloe.paths import is_internal

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


@contextmanager
def about_place(place: str, words: Sequence[str], *, last: bool = False) -> Iterator[None]:
    """Adds what to do to the error that there is no repository at a place.

    `words` are those of the command line; `last` if the repository is the last argument.
    """
    try:
        yield
    except RepositoryNotFoundError as error:
        for hint in _hints(place, words[1:], last=last):
            error.add_note(hint)
        raise


def _hints(place: str, words: Sequence[str], *, last: bool) -> list[str]:
    where = "the last argument" if last else "the first argument"
    for word in words:
        if word != place and not word.startswith("-") and _is_local_repository(word):
            return [f"{word} is a repository: REPOSITORY is {where}"]
    path = Path(parse_address(place).url)
    if "://" in place:
        return ["check the bucket and the prefix", f"or create one: icefloe init {place}"]
    if path.is_file() or path.suffix in _FILES:
        return [f"a file becomes part of a repository by: icefloe ingest {place} REPOSITORY"]
    if any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return [f"it is a Zarr store; make a repository of it: icefloe import {place} NEW"]
    hints = []
    if not path.exists() and path.parent.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.iterdir()))
        hints.append(f"there is no such directory.{near}")
    return [*hints, "create one: " + ("add --create" if last else f"icefloe init {place}")]


@contextmanager
def about_nodes(session: Session) -> Iterator[None]:
    """Adds the nearest paths to the error that a snapshot has no such node."""
    try:
        yield
    except NodeNotFoundError as error:
        (wanted,) = re.findall(r"no node at '([^']*)'", str(error)) or [""]
        every = (node.path for node in session.workspace.state.view.all_nodes())
        paths = [path for path in every if is_internal(wanted) or not is_internal(path)]
        name = wanted.rpartition("/")[2]
        same_name = [path for path in paths if path.endswith(f"/{name}")]
        near = f"Did you mean {' or '.join(same_name[:3])}?" if name and same_name else ""
        error.add_note(near or did_you_mean(wanted, paths).strip() or "`tree` lists all nodes")
        raise


def after(error: IcechunkError) -> str:
    """What to add to the message of an error; each hint is a line of its own."""
    hints = list(getattr(error, "__notes__", ()))
    if error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
        hints.append("add --allow-virtual PREFIX to read the files that virtual chunks are in")
    return "".join(f"\n  {hint}" for hint in hints)


def _is_local_repository(word: str) -> bool:
    if "://" in word:
        return False
    address = parse_address(word)
    return Path(address.url).is_dir() and Repository.exists(address.storage())
