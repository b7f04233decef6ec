"""From what a user writes to a list of sources: paths, URLs, patterns, or lists of them."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.virtual.places.access import (
    SourceAccess,
    absolute_location,
    hadoop_free,
    local_path,
    location_of_key,
    split_location,
)
from icefloe.virtual.places.list_objects import Place

_MAGIC = re.compile(r"[*?\[]")
Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def list_sources(
    sources: Sources, access: SourceAccess | None = None, exclude: str | Sequence[str] = ()
) -> list[str]:
    """The locations meant, each once: those of a pattern sorted, otherwise in the order given.

    In a pattern `*`, `?` and `[...]` stand for parts of one name and `**` for any folders. A
    folder that matches is taken for a Zarr store, or a set of references. Sources that match a
    pattern of `exclude` are left out; one without a slash is about the last part of a name.

    Raises:
        InvalidInputError: a pattern matches nothing, or there is no source at all.
    """
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found: dict[str, None] = {}
    for item in given:
        text = hadoop_free(os.fspath(item))
        if not _MAGIC.search(text) or _is_file(text):
            found[absolute_location(text)] = None
            continue
        matches = _expand(text, access or SourceAccess())
        if not matches:
            raise InvalidInputError(f"no file matches {text!r}", ErrorKind.OBJECT_NOT_FOUND)
        found |= dict.fromkeys(matches)
    kept = [location for location in found if not is_excluded(location, exclude)]
    if not kept:
        why = f": all {len(found)} are excluded by {exclude!r}" if found else ""
        raise InvalidInputError(f"there are no sources to ingest{why}")
    return kept


def is_excluded(location: str, exclude: str | Sequence[str]) -> bool:
    """Whether a location, or the last part of it, matches one of the patterns."""
    name = unquote(location).rstrip("/")
    for pattern in [exclude] if isinstance(exclude, str) else exclude:
        text = hadoop_free(pattern)
        if "/" not in text:
            found = fnmatch.fnmatchcase(name.rpartition("/")[2], text)
        else:
            whole = text if "://" in text or text.startswith("*") else os.path.abspath(text)  # noqa: PTH100 - keeps the pattern as text
            found = fnmatch.fnmatchcase(name.removeprefix("file://"), whole.removeprefix("file://"))
        if found:
            return True
    return False


def _is_file(text: str) -> bool:
    path = local_path(absolute_location(text)) if "://" not in text else None
    return path is not None and path.exists()


def _expand(pattern: str, access: SourceAccess) -> list[str]:
    if pattern.startswith("file://"):
        pattern = unquote(pattern.removeprefix("file://"))
    if "://" not in pattern:
        full = os.path.abspath(pattern)  # noqa: PTH100 - keeps the pattern as text
        root, key = "file://", full.lstrip("/")
        place = Place("file:///", access)
    else:
        scheme, _, rest = pattern.partition("://")
        # A question mark is part of the pattern here, not the start of a query.
        root, _ = split_location(f"{scheme}://{rest.partition('?')[0]}")
        place = Place(root, access)
        key = unquote(f"{scheme}://{rest}"[len(root) :]).lstrip("/")
    names = key.split("/")
    matches = sorted(_walk(place, "", names))
    if root == "file://":
        return [absolute_location("/" + match) for match in matches]
    return [location_of_key(root, match) for match in matches]


def _walk(place: Place, folder: str, names: list[str]) -> Iterable[str]:
    name, rest = names[0], names[1:]
    below = f"{folder}/" if folder else ""
    if not _MAGIC.search(name):
        if rest:
            yield from _walk(place, below + name, rest)
        else:
            folders, files = _folder(place, folder)
            if name in folders or name in files:
                yield below + name
        return
    folders, files = _folder(place, folder)
    if name == "**":
        if rest:
            yield from _walk(place, folder, rest)
        for inner in folders:
            yield from _walk(place, below + inner, names)
        if not rest:
            yield from (below + file for file in files)
        return
    if rest:
        for inner in fnmatch.filter(folders, name):
            yield from _walk(place, below + inner, rest)
        return
    # A pattern such as `data/*` means the files there; a folder is meant when it is a Zarr store.
    stores = [inner for inner in folders if name != "*" or inner.endswith(".zarr")]
    for match in fnmatch.filter([*files, *stores], name):
        yield below + match


def _folder(place: Place, folder: str) -> tuple[list[str], list[str]]:
    try:
        return place.list_folder(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return [], []
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return [], []
        raise
