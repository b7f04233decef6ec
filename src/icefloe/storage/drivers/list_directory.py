"""Which files a directory storage has. Files that are being written are left out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from icefloe.storage.keys import OWN_DIRECTORY, decode_key

# Icechunk writes `name#1`, `name#2`, ... and renames; '#' is encoded in finished names.
_UNFINISHED = re.compile(r"#\d+$")


def files_below(root: str, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file below `folder`, as its path relative to `root` and its directory entry."""
    folders = [folder]
    while folders:
        folder = folders.pop()
        try:
            entries = os.scandir(f"{root}/{folder}")
        except (FileNotFoundError, NotADirectoryError):
            continue  # never there, or removed while we were looking
        with entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if name == OWN_DIRECTORY or name.startswith(OWN_DIRECTORY + "/"):
                    continue
                if entry.is_dir():
                    folders.append(name)
                elif not _UNFINISHED.search(name):
                    yield name, entry


def top_level(root: str) -> Iterator[str]:
    """The names of files and folders in the root, those of folders with a slash."""
    try:
        entries = os.scandir(root)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != OWN_DIRECTORY:
                    yield decode_key(entry.name) + "/"
            elif not _UNFINISHED.search(entry.name):
                yield decode_key(entry.name)


def rows_below(root: str, folder: str) -> Iterator[tuple[str, int, int]]:
    """Name below the folder, size and time of every file; for folders with very many."""
    try:
        entries = os.scandir(f"{root}/{folder}")
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            name = entry.name
            if entry.is_dir():
                for inner, inner_size, time_us in rows_below(root, f"{folder}/{name}"):
                    yield f"{decode_key(name)}/{inner}", inner_size, time_us
                continue
            if "#" in name and _UNFINISHED.search(name):
                continue
            try:
                found = entry.stat()
            except FileNotFoundError:  # deleted while we were looking
                continue
            yield decode_key(name), found.st_size, found.st_mtime_ns // 1000


def names_in(root: str, folder: str) -> list[bytes]:
    """The names in one folder, those of folders included, without a look at the files."""
    try:
        names = os.listdir(os.fsencode(f"{root}/{folder}"))  # noqa: PTH208 - names as bytes
    except (FileNotFoundError, NotADirectoryError):
        return []
    together = b"".join(names)
    if b"#" not in together and b"%" not in together:
        return names
    texts = map(os.fsdecode, names)
    return [os.fsencode(decode_key(text)) for text in texts if not _UNFINISHED.search(text)]
